//! Thousands of leases at once: none is lost, and nothing stays behind.

use sluice::api::pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use tokio::task::JoinSet;

use super::counted;
use crate::ask::request;
use crate::lease_scenario::lease_of;
use crate::testapp::TestApp;

/// Three thousand of them, opened and closed by a hundred callers at once, half of them through Envoy.
pub async fn thousands(app: &TestApp) {
    let mut callers = JoinSet::new();
    for caller in 0..100u32 {
        let mut envoy = app.client();
        let mut leases = LeaseServiceClient::new(app.channel.clone());
        callers.spawn(async move {
            for n in 0..30u32 {
                let row = format!("load{}", (caller + n) % 7);
                if n % 2 == 0 {
                    let asked = request(&format!("in load: row={row} x3"));
                    let answer = envoy.should_rate_limit(asked).await.unwrap().into_inner();
                    let done = format!("in load: lease_id={} x0", lease_of(&answer).expect("a lease"));
                    envoy.should_rate_limit(request(&done)).await.unwrap();
                } else {
                    let key = |limit: &str| format!("load:row={row}:{limit}");
                    let requirements = vec![
                        pb::lease::Requirement { key: key("tokens"), amount: 3 },
                        pb::lease::Requirement { key: key("held"), amount: 1 },
                    ];
                    let ask = pb::lease::ReserveRequest { requirements, ..Default::default() };
                    let answer = leases.reserve(ask).await.unwrap().into_inner();
                    assert!(answer.allowed, "{answer:?}");
                    let actuals = vec![pb::lease::Actual { key: key("tokens"), actual_amount: Some(0) }];
                    let lease_token = answer.lease_token;
                    let done = pb::lease::CompleteRequest { lease_token, actuals, ..Default::default() };
                    assert!(leases.complete(done).await.unwrap().into_inner().ok);
                }
            }
        });
    }
    callers.join_all().await;
    for row in 0..7 {
        for limit in ["tokens", "held"] {
            assert_eq!(app.used(&format!("load:row=load{row}:{limit}")).await, 0, "{row} {limit}");
        }
    }
    assert_eq!((counted(app, "reserved").await, counted(app, "completed").await), (3_000, 3_000));
}

pub const LOAD: &str = "
domain: load
descriptors:
- key: row
  limits:
  - {name: tokens, kind: rolling, capacity: 1000000, window_seconds: 3600, reconcile: true}
  - {name: held, kind: concurrency, capacity: 100, timeout_seconds: 3600}
";

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_leases_leave_nothing_behind() {
    let app = TestApp::with_limits(LOAD).start().await;
    thousands(&app).await;
    assert_eq!(counted(&app, "expired_unseen").await, 0);
}
