//! The running server from outside: its ports, health, admin routes and metrics.

mod stopping;

use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use sluice::app::StartError;
use sluice::config::settings::value::Listen;
use tokio::net::TcpListener;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

use crate::testapp::{TestApp, channel};
use crate::wire::{METHOD, Wire, framed, survives_resets};

const LIMITS: &str = "
domain: d
limits:
- {key: 'all:rpm', kind: rolling, capacity: 100, window_seconds: 60, unit: requests, description: everybody}
- {key: 'all:held', kind: concurrency, capacity: 7, timeout_seconds: 300, overage: deny}
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: big, rate_limit: {unit: hour, requests_per_unit: 100000}}
- {key: open, rate_limit: {unlimited: true}}
- {key: all, limits: [{ref: 'all:rpm'}]}
- {key: dark, value: 'x*', shadow_mode: true, share_threshold: true, rate_limit: {unit: day, requests_per_unit: 1}}
";

fn asked(text: &str) -> Vec<u8> {
    crate::ask::request(text).encode_to_vec()
}

#[tokio::test]
async fn port_0_is_a_real_port_afterwards() {
    let app = TestApp::with_limits(LIMITS).start().await;
    assert!(app.grpc().ip().is_loopback() && app.grpc().port() > 0);
    assert!(app.app.admin.ip().is_loopback() && app.app.admin.port() > 0);
    assert_ne!(app.grpc().port(), app.app.admin.port());
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error_that_names_it() {
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = taken.local_addr().unwrap();
    let on_grpc = TestApp::with_limits(LIMITS).and_settings(move |s| s.grpc.listen = Listen::Tcp(address));
    let on_admin = TestApp::with_limits(LIMITS).and_settings(move |s| s.admin.listen = address);
    for (builder, name) in [(on_grpc, "grpc"), (on_admin, "admin")] {
        let Err(error) = builder.try_start().await else { panic!("{name} listens on a port that is taken") };
        assert_eq!(error.to_string(), format!("{name}: can't listen on {address}"));
        assert!(matches!(error, StartError::Bind(..)));
    }
}

#[tokio::test]
async fn health_is_told_under_the_names_that_are_asked_for() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let mut health = HealthClient::new(app.channel.clone());
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        let answer = health.check(HealthCheckRequest { service: service.to_owned() }).await.unwrap();
        assert_eq!(answer.into_inner().status(), ServingStatus::Serving, "{service}");
    }
    let nobody = health.check(HealthCheckRequest { service: "nobody".to_owned() }).await;
    assert_eq!(nobody.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn reflection_lists_the_service() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let mut reflection = ServerReflectionClient::new(app.channel.clone());
    let mut ask = async |request: MessageRequest| {
        let request = ServerReflectionRequest { host: String::new(), message_request: Some(request) };
        let answers = reflection.server_reflection_info(tokio_stream::once(request)).await.unwrap();
        answers.into_inner().message().await.unwrap().unwrap().message_response.unwrap()
    };
    let MessageResponse::ListServicesResponse(list) = ask(MessageRequest::ListServices(String::new())).await
    else {
        panic!("no list")
    };
    let mut names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    names.sort_unstable();
    for name in ["envoy.service.ratelimit.v3.RateLimitService", "grpc.health.v1.Health"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let symbol = "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit".to_owned();
    let answer = ask(MessageRequest::FileContainingSymbol(symbol)).await;
    assert!(matches!(answer, MessageResponse::FileDescriptorResponse(_)), "{answer:?}");
}

#[tokio::test]
async fn a_unix_socket_will_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sluice.sock");
    // Left over from a crash: a socket file that nobody listens on.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let app = TestApp::with_limits(LIMITS).on_socket(path.clone()).start().await;
    assert_eq!(app.app.grpc.to_string(), format!("unix:{}", path.display()));
    app.answers(&["a=1 -> ok 2/3 hour"]).await;

    let second = TestApp::with_limits(LIMITS).on_socket(path.clone()).try_start().await;
    assert!(second.is_err(), "somebody listens there");
    app.answers(&["a=1 -> ok 1/3 hour"]).await;

    let file = dir.path().join("file");
    std::fs::write(&file, "precious").unwrap();
    assert!(TestApp::with_limits(LIMITS).on_socket(file.clone()).try_start().await.is_err());
    assert_eq!(std::fs::read_to_string(file).unwrap(), "precious");
}

#[tokio::test]
async fn health_over_http() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for path in ["/livez", "/readyz", "/healthcheck"] {
        let answer = app.get(path).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "OK"), "{path}");
    }
}

#[tokio::test]
async fn json_answers_as_the_grpc_port_does() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let body = r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]}"#;
    for left in [2, 1] {
        let answer = app.post("/json", body).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(answer.header("content-type"), "application/json");
        let status = &answer.json()["statuses"][0];
        assert_eq!(answer.json()["overallCode"], "OK");
        assert_eq!((&status["code"], &status["limitRemaining"]), (&"OK".into(), &left.into()));
        assert_eq!(status["currentLimit"], serde_json::json!({"requestsPerUnit": 3, "unit": "HOUR"}));
        assert_eq!(answer.header("retry-after"), "");
    }
    // Names as in the proto file, numbers as text: both are proto3 JSON.
    let body =
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}], "hits_addend": "2"}]}"#;
    let answer = app.post("/json", body).await;
    assert_eq!(answer.status, 429, "{answer:?}");
    assert_eq!(answer.json()["overallCode"], "OVER_LIMIT");
    assert_eq!(answer.json()["statuses"][0]["code"], "OVER_LIMIT");
    assert_eq!(answer.header("x-sluice-limit"), "d:a=1:hour");
    assert_eq!(answer.header("x-sluice-reason"), "over_limit");
    let hint_ms: u64 = answer.header("retry-after-ms").parse().unwrap();
    assert_eq!(answer.header("retry-after"), hint_ms.div_ceil(1000).to_string());
    // One ledger behind both ports.
    app.answers(&["a=1 -> ok 0/3 hour"]).await;
}

#[tokio::test]
async fn limits_are_shown_with_what_is_used() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&["2 times: all=x -> ok 98/100 minute all:rpm", "a=x:y -> ok 2/3 hour"]).await;
    let list = app.get("/v1/limits").await.json();
    let file = app.dir.path().join("limits/0.yaml");
    let held = serde_json::json!({
        "key": "all:held", "kind": "concurrency", "capacity": 7, "timeout_seconds": 300, "unit": "", "description": "",
        "overage": "deny", "status": "active", "pending_decrease_to": null, "used": 0, "available": 7, "debt": 0, "slab": null,
        "origin": format!("{}:5", file.display()),
    });
    let rpm = serde_json::json!({
        "key": "all:rpm", "kind": "rolling", "capacity": 100, "window_seconds": 60, "unit": "requests",
        "description": "everybody", "overage": "deny", "status": "active", "pending_decrease_to": null, "used": 2,
        "available": 98, "debt": 0, "slab": null, "origin": format!("{}:4", file.display()),
    });
    assert_eq!(list, serde_json::json!({"limits": [held, rpm]}));

    assert_eq!(app.get("/v1/limits/all:rpm").await.json(), rpm);
    assert_eq!(app.get("/v1/limits/all%3Arpm").await.json(), rpm);
    // A derived key has escapes of its own, which are escaped once more in a path.
    let derived = app.get("/v1/limits/d%3Aa%3Dx%253Ay%3Ahour").await.json();
    assert_eq!((&derived["key"], &derived["used"]), (&"d:a=x%3Ay:hour".into(), &1.into()));
    // One that no request has used yet is there all the same.
    let fresh = app.get("/v1/limits/d:a=never:hour").await.json();
    assert_eq!((&fresh["used"], &fresh["available"]), (&0.into(), &3.into()));
    // A pattern that is shared is asked for by the pattern.
    assert_eq!(app.get("/v1/limits/d:dark=x*:day").await.status, 200);
    assert_eq!(app.get("/v1/limits/d:dark=xy:day").await.status, 404);
}

#[tokio::test]
async fn rlconfig_lists_the_limits_in_force() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let text = app.get("/rlconfig").await.body.replace(&format!("{}/limits/", app.dir.path().display()), "");
    insta::assert_snapshot!(text, @r"
    d:a:hour: rolling window=3600s capacity=3 (0.yaml:7)
    d:all -> all:rpm: rolling window=60s capacity=100 (0.yaml:4)
    d:big:hour: rolling window=3600s capacity=100000 (0.yaml:8)
    d:dark=x*:day: rolling window=86400s capacity=1 shadow_mode share_threshold (0.yaml:11)
    d:open: unlimited
    ");
}

#[tokio::test]
async fn the_configuration_is_told() {
    let before_ms = sluice::clock::unix_ms();
    let app = TestApp::with_limits(LIMITS).and_file("retry_policy.yaml", "retry_policy: {}").start().await;
    let config = app.get("/v1/config").await.json();
    assert_eq!(config["version"], 1);
    assert_eq!(
        (&config["problems"], &config["failing_since"]),
        (&serde_json::json!([]), &serde_json::Value::Null)
    );
    let files = [app.dir.path().join("limits/0.yaml"), app.dir.path().join("retry_policy.yaml")];
    assert_eq!(config["files"], serde_json::json!(files));
    let loaded_ms = config["loaded_at"].as_u64().unwrap();
    assert!((before_ms..=sluice::clock::unix_ms()).contains(&loaded_ms), "{config}");
}

#[tokio::test]
async fn metrics_have_the_names_that_people_build_on() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&[
        "3 times: a=1 -> ok 0/3 hour",
        "2 times: a=1 -> OVER…",
        "a=1 x4 -> NEVER…",
        "all=1 -> ok…",
    ])
    .await;
    let answer = app.get("/metrics").await;
    assert_eq!(answer.status, 200);
    assert!(answer.header("content-type").starts_with("application/openmetrics-text"), "{answer:?}");
    for line in [
        "sluice_decisions_total{domain=\"d\",code=\"OK\",reason=\"\"} 4",
        "sluice_decisions_total{domain=\"d\",code=\"OVER_LIMIT\",reason=\"over_limit\"} 2",
        "sluice_decisions_total{domain=\"d\",code=\"OVER_LIMIT\",reason=\"never_fits\"} 1",
        "sluice_decision_seconds_count 7",
        "sluice_retry_after_ms_count 2",
        "sluice_ledger_up 1",
        "sluice_ledger_batch_events_count 0",
        "sluice_ledger_batch_seconds_count 0",
        "sluice_ledger_queue_depth 0",
        "sluice_limit_used{limit=\"all:rpm\"} 1",
        "sluice_limit_capacity{limit=\"all:rpm\"} 100",
        "sluice_limit_debt{limit=\"all:held\"} 0",
        "sluice_config_reloads_total{result=\"ok\"} 1",
        "sluice_retry_budget_ratio 0.0",
        "sluice_leases_total{event=\"reserved\"} 0",
    ] {
        assert!(answer.body.lines().any(|there| there == line), "{line} is not in\n{}", answer.body);
    }
    assert!(answer.body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn requests_cannot_grow_the_metrics() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&["a=1 -> ok…", "in other: a=1 -> bare", "all=1 -> ok…"]).await;
    let lines = async || app.get("/metrics").await.body.lines().count();
    let before = lines().await;
    for n in 0..50 {
        app.answers(&[&format!("in domain-{n}: k{n}=v{n} -> bare"), &format!("a=value-{n} -> ok 2/3 hour")])
            .await;
        app.answers(&[&format!("big={n} <{n}/hour> x1000 -> NEVER…")]).await;
    }
    let after = app.get("/metrics").await.body;
    assert!(!after.contains("domain-") && !after.contains("value-"), "{after}");
    assert!(
        after.contains("sluice_decisions_total{domain=\"unknown\",code=\"OK\",reason=\"\"} 51"),
        "{after}"
    );
    assert_eq!(after.lines().count(), before, "{after}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_carries_a_thousand_calls_at_once() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    assert!(wire.streams_max() >= 1000, "MAX_CONCURRENT_STREAMS is {}", wire.streams_max());
    // All are open before the first is finished.
    let mut open = Vec::new();
    for _ in 0..1000 {
        let opened = tokio::time::timeout(Duration::from_secs(10), wire.open(METHOD)).await;
        open.push(opened.expect("the server must take a thousand streams"));
    }
    let body = Arc::new(framed(&asked("big=1")));
    let mut calls = tokio::task::JoinSet::new();
    for call in open {
        let body = Arc::clone(&body);
        calls.spawn(async move { call.finish(&body).await.response().statuses[0].limit_remaining });
    }
    let mut left = calls.join_all().await;
    left.sort_unstable();
    assert_eq!(left, (99_000..100_000).collect::<Vec<u32>>(), "each was charged once");
}

/// Envoy resets what took too long. After a stall that is everything at once, and the connection carries all its calls.
#[tokio::test]
async fn a_burst_of_calls_that_were_given_up_closes_nothing() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for count in [10, 100, 1000] {
        let survived = survives_resets(app.grpc(), count, &asked("big=1")).await;
        assert_eq!(survived, Ok(()), "{count} resets");
    }
}

/// Many connections at once must not admit more than one does.
#[tokio::test(flavor = "multi_thread")]
async fn no_race_admits_more_than_the_limit() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let channel = channel(&app.app.grpc).await;
        for _ in 0..100 {
            let mut client =
                sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient::new(
                    channel.clone(),
                );
            calls.spawn(async move {
                let answer = client.should_rate_limit(crate::ask::request("all=1 + a=1")).await.unwrap();
                answer.into_inner().overall_code() == sluice::api::pb::Code::Ok
            });
        }
    }
    let admitted = calls.join_all().await.into_iter().filter(|admitted| *admitted).count();
    assert_eq!((admitted, app.used("all:rpm").await, app.used("d:a=1:hour").await), (3, 3, 3));
}
