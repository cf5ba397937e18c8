//! Hints that are true, from outside: on the embedded ledger and on the real TigerBeetle server.

use std::time::Duration;

use sluice::clock;
use sluice::config::settings::value::LedgerUri;

use crate::ask::{header, request};
use crate::testapp::{Builder, TestApp};
use crate::tigerbeetle::Server;

const LIMITS: &str = "
domain: d
descriptors:
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 2}
  - key: pair
    limits:
      - {name: short, kind: rolling, capacity: 1, window_seconds: 1}
      - {name: long, kind: rolling, capacity: 1, window_seconds: 3}
  - key: few
    limits: [{name: few, kind: rolling, capacity: 3, window_seconds: 4}]
";

const INFORMED: &str = "retry_policy: {rolling: {informed: true}}";

fn informed() -> Builder {
    TestApp::with_limits(LIMITS).and_file("retry_policy.yaml", INFORMED)
}

/// `None` if it was admitted, else `retry-after-ms`.
async fn hint_ms(app: &TestApp, asked: &str) -> Option<u64> {
    let answer = app.client().should_rate_limit(request(asked)).await.unwrap().into_inner();
    header(&answer, "retry-after-ms").map(|ms| ms.parse().unwrap())
}

#[tokio::test]
async fn whoever_waits_as_it_is_told_is_admitted() {
    let app = informed().start().await;
    let started = clock::instant();
    for _ in 0..3 {
        assert_eq!(hint_ms(&app, "few=a").await, None);
    }
    let told_ms = hint_ms(&app, "few=a").await.expect("there is no room");
    // Four seconds after the first, with a few milliseconds of grain and jitter.
    let passed_ms = u64::try_from(started.elapsed().as_millis()).unwrap();
    assert!(told_ms <= 4_100 && told_ms + passed_ms >= 4_000, "{told_ms} after {passed_ms}");
    tokio::time::sleep(Duration::from_millis(told_ms)).await;
    assert_eq!(hint_ms(&app, "few=a").await, None);
    let metrics = app.get("/metrics").await.body;
    assert!(metrics.contains("sluice_hint_error_seconds_count 1"), "{metrics}");
}

#[tokio::test]
async fn of_several_limits_the_latest_counts() {
    let app = informed().start().await;
    assert_eq!(hint_ms(&app, "pair=a").await, None);
    let told_ms = hint_ms(&app, "pair=a").await.expect("there is no room");
    assert!((2_000..=3_100).contains(&told_ms), "{told_ms}");
}

#[tokio::test]
async fn it_is_a_knob_that_is_live_and_off_by_default() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for _ in 0..2 {
        assert_eq!(hint_ms(&app, "minute=a").await, None);
    }
    let by_formula = 5_000..=5_050;
    assert!(hint_ms(&app, "minute=a").await.is_some_and(|ms| by_formula.contains(&ms)));
    let put = app.send("PUT", "/v1/retry-policy", r#"{"rolling": {"informed": true}}"#).await;
    assert_eq!(put.status, 200, "{}", put.body);
    assert!(hint_ms(&app, "minute=a").await.is_some_and(|ms| (50_000..=60_000).contains(&ms)));
    let shorter = r#"{"rolling": {"informed": true, "informed_max_ms": 7000}}"#;
    assert_eq!(app.send("PUT", "/v1/retry-policy", shorter).await.status, 200);
    assert!(hint_ms(&app, "minute=a").await.is_some_and(|ms| (6_950..=7_000).contains(&ms)));
    let wrong = r#"{"rolling": {"informed": true, "informed_max_ms": 50}}"#;
    let refused = app.send("PUT", "/v1/retry-policy", wrong).await;
    assert!(refused.status == 400 && refused.body.contains("lower base_ms or raise informed_max_ms"));
    app.send("DELETE", "/v1/retry-policy", "").await;
    assert!(hint_ms(&app, "minute=a").await.is_some_and(|ms| by_formula.contains(&ms)));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_tigerbeetle_it_is_right_within_a_second() {
    let server = Server::start();
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let set = move |settings: &mut sluice::config::settings::Settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 10_000;
    };
    let app = informed().and_settings(set).start().await;
    app.readiness(200).await;
    for _ in 0..3 {
        assert_eq!(hint_ms(&app, "few=a").await, None);
    }
    let last = clock::instant();
    let told_ms = hint_ms(&app, "few=a").await.expect("there is no room");
    assert!((2_000..=5_000).contains(&told_ms), "{told_ms}");
    tokio::time::sleep(Duration::from_millis(told_ms)).await;
    while let Some(again_ms) = hint_ms(&app, "few=a").await {
        assert!(last.elapsed() < Duration::from_millis(told_ms + 1_000), "told {told_ms}, then {again_ms}");
        tokio::time::sleep(Duration::from_millis(again_ms)).await;
    }
}
