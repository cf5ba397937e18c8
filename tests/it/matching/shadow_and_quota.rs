//! Limits that don't just deny: shadow limits, quotas, those that others replace, and those that a request brings.

use crate::testapp::TestApp;

#[tokio::test]
async fn shadow_limits_count_what_was_admitted_and_deny_nobody() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: dark, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: zero, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: real, rate_limit: {unit: hour, requests_per_unit: 3}}
",
    );
    let rows = [
        "dark=1                     -> ok 1/2 hour",
        "dark=1                     -> ok 0/2 hour",
        "dark=1                     -> ok 0/2 hour",
        "zero=1                     -> ok 0/0 hour",
        "dark=1 x100                -> ok 0/2 hour",
        // It is over, and spoils nothing for the other.
        "dark=1 + real=1            -> ok 0/2 hour; ok 2/3 hour",
        "real=1 + zero=1            -> ok 1/3 hour; ok 0/0 hour",
        "used d:dark=1:hour -> 2",
        // Only what was admitted counts.
        "dark=2 + real=1 x2         -> OVER d:real=1:hour; ok 2/2 hour; over 1/3 hour",
        "dark=2 + real=1 x9         -> NEVER d:real=1:hour; ok 2/2 hour; over 1/3 hour",
        "used d:dark=2:hour -> 0",
        "dark=2 + real=1            -> ok 1/2 hour; ok 0/3 hour",
        "used d:dark=2:hour -> 1",
        "dark=2 x0                  -> ok 1/2 hour",
    ];
    let app = app.start().await;
    app.answers(&rows).await;
    let metrics = app.get("/metrics").await.body;
    let counted: Vec<&str> =
        metrics.lines().filter(|line| line.starts_with("sluice_shadow_denials_total{")).collect();
    assert_eq!(counted.len(), 2, "one per rule: {counted:?}");
    for line in [r#"{limit="d:dark:hour"} 3"#, r#"{limit="d:zero:hour"} 2"#] {
        assert!(counted.iter().any(|counted| counted.ends_with(line)), "{counted:?}");
    }
}

const QUOTAS: &str = "
domain: d
descriptors:
- {key: q, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: q2, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: real, rate_limit: {unit: hour, requests_per_unit: 2}}
- key: two
  quota_mode: true
  limits:
  - {name: small, kind: rolling, capacity: 1, window_seconds: 60}
  - {name: large, kind: rolling, capacity: 9, window_seconds: 60}
";

#[tokio::test]
async fn quotas_deny_only_when_all_of_them_are_over() {
    let rows = [
        "q=1 + q2=1          -> ok 0/1 hour; ok 1/2 hour",
        "q=1 + q2=1          -> over 0/1 hour; ok 0/2 hour",
        "q=1 + q2=1          -> OVER d:q=1:hour; over 0/1 hour; over 0/2 hour",
        "q=1                 -> OVER d:q=1:hour; over 0/1 hour",
        "q2=1 + q=9          -> over 0/2 hour; ok 0/1 hour",
        // One that could never fit is just over.
        "q=5 x2 + q2=5       -> over 1/1 hour; ok 1/2 hour",
        "q=5 x2 + q2=5 x3    -> NEVER d:q=5:hour; over 1/1 hour; over 1/2 hour",
        "q=5 x2              -> NEVER d:q=5:hour; over 1/1 hour",
        "used d:q=5:hour -> 0",
        // A quota has no say over other limits, and they have all the say they always have.
        "q=6 + real=6        -> ok 0/1 hour; ok 1/2 hour",
        "q=6 + real=6        -> OVER d:q=6:hour; over 0/1 hour; ok 1/2 hour",
        "q=6 + q2=6 + real=6 -> over 0/1 hour; ok 1/2 hour; ok 0/2 hour",
        "real=6 + q=7        -> OVER d:real=6:hour; over 0/2 hour; ok 1/1 hour",
        "used d:q=7:hour -> 0",
        "nope=1 + q=6        -> OVER d:q=6:hour; bare; over 0/1 hour",
    ];
    TestApp::with_limits(QUOTAS).start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_quota_that_is_over_lets_no_other_limit_slip() {
    let rows = [
        "q=1               -> ok 0/1 hour",
        "2 times: real=1   -> ok 0/2 hour",
        "q=1 + real=1 + q2=1 -> OVER d:real=1:hour; over 0/1 hour; over 0/2 hour; ok 2/2 hour",
        "real=1 + q=1 + q2=1 -> OVER d:real=1:hour; over 0/2 hour; over 0/1 hour; ok 2/2 hour",
        "q2=1 + q=1 + real=1 -> OVER d:real=1:hour; ok 2/2 hour; over 0/1 hour; over 0/2 hour",
        "used d:q2=1:hour -> 0",
        // What can never fit decides in the same way.
        "q=1 + real=2 x3 + q2=1 -> NEVER d:real=2:hour; ok 0/1 hour; over 2/2 hour; ok 2/2 hour",
    ];
    TestApp::with_limits(QUOTAS).start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_quota_descriptor_that_is_over_charges_none_of_its_limits() {
    let rows = [
        "two=1            -> ok 0/1 minute small",
        "two=1 + q2=1     -> over 0/1 minute small; ok 1/2 hour",
        "used d:two=1:large -> 1",
        "two=2 x2 + q2=1  -> over 1/1 minute small; ok 0/2 hour",
        "used d:two=2:large -> 0",
    ];
    TestApp::with_limits(QUOTAS).start().await.answers(&rows).await;
}

#[tokio::test]
async fn replaced_limits_are_not_charged() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: base, rate_limit: {unit: hour, requests_per_unit: 1, name: base}}
- {key: more, rate_limit: {unit: hour, requests_per_unit: 3, name: more, replaces: [{name: base}]}}
- {key: most, rate_limit: {unit: hour, requests_per_unit: 5, name: most, replaces: [{name: more}, {name: other}]}}
- {key: other, rate_limit: {unit: hour, requests_per_unit: 7, name: other}}
- {key: free, rate_limit: {unlimited: true, name: free, replaces: [{name: base}]}}
- {key: unfree, rate_limit: {unit: hour, requests_per_unit: 2, name: unfree, replaces: [{name: free}]}}
",
    );
    let rows = [
        "base=1                     -> ok 0/1 hour base",
        "base=1                     -> OVER d:base=1:base; over 0/1 hour base",
        "base=1 + more=1            -> bare; ok 2/3 hour more",
        "more=1 + base=1            -> ok 1/3 hour more; bare",
        "base=1 + base=2 + more=1   -> bare; bare; ok 0/3 hour more",
        "used d:base=2:base -> 0",
        // All names that any matched limit replaces are gone, also those that the replaced one replaces.
        "base=2 + more=2 + most=2   -> bare; bare; ok 4/5 hour most",
        "other=2 + more=2 + most=2  -> bare; bare; ok 3/5 hour most",
        "base=2 + free=2            -> bare; free",
        "base=2 + free=2 + unfree=2 -> bare; bare; ok 1/2 hour unfree",
        "other=2 + free=2           -> ok 6/7 hour other; free",
        // Not matched, so nothing is replaced.
        "base=2 + most=2 x0 + nope=1 -> ok 0/1 hour base; ok 3/5 hour most; bare",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn an_override_is_a_limit_of_its_own() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let rows = [
        "a=1                  -> ok 0/1 hour",
        "a=1 <3/hour>         -> ok 2/3 hour",
        "a=1 <3/minute>       -> ok 2/3 minute",
        "a=1 <4/hour>         -> ok 3/4 hour",
        "a=1 <1/hour>         -> ok 0/1 hour",
        "a=2 <3/hour>         -> ok 2/3 hour",
        "2 times: a=1 <3/hour> -> ok 0/3 hour",
        "a=1 <3/hour>         -> OVER d:a=1:override=3/hour; over 0/3 hour",
        "a=1                  -> OVER d:a=1:hour; over 0/1 hour",
        // The files are not consulted: any depth and any key will do.
        "nope=1 deep=2 <5/day> -> ok 4/5 day",
        "a=1 <9/week>         -> ok 8/9 week",
        "a=1 <9/year> x10     -> NEVER d:a=1:override=9/year; over 9/9 year",
        "a=1 <0/hour>         -> NEVER d:a=1:override=0/hour; over 0/0 hour",
        "a=1 <0/hour> x0      -> ok 0/0 hour",
        "a=1 <4/hour> + a=1 <4/hour> -> ok 1/4 hour; ok 1/4 hour",
        "a=1 + a=1 <4/hour>   -> OVER d:a=1:hour; over 0/1 hour; ok 1/4 hour",
        // But the domain has to be known.
        "in other: a=1 <0/hour> -> bare",
        "a=1 <5/unknown>      -> InvalidArgument: descriptors[0].limit.unit: must be SECOND, MINUTE, …",
        "nope=1 + a=1 <5/unknown> -> InvalidArgument: descriptors[1].limit.unit: …",
    ];
    app.start().await.answers(&rows).await;
}
