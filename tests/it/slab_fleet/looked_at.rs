//! Slabs that live long enough to be looked at: the load ends, and what an instance holds can be compared with what the
//! ledger holds, to the unit.

use super::instance::{Instance, Units, admits, pending, start};
use super::{TIMEOUT_MS, end, seconds};
use crate::tigerbeetle::Server;
use crate::wait::until;

/// Slabs live for a second.
const MINUTE: &str = "
domain: d
limits:
- {key: hot, kind: rolling, capacity: 20000, window_seconds: 60}
- {key: exact, kind: rolling, capacity: 200, window_seconds: 60, exact: true}
descriptors:
- {key: hot, limits: [{ref: hot}]}
- {key: exact, limits: [{ref: exact}]}
- key: inflight
  limits:
  - {ref: hot}
  - {name: n, kind: concurrency, capacity: 10, timeout_seconds: 60}
- key: tokens
  limits:
  - {ref: hot}
  - {name: n, kind: rolling, capacity: 10, window_seconds: 60, reconcile: true}
- key: both
  limits:
  - {ref: hot}
  - {ref: exact}
";

/// A request that waited in its socket is the first thing that it sees when it wakes.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_stood_still_hands_out_nothing_old() {
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut admitted = 0;
    let (before, held) = until("an instance that stands still with a slab in its hands", async || {
        admitted += instances[0].until_slab("hot=x", "hot").await;
        let (units, held) = quiet(&instances[0], "hot").await;
        instances[0].stop().await;
        let pending = pending(&server, "hot").await;
        if held > 0 && pending == admitted + held {
            return Ok((units, held));
        }
        instances[0].go_on();
        Err(format!("{held} held, {admitted} admitted, {pending} pending: it ended before that"))
    })
    .await;
    // One is too few for another slab, so whatever it is given is old or the ledger's.
    let client = instances[0].client.clone();
    let waiting = tokio::spawn(async move { admits(&client, "hot=x", None).await });
    seconds(5).await;
    let used = instances[1].used("hot").await;
    assert_eq!(used, admitted + held, "what it holds is held while it stands still");
    instances[0].go_on();
    assert_eq!(waiting.await.expect("it must end"), Ok(true), "there is room for it");
    let after = instances[0].units().await;
    assert_eq!(
        (after.taken, after.handed_out),
        (before.taken, before.handed_out),
        "it came from an old slab"
    );
    instances[1].until_used("hot", admitted + 1).await;
    assert_eq!(pending(&server, "hot").await, admitted + 1);
    let after = instances[0].units().await;
    assert_eq!(after, Units { given_back: before.given_back + held, ..before });
}

/// The units of an instance nobody asks, and what its slabs of its only hot limit still hold.
async fn quiet(instance: &Instance, key: &str) -> (Units, u64) {
    until("a slab that nobody takes from", async || {
        let units = instance.units().await;
        let slab = instance.limit(key).await["slab"].clone();
        let again = instance.units().await;
        let held = slab["held"].as_u64().ok_or("it is over")?;
        let sum = units.handed_out + units.given_back + held;
        // A slab that was just being asked for may have come in between.
        if units == again && units.taken == sum {
            Ok((units, held))
        } else {
            Err(format!("{units:?}, {slab}"))
        }
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn sigterm_gives_back_at_once_what_nobody_spent() {
    let server = Server::start();
    let mut instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut admitted = 0;
    until("more pending than was admitted", async || {
        admitted += instances[0].until_slab("hot=x", "hot").await;
        let (_, held) = quiet(&instances[0], "hot").await;
        let pending = pending(&server, "hot").await;
        let is_held = held > 0 && pending == admitted + held;
        if is_held { Ok(()) } else { Err(format!("{held} held, {admitted} admitted, {pending} pending")) }
    })
    .await;
    let first = instances.remove(0);
    let mut process = first.sluice.process;
    let status = end(&mut process, "TERM").await;
    // No waiting here: it is back when the process is gone.
    assert_eq!(pending(&server, "hot").await, admitted, "after SIGTERM");
    assert_eq!(instances[0].used("hot").await, admitted);
    assert!(status.success(), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_admin_port_shows_slabs() {
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    assert_eq!(instances[0].limit("hot").await.get("slab"), Some(&serde_json::Value::Null));
    let slab = until("a slab", async || {
        instances[0].until_slab("hot=x", "hot").await;
        let slab = instances[0].limit("hot").await["slab"].clone();
        if slab.is_null() { Err("it is over".to_owned()) } else { Ok(slab) }
    })
    .await;
    let number = |field: &str| slab[field].as_u64().unwrap_or_else(|| panic!("{field}: {slab}"));
    assert!(number("ends_in_ms") <= 1_000, "{slab}");
    // Four slabs of a twentieth at the most.
    assert!(number("held") + number("handed_out") <= 20_000 / 20 * 4, "{slab}");
    assert_eq!(slab.as_object().map(serde_json::Map::len), Some(3), "{slab}");
    assert!(instances[1].limit("hot").await["slab"].is_null(), "the other instance has none");
    until("it to end", async || {
        let slab = instances[0].limit("hot").await["slab"].clone();
        if slab.is_null() { Ok(()) } else { Err(slab.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_is_handed_out_held_or_given_back() {
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut admitted = 0;
    for instance in &instances {
        admitted += instance.until_slab("hot=x", "hot").await;
        let (units, held) = quiet(instance, "hot").await;
        assert_eq!(units.taken, units.handed_out + units.given_back + held);
        assert!(units.handed_out > 0, "{units:?}");
    }
    instances[1].until_used("hot", admitted).await;
    instances[0].until_used("hot", admitted).await;
    let mut handed_out = 0;
    for instance in &instances {
        let units = instance.units().await;
        assert_eq!(units.taken, units.handed_out + units.given_back, "nothing is held any more");
        handed_out += units.handed_out;
    }
    assert!(handed_out <= admitted, "{handed_out} of {admitted}");
    assert_eq!(pending(&server, "hot").await, admitted);
}

/// Limits that the ledger decides, together with one that a slab answers.
#[tokio::test(flavor = "multi_thread")]
async fn mixed_requests_take_all_or_nothing() {
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut admitted = 0;
    for (key, at) in [("inflight", 0), ("tokens", 1)] {
        admitted += instances[at].until_slab("hot=x", "hot").await;
        let before = instances[at].units().await.handed_out;
        let mixed = instances[at].count_at_once(&format!("{key}=x"), 40).await;
        assert_eq!(mixed, 10, "{key} is exact");
        let from_slabs = instances[at].units().await.handed_out - before;
        assert!(from_slabs > 0, "{key}: only what must go to the ledger goes there");
        admitted += mixed;
        assert_eq!(instances[1 - at].count(&format!("{key}=x"), 5).await, 0, "{key} is full everywhere");
        assert_eq!(instances[1 - at].used(&format!("d:{key}=x:n")).await, 10);
    }
    for instance in &instances {
        // What was set aside for those who were refused was put back.
        instance.until_used("hot", admitted).await;
    }
    assert_eq!(pending(&server, "hot").await, admitted);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_is_charged_once() {
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut charged = instances[0].until_slab("hot=x", "hot").await;
    for round in 0..3 {
        let id = format!("id-{round}");
        let calls = (0..20).map(|_| {
            let (client, id) = (instances[0].client.clone(), id.clone());
            async move { admits(&client, "hot=x", Some(&id)).await }
        });
        let answers = calls.collect::<tokio::task::JoinSet<_>>().join_all().await;
        assert!(answers.iter().all(|answer| *answer == Ok(true)), "{answers:?}");
        charged += 1;
    }
    instances[0].until_used("hot", charged).await;
    // Long after its slab is gone it is still free.
    assert_eq!(admits(&instances[0].client, "hot=x", Some("id-0")).await, Ok(true));
    instances[0].until_used("hot", charged).await;
    // Of an exact limit the id is free anywhere.
    for instance in [0, 1, 0, 1] {
        assert_eq!(admits(&instances[instance].client, "exact=x", Some("id-e")).await, Ok(true));
    }
    assert_eq!(instances[1].used("exact").await, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exact_limit_never_has_a_slab() {
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut admitted = 0;
    for _ in 0..15 {
        for instance in &instances {
            admitted += instance.count_at_once("exact=x", 10).await;
            assert!(instance.limit("exact").await["slab"].is_null());
        }
    }
    assert_eq!(admitted, 200, "of 300 requests");
    assert_eq!(pending(&server, "exact").await, 200);
    for instance in &instances {
        assert_eq!(instance.units().await.taken, 0);
    }
    // Beside a hot limit it stays so, and what it refuses takes nothing.
    let hot = instances[0].until_slab("hot=x", "hot").await;
    assert_eq!(instances[0].count_at_once("both=x", 20).await, 0);
    instances[0].until_used("hot", hot).await;
    assert_eq!(pending(&server, "exact").await, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lowered_capacity_holds_although_slabs_are_held() {
    const LOWERED: u64 = 3_000;
    let server = Server::start();
    let instances = start(&server, MINUTE, TIMEOUT_MS, 2).await;
    let mut admitted = 0;
    for instance in &instances {
        admitted += instance.until_slab("hot=x", "hot").await;
    }
    for instance in &instances {
        let file = instance.sluice.dir.path().join("config/limits/limits.yaml");
        let text = MINUTE.replace("capacity: 20000", &format!("capacity: {LOWERED}"));
        std::fs::write(file, text).expect("the file must be written");
    }
    // They go on, so that there are slabs whenever the edit goes live. So slowly that it fits.
    until("the lower capacity", async || {
        for instance in &instances {
            admitted += instance.count("hot=x", 5).await;
        }
        for instance in &instances {
            let limit = instance.limit("hot").await;
            if limit["capacity"] != LOWERED {
                return Err(limit.to_string());
            }
        }
        Ok(())
    })
    .await;
    assert!(admitted < LOWERED, "{admitted}: too fast for what is to be seen");
    until("both to be full", async || {
        let mut more = 0;
        for instance in &instances {
            more += instance.count_at_once("hot=x", 100).await;
        }
        admitted += more;
        if more == 0 { Ok(()) } else { Err(format!("{admitted} admitted")) }
    })
    .await;
    println!("{admitted} of {LOWERED} admitted");
    assert!(admitted <= LOWERED, "{admitted} of {LOWERED}");
    assert!(admitted >= LOWERED * 9 / 10, "{admitted} of {LOWERED}");
    for instance in &instances {
        instance.until_used("hot", admitted).await;
    }
    assert_eq!(pending(&server, "hot").await, admitted);
}
