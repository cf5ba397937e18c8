//! What was used counts: debts that are paid first, charges that come afterwards, and what people are told of both.

use sluice::config::settings::secret::Secret;

use crate::ask::{header, request};
use crate::http;
use crate::lease_scenario::lease_of;
use crate::testapp::TestApp;

const LIMITS: &str = "
domain: d
limits:
- {key: shared, kind: rolling, capacity: 100, window_seconds: 3600, overage: repay}
descriptors:
- {key: tenant, limits: [{ref: shared, reconcile: true}]}
- {key: late, rate_limit: {unit: hour, requests_per_unit: 10, charge: always}}
- {key: early, rate_limit: {unit: hour, requests_per_unit: 10}}
- key: both
  limits:
  - {name: tokens, kind: rolling, capacity: 1000, window_seconds: 3600}
  - {name: calls, kind: rolling, capacity: 100, window_seconds: 60, cost: 1}
  - {name: held, kind: concurrency, capacity: 5, timeout_seconds: 60}
- {key: held, limits: [{name: held, kind: concurrency, capacity: 5, timeout_seconds: 60}]}
";

async fn metric(app: &TestApp, name: &str) -> u64 {
    let metrics = app.get("/metrics").await.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{metrics}")).parse().unwrap()
}

#[tokio::test]
async fn a_limit_that_owes_says_so_and_when_it_will_have_paid() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let ask = async |text: &str| app.client().should_rate_limit(request(text)).await.unwrap().into_inner();
    let lease = lease_of(&ask("tenant=a x10").await).unwrap();
    app.answers(&[&format!("lease_id={lease} x150 -> bare")]).await;
    // 90 were paid at once. The 10 that come back in an hour pay, and 40 of the 90 a moment later.
    app.answers(&["tenant=b x3 -> debt shared; over 0/100 hour shared", "used shared -> 100"]).await;
    let denied = ask("tenant=a x3").await;
    let hint_ms: u64 = header(&denied, "retry-after-ms").unwrap().parse().unwrap();
    assert!((3_590_000..=3_600_060).contains(&hint_ms), "{hint_ms}");
    // 60 more than 50 are there only when the first payment comes back, an hour later.
    let denied = ask("tenant=a x60").await;
    let hint_ms: u64 = header(&denied, "retry-after-ms").unwrap().parse().unwrap();
    assert!((7_190_000..=7_200_060).contains(&hint_ms), "{hint_ms}");
    let limit = app.get("/v1/limits/shared").await.json();
    assert_eq!(
        (&limit["debt"], &limit["overage"], &limit["available"]),
        (&50.into(), &"repay".into(), &0.into())
    );
    assert_eq!(metric(&app, "sluice_limit_debt{limit=\"shared\"}").await, 50);
    let reason = r#"sluice_decisions_total{domain="d",code="OVER_LIMIT",reason="debt"}"#;
    assert_eq!(metric(&app, reason).await, 3);

    assert_eq!(app.send("DELETE", "/v1/limits/nothing/debt", "").await.status, 404);
    assert_eq!(app.send("DELETE", "/v1/limits/shared/debt", "").await.status, 204);
    assert_eq!(app.send("DELETE", "/v1/limits/shared/debt", "").await.status, 204);
    assert_eq!(app.send("POST", "/v1/limits/shared/debt", "").await.status, 405);
    app.answers(&["tenant=b x3 -> OVER shared; over 0/100 hour shared"]).await;
    assert_eq!(metric(&app, "sluice_limit_debt{limit=\"shared\"}").await, 0);
}

#[tokio::test]
async fn a_limit_of_the_api_has_both_and_keeps_them() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let put = |charge: &str| {
        format!(
            r#"{{"key": "made", "kind": "rolling", "capacity": 5, "window_seconds": 60, "overage": "repay"{charge}}}"#
        )
    };
    let made = app.send("PUT", "/v1/limits", &put(r#", "charge": "always""#)).await;
    assert_eq!((made.status, &made.json()["charge"]), (200, &"always".into()), "{made:?}");
    let dir = app.stop().await;
    let app = crate::testapp::Builder::in_dir(dir).start().await;
    let kept = app.get("/v1/limits/made").await.json();
    assert_eq!((&kept["overage"], &kept["charge"]), (&"repay".into(), &"always".into()));
    app.send("PUT", "/v1/limits", &put("")).await;
    assert_eq!(
        app.get("/v1/limits/made").await.json().get("charge"),
        None,
        "the default goes without saying"
    );
}

#[tokio::test]
async fn forgiving_needs_the_token() {
    let app = TestApp::with_limits(LIMITS)
        .and_settings(|settings| settings.admin.token = Some(Secret::new("t")))
        .start()
        .await;
    let forgive = async |headers: &[(&str, &str)]| {
        http::send(app.app.admin, "DELETE", "/v1/limits/shared/debt", headers, String::new()).await.status
    };
    assert_eq!(forgive(&[]).await, 401);
    assert_eq!(forgive(&[("authorization", "Bearer t")]).await, 204);
}

#[tokio::test]
async fn what_a_refused_request_has_used_counts_where_the_limit_says_so() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&[
        // One hit, or a limit that charges whom it admits: a denial charges nothing.
        "early=a x8 -> ok 2/10 hour",
        "early=a x5 -> OVER d:early=a:hour; over 2/10 hour",
        "early=a x0 -> ok 2/10 hour",
        "late=a x8 -> ok 2/10 hour",
        "late=a x0 -> ok 2/10 hour",
        "late=a x5 -> OVER d:late=a:hour; over 0/10 hour",
        "used d:late=a:hour -> 10",
        "late=a x0 -> OVER d:late=a:hour; over 0/10 hour",
        "late=a -> OVER d:late=a:hour; over 0/10 hour",
        // More than there ever is.
        "late=b x11 -> NEVER d:late=b:hour; over 0/10 hour",
        "late=b x0 -> OVER d:late=b:hour; over 0/10 hour",
        // The hits of the descriptor where it has its own, those of the request where not.
        "each 20: late=c x1 + late=d -> NEVER d:late=d:hour; ok 10/10 hour; over 0/10 hour",
        "used d:late=c:hour -> 0",
        "used d:late=d:hour -> 10",
        // What another limit refuses is charged as well.
        "late=e x4 + late=d x1 -> OVER d:late=d:hour; ok 6/10 hour; over 0/10 hour",
        "used d:late=e:hour -> 4",
        "late=e x4 + early=a x3 -> OVER d:early=a:hour; ok 2/10 hour; over 2/10 hour",
        "used d:late=e:hour -> 8",
        "used d:early=a:hour -> 8",
        // The same name is charged once.
        "as r1: late=f x12 -> NEVER d:late=f:hour; over 0/10 hour",
        "as r2: late=g x4 + late=d x2 -> OVER d:late=d:hour; …",
        "as r2: late=g x4 + late=d x2 -> OVER d:late=d:hour; …",
        "used d:late=g:hour -> 4",
    ])
    .await;
}

#[tokio::test]
async fn the_nearest_rolling_limit_is_the_one_that_is_told() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&[
        "both=a x10 -> ok 99/100 minute calls",
        "both=a x985 -> ok 5/1000 hour tokens",
        "held=a -> ok 4/5 unknown held",
    ])
    .await;
}

#[tokio::test]
async fn requests_that_no_limit_applies_to_are_counted() {
    let app = TestApp::with_limits(LIMITS).start().await;
    app.answers(&[
        "nothing=a -> bare",
        "nothing=a + early=x -> bare; ok …",
        "in other: early=a -> bare",
        "in another: early=a -> bare",
    ])
    .await;
    assert_eq!(metric(&app, r#"sluice_unmatched_total{domain="d"}"#).await, 1);
    assert_eq!(metric(&app, r#"sluice_unmatched_total{domain="unknown"}"#).await, 2);
    assert!(!app.get("/metrics").await.body.contains("another"), "unknown domains share one label");
}

#[tokio::test]
async fn completions_that_do_not_say_what_was_used_are_counted() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let lease = async |text: &str| {
        lease_of(&app.client().should_rate_limit(request(text)).await.unwrap().into_inner()).unwrap()
    };
    let unreported = async || metric(&app, r#"sluice_unreported_usage_total{domain="d"}"#).await;
    for (hits, expected) in [("x5", 0), ("x0", 0), ("", 1), ("", 2)] {
        let lease = lease("tenant=a x5").await;
        app.answers(&[&format!("phase=done lease_id={lease} {hits} -> bare")]).await;
        assert_eq!(unreported().await, expected, "{hits}");
        app.answers(&[&format!("phase=done lease_id={lease} -> bare")]).await;
        assert_eq!(unreported().await, expected, "a second completion says nothing");
    }
    let one = lease("tenant=a x5").await;
    app.answers(&[&format!("lease_id={one} + lease_id={one} x1 -> bare; bare")]).await;
    let held = lease("held=a").await;
    app.answers(&[&format!("lease_id={held} -> bare")]).await;
    assert_eq!(unreported().await, 2, "one of them says it, and a hold has nothing to say");

    let by_api = async |actuals: &str| {
        let reserve = r#"{"requirements": [{"key": "shared", "amount": 1}]}"#;
        let token = app.post("/v1/reserve", reserve).await.json()["lease_token"].clone();
        let body = format!(r#"{{"lease_token": {token}, "actuals": [{actuals}]}}"#);
        assert_eq!(app.post("/v1/complete", &body).await.json()["ok"], true);
        metric(&app, r#"sluice_unreported_usage_total{domain="lease_api"}"#).await
    };
    assert_eq!(by_api(r#"{"key": "shared", "actual_amount": 1}"#).await, 0);
    assert_eq!(by_api("").await, 1);
}
