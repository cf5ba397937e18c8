//! One line for the fleet: places are kept at hubs, and any sidecar can ask for them, leave them and pick them up.

use std::time::Duration;

use prost::Message;
use serde_json::{Value, json};
use sluice::api::pb::lease as lease_pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::pb;
use sluice::ledger::hub::pb::answer::What as Answer;
use sluice::ledger::hub::pb::ask::What as Ask;
use tokio::io::AsyncWriteExt;

use crate::http;
use crate::hub::{hub_on, ready, sidecar};
use crate::hub_hostile::{Raw, failure};
use crate::queue::{ask, complete, look, queue, until_state};
use crate::queue_rows::LIMITS;
use crate::sluice::{Sluice, directory, serve};
use crate::testapp::TestApp;
use crate::wait::until;
use crate::wire::send_and_reset;

const QUEUE_RESERVE: &str = "/sluice.v1.LeaseService/QueueReserve";

/// A hub in memory and two sidecars of it.
async fn fleet(hub_policy: &str, policy: &str) -> (TestApp, TestApp, TestApp) {
    let hub = hub_on(LedgerUri::Memory).and_file("retry_policy.yaml", hub_policy).start().await;
    let a = sidecar(LIMITS, &[&hub]).and_file("retry_policy.yaml", policy).start().await;
    let b = sidecar(LIMITS, &[&hub]).and_file("retry_policy.yaml", policy).start().await;
    ready(&a).await;
    ready(&b).await;
    (hub, a, b)
}

async fn two() -> (TestApp, TestApp, TestApp) {
    fleet("retry_policy: {}", "retry_policy: {queue: {pickup_seconds: 60}}").await
}

async fn metric(app: &TestApp, start: &str) -> f64 {
    let metrics = app.get("/metrics").await.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no {start} in\n{metrics}")).trim().parse().unwrap()
}

async fn depth(hub: &TestApp, expected: f64) {
    until("the line", async || match metric(hub, "sluice_queue_depth").await {
        depth if depth == expected => Ok(()),
        depth => Err(format!("{depth} wait")),
    })
    .await;
}

async fn delete(app: &TestApp, lease: &Value) -> http::Answer {
    app.send("DELETE", &format!("/v1/leases/{}", lease["lease_id"].as_str().unwrap()), "").await
}

#[tokio::test(flavor = "multi_thread")]
async fn places_taken_at_several_sidecars_are_one_line() {
    let (hub, a, b) = two().await;
    let held = queue(&a, &ask("held", 1)).await.json();
    assert_eq!(held["state"], "reserved", "{held}");
    let mut line = Vec::new();
    for n in 0..6 {
        let said = queue(if n % 2 == 0 { &b } else { &a }, &ask("held", 1)).await;
        assert_eq!((said.status, &said.json()["position"]), (202, &json!(n)), "{said:?}");
        line.push(said.json());
    }
    assert_eq!(metric(&hub, "sluice_queue_depth").await, 6.0);
    assert_eq!(metric(&a, "sluice_queue_depth").await, 0.0, "sidecars keep nothing");
    // Left and asked for where it was not taken.
    let left = delete(&b, &line[1]).await;
    assert_eq!((left.status, &left.json()["state"]), (200, &json!("cancelled")), "{left:?}");
    assert_eq!(look(&a, &line[1]).await["state"], "cancelled");
    assert_eq!(look(&b, &line[3]).await["position"], 2);
    line.remove(1);
    let mut holder = held;
    for (n, next) in line.iter().enumerate() {
        // Completed at one, picked up at the other.
        let (here, there) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        complete(here, &holder).await;
        holder = until_state(there, next, "reserved").await;
        assert!(holder["lease_token"].is_string(), "{holder}");
        assert_eq!(delete(here, next).await.status, 409, "what is held is not left");
        assert_eq!(a.used("d:row=1:held").await, 1);
    }
    complete(&a, &holder).await;
    assert_eq!(look(&b, &line[4]).await["state"], "completed");
    assert_eq!(a.used("d:row=1:held").await, 0);
    assert_eq!(metric(&hub, "sluice_queue_jobs_total{event=\"reserved\"}").await, 5.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_place_is_watched_and_completed_by_its_id_at_another_sidecar() {
    let (_hub, a, b) = two().await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let waits = queue(&a, &ask("held", 1)).await.json();
    let mut client = LeaseServiceClient::new(b.channel.clone());
    let watched = lease_pb::WatchLeaseRequest { lease_id: waits["lease_id"].as_str().unwrap().to_owned() };
    let mut states = client.watch_lease(watched).await.unwrap().into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().state, "queued");
    complete(&b, &held).await;
    let reserved = loop {
        let status = states.message().await.unwrap().expect("it must be served");
        if status.state != "processing" {
            break status;
        }
    };
    assert_eq!((&*reserved.state, reserved.lease_token.is_empty()), ("reserved", false));
    let by_id = json!({"lease_id": waits["lease_id"]});
    assert_eq!(a.post("/v1/complete", &by_id.to_string()).await.json()["ok"], true);
    assert_eq!(states.message().await.unwrap().unwrap().state, "completed");
    assert_eq!(a.used("d:row=1:held").await, 0);
    // Completing before its turn is leaving, wherever.
    queue(&a, &ask("held", 1)).await;
    let waits = queue(&a, &ask("held", 1)).await.json();
    let by_id = json!({"lease_id": waits["lease_id"]});
    assert_eq!(b.post("/v1/complete", &by_id.to_string()).await.json()["ok"], true);
    assert_eq!(look(&a, &waits).await["state"], "cancelled");
    // One whose limits keep all of it is completed, too.
    let all = queue(&a, &ask("tokens", 100)).await.json();
    let waits = queue(&b, &ask("tokens", 10)).await.json();
    let used = json!({"lease_token": all["lease_token"], "actuals": [{"key": "d:row=1:tokens", "actual_amount": 50}]});
    a.post("/v1/complete", &used.to_string()).await;
    complete(&b, &until_state(&b, &waits, "reserved").await).await;
    assert_eq!(look(&a, &waits).await["state"], "completed");
    let nobody = a.get("/v1/leases/nobody").await;
    assert_eq!((nobody.status, &nobody.json()["error"]), (404, &json!("unknown_lease")));
    assert_eq!(delete(&a, &json!({"lease_id": "nobody"})).await.status, 404);
    assert_eq!(delete(&a, &json!({"lease_id": "x".repeat(500)})).await.status, 404);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_one_place_wherever_it_is_asked_for() {
    let (hub, a, b) = two().await;
    let named = |name: &str, amount: u64| {
        let mut body = ask("tokens", amount);
        body["lease_id"] = json!(name);
        body
    };
    for app in [&a, &b, &a] {
        let said = queue(app, &named("all", 100)).await;
        assert_eq!((said.status, &said.json()["lease_id"]), (200, &json!("all")), "{said:?}");
    }
    assert_eq!(a.used("d:row=1:tokens").await, 100);
    for app in [&a, &b] {
        let said = queue(app, &named("more", 10)).await;
        assert_eq!((said.status, &said.json()["position"]), (202, &json!(0)), "{said:?}");
    }
    depth(&hub, 1.0).await;
    let other = queue(&b, &named("more", 11)).await;
    assert_eq!((other.status, &other.json()["error"]), (409, &json!("lease_id_used")));
}

/// The part of the line is kept from those who don't queue, whichever sidecar they come to.
#[tokio::test(flavor = "multi_thread")]
async fn newcomers_at_any_sidecar_leave_the_line_its_part() {
    let (_hub, a, b) = fleet("retry_policy: {queue: {reserved_share: 1}}", "retry_policy: {}").await;
    let held = queue(&a, &ask("pair", 1)).await.json();
    let waits = queue(&a, &ask("pair", 2)).await.json();
    assert_eq!(waits["position"], 0);
    let mut newcomer = ask("pair", 1);
    newcomer["queue"] = json!(false);
    let said = queue(&b, &newcomer).await.json();
    assert_eq!((&said["allowed"], &said["limit"]), (&json!(false), &json!("d:row=1:pair")), "{said}");
    b.answers(&["row=1 -> OVER d:row=1:pair; over 0/2 unknown pair"]).await;
    // One that queues gets in line behind it, though it would fit.
    assert_eq!(queue(&b, &ask("pair", 1)).await.json()["position"], 1);
    complete(&b, &held).await;
    until_state(&b, &waits, "reserved").await;
}

/// Without a share nothing is kept.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_kept_for_the_line_is_the_hubs_to_say() {
    let (_hub, a, b) = fleet("retry_policy: {queue: {reserved_share: 0}}", "retry_policy: {}").await;
    queue(&a, &ask("pair", 1)).await;
    queue(&a, &ask("pair", 2)).await;
    let mut newcomer = ask("pair", 1);
    newcomer["queue"] = json!(false);
    assert_eq!(queue(&b, &newcomer).await.json()["allowed"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_the_sidecars_and_bounds_are_the_hubs() {
    let times = "retry_policy: {queue: {pickup_seconds: 1, deadline_seconds: 3, places_per_key_max: 1}}";
    let (_hub, a, b) = fleet("retry_policy: {queue: {places_per_key_max: 2}}", times).await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let first = queue(&a, &ask("held", 1)).await.json();
    let second = queue(&b, &ask("held", 1)).await.json();
    let full = queue(&b, &ask("held", 1)).await;
    assert_eq!((full.status, &full.json()["limit"]), (429, &json!("d:row=1:held")), "{full:?}");
    complete(&a, &held).await;
    // Nobody comes for the first; the second waits too long, or gets what the first left.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(look(&b, &first).await["state"], "timed_out");
    until_state(&a, &second, "reserved").await;
    let third = queue(&a, &ask("held", 1)).await.json();
    let over = until_state(&b, &third, "timed_out").await;
    assert!(over["detail"].as_str().unwrap().contains("deadline_seconds"), "{over}");
}

/// Whoever leaves before it has heard of its place has none, and whoever was served then holds nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_hangs_up_leaves_nothing() {
    let (hub, a, b) = two().await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let request = lease_pb::ReserveRequest {
        requirements: vec![lease_pb::Requirement { key: "d:row=1:held".to_owned(), amount: 1 }],
        ..Default::default()
    };
    // The last one is answered.
    send_and_reset(b.grpc(), QUEUE_RESERVE, &[], 50, &request.encode_to_vec()).await;
    depth(&hub, 1.0).await;
    let mut body = ask("held", 1);
    body["lease_id"] = json!("mine");
    for _ in 0..20 {
        let micros = fastrand::u64(0..5000);
        drop(tokio::time::timeout(Duration::from_micros(micros), queue(&a, &body)).await);
    }
    let said = queue(&b, &body).await;
    assert_eq!((said.status, &said.json()["position"]), (202, &json!(1)), "{said:?}");
    // Those who hung up are forgotten without taking that place with them.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(look(&a, &json!({"lease_id": "mine"})).await["position"], 1);
    complete(&a, &held).await;
    // And when there is room for all of them, what they got comes back.
    let request = lease_pb::ReserveRequest {
        requirements: vec![lease_pb::Requirement { key: "d:row=2:tokens".to_owned(), amount: 1 }],
        ..Default::default()
    };
    send_and_reset(b.grpc(), QUEUE_RESERVE, &[], 50, &request.encode_to_vec()).await;
    until("what they got to come back", async || match a.used("d:row=2:tokens").await {
        1 => Ok(()),
        used => Err(format!("{used} are used")),
    })
    .await;
}

/// Watchers whose connection is lost may miss that they were served: what they got goes to the next.
#[tokio::test(flavor = "multi_thread")]
async fn who_looks_away_when_it_is_served_may_come_back_for_it() {
    let (_hub, a, b) = two().await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let waits = queue(&a, &ask("held", 1)).await.json();
    complete(&a, &held).await;
    let path = format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap());
    // Those who only look pick nothing up.
    for _ in 0..3 {
        b.send("HEAD", &path, "").await;
    }
    let served = until_state(&b, &waits, "reserved").await;
    complete(&b, &served).await;
    assert_eq!(a.used("d:row=1:held").await, 0);
}

/// An answer that picked something up and was never sent gives it back, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_never_sent_gives_back_what_it_picked_up() {
    let (_hub, a, b) = two().await;
    let mut given_back = 0;
    for n in 0..30 {
        let key = format!("d:row=n{n}:held");
        let body = json!({"queue": true, "requirements": [{"key": key, "amount": 1}]});
        let held = queue(&a, &body).await.json();
        let waits = queue(&a, &body).await.json();
        complete(&a, &held).await;
        let path = format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap());
        until("its turn", async || match b.send("HEAD", &path, "").await.status {
            200 => Ok(()),
            status => Err(status.to_string()),
        })
        .await;
        let mut stream = tokio::net::TcpStream::connect(b.app.admin).await.unwrap();
        let get = format!("GET {path} HTTP/1.1\r\nhost: {}\r\n\r\n", b.app.admin);
        stream.write_all(get.as_bytes()).await.unwrap();
        // Some before it was asked for, some while the hub answers.
        tokio::time::sleep(Duration::from_micros(fastrand::u64(0..2_000))).await;
        drop(stream);
        b.get("/livez").await;
        tokio::time::sleep(Duration::from_millis(30)).await;
        let said = look(&a, &waits).await;
        match said["state"].as_str().unwrap() {
            "timed_out" => given_back += 1,
            _ => complete(&a, &said).await,
        }
        until("nothing to be held", async || match a.used(&key).await {
            0 => Ok(()),
            used => Err(format!("{used} after {said}")),
        })
        .await;
    }
    assert!(given_back > 0, "some were picked up before it was seen that nobody reads the answer");
}

/// Completions are the sidecars' to see, and estimates the hub's to make.
#[tokio::test(flavor = "multi_thread")]
async fn estimates_come_from_how_long_the_sidecars_saw_it_held() {
    let (_hub, a, _b) = fleet("retry_policy: {queue: {safety_margin: 0}}", "retry_policy: {}").await;
    let held = queue(&a, &ask("held", 1)).await.json();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    complete(&a, &held).await;
    queue(&a, &ask("held", 1)).await;
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(queue(&a, &ask("held", 1)).await.json()["eta_seconds"].as_u64().unwrap());
    }
    // At least 1.5 s for each; a busy machine may have held it longer.
    assert!(told[0] >= 2 && told[1] > told[0] && told[2] > told[1], "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_grows_serves_those_who_wait_for_it() {
    let (_hub, a, b) = two().await;
    let limit = |capacity: u64| {
        json!({"key": "batch", "kind": "concurrency", "capacity": capacity, "timeout_seconds": 600})
            .to_string()
    };
    for app in [&a, &b] {
        assert_eq!(app.send("PUT", "/v1/limits", &limit(1)).await.status, 200);
    }
    let body = json!({"queue": true, "requirements": [{"key": "batch", "amount": 1}]});
    queue(&a, &body).await;
    let waits = queue(&b, &body).await.json();
    assert_eq!(waits["position"], 0, "{waits}");
    assert_eq!(a.send("PUT", "/v1/limits", &limit(2)).await.status, 200);
    until_state(&a, &waits, "reserved").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_stops_takes_its_line_with_it_and_says_so() {
    let hubs = [hub_on(LedgerUri::Memory).start().await, hub_on(LedgerUri::Memory).start().await];
    let a = sidecar(LIMITS, &[&hubs[0], &hubs[1]]).start().await;
    ready(&a).await;
    until("both hubs", async || {
        let peers = a.get("/readyz").await;
        let there: f64 =
            metric(&hubs[0], "sluice_hub_streams").await + metric(&hubs[1], "sluice_hub_streams").await;
        if there == 2.0 { Ok(()) } else { Err(format!("{there} {peers:?}")) }
    })
    .await;
    let [first, second] = hubs;
    queue(&a, &ask("held", 1)).await;
    let waits = queue(&a, &ask("held", 1)).await.json();
    let is_at_first = metric(&first, "sluice_queue_depth").await == 1.0;
    let (home, other) = if is_at_first { (first, second) } else { (second, first) };
    home.stop().await;
    let gone = a.get(&format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap())).await;
    assert_eq!((gone.status, &gone.json()["error"]), (404, &json!("unknown_lease")), "{gone:?}");
    assert!(gone.json()["detail"].as_str().unwrap().contains("ask again"), "{gone:?}");
    // In memory the other hub has a ledger of its own, which is empty.
    assert_eq!(queue(&a, &ask("held", 1)).await.status, 200);
    assert_eq!(queue(&a, &ask("held", 1)).await.json()["position"], 0);
    depth(&other, 1.0).await;
    other.stop().await;
    until("an error", async || {
        let said = queue(&a, &ask("held", 1)).await;
        let is_so =
            said.status == 503 && said.json()["detail"].as_str().unwrap().contains("no hub can be used");
        if is_so { Ok(()) } else { Err(format!("{said:?}")) }
    })
    .await;
    assert_eq!(a.get("/v1/leases/nobody").await.status, 503);
}

/// Real processes: the hub that keeps the line is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_killed_loses_its_line_and_the_next_one_begins_another() {
    let mut hubs = Vec::new();
    for _ in 0..2 {
        let dir = directory(&[]);
        let ports = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--hub", "127.0.0.1:0"];
        let command = serve(dir.path(), &ports);
        let mut hub = Sluice::start(dir, command).await;
        let address = hub.process.line("hub listening on ").await;
        hubs.push((hub, address));
    }
    let addresses: Vec<String> = hubs.iter().map(|(_, address)| address.clone()).collect();
    let a = TestApp::with_limits(LIMITS)
        .and_settings(move |settings| settings.ledger.uri = LedgerUri::Hub { addresses })
        .start()
        .await;
    ready(&a).await;
    let depth = async |hub: &Sluice| {
        let body = http::get(hub.admin, "/metrics").await.body;
        body.lines().any(|line| line == "sluice_queue_depth 1")
    };
    until("both hubs", async || {
        let mut there = 0;
        for (hub, _) in &hubs {
            let metrics = http::get(hub.admin, "/metrics").await.body;
            there += usize::from(metrics.contains("sluice_hub_streams 1"));
        }
        if there == 2 { Ok(()) } else { Err(format!("{there}")) }
    })
    .await;
    queue(&a, &ask("held", 1)).await;
    let mut body = ask("held", 1);
    body["lease_id"] = json!("mine");
    assert_eq!(queue(&a, &body).await.status, 202);
    let at = if depth(&hubs[0].0).await { 0 } else { 1 };
    assert!(depth(&hubs[at].0).await);
    hubs[at].0.process.signal("KILL");
    until("its end", async || match a.get("/v1/leases/mine").await {
        gone if gone.status == 404 => Ok(()),
        said => Err(format!("{said:?}")),
    })
    .await;
    // The other hub's ledger is empty, so that somebody has to be there first.
    assert_eq!(queue(&a, &ask("held", 1)).await.status, 200);
    let again = queue(&a, &body).await;
    assert_eq!((again.status, &again.json()["position"]), (202, &json!(0)), "{again:?}");
    assert!(depth(&hubs[1 - at].0).await);
}

fn join() -> pb::JoinLine {
    let need = pb::Need {
        key: "k".to_owned(),
        amount: 1,
        capacity: 1,
        kind: pb::LimitKind::Concurrency.into(),
        lifetime_seconds: 60,
        ..Default::default()
    };
    pb::JoinLine {
        lease: "a".to_owned(),
        needs: vec![need],
        deadline_seconds: 60,
        pickup_seconds: 60,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_hub_takes_no_job_that_can_not_be() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let mut raw = Raw::greeted(&hub).await;
    let rows: [(fn(&mut pb::JoinLine), &str); 14] = [
        (|it| it.lease.clear(), "join.lease: must have 1 to 128 bytes, and has 0"),
        (|it| it.lease = "x".repeat(129), "join.lease: must have 1 to 128 bytes, and has 129"),
        (|it| it.job_id = "x".repeat(257), "join.job_id: must have at most 256 bytes"),
        (|it| it.needs.clear(), "join.needs: there must be 1 to 32, not 0"),
        (|it| it.needs = vec![it.needs[0].clone(); 33], "join.needs: there must be 1 to 32, not 33"),
        (|it| it.needs = vec![it.needs[0].clone(); 2], "join.needs[1].key: is there twice"),
        (|it| it.needs[0].amount = 0, "join.needs[0].amount: must be at least 1"),
        (|it| it.needs[0].key = "x".repeat(4097), "join.needs[0].key: must have 1 to 4096 bytes"),
        (|it| it.needs[0].kind = 9, "join.needs[0].kind: 9 is none that is known here"),
        (|it| it.needs[0].overage = 9, "join.needs[0].overage: 9 is none"),
        (|it| it.needs[0].lifetime_seconds = 0, "join.needs[0].lifetime_seconds: must be at least 1"),
        (|it| it.deadline_seconds = 0, "join.deadline_seconds: must be 1 to 86400, and is 0"),
        (|it| it.pickup_seconds = u64::MAX, "join.pickup_seconds: must be 1 to 86400"),
        (|it| it.pickup_seconds = 0, "join.pickup_seconds: must be 1 to 86400, and is 0"),
    ];
    for (number, (change, expected)) in rows.into_iter().enumerate() {
        let mut bad = join();
        change(&mut bad);
        let (code, text) = failure(raw.ask(number as u64, Some(Ask::Join(bad))).await);
        assert!(code == pb::FailureCode::Invalid && text.contains(expected), "{expected}: {code:?} {text}");
    }
    let leave = pb::LeaveLine { lease: "a".to_owned(), reason: 9 };
    let (_, text) = failure(raw.ask(100, Some(Ask::Leave(leave))).await);
    assert!(text.contains("leave.reason: 9 is none"), "{text}");
    let find = pb::FindPlace { lease: "x".repeat(129), pick_up: true };
    assert!(failure(raw.ask(101, Some(Ask::Find(find))).await).1.contains("1 to 128 bytes"));
    let result = |answer: Answer| match answer {
        Answer::Line(line) => line.result(),
        other => panic!("{other:?}"),
    };
    // What never fits is told by the sidecar; a hub that is asked all the same fails it.
    let mut never = join();
    never.lease = "never".to_owned();
    never.needs[0].amount = u64::MAX;
    match raw.ask(102, Some(Ask::Join(never))).await {
        Answer::Line(line) => assert_eq!(line.place.unwrap().state(), pb::PlaceState::FailedNeverFits),
        other => panic!("{other:?}"),
    }
    assert_eq!(result(raw.ask(103, Some(Ask::Join(join()))).await), pb::LineResult::AtOnce);
    let mut waits = join();
    waits.lease = "b".to_owned();
    assert_eq!(result(raw.ask(104, Some(Ask::Join(waits.clone()))).await), pb::LineResult::Place);
    waits.needs[0].amount = 2;
    assert_eq!(result(raw.ask(105, Some(Ask::Join(waits))).await), pb::LineResult::NameUsed);
    for (reason, lease) in [(pb::LeaveReason::Left, "nobody"), (pb::LeaveReason::Unheard, "nobody")] {
        let leave = pb::LeaveLine { lease: lease.to_owned(), reason: reason.into() };
        assert_eq!(result(raw.ask(106, Some(Ask::Leave(leave))).await), pb::LineResult::Unknown);
    }
}

/// A second caller of the same name keeps the place that the first one never heard of; an answer that can't be sent leaves none.
#[tokio::test]
async fn a_place_that_nobody_has_heard_of_is_forgotten() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let mut raw = Raw::greeted(&hub).await;
    raw.ask(1, Some(Ask::Join(join()))).await;
    let waits = pb::JoinLine { lease: "b".to_owned(), ..join() };
    for number in 2..4 {
        raw.ask(number, Some(Ask::Join(waits.clone()))).await;
    }
    let unheard = pb::LeaveLine { lease: "b".to_owned(), reason: pb::LeaveReason::Unheard.into() };
    for (number, left) in [(4, 1.0), (5, 0.0), (6, 0.0)] {
        raw.ask(number, Some(Ask::Leave(unheard.clone()))).await;
        assert_eq!(metric(&hub, "sluice_queue_depth").await, left);
    }
    let mut other = Raw::greeted(&hub).await;
    other.ask(1, Some(Ask::Join(waits.clone()))).await;
    // Its stream is gone before its answer can be.
    let asks =
        vec![pb::Ask { number: 2, what: Some(Ask::Join(pb::JoinLine { lease: "c".to_owned(), ..join() })) }];
    other.say(pb::SidecarMessage { asks, ..Default::default() }).await;
    drop(other);
    until("one to be left", async || match metric(&hub, "sluice_queue_depth").await {
        1.0 => Ok(()),
        depth => Err(format!("{depth}")),
    })
    .await;
}

#[cfg(feature = "tigerbeetle")]
mod on_tigerbeetle {
    use super::*;
    use crate::tigerbeetle::Server;

    /// Two hubs and two sidecars, each of which lists the hubs in another order: every limit has one line.
    #[tokio::test(flavor = "multi_thread")]
    async fn every_limit_has_one_line_whichever_sidecar_is_asked() {
        let server = Server::start();
        let mut hubs = Vec::new();
        for _ in 0..2 {
            let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
            hubs.push(hub_on(uri).start().await);
            ready(hubs.last().unwrap()).await;
        }
        let a = sidecar(LIMITS, &[&hubs[0], &hubs[1]]).start().await;
        let b = sidecar(LIMITS, &[&hubs[1], &hubs[0]]).start().await;
        for app in [&a, &b] {
            ready(app).await;
        }
        for hub in &hubs {
            until("both sidecars", async || match metric(hub, "sluice_hub_streams").await {
                2.0 => Ok(()),
                streams => Err(format!("{streams} streams")),
            })
            .await;
        }
        let rows = 8;
        let ask = |row: u64| json!({"queue": true, "requirements": [{"key": format!("d:row=tb{row}:held"), "amount": 1}]});
        let mut lines = Vec::new();
        for row in 0..rows {
            let held = queue(&a, &ask(row)).await.json();
            assert_eq!(held["state"], "reserved", "{held}");
            let mut line = vec![held];
            for n in 0..4 {
                let said = queue(if n % 2 == 0 { &b } else { &a }, &ask(row)).await.json();
                assert_eq!(said["position"], n, "{said}");
                line.push(said);
            }
            lines.push(line);
        }
        let depths =
            [metric(&hubs[0], "sluice_queue_depth").await, metric(&hubs[1], "sluice_queue_depth").await];
        assert_eq!(depths[0] + depths[1], 32.0, "{depths:?}");
        assert!(depths.iter().all(|depth| depth % 4.0 == 0.0), "a line is at one hub: {depths:?}");
        let serve = async |line: &Vec<Value>| {
            let mut holder = line[0].clone();
            for (n, next) in line[1..].iter().enumerate() {
                let (here, there) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
                complete(here, &holder).await;
                holder = until_state(there, next, "reserved").await;
                for later in line.iter().skip(n + 2) {
                    assert_eq!(look(here, later).await["status"], "queued", "{later} overtook {next}");
                }
            }
            complete(&a, &holder).await;
        };
        futures_util::future::join_all(lines.iter().map(serve)).await;
        for row in 0..rows {
            assert_eq!(a.used(&format!("d:row=tb{row}:held")).await, 0);
        }
    }
}
