//! A lease belongs to its answer: callers that leave before they have heard it hold nothing, on every way in.

use std::task::{Context, Waker};
use std::time::Duration;

use bytes::Bytes;
use prost::Message;
use serde_json::{Value, json};
use sluice::api::pb::lease as pb;
use sluice::grpc::rls;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::ask::request;
use crate::testapp::TestApp;
use crate::wait::until;
use crate::wire::{METHOD, framed, send_and_reset};

/// `calls` is exact, because units that came from a slab stay spent.
pub const LIMITS: &str = "
domain: d
descriptors:
- key: row
  limits:
  - {name: held, kind: concurrency, capacity: 1000, timeout_seconds: 3600}
  - {name: calls, kind: rolling, capacity: 1000, window_seconds: 3600, cost: 1, exact: true}
- {key: dark, shadow_mode: true, limits: [{name: calls, kind: rolling, capacity: 1000, window_seconds: 3600, exact: true}]}
";

const GIVEN_UP: u32 = 100;

fn want(domain: &str, row: &str) -> Value {
    json!({"requirements": [{"key": format!("{domain}:row={row}:held"), "amount": 1}]})
}

fn reserve(domain: &str, row: &str) -> pb::ReserveRequest {
    serde_json::from_value(want(domain, row)).unwrap()
}

/// Of one row's limits, `held` holds this much, and `calls` as much where it was asked for.
async fn holds(app: &TestApp, domain: &str, row: &str, held: u64) {
    until(&format!("{row} holds {held}"), async || {
        let used = async |limit: &str| {
            let path = format!("/v1/limits/{domain}%3Arow={row}%3A{limit}");
            app.get(&path).await.json()["used"].as_u64().unwrap()
        };
        match (used("held").await, used("calls").await) {
            (there, calls) if there == held && (calls == held || calls == 0) => Ok(()),
            (there, calls) => Err(format!("it holds {there}, and {calls} calls")),
        }
    })
    .await;
}

async fn counted(app: &TestApp, event: &str) -> u64 {
    let text = app.get("/metrics").await.body;
    let start = format!("sluice_leases_total{{event=\"{event}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
}

/// Every gRPC way in: the plain one, the same through tonic, and the lease API.
pub async fn reset_calls_hold_nothing(app: &TestApp, domain: &str) {
    let envoy = |row: &str| {
        let request = request(&format!("row={row} + dark={row}"));
        sluice::api::pb::RateLimitRequest { domain: domain.to_owned(), ..request }.encode_to_vec()
    };
    let batch = pb::ReserveBatchRequest { requests: vec![reserve(domain, "many"), reserve(domain, "many")] };
    let rows: [(&str, &str, &[(&str, &str)], Vec<u8>, u64); 4] = [
        ("plain", METHOD, &[], envoy("plain"), 1),
        ("tonic", METHOD, &[("grpc-encoding", "identity")], envoy("tonic"), 1),
        ("lease", "/sluice.v1.LeaseService/Reserve", &[], reserve(domain, "lease").encode_to_vec(), 1),
        ("many", "/sluice.v1.LeaseService/ReserveBatch", &[], batch.encode_to_vec(), 2),
    ];
    for (row, path, headers, message, each) in rows {
        send_and_reset(app.grpc(), path, headers, GIVEN_UP, &message).await;
        // The one that was answered.
        holds(app, domain, row, each).await;
        if path == METHOD {
            assert_eq!(app.used(&format!("{domain}:dark={row}:calls")).await, 1);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_reset_hold_nothing() {
    let app = TestApp::with_limits(LIMITS).start().await;
    reset_calls_hold_nothing(&app, "d").await;
    assert!(counted(&app, "voided_on_cancel").await > 0, "some were decided before their reset was seen");
}

/// Every HTTP way in.
pub async fn closed_calls_hold_nothing(app: &TestApp, domain: &str) {
    let json = json!({"domain": domain, "descriptors": [{"entries": [{"key": "row", "value": "json"}]}]});
    let rows = [
        ("one", "/v1/reserve", want(domain, "one")),
        ("batch", "/v1/reserve/batch", json!({"requests": [want(domain, "batch"), want(domain, "batch")]})),
        ("json", "/json", json),
    ];
    for (row, path, body) in rows {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            app.app.admin,
            body.len()
        );
        for n in 0..60 {
            let mut stream = TcpStream::connect(app.app.admin).await.unwrap();
            stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
            // Some before the answer was written, some before it was read.
            if n % 3 == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            drop(stream);
        }
        // All of them have been taken off the listener's queue by then.
        app.get("/livez").await;
        holds(app, domain, row, 0).await;
        // One whose connection stays open has its answer, and what it says.
        let mut stream = TcpStream::connect(app.app.admin).await.unwrap();
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        let mut answer = [0; 15];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(&answer, b"HTTP/1.1 200 OK");
        holds(app, domain, row, if row == "batch" { 2 } else { 1 }).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_whose_connection_is_closed_hold_nothing() {
    let app = TestApp::with_limits(LIMITS).start().await;
    closed_calls_hold_nothing(&app, "d").await;
    assert!(counted(&app, "voided_on_cancel").await > 0);
}

/// A quota that is over is charged what it has left, after the decision. A caller that leaves meanwhile holds nothing.
#[tokio::test]
async fn a_call_that_is_dropped_during_a_late_charge_holds_nothing() {
    let limits = "
domain: d
descriptors:
- {key: spent, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1, charge: always}}
- {key: row, quota_mode: true, limits: [{name: held, kind: concurrency, capacity: 9, timeout_seconds: 3600}]}
";
    let app = TestApp::with_limits(limits).start().await;
    let asked = request("spent=a x2 + row=a");
    let mut call = Box::pin(rls::should_rate_limit(&app.app.service, &asked, None));
    assert!(
        call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(),
        "it has no late charge"
    );
    assert_eq!(app.used("d:row=a:held").await, 1);
    drop(call);
    assert_eq!(app.used("d:row=a:held").await, 0);
    until("the late charge", async || match app.used("d:spent=a:hour").await {
        1 => Ok(()),
        other => Err(format!("{other} are used")),
    })
    .await;
}

/// An answer that was heard stays heard, however its connection ends.
#[tokio::test]
async fn an_answer_that_was_heard_keeps_its_lease() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let answer = app.post("/v1/reserve", &want("d", "heard").to_string()).await.json();
    assert_eq!(answer["allowed"], true);
    app.client().should_rate_limit(request("row=heard")).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let used = app.get("/v1/limits/d%3Arow=heard%3Aheld").await.json()["used"].clone();
    assert_eq!(used, 2);
    assert_eq!(counted(&app, "voided_on_cancel").await, 0);
}

const POOL: &str = "
domain: d
limits: [{key: pool, kind: concurrency, capacity: 1, timeout_seconds: 3}]
descriptors: [{key: row, limits: [{ref: pool}]}]
";

/// A job that waited has a lease of another name. The name that its caller knows stands for that lease, and for nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_served_from_the_queue_is_charged_once() {
    let app = TestApp::with_limits(POOL).start().await;
    let ask = |id: &str, amount: u64, queue: bool| {
        json!({"lease_id": id, "queue": queue, "requirements": [{"key": "pool", "amount": amount}]})
            .to_string()
    };
    let reserve = async |id: &str, amount: u64, queue: bool| {
        let said = app.post("/v1/reserve", &ask(id, amount, queue)).await;
        (said.status, said.json()["allowed"] == true, said.json()["error"].clone())
    };
    let used = async || app.get("/v1/limits/pool").await.json()["used"].as_u64().unwrap();
    assert_eq!(reserve("first", 1, false).await, (200, true, Value::Null));
    assert_eq!(reserve("job", 1, true).await, (202, false, Value::Null));
    app.post("/v1/complete", &json!({"lease_id": "first"}).to_string()).await;
    until("its turn", async || {
        let said = app.get("/v1/leases/job").await.json();
        if said["state"] == "reserved" { Ok(()) } else { Err(said.to_string()) }
    })
    .await;
    assert_eq!(reserve("job", 1, false).await, (200, true, Value::Null), "it is the same");
    assert_eq!(used().await, 1);
    app.post("/v1/complete", &json!({"lease_id": "job"}).to_string()).await;
    assert_eq!(used().await, 0);
    for queue in [false, true] {
        let (status, allowed, error) = reserve("job", 1, queue).await;
        assert!(!allowed && used().await == 0, "{status} {error}");
        assert!(queue || (status, &error) == (409, &json!("lease_id_used")), "{status} {error}");
    }
    // When all of it has ended, nothing was left uncompleted.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(counted(&app, "expired_unseen").await, 0);
}

/// A watcher whose stream is full, or reset, has not heard that its turn has come: what was reserved goes to the next.
#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_has_not_heard_of_its_turn_has_not_picked_it_up() {
    let app = TestApp::with_limits(&POOL.replace("timeout_seconds: 3", "timeout_seconds: 3600"))
        .and_file("retry_policy.yaml", "retry_policy: {queue: {pickup_seconds: 1}}")
        .start()
        .await;
    let ask =
        |id: &str| json!({"lease_id": id, "queue": true, "requirements": [{"key": "pool", "amount": 1}]});
    assert_eq!(app.post("/v1/reserve", &ask("first").to_string()).await.status, 200);
    assert_eq!(app.post("/v1/reserve", &ask("job").to_string()).await.status, 202);
    // A window of nothing: whatever the server says stays where it is.
    let stream = TcpStream::connect(app.grpc()).await.unwrap();
    let (send, connection) =
        h2::client::Builder::new().initial_window_size(0).handshake::<_, Bytes>(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let request = http::Request::post("http://sluice/sluice.v1.LeaseService/WatchLease");
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    let (answer, mut body) = send.ready().await.unwrap().send_request(request, false).unwrap();
    let watch = pb::WatchLeaseRequest { lease_id: "job".to_owned() }.encode_to_vec();
    body.send_data(framed(&watch).into(), true).unwrap();
    let _watching = answer.await.unwrap();
    app.post("/v1/complete", &json!({"lease_id": "first"}).to_string()).await;
    until("its turn to pass", async || {
        let used = app.get("/v1/limits/pool").await.json()["used"].clone();
        let state = app.send("HEAD", "/v1/leases/job", "").await.status;
        if used == 0 { Ok(()) } else { Err(format!("{used} are used, {state}")) }
    })
    .await;
    assert_eq!(app.get("/v1/leases/job").await.json()["state"], "timed_out");
}
