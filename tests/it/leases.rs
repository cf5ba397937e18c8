//! Leases from outside: the shapes of the lease API, completions, and what is counted.

mod mistakes;
mod tokens;
pub mod load;

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluice::api::pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;

use crate::ask::{header, request};
use crate::lease_scenario::{LIMITS, Port, complete, lease_of, reserve};
use crate::testapp::TestApp;
use crate::wait::until;

fn want(limit: &str, amount: u64) -> Value {
    json!({"key": format!("d:row=1:{limit}"), "amount": amount})
}

fn wants(limit: &str, amount: u64) -> Value {
    json!({"requirements": [want(limit, amount)]})
}

async fn start() -> TestApp {
    TestApp::with_limits(LIMITS).start().await
}

/// `sluice_leases_total` of one event.
pub async fn counted(app: &TestApp, event: &str) -> u64 {
    let metrics = app.get("/metrics").await.body;
    let start = format!("sluice_leases_total{{event=\"{event}\"}} ");
    let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("no {start}in\n{metrics}")).parse().unwrap()
}

#[tokio::test]
async fn a_reserve_in_json() {
    let app = start().await;
    let before_ms = sluice::clock::unix_ms();
    let answer = app.post("/v1/reserve", &wants("tokens", 60).to_string()).await;
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), "application/json");
    let body = answer.json();
    assert_eq!(body["allowed"], true);
    assert_eq!(body["lease_id"].as_str().unwrap().len(), 26, "a ULID: {body}");
    assert!(body["lease_token"].as_str().unwrap().starts_with("s1."), "{body}");
    let reserved_at = body["reserved_at_unix_ms"].as_u64().unwrap();
    assert!((before_ms..=sluice::clock::unix_ms()).contains(&reserved_at), "{body}");
    let fields: BTreeSet<&str> = body.as_object().unwrap().keys().map(String::as_str).collect();
    let expected =
        "allowed lease_id lease_token retry_after_ms reserved_at_unix_ms error detail limit reason";
    assert_eq!(fields, expected.split(' ').collect());
    for field in ["retry_after_ms", "error", "detail", "limit", "reason"] {
        assert_eq!(body[field], json!(null), "{field}");
    }

    let denied = app.post("/v1/reserve", &wants("tokens", 60).to_string()).await;
    assert_eq!(denied.status, 200, "a decision, if not the one that was hoped for");
    let body = denied.json();
    let hint_ms = body["retry_after_ms"].as_u64().unwrap();
    assert_eq!(denied.header("retry-after-ms"), hint_ms.to_string());
    assert_eq!(denied.header("retry-after"), hint_ms.div_ceil(1000).to_string());
    assert_eq!(denied.header("x-sluice-limit"), "d:row=1:tokens");
    assert_eq!(denied.header("x-sluice-reason"), "over_limit");
    let expected = json!({
        "allowed": false, "lease_id": null, "lease_token": null, "retry_after_ms": hint_ms,
        "reserved_at_unix_ms": null, "error": null, "detail": null, "limit": "d:row=1:tokens", "reason": "over_limit",
    });
    assert_eq!(body, expected);

    let never = app.post("/v1/reserve", &wants("tokens", 101).to_string()).await;
    assert_eq!((never.status, never.header("x-sluice-reason")), (200, "never_fits"));
    assert_eq!((never.header("retry-after"), &never.json()["retry_after_ms"]), ("", &json!(null)));
}

/// The hint grows with every denial in a row: 6000 × 1.5^streak, at most 5000, and jitter; for concurrency 50 × 2^streak.
#[tokio::test]
async fn hints_grow_as_envoys_do() {
    let app = start().await;
    let held = wants("held", 1);
    for _ in 0..2 {
        assert_eq!(reserve(&app, Port::Http, held.clone()).await["allowed"], true);
    }
    for least in [100, 200, 400] {
        let hint_ms = reserve(&app, Port::Http, held.clone()).await["retry_after_ms"].as_u64().unwrap();
        assert!((least..=least + 25).contains(&hint_ms), "{hint_ms} after {least}");
    }
}

/// And what is completed meanwhile is not refused: it makes the room that the decrease waits for.
#[tokio::test]
async fn a_limit_that_is_decreasing_says_so() {
    let app = start().await;
    let change = async |capacity: u64| {
        let limit = json!({"key": "pool", "kind": "rolling", "capacity": capacity, "window_seconds": 60});
        let answer = crate::http::send(app.app.admin, "PUT", "/v1/limits", &[], limit.to_string()).await;
        assert!(answer.status < 300, "{answer:?}");
    };
    let pool = |amount: u64| json!({"requirements": [{"key": "pool", "amount": amount}]});
    change(100).await;
    let lease = reserve(&app, Port::Http, pool(90)).await;
    change(50).await;
    let denied = app.post("/v1/reserve", &pool(1).to_string()).await;
    assert_eq!((denied.status, denied.header("x-sluice-reason")), (200, "limit_decreasing"));
    let body = denied.json();
    assert_eq!((&body["allowed"], &body["error"]), (&json!(false), &json!("limit_decreasing:pool")));
    assert_eq!(body["retry_after_ms"], 10_000);
    let actuals = json!([{"key": "pool", "actual_amount": 20}]);
    let done = json!({"lease_token": lease["lease_token"], "actuals": actuals});
    assert_eq!(complete(&app, Port::Http, done).await["ok"], true);
    assert_eq!(reserve(&app, Port::Http, pool(30)).await["allowed"], true);
    assert_eq!(reserve(&app, Port::Http, pool(1)).await["reason"], "over_limit");
    assert_eq!(app.used("pool").await, 50);
}

/// A limit that is gone when its lease is completed: what it held of others comes back, and nothing fails.
#[tokio::test]
async fn a_limit_that_was_removed_is_no_trouble() {
    let app = start().await;
    let limit =
        json!({"key": "pool", "kind": "concurrency", "capacity": 1, "timeout_seconds": 60}).to_string();
    crate::http::send(app.app.admin, "PUT", "/v1/limits", &[], limit.clone()).await;
    let ask = json!({"requirements": [{"key": "pool", "amount": 1}, want("held", 1)]});
    let lease = reserve(&app, Port::Http, ask).await;
    assert_eq!(lease["allowed"], true, "{lease}");
    crate::http::send(app.app.admin, "DELETE", "/v1/limits/pool", &[], "").await;
    assert_eq!(complete(&app, Port::Http, json!({"lease_token": lease["lease_token"]})).await["ok"], true);
    assert_eq!(app.used("d:row=1:held").await, 0);
    crate::http::send(app.app.admin, "PUT", "/v1/limits", &[], limit).await;
    assert_eq!(app.used("pool").await, 0);
}

#[tokio::test]
async fn batches_are_answered_in_order() {
    let app = start().await;
    let batch = |requests: Vec<Value>| json!({"requests": requests}).to_string();
    let mut requests: Vec<Value> = (0..256).map(|_| wants("calls", 1)).collect();
    requests[3] = wants("nonsense", 1);
    requests[5] = wants("calls", 0);
    let answer = app.post("/v1/reserve/batch", &batch(requests)).await;
    assert_eq!(answer.status, 200);
    let results = answer.json()["results"].as_array().unwrap().clone();
    assert_eq!(results.len(), 256);
    assert_eq!(results[3]["error"], "unknown_limit_key:d:row=1:nonsense");
    assert_eq!(results[5]["error"], "invalid_request");
    // 50 fit, the first 50 that could.
    let allowed = |n: usize| results[n]["allowed"] == true;
    assert!((0..52).all(|n| allowed(n) || n == 3 || n == 5) && (52..256).all(|n| !allowed(n)));
    assert!(results[255]["retry_after_ms"].as_u64().unwrap() > 0);

    let token = |n: usize| results[n]["lease_token"].as_str().unwrap();
    let requests = vec![
        json!({"lease_token": token(0), "actuals": [{"key": "d:row=1:calls", "actual_amount": 0}]}),
        json!({"lease_token": "forged"}),
        json!({"lease_id": results[1]["lease_id"], "actuals": [{"key": "d:row=1:calls", "actual_amount": 0}]}),
    ];
    let answer = app.post("/v1/complete/batch", &batch(requests)).await;
    let results = answer.json()["results"].as_array().unwrap().clone();
    let said: Vec<(&Value, &Value)> =
        results.iter().map(|result| (&result["ok"], &result["error"])).collect();
    let (yes, no) = (json!(true), json!(false));
    assert_eq!(said, [(&yes, &json!(null)), (&no, &json!("invalid_request")), (&yes, &json!(null))]);
    assert_eq!(app.used("d:row=1:calls").await, 48);

    for path in ["/v1/reserve/batch", "/v1/complete/batch"] {
        for count in [0, 257] {
            let answer = app.post(path, &batch(vec![json!({}); count])).await;
            let body = answer.json();
            assert_eq!((answer.status, &body["error"]), (400, &json!("invalid_request")), "{path} {count}");
            assert!(body["detail"].as_str().unwrap().contains("1 to 256"), "{body}");
        }
        assert_eq!(app.post(path, &batch(vec![json!({}); 256])).await.status, 200);
    }
    let mut client = LeaseServiceClient::new(app.channel.clone());
    let empty = client.reserve_batch(pb::lease::ReserveBatchRequest::default()).await;
    assert_eq!(empty.unwrap_err().code(), tonic::Code::InvalidArgument);
    let requests = vec![pb::lease::CompleteRequest::default(); 257];
    let long = client.complete_batch(pb::lease::CompleteBatchRequest { requests }).await;
    assert_eq!(long.unwrap_err().code(), tonic::Code::InvalidArgument);
}

/// A request id names a reserve, on both ports, and each item of a batch.
#[tokio::test]
async fn a_request_id_is_charged_once() {
    let app = start().await;
    let named = [("x-sluice-request-id", "r-1")];
    let body = wants("tokens", 10).to_string();
    let mut answers = Vec::new();
    for _ in 0..2 {
        answers
            .push(crate::http::send(app.app.admin, "POST", "/v1/reserve", &named, body.clone()).await.json());
    }
    let mut request = tonic::Request::new(serde_json::from_str::<pb::lease::ReserveRequest>(&body).unwrap());
    request.metadata_mut().insert("x-sluice-request-id", "r-1".parse().unwrap());
    let answer = LeaseServiceClient::new(app.channel.clone()).reserve(request).await.unwrap().into_inner();
    answers.push(serde_json::to_value(answer).unwrap());
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:#?}");
    assert_eq!(app.used("d:row=1:tokens").await, 10);

    let batch = json!({"requests": [wants("bytes", 1), wants("bytes", 2), wants("bytes", 1)]}).to_string();
    for _ in 0..2 {
        crate::http::send(app.app.admin, "POST", "/v1/reserve/batch", &named, batch.clone()).await;
    }
    assert_eq!(app.used("d:row=1:bytes").await, 4);
    assert_eq!(counted(&app, "reserved").await, 4);
}

#[tokio::test]
async fn a_denial_over_grpc_has_its_hint_in_the_metadata() {
    let app = start().await;
    let mut client = LeaseServiceClient::new(app.channel.clone());
    let ask = |amount| serde_json::from_value::<pb::lease::ReserveRequest>(wants("tokens", amount)).unwrap();
    assert!(client.reserve(ask(100)).await.unwrap().into_inner().allowed);
    let denied = client.reserve(ask(1)).await.unwrap();
    let metadata = |name| denied.metadata().get(name).map(|value| value.to_str().unwrap().to_owned());
    let hint_ms = denied.get_ref().retry_after_ms.unwrap();
    assert_eq!(metadata("retry-after-ms"), Some(hint_ms.to_string()));
    assert_eq!(metadata("retry-after"), Some(hint_ms.div_ceil(1000).to_string()));
    assert_eq!(metadata("x-sluice-limit").as_deref(), Some("d:row=1:tokens"));
    assert_eq!(metadata("x-sluice-reason").as_deref(), Some("over_limit"));
}

#[tokio::test]
async fn a_lease_can_be_looked_at() {
    let app = start().await;
    let ask = json!({"job_id": "summarise 7", "requirements": [want("tokens", 10), want("held", 1)]});
    let lease = reserve(&app, Port::Http, ask).await;
    let id = lease["lease_id"].as_str().unwrap();
    let view = app.get(&format!("/v1/leases/{id}")).await.json();
    assert_eq!((&view["lease_id"], &view["state"]), (&json!(id), &json!("reserved")));
    assert_eq!(view["job_id"], "summarise 7");
    assert_eq!(view["reserved_at_unix_ms"], lease["reserved_at_unix_ms"]);
    assert!(view["age_ms"].as_u64().unwrap() < 30_000, "{view}");
    let requirement = |n: usize| {
        let it = &view["requirements"][n];
        (it["key"].as_str().unwrap(), it["kind"].as_str().unwrap(), it["amount"].as_u64().unwrap())
    };
    assert_eq!(requirement(0), ("d:row=1:tokens", "rolling", 10));
    assert_eq!(requirement(1), ("d:row=1:held", "concurrency", 1));
    let expires_ms = view["requirements"][0]["expires_in_ms"].as_u64().unwrap();
    assert!((3_000_000..=3_600_000).contains(&expires_ms), "{view}");

    complete(&app, Port::Http, json!({"lease_id": id})).await;
    assert_eq!(app.get(&format!("/v1/leases/{id}")).await.json()["state"], "completed");
    let unknown = app.get("/v1/leases/01ARZ3NDEKTSV4RRFFQ69G5FAV").await;
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.json()["error"], "unknown_lease");

    // A name of the caller's own, with letters that a path must escape.
    let ask = json!({"lease_id": "job/7 ü", "requirements": [want("tokens", 1)]});
    reserve(&app, Port::Http, ask).await;
    assert_eq!(app.get("/v1/leases/job%2F7%20%C3%BC").await.json()["lease_id"], "job/7 ü");
}

#[tokio::test]
async fn completions_stand_between_other_descriptors() {
    let app = start().await;
    let client = &mut app.client();
    let first = client.should_rate_limit(request("row=1 x5")).await.unwrap().into_inner();
    let token = lease_of(&first).unwrap();
    assert!(first.response_headers_to_add.is_empty());
    app.answers(&[
        &format!("plain=1 + lease_id={token} + plain=2 x3 -> ok 9/10 hour; bare; ok 7/10 hour"),
        "used d:row=1:held -> 0",
        &format!("lease_id={token} + plain=1 x10 -> OVER d:plain=1:hour; bare; over 9/10 hour"),
        // What is wrong with another descriptor is wrong with the request, and the entries of a completion are not read.
        "phase=done lease_id=x =y -> bare",
        "lease_id= -> bare",
        "lease_id=x <5/minute> -> bare",
    ])
    .await;
    // A completion first, so that what it gives back is there for the rest.
    let asked = request("row=9 x1");
    let second = client.should_rate_limit(asked.clone()).await.unwrap().into_inner();
    client.should_rate_limit(asked).await.unwrap();
    let both = request(&format!("row=9 x1 + lease_id={}", lease_of(&second).unwrap()));
    let third = client.should_rate_limit(both).await.unwrap().into_inner();
    assert_eq!(third.overall_code(), pb::Code::Ok, "{third:?}");
    assert!(lease_of(&third).is_some() && lease_of(&third) != lease_of(&second));
    assert_eq!(header(&third, "x-sluice-reason"), None);
}

/// Completions are no requests: neither the budget nor the decisions count them.
#[tokio::test]
async fn completions_are_not_decisions() {
    let app = start().await;
    app.answers(&["5 times: retry_attempt=3 lease_id=x -> bare", "in nowhere: lease_id=x -> bare"]).await;
    let metrics = app.get("/metrics").await.body;
    let decided = |line: &&str| line.starts_with("sluice_decisions_total") && !line.ends_with(" 0");
    assert_eq!(metrics.lines().filter(decided).count(), 0, "{metrics}");
}

#[tokio::test]
async fn leases_that_nobody_completes_are_counted_when_they_end() {
    let app = start().await;
    app.answers(&["3 times: short=a x1 -> OVER d:short=a:held; over 0/2 unknown held"]).await;
    assert_eq!((counted(&app, "reserved").await, counted(&app, "expired_unseen").await), (2, 0));
    until("both end", async || match counted(&app, "expired_unseen").await {
        2 => Ok(()),
        count => Err(format!("{count}")),
    })
    .await;
    assert_eq!(app.used("d:short=a:held").await, 0);
}
