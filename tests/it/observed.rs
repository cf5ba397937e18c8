//! What an operator reads off a running server: metrics that are there before they are needed, and headers that fit.

use sluice::api::pb;

use crate::live::within;
use crate::testapp::TestApp;
use crate::wait::until;

const LIMITS: &str = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: held, limits: [{name: h, kind: concurrency, capacity: 50, timeout_seconds: 60}]}
";

/// An alert on the increase of a counter misses the first one if the counter begins with it.
#[tokio::test]
async fn counters_are_there_before_anything_happened() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let metrics = app.get("/metrics").await.body;
    let mut lines = vec![
        "sluice_config_reloads_total{result=\"ok\"} 1".to_owned(),
        "sluice_config_reloads_total{result=\"error\"} 0".to_owned(),
        "sluice_config_problems 0".to_owned(),
        "sluice_memory_records_max 16777216".to_owned(),
        "sluice_decisions_total{domain=\"d\",code=\"OK\",reason=\"\"} 0".to_owned(),
        "sluice_decisions_total{domain=\"d\",code=\"OVER_LIMIT\",reason=\"over_limit\"} 0".to_owned(),
    ];
    lines.extend(
        ["unavailable", "timed_out", "queue_full", "full"]
            .map(|kind| format!("sluice_ledger_errors_total{{kind=\"{kind}\"}} 0")),
    );
    for line in lines {
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    assert!(
        !metrics.contains("code=\"OVER_LIMIT\",reason=\"\""),
        "no denial is without a reason:\n{metrics}"
    );
}

fn series<'m>(metrics: &'m str, name: &str) -> Vec<&'m str> {
    metrics.lines().filter(|line| line.starts_with(&format!("{name}{{"))).collect()
}

/// Two instances with the same files say the same; what is refused changes nothing, and there is one hash at a time.
#[tokio::test(flavor = "multi_thread")]
async fn instances_can_be_compared() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let other = TestApp::with_limits(LIMITS).start().await;
    let said = async |app: &TestApp| {
        let metrics = app.get("/metrics").await.body;
        let [line] = series(&metrics, "sluice_config_info")[..] else { panic!("one series: {metrics}") };
        let hash =
            line.strip_prefix("sluice_config_info{hash=\"").and_then(|rest| rest.strip_suffix("\"} 1"));
        hash.unwrap_or_else(|| panic!("{line}")).to_owned()
    };
    let first = said(&app).await;
    assert_eq!(said(&other).await, first);
    let build = format!("sluice_build_info{{version=\"{}\",revision=\"", env!("CARGO_PKG_VERSION"));
    assert!(app.get("/metrics").await.body.contains(&build));

    let file = app.dir.path().join("limits/0.yaml");
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: three")).unwrap();
    within("the mistake is seen", async || match app.config().await {
        config if config["failing_since"].is_u64() => Ok(()),
        config => Err(config.to_string()),
    })
    .await;
    assert_eq!(said(&app).await, first);
    assert!(app.get("/metrics").await.body.contains("sluice_config_problems 1\n"));
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 4")).unwrap();
    app.becomes("d:a=1:hour", Some(4)).await;
    assert!(app.get("/metrics").await.body.contains("sluice_config_problems 0\n"));
    assert_ne!(said(&app).await, first);
    std::fs::write(&file, LIMITS).unwrap();
    app.becomes("d:a=1:hour", Some(3)).await;
    assert_eq!(said(&app).await, first);

    // A domain that is gone takes its counters along.
    std::fs::write(&file, LIMITS.replace("domain: d", "domain: e")).unwrap();
    app.becomes("e:a=1:hour", Some(3)).await;
    let metrics = app.get("/metrics").await.body;
    assert!(metrics.contains("{domain=\"e\"") && !metrics.contains("domain=\"d\""), "{metrics}");
}

#[tokio::test]
async fn how_full_the_memory_ledger_is_can_be_seen() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&["30 times: held=1 -> ok …"]).await;
    until("the records to be counted", async || {
        let metrics = app.get("/metrics").await.body;
        if metrics.contains("sluice_memory_records 30\n") { Ok(()) } else { Err(metrics) }
    })
    .await;
}

/// Envoy and most clients take 60 KiB of headers or less, and a value is as long as whoever sends it likes.
#[tokio::test]
async fn a_limit_with_a_long_name_is_named_in_short() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for (value, expected) in [
        ("x".repeat(1012), format!("d:a={}:hour", "x".repeat(1012))),
        ("x".repeat(100_000), format!("d:a={}...", "x".repeat(985))),
        ("é".repeat(50_000), format!("d:a={}...", "é".repeat(492))),
    ] {
        let entry = sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry {
            key: "a".to_owned(),
            value,
        };
        let descriptor = pb::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
        let request =
            pb::RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 4 };
        let answer = app.client().should_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), pb::Code::OverLimit);
        let told = crate::ask::header(&answer, "x-sluice-limit").unwrap();
        let account = told.strip_prefix(&expected).unwrap_or_else(|| panic!("{told} is not {expected}"));
        assert!(told.len() <= 1024 && [0, 32].contains(&account.len()), "{told}");
    }
}

/// A look says what the next request would hear.
#[tokio::test]
async fn who_looks_at_a_limit_that_is_decreasing_is_told() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&["3 times: a=1 -> ok …", "a=1 x0 -> ok 0/3 hour", "a=2 -> ok …"]).await;
    let lower = LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 2");
    std::fs::write(app.dir.path().join("limits/0.yaml"), lower).unwrap();
    let decreasing = until("the edit to be live", async || match app.say("a=1 x0").await {
        said if said.starts_with("ok ") => Err(said),
        said => Ok(said),
    })
    .await;
    assert_eq!(app.say("a=1").await, decreasing, "the same as for a request");
    assert!(decreasing.starts_with("limit_decreasing d:a=1:hour"), "{decreasing}");
    app.answers(&["a=2 x0 -> ok 1/2 hour", "used d:a=1:hour -> 3"]).await;
}
