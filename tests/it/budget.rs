//! The retry budget from outside: what spends it, and whose it is.

use sluice::api::pb;
use tonic::Code;

use crate::testapp::TestApp;

const DOMAIN: &str = "descriptors:\n- {key: tenant, rate_limit: {unit: hour, requests_per_unit: 100000}}\n";

/// Ten retries in ten seconds for each domain, however many originals there are.
async fn start() -> TestApp {
    let policy = "retry_policy: {budget: {ratio: 0, window_seconds: 10, min_retries_per_second: 1}}";
    let limits = TestApp::with_limits(&format!("domain: d\n{DOMAIN}"));
    limits.and_limits(&format!("domain: other\n{DOMAIN}")).and_file("retry_policy.yaml", policy).start().await
}

/// How many of `times` were let in.
async fn admitted(app: &TestApp, asked: &str, times: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..times {
        let said = app.say(asked).await;
        assert!(said.starts_with("ok ") || said.starts_with("retry_budget"), "{said}");
        admitted += u32::from(said.starts_with("ok "));
    }
    admitted
}

#[tokio::test]
async fn a_tenant_alone_has_all_of_the_budget_of_its_domain() {
    let app = start().await;
    assert_eq!(admitted(&app, "tenant=a retry_attempt=1", 20).await, 10);
}

#[tokio::test]
async fn what_is_invalid_spends_nothing() {
    let app = start().await;
    let mut invalid = crate::ask::request("tenant=b retry_attempt=1");
    invalid.descriptors.push(invalid.descriptors[0].clone());
    invalid
        .descriptors
        .iter_mut()
        .for_each(|descriptor| descriptor.hits_addend = Some(pb::UInt64Value { value: u64::MAX }));
    for _ in 0..20 {
        let refused = app.client().should_rate_limit(invalid.clone()).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    }
    assert_eq!(admitted(&app, "tenant=a retry_attempt=1", 20).await, 10);
}

#[tokio::test]
async fn a_domain_that_nobody_has_spends_nothing() {
    let app = start().await;
    for _ in 0..20 {
        let mut request = crate::ask::request("tenant=a retry_attempt=1");
        request.domain = "nowhere".to_owned();
        let answer = app.client().should_rate_limit(request).await.unwrap().into_inner();
        assert_eq!(answer.overall_code(), pb::Code::Ok, "there is no limit");
    }
    assert_eq!(admitted(&app, "tenant=a retry_attempt=1", 20).await, 10);
}

#[tokio::test]
async fn each_domain_has_its_own() {
    let app = start().await;
    assert_eq!(admitted(&app, "in other: tenant=a retry_attempt=1", 20).await, 10);
    assert_eq!(admitted(&app, "tenant=a retry_attempt=1", 20).await, 10);
}

#[tokio::test]
async fn a_tenant_that_spends_it_all_leaves_the_others_their_share() {
    let app = start().await;
    assert_eq!(admitted(&app, "tenant=a retry_attempt=1", 50).await, 10);
    assert_eq!(admitted(&app, "tenant=b retry_attempt=1", 3).await, 1, "a share is at least one");
    assert_eq!(admitted(&app, "tenant=a retry_attempt=1", 3).await, 0);
}
