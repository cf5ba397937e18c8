//! One line for the fleet: places are kept at hubs, and any sidecar can ask for them, leave them and pick them up.

mod leaving;
mod hub_gone;
mod messages;

use std::time::Duration;

use serde_json::{Value, json};
use sluice::api::pb::lease as lease_pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use sluice::config::settings::value::LedgerUri;

use crate::http;
use crate::hub::{hub_on, ready, sidecar};
use crate::queue::{ask, complete, look, queue, until_state};
use crate::queue_rows::LIMITS;
use crate::testapp::TestApp;
use crate::wait::until;

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
    let times = "retry_policy: {queue: {pickup_seconds: 3, deadline_seconds: 10, places_per_key_max: 1}}";
    let (_hub, a, b) = fleet("retry_policy: {queue: {places_per_key_max: 2}}", times).await;
    let held = queue(&a, &ask("held", 1)).await.json();
    let first = queue(&a, &ask("held", 1)).await.json();
    let second = queue(&b, &ask("held", 1)).await.json();
    let full = queue(&b, &ask("held", 1)).await;
    assert_eq!((full.status, &full.json()["limit"]), (429, &json!("d:row=1:held")), "{full:?}");
    complete(&a, &held).await;
    // Nobody comes for the first, and the second gets what it left.
    until_state(&a, &second, "reserved").await;
    assert_eq!(look(&b, &first).await["state"], "timed_out");
    let third = queue(&a, &ask("held", 1)).await.json();
    let over = until_state(&b, &third, "timed_out").await;
    assert!(over["detail"].as_str().unwrap().contains("deadline_seconds"), "{over}");
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
