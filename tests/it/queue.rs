//! The queue through both ports: states as they come, names, bounds, settings, restarts.

use std::time::Duration;

use serde_json::{Value, json};
use sluice::api::pb::lease as pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use tonic::Code;

use crate::http::Answer;
use crate::queue_rows::{LIMITS, POLICY, run_all};
use crate::testapp::{Builder, TestApp};
use crate::wait::until;

fn builder(policy: &str) -> Builder {
    TestApp::with_limits(LIMITS).and_file("retry_policy.yaml", policy)
}

pub fn ask(limit: &str, amount: u64) -> Value {
    json!({"queue": true, "requirements": [{"key": format!("d:row=1:{limit}"), "amount": amount}]})
}

pub async fn queue(app: &TestApp, body: &Value) -> Answer {
    app.post("/v1/reserve", &body.to_string()).await
}

pub async fn complete(app: &TestApp, lease: &Value) {
    let body = json!({"lease_token": lease["lease_token"]});
    assert_eq!(app.post("/v1/complete", &body.to_string()).await.json()["ok"], true);
}

pub async fn look(app: &TestApp, lease: &Value) -> Value {
    app.get(&format!("/v1/leases/{}", lease["lease_id"].as_str().unwrap())).await.json()
}

pub async fn until_state(app: &TestApp, lease: &Value, state: &str) -> Value {
    until(state, async || match look(app, lease).await {
        said if said["state"] == state => Ok(said),
        said => Err(said.to_string()),
    })
    .await
}

async fn metric(app: &TestApp, start: &str) -> f64 {
    let metrics = app.get("/metrics").await.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(start));
    line.unwrap_or_else(|| panic!("no {start} in\n{metrics}")).trim().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn rows() {
    let app = builder(POLICY).start().await;
    run_all(&app).await;
}

#[tokio::test]
async fn a_watcher_hears_every_state_and_need_not_poll() {
    let app = builder(POLICY).start().await;
    let first = queue(&app, &ask("held", 1)).await.json();
    let mut client = LeaseServiceClient::new(app.channel.clone());
    let request: pb::ReserveRequest =
        serde_json::from_value(json!({"requirements": ask("held", 1)["requirements"]})).unwrap();
    let status = client.queue_reserve(request).await.unwrap().into_inner();
    assert_eq!((status.allowed, &*status.state, status.position), (false, "queued", Some(0)));
    let watched = pb::WatchLeaseRequest { lease_id: status.lease_id.clone() };
    let mut states = client.watch_lease(watched).await.unwrap().into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().state, "queued");
    complete(&app, &first).await;
    let reserved = loop {
        let status = states.message().await.unwrap().expect("it must be served");
        if status.state != "processing" {
            break status;
        }
    };
    assert_eq!((&*reserved.state, reserved.allowed), ("reserved", true));
    complete(&app, &json!({"lease_token": reserved.lease_token})).await;
    assert_eq!(states.message().await.unwrap().unwrap().state, "completed");
    assert!(states.message().await.unwrap().is_none(), "nothing follows");
    let nobody = client.watch_lease(pb::WatchLeaseRequest { lease_id: "nobody".to_owned() }).await;
    let status = nobody.unwrap_err();
    assert_eq!(status.code(), Code::NotFound);
    assert!(status.message().starts_with("unknown_lease"), "{status}");
}

#[tokio::test]
async fn leaving_over_grpc() {
    let app = builder(POLICY).start().await;
    let held = queue(&app, &ask("held", 1)).await.json();
    let waits = queue(&app, &ask("held", 1)).await.json();
    let mut client = LeaseServiceClient::new(app.channel.clone());
    let mut leave = async |id: &Value| {
        let lease_id = id.as_str().unwrap().to_owned();
        client.leave_queue(pb::LeaveQueueRequest { lease_id }).await.map(|answer| answer.into_inner().state)
    };
    assert_eq!(leave(&waits["lease_id"]).await.unwrap(), "cancelled");
    assert_eq!(leave(&held["lease_id"]).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(leave(&json!("nobody")).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(app.send("DELETE", "/v1/leases/nobody", "").await.json()["error"], "unknown_lease");
}

#[tokio::test]
async fn a_name_is_one_place_and_charged_once() {
    let app = builder(POLICY).start().await;
    let named = |name: &str, amount| {
        let mut body = ask("tokens", amount);
        body["lease_id"] = json!(name);
        body
    };
    for _ in 0..2 {
        let said = queue(&app, &named("all", 100)).await;
        assert_eq!((said.status, &said.json()["lease_id"]), (200, &json!("all")));
    }
    assert_eq!(app.used("d:row=1:tokens").await, 100);
    for _ in 0..2 {
        let said = queue(&app, &named("more", 10)).await;
        assert_eq!((said.status, &said.json()["position"]), (202, &json!(0)), "{said:?}");
    }
    assert_eq!(metric(&app, "sluice_queue_depth").await, 1.0);
    let other = queue(&app, &named("more", 11)).await;
    assert_eq!((other.status, &other.json()["error"]), (409, &json!("lease_id_used")));
    // Served under the name, completed by the name, and that only once.
    app.post(
        "/v1/complete",
        &json!({"lease_id": "all", "actuals": [{"key": "d:row=1:tokens", "actual_amount": 50}]}).to_string(),
    )
    .await;
    let served = until_state(&app, &json!({"lease_id": "more"}), "reserved").await;
    assert_eq!(served["lease_id"], "more");
    assert_eq!(app.used("d:row=1:tokens").await, 60);
    for actual in [4, 9] {
        let actuals = json!([{"key": "d:row=1:tokens", "actual_amount": actual}]);
        let said =
            app.post("/v1/complete", &json!({"lease_id": "more", "actuals": actuals}).to_string()).await;
        assert_eq!(said.json()["ok"], true);
    }
    assert_eq!(app.used("d:row=1:tokens").await, 54);
    assert_eq!(look(&app, &json!({"lease_id": "more"})).await["state"], "completed");
}

#[tokio::test]
async fn who_hangs_up_before_it_heard_has_no_place_and_may_come_back() {
    let app = builder(POLICY).start().await;
    queue(&app, &ask("held", 1)).await;
    let mut body = ask("held", 1);
    body["lease_id"] = json!("mine");
    for _ in 0..20 {
        // Somewhere on the way: before the call, while it waits, or just when it is answered.
        let micros = fastrand::u64(0..3000);
        drop(tokio::time::timeout(Duration::from_micros(micros), queue(&app, &body)).await);
    }
    let said = queue(&app, &body).await;
    assert_eq!((said.status, &said.json()["position"]), (202, &json!(0)), "{said:?}");
    assert_eq!(metric(&app, "sluice_queue_depth").await, 1.0);
}

#[tokio::test]
async fn completing_before_its_turn_is_leaving() {
    let app = builder(POLICY).start().await;
    queue(&app, &ask("held", 1)).await;
    let waits = queue(&app, &ask("held", 1)).await.json();
    let body = json!({"lease_id": waits["lease_id"]});
    assert_eq!(app.post("/v1/complete", &body.to_string()).await.json()["ok"], true);
    assert_eq!(look(&app, &waits).await["state"], "cancelled");
}

/// Holds of a named limit are seen as well: it has an account of its own.
#[tokio::test]
async fn promises_come_from_how_long_others_held_it() {
    let app = builder("retry_policy: {queue: {safety_margin: 0}}").start().await;
    let limit = json!({"key": "batch", "kind": "concurrency", "capacity": 1, "timeout_seconds": 600});
    app.send("PUT", "/v1/limits", &limit.to_string()).await;
    let body = json!({"queue": true, "requirements": [{"key": "batch", "amount": 1}]});
    let held = queue(&app, &body).await.json();
    tokio::time::sleep(Duration::from_millis(1500)).await;
    complete(&app, &held).await;
    queue(&app, &body).await;
    let mut promised = Vec::new();
    for _ in 0..3 {
        promised.push(queue(&app, &body).await.json()["eta_seconds"].as_u64().unwrap());
    }
    // At least 1.5 s for each: 1.5, 3 and 4.5 s and a little more; a busy machine may have held it longer.
    let second = promised[0].max(2);
    assert!(promised[0] >= 2 && promised[1] > second && promised[2] > promised[1], "{promised:?}");
}

#[tokio::test]
async fn those_who_only_ask_for_headers_pick_nothing_up() {
    let app = builder(POLICY).start().await;
    let held = queue(&app, &ask("held", 1)).await.json();
    let waits = queue(&app, &ask("held", 1)).await.json();
    complete(&app, &held).await;
    let path = format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap());
    let over =
        until("the end of it", async || match app.send("HEAD", &path, "").await.header("retry-after") {
            "0" => Ok(()),
            other => Err(other.to_owned()),
        });
    over.await;
    assert_eq!(look(&app, &waits).await["state"], "timed_out");
    let unread = app.get("/v1/leases/%FF").await;
    assert_eq!((unread.status, &unread.json()["error"]), (400, &json!("invalid_request")));
}

/// Whoever fits need not wait for anybody: not even for its turn.
pub async fn a_burst_that_fits(app: &TestApp) {
    let body = ask("wide", 1);
    let answers = futures_util::future::join_all((0..300).map(|_| queue(app, &body))).await;
    let codes: Vec<u16> = answers.iter().map(|answer| answer.status).filter(|code| *code != 200).collect();
    assert_eq!(codes, [0; 0]);
    assert_eq!(app.used("d:row=1:wide").await, 300);
    assert_eq!(metric(app, "sluice_queue_jobs_total{event=\"joined\"}").await, 0.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_fits_does_not_queue() {
    a_burst_that_fits(&builder(POLICY).start().await).await;
}

#[tokio::test]
async fn a_retried_call_has_one_place() {
    let app = builder(POLICY).start().await;
    queue(&app, &ask("held", 1)).await;
    let body = ask("held", 1).to_string();
    let mut ids = Vec::new();
    for _ in 0..2 {
        let headers = [("x-sluice-request-id", "call-7")];
        let said = crate::http::send(app.app.admin, "POST", "/v1/reserve", &headers, body.clone()).await;
        ids.push(said.json()["lease_id"].clone());
    }
    assert_eq!(ids[0], ids[1]);
    assert_eq!(metric(&app, "sluice_queue_depth").await, 1.0);
}

#[tokio::test]
async fn a_wait_has_an_end() {
    let app = builder(POLICY).start().await;
    queue(&app, &ask("held", 1)).await;
    let waits = queue(&app, &ask("held", 1)).await.json();
    // Also for those who wait already.
    app.send("PUT", "/v1/retry-policy", &json!({"queue": {"deadline_seconds": 1}}).to_string()).await;
    let over = until_state(&app, &waits, "timed_out").await;
    assert!(over["detail"].as_str().unwrap().contains("deadline_seconds"), "{over}");
    assert_eq!(metric(&app, "sluice_queue_jobs_total{event=\"timed_out\"}").await, 1.0);
}

#[tokio::test]
async fn places_are_counted_in_total_too() {
    let app = builder("retry_policy: {queue: {places_max: 1}}").start().await;
    queue(&app, &ask("held", 1)).await;
    assert_eq!(queue(&app, &ask("held", 1)).await.status, 202);
    let fits = queue(&app, &ask("tokens", 100)).await;
    assert_eq!(
        (fits.status, &fits.json()["state"]),
        (200, &json!("reserved")),
        "who need not wait needs no place"
    );
    let full = queue(&app, &ask("tokens", 1)).await;
    assert_eq!((full.status, full.header("x-sluice-reason")), (429, "queue_full"), "{full:?}");
    assert_eq!(full.json()["limit"], Value::Null, "no limit is in the way");
    assert_eq!(metric(&app, "sluice_queue_jobs_total{event=\"queue_full\"}").await, 1.0);
}

#[tokio::test]
async fn a_limit_that_is_raised_serves_the_line_at_once() {
    let app = builder(POLICY).start().await;
    let limit = |capacity| json!({"key": "batch", "kind": "concurrency", "capacity": capacity, "timeout_seconds": 600});
    app.send("PUT", "/v1/limits", &limit(1).to_string()).await;
    let body = json!({"queue": true, "requirements": [{"key": "batch", "amount": 1}]});
    assert_eq!(queue(&app, &body).await.status, 200);
    let waits = queue(&app, &body).await.json();
    app.send("PUT", "/v1/limits", &limit(2).to_string()).await;
    until_state(&app, &waits, "reserved").await;
    // And one that is gone serves nobody any more.
    let waits = queue(&app, &body).await.json();
    app.send("DELETE", "/v1/limits/batch", "").await;
    let failed = until_state(&app, &waits, "failed").await;
    assert_eq!(failed["error"], "unknown_limit_key:batch");
}

#[tokio::test]
async fn the_policy_changes_while_they_wait() {
    let app = builder(POLICY).start().await;
    queue(&app, &ask("tokens", 100)).await;
    let waits = queue(&app, &ask("tokens", 1)).await.json();
    // An hour and a fifth on top, and at most five minutes are promised.
    assert_eq!(waits["eta_seconds"], 300);
    app.send(
        "PUT",
        "/v1/retry-policy",
        &json!({"queue": {"max_seconds": 7, "places_per_key_max": 1}}).to_string(),
    )
    .await;
    assert_eq!(look(&app, &waits).await["eta_seconds"], 7);
    let full = queue(&app, &ask("tokens", 1)).await;
    assert_eq!((full.status, full.header("retry-after")), (429, "7"));
}

#[tokio::test]
async fn after_a_restart_the_line_is_empty_and_says_so() {
    let secret = sluice::config::settings::secret::Secret::new("a secret that both have");
    let with_secret = |builder: Builder| {
        let secret = secret.clone();
        builder.and_settings(move |settings| settings.leases.secrets = vec![secret])
    };
    let app = with_secret(builder(POLICY)).start().await;
    let held = queue(&app, &ask("held", 1)).await.json();
    let waits = queue(&app, &ask("held", 1)).await.json();
    let mut client = LeaseServiceClient::new(app.channel.clone());
    let watched = pb::WatchLeaseRequest { lease_id: waits["lease_id"].as_str().unwrap().to_owned() };
    let mut states = client.watch_lease(watched).await.unwrap().into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().state, "queued");
    let dir = app.stop().await;
    let told = states.message().await.unwrap().expect("those who wait must be told");
    assert_eq!((&*told.state, &*told.error), ("failed", "backend_error"));
    let app = with_secret(Builder::in_dir(dir)).start().await;
    let gone = app.get(&format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap())).await;
    assert_eq!((gone.status, &gone.json()["error"]), (404, &json!("unknown_lease")));
    complete(&app, &held).await;
}

#[tokio::test]
async fn those_who_do_not_queue_are_told_the_limit_is_used_up() {
    let app = builder(POLICY).start().await;
    let first = queue(&app, &ask("pair", 1)).await.json();
    queue(&app, &ask("pair", 2)).await;
    // One of two is free, but all of it is for the line.
    app.answers(&["row=1 -> OVER d:row=1:pair; over 0/2 unknown pair"]).await;
    complete(&app, &first).await;
}

#[tokio::test]
async fn what_queue_may_be() {
    let app = builder(POLICY).start().await;
    let mut body = ask("held", 1);
    body["queue"] = json!("yes");
    let said = queue(&app, &body).await;
    assert_eq!(
        (said.status, &said.json()["detail"]),
        (400, &json!("queue: is \"yes\", must be true or false"))
    );
    body["queue"] = json!(false);
    assert_eq!(queue(&app, &body).await.json()["allowed"], true);
    assert_eq!(queue(&app, &body).await.json()["allowed"], false, "who doesn't queue is denied");
}

/// A hundred who wait for ten limits, each held for a moment: in order at each, never more than one at a time.
pub async fn a_crowd(app: &TestApp) {
    let limits = 10;
    let ask = |limit: usize| json!({"queue": true, "requirements": [{"key": format!("d:row={limit}:held"), "amount": 1}]});
    let mut crowd = Vec::new();
    for n in 0..100 {
        crowd.push((n % limits, queue(app, &ask(n % limits)).await.json()));
    }
    let one_line = async |limit: usize| {
        for (_, job) in crowd.iter().filter(|(at, _)| *at == limit) {
            let served = until_state(app, job, "reserved").await;
            assert_eq!(app.used(&format!("d:row={limit}:held")).await, 1);
            for (_, later) in
                crowd.iter().filter(|(at, _)| *at == limit).skip_while(|(_, it)| it != job).skip(1)
            {
                assert_eq!(look(app, later).await["status"], "queued", "{later} overtook {served}");
            }
            complete(app, &served).await;
        }
    };
    futures_util::future::join_all((0..limits).map(one_line)).await;
    assert_eq!(metric(app, "sluice_queue_depth").await, 0.0);
    // The first at each did not have to wait.
    assert_eq!(metric(app, "sluice_queue_jobs_total{event=\"reserved\"}").await, 90.0);
    assert_eq!(metric(app, "sluice_queue_wait_seconds_count").await, 90.0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_served_in_order() {
    let app = builder("retry_policy: {queue: {pickup_seconds: 60}}").start().await;
    tokio::time::timeout(Duration::from_secs(120), a_crowd(&app)).await.expect("nobody must wait for ever");
}

#[tokio::test]
async fn a_key_has_a_length() {
    let app = builder(POLICY).start().await;
    let body = |bytes: usize, queue: bool| {
        let key = format!("d:row={}:held", "x".repeat(bytes - "d:row=:held".len()));
        json!({"queue": queue, "requirements": [{"key": key, "amount": 1}]})
    };
    for may_wait in [true, false] {
        let said = queue(&app, &body(4097, may_wait)).await;
        let detail = "requirements[0].key: must have at most 4096 bytes";
        assert_eq!((said.status, &said.json()["detail"]), (400, &json!(detail)), "queue: {may_wait}");
    }
    assert_eq!(queue(&app, &body(4096, true)).await.status, 200);
    assert_eq!(queue(&app, &body(4096, true)).await.status, 202);
}
