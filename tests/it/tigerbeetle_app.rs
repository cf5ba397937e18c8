//! The whole of Sluice on the real TigerBeetle server, seen through the gRPC and admin ports.

use sluice::api::pb;
use sluice::config::settings::value::{LedgerUri, OnFailure, Share};

use crate::testapp::{Builder, TestApp};
use crate::tigerbeetle::Server;
use crate::wait::until;

const LIMITS: &str = "
domain: d
limits:
  - {key: shared, kind: rolling, capacity: 50, window_seconds: 3600}
descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: all
    limits: [{ref: shared}]
  - key: seen
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
";

fn on(server: &Server) -> Builder {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    TestApp::with_limits(LIMITS).and_settings(move |settings| {
        settings.ledger.uri = uri;
        // Far above what an answer takes, so that a busy machine is not a failure.
        settings.ledger.timeout_ms = 10_000;
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_as_the_embedded_ledger_does() {
    let server = Server::start();
    let app = on(&server).start().await;
    app.readiness(200).await;
    assert!(app.say("path=/a x9").await.starts_with("ok "));
    // What is left is a recent sample, taken off the path of requests.
    until("a sample", async || {
        let said = app.say("path=/a x0").await;
        if said == "ok 1/10 hour" { Ok(()) } else { Err(said) }
    })
    .await;
    app.answers(&[
        "path=/a x2 -> OVER d:path=/a:hour; over 1/10 hour",
        "path=/a x11 -> NEVER d:path=/a:hour; over 1/10 hour",
        "used d:path=/a:hour -> 9",
        "path=/b + path=/a x2 -> OVER d:path=/a:hour; ok …",
        "used d:path=/b:hour -> 0",
        "as one: path=/c x4 -> ok …",
        "as one: path=/c x4 -> ok …",
        "used d:path=/c:hour -> 4",
        "5 times: seen=x -> ok …",
        "used shared -> 0",
    ])
    .await;
    let list = app.get("/v1/limits").await.json();
    assert_eq!(list["limits"][0]["key"], "shared");
    assert_eq!(list["limits"][0]["capacity"], 50);
    let metrics = app.get("/metrics").await.body;
    for line in ["sluice_ledger_up 1", "sluice_limit_capacity{limit=\"shared\"} 50"] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    app.app.stop().await;
}

/// However many shadow limits a request has, they cost one round trip together.
#[tokio::test(flavor = "multi_thread")]
async fn shadow_limits_are_counted_together() {
    let server = Server::start();
    let app = on(&server).start().await;
    app.readiness(200).await;
    let ask = "path=/a + seen=a + seen=b + seen=c + seen=d -> ok …";
    // The accounts are made.
    app.answers(&[ask]).await;
    let requests = async || {
        let metrics = app.get("/metrics").await.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix("sluice_ledger_batch_events_count "));
        line.unwrap().parse::<u64>().unwrap()
    };
    let before = requests().await;
    app.answers(&[ask]).await;
    assert_eq!(requests().await - before, 2, "one for what can deny, one for all that can't");
    app.app.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_sluices_and_two_hundred_callers_admit_exactly_fifty() {
    let server = Server::start();
    let apps = [on(&server).start().await, on(&server).start().await];
    for app in &apps {
        app.readiness(200).await;
    }
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..200 {
        let mut client = apps[n % 2].client();
        callers.spawn(async move {
            let entry =
                sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry {
                    key: "all".to_owned(),
                    value: n.to_string(),
                };
            let descriptor = pb::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
            let request = pb::RateLimitRequest {
                domain: "d".to_owned(),
                descriptors: vec![descriptor],
                hits_addend: 0,
            };
            client.should_rate_limit(request).await.unwrap().into_inner().overall_code()
        });
    }
    let codes = callers.join_all().await;
    assert_eq!(codes.iter().filter(|code| **code == pb::Code::Ok).count(), 50);
    assert_eq!(codes.iter().filter(|code| **code == pb::Code::OverLimit).count(), 150);
    assert_eq!(apps[0].used("shared").await, 50);
}

/// The same fault under each policy; all recover by themselves.
#[tokio::test(flavor = "multi_thread")]
async fn when_the_ledger_fails_the_policy_decides() {
    let mut server = Server::start();
    let policies = [OnFailure::Error, OnFailure::Allow, OnFailure::Deny, OnFailure::Local];
    let mut apps = Vec::new();
    for policy in policies {
        let app = on(&server)
            .and_settings(move |settings| {
                settings.ledger.on_failure = policy;
                settings.ledger.timeout_ms = 2_000;
                settings.ledger.local_share = "0.3".parse::<Share>().unwrap();
            })
            .start()
            .await;
        app.readiness(200).await;
        app.answers(&["path=/before -> ok …"]).await;
        apps.push(app);
    }
    let [error, allow, deny, local] = &apps[..] else { panic!("four apps") };

    server.signal("STOP");
    // It was connected and does not answer in time. The accounts are there, so the reserves themselves are on their way.
    let said = futures_util::future::join_all(apps.iter().map(|app| app.say("path=/before"))).await;
    for (said, expected) in said.iter().zip(["DeadlineExceeded: ", "ok ", "backend_error ", "ok "]) {
        assert!(said.starts_with(expected), "{expected}: {said}");
    }
    for app in &apps {
        app.readiness(503).await;
    }
    // It goes without having answered anything more, so nobody can take it for one that is back.
    server.kill();
    error.answers(&["path=/x -> Unavailable: …"]).await;
    allow.answers(&["path=/x x10 -> ok …", "path=/x x10 -> ok …"]).await;
    assert!(deny.say("path=/x").await.contains("backend_error"), "{}", deny.say("path=/x").await);
    // 0.3 of 10.
    local.answers(&["3 times: path=/x -> ok …", "path=/x -> OVER d:path=/x:hour; over …"]).await;
    let json = error
        .post("/json", r#"{"domain":"d","descriptors":[{"entries":[{"key":"path","value":"/x"}]}]}"#)
        .await;
    assert_eq!(json.status, 503, "{json:?}");
    for app in &apps {
        let metrics = app.get("/metrics").await.body;
        assert!(!metrics.contains("sluice_ledger_errors_total{kind=\"unavailable\"} 0\n"), "{metrics}");
    }
    let metrics = error.get("/metrics").await.body;
    assert!(metrics.contains("sluice_ledger_errors_total{kind=\"timed_out\"} 1\n"), "{metrics}");

    server.restart();
    for app in &apps {
        app.readiness(200).await;
        app.answers(&["path=/after -> ok …"]).await;
    }
    // All four charged the ledger again. What timed out is sent again when the server is back, and given back when it has landed.
    for (path, expected) in [("after", 4), ("before", 4), ("x", 0)] {
        until("what each has used", async || match error.used(&format!("d:path=/{path}:hour")).await {
            used if used == expected => Ok(()),
            used => Err(format!("{used} of /{path}")),
        })
        .await;
    }
}

/// A server that is away at start is no reason not to start.
#[tokio::test(flavor = "multi_thread")]
async fn starts_unready_and_becomes_ready_by_itself() {
    let port = crate::tigerbeetle::free_port();
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![format!("localhost:{port}")] };
    let app =
        TestApp::with_limits(LIMITS).and_settings(move |settings| settings.ledger.uri = uri).start().await;
    assert_eq!(app.get("/livez").await.status, 200);
    let unready = app.get("/readyz").await;
    assert_eq!(unready.status, 503);
    app.answers(&["path=/x -> Unavailable: …"]).await;
    let _server = Server::start_on(port);
    app.readiness(200).await;
    app.answers(&["path=/x -> ok …", "used d:path=/x:hour -> 1"]).await;
    // Named limits were made without being asked for.
    until("the named limit", async || {
        let metrics = app.get("/metrics").await.body;
        if metrics.contains("sluice_limit_capacity{limit=\"shared\"} 50") { Ok(()) } else { Err(metrics) }
    })
    .await;
}
