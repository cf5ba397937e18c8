//! A request that meets several limits: what each descriptor is told, and what is taken of each.

use crate::testapp::TestApp;

#[tokio::test]
async fn statuses_are_in_the_order_of_the_descriptors() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, rate_limit: {unit: second, requests_per_unit: 9, name: an}}
- {key: b, rate_limit: {unit: hour, requests_per_unit: 8}}
- {key: c, rate_limit: {unlimited: true}}
- {key: e, rate_limit: {unit: day, requests_per_unit: 1, name: once}}
",
    );
    let rows = [
        "nope=1 + a=1 + b=1 + c=1             -> bare; ok 8/9 second an; ok 7/8 hour; free",
        "c=1 + b=2 + nope=1 + a=2 + e=1       -> free; ok 7/8 hour; bare; ok 8/9 second an; ok 0/1 day once",
        // Nothing is charged, and each says what is left.
        "b=2 + e=1 + c=1                      -> OVER d:e=1:once; ok 7/8 hour; over 0/1 day once; free",
        "b=2 + e=1 + b=3 + e=2 + e=1          -> NEVER d:e=1:once; ok 7/8 hour; over 0/1 day once; ok 8/8 hour; ok 1/1 day once; over 0/1 day once",
        "used d:b=2:hour -> 1",
        "used d:b=3:hour -> 0",
        "used d:e=2:once -> 0",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_denied_request_charges_nothing_anywhere() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: wide, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: tight, rate_limit: {unit: hour, requests_per_unit: 2}}
",
    );
    let rows = [
        "2 times: wide=1 + tight=1   -> ok 8/10 hour; ok 0/2 hour",
        "50 times: wide=1 + tight=1  -> OVER d:tight=1:hour; ok 8/10 hour; over 0/2 hour",
        "50 times: tight=1 + wide=1  -> OVER d:tight=1:hour; over 0/2 hour; ok 8/10 hour",
        "used d:wide=1:hour -> 2",
        "8 times: wide=1             -> ok 0/10 hour",
        // Both are over, and both say so; the first is the one that said no.
        "wide=1 + tight=1            -> OVER d:wide=1:hour; over 0/10 hour; over 0/2 hour",
        "tight=1 + wide=1            -> OVER d:tight=1:hour; over 0/2 hour; over 0/10 hour",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn hits_are_the_descriptors_else_the_requests_else_one() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 10}}
- {key: zero, rate_limit: {unit: hour, requests_per_unit: 0}}
",
    );
    let rows = [
        "a=1                      -> ok 9/10 hour",
        "a=1 x3                   -> ok 6/10 hour",
        "each 2: a=1              -> ok 4/10 hour",
        "each 0: a=1              -> ok 3/10 hour",
        "each 9: a=1 x1           -> ok 2/10 hour",
        "each 2: a=2 + a=3 x5     -> ok 8/10 hour; ok 5/10 hour",
        // 0 looks without charging.
        "a=1 x0                   -> ok 2/10 hour",
        "each 7: a=1 x0           -> ok 2/10 hour",
        "a=1 x3                   -> OVER d:a=1:hour; over 2/10 hour",
        "a=1 x2                   -> ok 0/10 hour",
        "a=1 x0                   -> ok 0/10 hour",
        "a=1                      -> OVER d:a=1:hour; over 0/10 hour",
        "a=1 x0 + a=2             -> ok 0/10 hour; ok 7/10 hour",
        "a=9 x0                   -> ok 10/10 hour",
        "zero=1 x0                -> ok 0/0 hour",
        "zero=1                   -> NEVER d:zero=1:hour; over 0/0 hour",
        // More than the limit ever has.
        "a=1 x11                  -> NEVER d:a=1:hour; over 0/10 hour",
        "a=5 x10                  -> ok 0/10 hour",
        "each 4294967295: a=6     -> NEVER d:a=6:hour; over 10/10 hour",
        "a=6 x18446744073709551615 -> NEVER d:a=6:hour; over 10/10 hour",
        "used d:a=6:hour -> 0",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn one_limit_asked_twice_is_asked_for_the_sum() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: s, value: 'x*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 5}}
",
    );
    let rows = [
        "a=1 + a=1                -> ok 3/5 hour; ok 3/5 hour",
        "a=1 x2 + a=1             -> ok 0/5 hour; ok 0/5 hour",
        "a=2 x3 + a=2 x3          -> NEVER d:a=2:hour; over 5/5 hour; over 5/5 hour",
        "a=2 x4                   -> ok 1/5 hour",
        "a=2 + a=2                -> OVER d:a=2:hour; over 1/5 hour; over 1/5 hour",
        "a=2 + a=2 x0             -> ok 0/5 hour; ok 0/5 hour",
        "s=x1 x2 + s=x2 x2        -> ok 1/5 hour; ok 1/5 hour",
        "s=x3 + s=x4              -> OVER d:s=x*:hour; over 1/5 hour; over 1/5 hour",
        // Beyond 64 bits there is no sum.
        "a=3 x18446744073709551615 + a=3 x1 -> InvalidArgument: descriptors: the hits asked of limit d:a=3:hour…",
        "a=3 x18446744073709551615 + a=4 x1 -> NEVER d:a=3:hour; over 5/5 hour; ok 5/5 hour",
        "used d:a=3:hour -> 0",
        "used d:a=4:hour -> 0",
    ];
    app.start().await.answers(&rows).await;
}

const LLM: &str = "
domain: d
limits:
- {key: 'all:rpm', kind: rolling, capacity: 5, window_seconds: 60}
- {key: 'all:slots', kind: rolling, capacity: 3, window_seconds: 30, unit: slots}
descriptors:
- key: tenant
  descriptors:
  - key: model
    value: big
    rate_limit: {unit: minute, requests_per_unit: 4}
    limits:
    - {ref: 'all:rpm', cost: 1}
    - {name: tpm, kind: rolling, capacity: 100, window_seconds: 60}
    - {name: odd, kind: rolling, capacity: 1000, window_seconds: 90, cost: 10}
- {key: direct, limits: [{ref: 'all:rpm'}]}
- {key: other, limits: [{ref: 'all:rpm'}, {ref: 'all:slots', cost: 2}]}
";

#[tokio::test]
async fn all_limits_of_a_descriptor_are_reserved_together() {
    let big = "tenant=acme model=big";
    let rows = [
        // The status tells of the limit with the least left; hits cost what each limit says.
        format!("{big} -> ok 3/4 minute"),
        "used d:tenant=acme:model=big:minute -> 1".to_owned(),
        "used all:rpm -> 1".to_owned(),
        "used d:tenant=acme:model=big:tpm -> 1".to_owned(),
        "used d:tenant=acme:model=big:odd -> 10".to_owned(),
        format!("{big} x2 -> ok 1/4 minute"),
        "used all:rpm -> 2".to_owned(),
        "used d:tenant=acme:model=big:tpm -> 3".to_owned(),
        "used d:tenant=acme:model=big:odd -> 20".to_owned(),
        // One of them is over: none is charged.
        format!("{big} x2 -> OVER d:tenant=acme:model=big:minute; over 1/4 minute"),
        format!("{big} x0 -> ok 1/4 minute"),
        "used all:rpm -> 2".to_owned(),
        "used d:tenant=acme:model=big:odd -> 20".to_owned(),
        "tenant=acme model=small -> bare".to_owned(),
        format!("tenant=other {} -> ok 2/5 minute all:rpm", "model=big"),
    ];
    let app = TestApp::with_limits(LLM).start().await;
    app.answers(&rows.each_ref().map(String::as_str)).await;
}

#[tokio::test]
async fn a_named_limit_is_shared_by_whatever_refers_to_it() {
    let app = TestApp::with_limits(LLM).and_limits(
        "
domain: second
descriptors:
- {key: x, limits: [{ref: 'all:rpm', cost: 2}]}
",
    );
    let rows = [
        "direct=1                 -> ok 4/5 minute all:rpm",
        "in second: x=1           -> ok 2/5 minute all:rpm",
        // Once for each descriptor that asks, together.
        "direct=1 + direct=2      -> ok 0/5 minute all:rpm; ok 0/5 minute all:rpm",
        "in second: x=1           -> OVER all:rpm; over 0/5 minute all:rpm",
        "direct=1                 -> OVER all:rpm; over 0/5 minute all:rpm",
        "tenant=new model=big     -> OVER all:rpm; over 0/5 minute all:rpm",
        "other=1                  -> OVER all:rpm; over 0/5 minute all:rpm",
        "used all:slots -> 0",
        "used d:tenant=new:model=big:tpm -> 0",
        "other=1 x6               -> NEVER all:rpm; over 0/5 minute all:rpm",
        // A value that looks like the named limit's key is not it.
        "nope=all:rpm             -> bare",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_window_without_a_name_has_no_unit() {
    let app = TestApp::with_limits(LLM).start().await;
    app.answers(&["other=1 -> ok 1/3 unknown all:slots", "used all:slots -> 2"]).await;
}
