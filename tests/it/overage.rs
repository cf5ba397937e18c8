//! What was used counts: debts that are paid first, charges that come afterwards, and what people are told of both.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use sluice::config::settings::secret::Secret;
use sluice::ledger::memory::Core;
use sluice::ledger::{Account, Action, Chain, Hold, Keep, Transfer, Verdict};
use sluice::limit::{LeaseId, LimitKey, Overage};

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

const CAPACITY: u64 = 20;
const WINDOW_SECONDS: u64 = 5;

/// A tenant that asks for one thing after the other, and takes another amount than it said.
struct Tenant {
    core: Core,
    account: Arc<Account>,
    overage: Overage,
    now_ms: u64,
    /// When it was let in, and how much it really used of that was charged.
    charged: Vec<(u64, u64)>,
    used: u64,
}

impl Tenant {
    fn new(overage: Overage) -> Self {
        let account = Arc::new(Account::new(LimitKey::new("tenant")));
        Self { core: Core::default(), account, overage, now_ms: 10_000, charged: Vec::new(), used: 0 }
    }

    fn apply(&mut self, lease: &LeaseId, actions: &[(fn(Hold) -> Action, u64)]) -> (Verdict, u64) {
        let lifetime_seconds = NonZeroU32::new(u32::try_from(WINDOW_SECONDS).unwrap()).unwrap();
        let transfers = actions.iter().map(|(action, amount)| {
            let hold = Hold {
                amount: *amount,
                lifetime_seconds,
                capacity: CAPACITY,
                overage: self.overage,
                is_exact: true,
            };
            Transfer { account: Arc::clone(&self.account), action: action(hold) }
        });
        let chain = Chain { lease: lease.clone(), keep: Keep::ForRetries, transfers: transfers.collect() };
        let outcome = self.core.apply(&chain, self.now_ms).unwrap();
        (outcome.verdict, outcome.taken.first().copied().unwrap_or(0))
    }

    /// Reserves an estimate, and settles what was really used as a completion does.
    fn call(&mut self, estimate: u64, actual: u64) {
        let lease = LeaseId::fresh(self.now_ms, fastrand::u128(..));
        if self.apply(&lease, &[(Action::Reserve, estimate)]).0 != Verdict::Done {
            return;
        }
        self.used += actual;
        let mut charged = actual;
        if actual < estimate {
            self.apply(&lease, &[(|_| Action::Void, 0), (Action::Rereserve, actual)]);
        } else if self.apply(&lease, &[(Action::Rereserve, actual - estimate)]).0 != Verdict::Done {
            charged = estimate;
            match self.overage {
                Overage::Deny => charged += self.apply(&lease, &[(Action::TakeUpTo, actual - estimate)]).1,
                _ => drop(self.apply(&lease, &[(Action::Debt, actual - estimate)])),
            }
        }
        self.charged.push((self.now_ms, charged));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..Default::default() })]

    /// Over any window what was used, less what requests overshot, is at most the capacity. With repay what they overshot
    /// is paid later, so that in the long run no more is used than the capacity in each window.
    #[test]
    fn what_was_used_counts(
        repays in any::<bool>(),
        calls in prop::collection::vec((0..400u64, 1..=CAPACITY, 0..60u64), 1..300),
    ) {
        let mut tenant = Tenant::new(if repays { Overage::Repay } else { Overage::Deny });
        let started_ms = tenant.now_ms;
        for (pause, estimate, actual) in calls {
            tenant.now_ms += pause * 10;
            tenant.call(estimate, actual);
            let balance = tenant.core.balance(&tenant.account, CAPACITY, tenant.now_ms);
            prop_assert!(balance.used <= CAPACITY);
            if repays {
                prop_assert!(balance.debt == 0 || balance.used == CAPACITY, "something is free while {} are owed", balance.debt);
                let windows = (tenant.now_ms - started_ms) / (WINDOW_SECONDS * 1000) + 1;
                prop_assert!(tenant.used - balance.debt <= CAPACITY * windows, "{} in {windows} windows", tenant.used);
            }
        }
        for (n, (from_ms, _)) in tenant.charged.iter().enumerate() {
            let within = tenant.charged[n..].iter().take_while(|(at, _)| *at < from_ms + WINDOW_SECONDS * 1000);
            let used: u64 = within.map(|(_, charged)| charged).sum();
            prop_assert!(used <= CAPACITY, "{used} within a window");
        }
    }
}
