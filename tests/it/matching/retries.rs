//! Requests that are tried or sent again: what marks them, their budget, and that one is charged once.

use crate::testapp::TestApp;

#[tokio::test]
async fn an_entry_that_marks_a_retry_takes_no_part_in_matching() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: retry_attempt, rate_limit: {unit: hour, requests_per_unit: 0}}
",
    );
    let rows = [
        "a=1                  -> ok 8/9 hour",
        "a=1 retry_attempt=0  -> ok 7/9 hour",
        "retry_attempt=1 a=1  -> ok 6/9 hour",
        "a=1 retry_attempt=zz -> ok 5/9 hour",
        "retry_attempt=1      -> bare",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn retries_beyond_the_budget_meet_no_limit() {
    let policy = "retry_policy: {budget: {ratio: 0.5, min_retries_per_second: 0, descriptor_key: again}}";
    let app = TestApp::with_limits(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 90}}]",
    )
    .and_file("retry_policy.yaml", policy);
    let rows = [
        "a=1 again=1              -> retry_budget -; over",
        "4 times: a=1             -> ok 86/90 hour",
        "2 times: a=1 again=1     -> ok 84/90 hour",
        "a=1 again=1              -> retry_budget -; over",
        "a=1 again=2 + b=1        -> retry_budget -; over; over",
        "2 times: a=1 again=0     -> ok 82/90 hour",
        "a=1 + b=1 again=1        -> ok 81/90 hour; bare",
        "a=1 again=1              -> retry_budget -; over",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_request_that_is_sent_again_charges_once() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 3}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: dark, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
- {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: q2, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 9}}
",
    );
    let rows = [
        "5 times: as r1: a=1 + b=1 + dark=1 -> ok 2/3 hour; ok 8/9 hour; ok 8/9 hour",
        "as r2: a=1 + b=1                   -> ok 1/3 hour; ok 7/9 hour",
        "as r1: a=1 + b=1 + dark=1          -> ok 1/3 hour; ok 7/9 hour; ok 8/9 hour",
        "as r3: a=1 x2                      -> OVER d:a=1:hour; over 1/3 hour",
        "as r4: a=1                         -> ok 0/3 hour",
        "as r5: b=1 + a=1                   -> OVER d:a=1:hour; ok 7/9 hour; over 0/3 hour",
        "used d:b=1:hour -> 2",
        // Also where a quota is left out on the way.
        "q=1                                -> ok 0/1 hour",
        "5 times: as r6: q=1 + q2=1         -> over 0/1 hour; ok 8/9 hour",
        "as r7: q2=1                        -> ok 7/9 hour",
    ];
    app.start().await.answers(&rows).await;
}
