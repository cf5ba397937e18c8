//! What an answer took beyond what there was, and answers that don't say what they took: the next request feels the one, a
//! metric counts the other.

use crate::http;
use crate::wait::until;

use super::{ACME, BODY, CHAT, ESTIMATE, LIMITS, Setup};

/// Ten thousand tokens an hour, for each tenant.
fn limits(overage: &str) -> String {
    let limit = |rest: &str| format!("capacity: {rest}, window_seconds: 3600, reconcile: true");
    LIMITS.replacen(&limit("1000000000"), &format!("{}, overage: {overage}", limit("10000")), 1)
}

/// Six that each take 20,000 of 10,000: one is let in, and then nobody, whichever of the two rules it is.
#[tokio::test]
async fn who_took_twice_what_there_is_is_stopped() {
    for (overage, debt, reason) in [("deny", 0, "over_limit"), ("repay", 10_000, "debt")] {
        let setup = Setup::limited(&limits(overage), &[]).await;
        let path = format!("{CHAT}?answer=twenty-thousand");
        assert_eq!(setup.ask(&path, &[ACME], BODY).await.status, 200);
        setup.settled().await;
        until("all of it to be taken", async || match setup.used("tenant=acme:tpm").await {
            10_000 => Ok(()),
            used => Err(used.to_string()),
        })
        .await;
        for _ in 0..5 {
            let denied = setup.ask(&path, &[ACME], BODY).await;
            assert_eq!((denied.status, denied.header("x-sluice-reason")), (429, reason), "{overage}");
            assert_eq!(denied.header("x-sluice-limit"), "llm:tenant=acme:tpm");
            assert_ne!(denied.header("retry-after"), "", "{denied:?}");
        }
        let view = http::get(setup.sluice.admin, "/v1/limits/llm%3Atenant=acme%3Atpm").await.json();
        assert_eq!(view["debt"], debt, "{view}");
        let bob = setup.ask(&path, &[("x-api-key", "bob-key")], BODY).await;
        assert_eq!(bob.status, 200, "another tenant has its own: {bob:?}");
        assert_eq!(setup.envoy.upstream.arrived(), 2);
    }
}

/// An answer that takes longer than the window of its limit: what was reserved has come back when it is over. With `repay` what
/// it took beyond that is owed, and stops the next one.
#[tokio::test]
async fn an_answer_that_outlives_its_window_counts() {
    for (overage, used, debt, status) in [("deny", 0, 0, 200), ("repay", 10_000, 10_000 - ESTIMATE, 429)] {
        let limits = limits(overage).replacen("window_seconds: 3600", "window_seconds: 2", 1);
        let setup = Setup::limited(&limits, &[]).await;
        let path = format!("{CHAT}?answer=twenty-thousand&after_ms=2500");
        assert_eq!(setup.ask(&path, &[ACME], BODY).await.status, 200);
        setup.settled().await;
        let view = http::get(setup.sluice.admin, "/v1/limits/llm%3Atenant=acme%3Atpm").await.json();
        assert_eq!((&view["used"], &view["debt"]), (&used.into(), &debt.into()), "{view}");
        let next = setup.ask(&format!("{CHAT}?answer=openai"), &[ACME], BODY).await;
        assert_eq!(next.status, status, "{overage}: {next:?}");
    }
}

#[tokio::test]
async fn answers_that_do_not_say_what_they_took_are_counted() {
    let setup = Setup::start(&[]).await;
    let counted = async || {
        let metrics = http::get(setup.sluice.admin, "/metrics").await.body;
        let line =
            metrics.lines().find(|line| line.starts_with("sluice_unreported_usage_total{domain=\"llm\"}"));
        line.map_or(0, |line| line.rsplit(' ').next().unwrap().parse().unwrap())
    };
    assert_eq!(counted().await, 0);
    for (answer, charged, expected) in [
        ("openai", 29, 0),
        ("silent", ESTIMATE, 1),
        ("openai-stream-without-usage", ESTIMATE, 2),
        ("silent&status=500", 0, 2),
        ("page", ESTIMATE, 3),
    ] {
        assert_eq!(setup.charged(&format!("{CHAT}?answer={answer}"), BODY).await.1, charged, "{answer}");
        assert_eq!(counted().await, expected, "{answer}");
    }
}
