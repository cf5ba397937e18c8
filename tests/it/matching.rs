//! Which limits a request meets, and what it is told: rows through the real gRPC port.
//!
//! The language of the rows is in [`crate::ask`]. Rows of one test share a server and follow each other.

use std::collections::HashSet;

use sluice::api::pb;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::ask::{self, header};
use crate::testapp::TestApp;

#[tokio::test]
async fn an_exact_value_comes_before_a_star_before_the_bare_key() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: path, rate_limit: {unit: hour, requests_per_unit: 9, name: any}}
- {key: path, value: '/a*', rate_limit: {unit: hour, requests_per_unit: 9, name: star}}
- {key: path, value: /ab, rate_limit: {unit: hour, requests_per_unit: 9, name: exact}}
",
    );
    let rows = [
        "path=/ab      -> ok 8/9 hour exact",
        "path=/a       -> ok 8/9 hour star",
        "path=/abc     -> ok 8/9 hour star",
        "path=/b       -> ok 8/9 hour any",
        "path=\"\"     -> ok 8/9 hour any",
        "path=/AB      -> ok 8/9 hour any",
        "path=/ab      -> ok 7/9 hour exact",
        "path=/ab x100 -> NEVER d:path=/ab:exact; over 7/9 hour exact",
        "path=/a x100  -> NEVER d:path=/a:star; over 8/9 hour star",
        "path=/b x100  -> NEVER d:path=/b:any; over 8/9 hour any",
        "paths=/ab     -> bare",
        "Path=/ab      -> bare",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn patterns_are_tried_in_the_order_of_the_file() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: p, value: '*z', rate_limit: {unit: hour, requests_per_unit: 9, name: ends}}
- {key: p, value: 'ab*', rate_limit: {unit: hour, requests_per_unit: 9, name: long}}
- {key: p, value: 'a*', rate_limit: {unit: hour, requests_per_unit: 9, name: short}}
- {key: p, value: 'a*c*e', rate_limit: {unit: hour, requests_per_unit: 9, name: late}}
- {key: p, value: '*x*', rate_limit: {unit: hour, requests_per_unit: 9, name: middle}}
- {key: q, value: '*', rate_limit: {unit: hour, requests_per_unit: 9, name: all}}
- {key: q, value: 'a*', rate_limit: {unit: hour, requests_per_unit: 9, name: never}}
",
    );
    let rows = [
        "p=abz     -> ok 8/9 hour ends",
        "p=abc     -> ok 8/9 hour long",
        "p=ab      -> ok 8/9 hour long",
        "p=a       -> ok 8/9 hour short",
        "p=acde    -> ok 8/9 hour short",
        "p=x       -> ok 8/9 hour middle",
        "p=1x2     -> ok 8/9 hour middle",
        "p=A       -> bare",
        "p=\"\"    -> bare",
        "p=*       -> bare",
        "p=ab*     -> ok 8/9 hour long",
        "q=\"\"    -> ok 8/9 hour all",
        "q=abc     -> ok 8/9 hour all",
        "q=abc x10 -> NEVER d:q=abc:all; over 8/9 hour all",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn there_is_no_way_back_up() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- key: path
  value: /a
  descriptors:
  - {key: method, value: GET, rate_limit: {unit: hour, requests_per_unit: 9, name: exact}}
- key: path
  value: '/*'
  descriptors:
  - {key: method, rate_limit: {unit: hour, requests_per_unit: 9, name: star}}
- key: path
  rate_limit: {unit: hour, requests_per_unit: 9, name: any}
  descriptors:
  - {key: method, rate_limit: {unit: hour, requests_per_unit: 9, name: any-method}}
",
    );
    let rows = [
        "path=/a method=GET -> ok 8/9 hour exact",
        // The exact value leads nowhere from here; neither the pattern nor the bare key is tried instead.
        "path=/a method=PUT -> bare",
        "path=/b method=PUT -> ok 8/9 hour star",
        "path=b method=PUT  -> ok 8/9 hour any-method",
        "path=/a            -> bare",
        "path=/b            -> bare",
        "path=b             -> ok 8/9 hour any",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_limit_counts_only_at_the_last_entry() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 9, name: one}
  descriptors:
  - key: b
    descriptors:
    - {key: c, rate_limit: {unit: hour, requests_per_unit: 9, name: three}}
- {key: white}
- {key: white, value: listed}
",
    );
    let rows = [
        "a=1             -> ok 8/9 hour one",
        "a=1 b=2         -> bare",
        "a=1 b=2 c=3     -> ok 8/9 hour three",
        "a=1 b=2 c=3 d=4 -> bare",
        "b=2             -> bare",
        "b=2 a=1         -> bare",
        "a=1 c=3         -> bare",
        "a=1 a=1         -> bare",
        "white=1         -> bare",
        "white=listed    -> bare",
        "white=1 a=1     -> bare",
        "a=1             -> ok 7/9 hour one",
        "used d:a=1:one -> 2",
        "used d:a=1:b=2:c=3:three -> 1",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn a_descriptor_may_be_as_deep_as_a_file_nests() {
    let levels = 32;
    let nested: String = (0..levels).map(|n| format!("descriptors: [{{key: k{n}, ")).collect();
    let limit = "rate_limit: {unit: hour, requests_per_unit: 2}";
    let app =
        TestApp::with_limits(&format!("{{domain: d, {nested}{limit}{}}}", "}]".repeat(levels))).start().await;
    let all: Vec<String> = (0..levels).map(|n| format!("k{n}=v")).collect();
    let (all, but_one) = (all.join(" "), all[..levels - 1].join(" "));
    app.answers(&[&format!("{all} -> ok 1/2 hour"), &format!("{but_one} -> bare")]).await;
}

#[tokio::test]
async fn every_value_counts_for_itself_unless_the_threshold_is_shared() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: own, value: 'a*', rate_limit: {unit: hour, requests_per_unit: 2}}
- {key: all, value: 'a*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
- key: tree
  value: 'b*'
  share_threshold: true
  descriptors:
  - {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
  - {key: path, value: '/*', share_threshold: true, rate_limit: {unit: hour, requests_per_unit: 2}}
",
    );
    let rows = [
        "2 times: user=bob  -> ok 0/2 hour",
        "user=bob           -> OVER d:user=bob:hour; over 0/2 hour",
        "user=eve           -> ok 1/2 hour",
        "user=\"\"          -> ok 1/2 hour",
        "2 times: own=a1    -> ok 0/2 hour",
        "own=a1             -> OVER d:own=a1:hour; over 0/2 hour",
        "own=a2             -> ok 1/2 hour",
        "all=a1             -> ok 1/2 hour",
        "all=a2             -> ok 0/2 hour",
        "all=a3             -> OVER d:all=a*:hour; over 0/2 hour",
        "all=a*             -> OVER d:all=a*:hour; over 0/2 hour",
        // The shared value is shared for all that is below it.
        "tree=b1 user=bob   -> ok 1/2 hour",
        "tree=b2 user=bob   -> ok 0/2 hour",
        "tree=b3 user=bob   -> OVER d:tree=b*:user=bob:hour; over 0/2 hour",
        "tree=b3 user=eve   -> ok 1/2 hour",
        "tree=b1 path=/1    -> ok 1/2 hour",
        "tree=b2 path=/2    -> ok 0/2 hour",
        "tree=b3 path=/3    -> OVER d:tree=b*:path=/*:hour; over 0/2 hour",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn every_unit_is_told_as_it_was_written() {
    let units = ["second", "minute", "hour", "day", "week", "month", "year"];
    let descriptors: String = units
        .iter()
        .map(|unit| {
            let (unit, shout) = (unit, unit.to_uppercase());
            format!("- {{key: {unit}, rate_limit: {{unit: {shout}, requests_per_unit: 4294967295}}}}\n")
        })
        .collect();
    let app = TestApp::with_limits(&format!("domain: d\ndescriptors:\n{descriptors}")).start().await;
    let seconds = [1, 60, 3_600, 86_400, 604_800, 2_592_000, 31_536_000];
    for (unit, seconds) in units.iter().zip(seconds) {
        let rows = [
            format!("{unit}=x -> ok 4294967294/4294967295 {unit}"),
            format!("{unit}=x <3/{unit}> -> ok 2/3 {unit}"),
            format!("{unit}=x x4294967296 -> NEVER d:{unit}=x:{unit}; over …"),
            format!("{unit}=x <3/{unit}> x4 -> NEVER d:{unit}=x:override=3/{unit}; over 2/3 {unit}"),
        ];
        app.answers(&rows.each_ref().map(String::as_str)).await;
        let limit = app.get(&format!("/v1/limits/d:{unit}=x:{unit}")).await.json();
        assert_eq!(limit["window_seconds"], seconds, "{unit}");
    }
}

#[tokio::test]
async fn unlimited_is_free_and_counts_nothing() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: open, rate_limit: {unlimited: true}}
- {key: open, value: closed, rate_limit: {unit: hour, requests_per_unit: 0}}
- {key: half, rate_limit: {unit: hour, requests_per_unit: 1}}
",
    );
    let rows = [
        "open=x                             -> free",
        "open=x x18446744073709551615       -> free",
        "open=closed                        -> NEVER d:open=closed:hour; over 0/0 hour",
        "open=x + open=closed               -> NEVER d:open=closed:hour; free; over 0/0 hour",
        "open=x + half=1                    -> free; ok 0/1 hour",
        "open=x + half=1                    -> OVER d:half=1:hour; free; over 0/1 hour",
    ];
    app.start().await.answers(&rows).await;
}

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

#[tokio::test]
async fn more_than_32_bits_of_room_are_told_as_all_of_them() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- {key: a, limits: [{name: huge, kind: rolling, capacity: 9223372036854775807, window_seconds: 3600}]}
",
    );
    let rows = [
        "a=1 -> ok 4294967295/4294967295 hour huge",
        "a=1 x9223372036854775806 -> ok 0/4294967295 hour huge",
        "a=1 -> OVER d:a=1:huge; over 0/4294967295 hour huge",
        "a=1 x18446744073709551615 -> NEVER d:a=1:huge; over 0/4294967295 hour huge",
    ];
    app.start().await.answers(&rows).await;
}

#[tokio::test]
async fn unknown_domains_are_not_limited() {
    let app = TestApp::with_limits(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 0}}]",
    );
    let rows = [
        "in other: a=1         -> bare",
        "in D: a=1             -> bare",
        "in other: a=1 + b=2   -> bare; bare",
        "in other: a=1 x18446744073709551615 + a=1 x1 -> bare; bare",
        "in d: a=1             -> NEVER d:a=1:hour; over 0/0 hour",
    ];
    app.start().await.answers(&rows).await;
}

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

/// Values that try to be another's, and values that are nearly the same. Each has a limit of its own that admits one.
#[tokio::test]
async fn no_value_can_name_anothers_limit() {
    let app = TestApp::with_limits(
        "
domain: d
descriptors:
- key: a
  rate_limit: {unit: hour, requests_per_unit: 1}
  descriptors:
  - key: b
    rate_limit: {unit: hour, requests_per_unit: 1}
    descriptors: [{key: c, rate_limit: {unit: hour, requests_per_unit: 1}}]
- {key: a_b, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: 'a=x:b', rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: 'a%3Dx%3Ab', rate_limit: {unit: hour, requests_per_unit: 1}}
",
    )
    .and_limits("domain: 'd:a=x'\ndescriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 1}}]")
    .and_limits("domain: 'd%3Aa'\ndescriptors: [{key: b, rate_limit: {unit: hour, requests_per_unit: 1}}]")
    .start()
    .await;
    let long = "x".repeat(10 * 1024);
    let (longer, colons) = (format!("{long}y"), ":=%".repeat(4 * 1024));
    let requests: &[(&str, &[(&str, &str)])] = &[
        ("d", &[("a", "x")]),
        ("d", &[("a", "x"), ("b", "y")]),
        ("d", &[("a", "x"), ("b", "y"), ("c", "z")]),
        ("d", &[("a", "x:b=y")]),
        ("d", &[("a", "x:b=y:c=z")]),
        ("d", &[("a", "x:b=y"), ("b", "y")]),
        ("d", &[("a", "x"), ("b", "y:c=z")]),
        ("d", &[("a", "x%3Ab%3Dy")]),
        ("d", &[("a", "x%3Ab=y")]),
        ("d", &[("a", "x%253Ab%253Dy")]),
        ("d", &[("a", "x:hour")]),
        ("d", &[("a", ":")]),
        ("d", &[("a", "=")]),
        ("d", &[("a", "%")]),
        ("d", &[("a", "%25")]),
        ("d", &[("a", "%3A")]),
        ("d", &[("a", "%3a")]),
        ("d", &[("a", "::")]),
        ("d", &[("a", "")]),
        ("d", &[("a", ""), ("b", "")]),
        ("d", &[("a", " ")]),
        ("d", &[("a", "x ")]),
        ("d", &[("a", "\0")]),
        ("d", &[("a", "%00")]),
        ("d", &[("a", "\n")]),
        ("d", &[("a", "\r\nx-evil: 1")]),
        ("d", &[("a", "\u{7f}")]),
        ("d", &[("a", "\u{85}")]),
        ("d", &[("a", "é")]),
        ("d", &[("a", "e\u{301}")]),
        ("d", &[("a", "*")]),
        ("d", &[("a", &long)]),
        ("d", &[("a", &longer)]),
        ("d", &[("a", &colons)]),
        ("d", &[("a_b", "x")]),
        ("d", &[("a_b", "y")]),
        ("d", &[("a=x:b", "y")]),
        ("d", &[("a%3Dx%3Ab", "y")]),
        ("d:a=x", &[("b", "y")]),
        ("d%3Aa", &[("b", "y")]),
    ];
    let mut keys = HashSet::new();
    for admitted in [true, false] {
        for (domain, entries) in requests {
            let entries = entries.iter().map(|&(key, value)| Entry { key: key.into(), value: value.into() });
            let descriptor = pb::RateLimitDescriptor { entries: entries.collect(), ..Default::default() };
            let request = pb::RateLimitRequest {
                domain: (*domain).to_owned(),
                descriptors: vec![descriptor],
                hits_addend: 0,
            };
            let answer =
                app.client().should_rate_limit(request.clone()).await.map(tonic::Response::into_inner);
            let said = ask::told(&request, &answer);
            if admitted {
                assert_eq!(said, "ok 0/1 hour", "{request:?}");
            } else {
                let answer = answer.unwrap();
                let limit = header(&answer, "x-sluice-limit").unwrap();
                assert!(keys.insert(limit.to_owned()), "{limit} was another's: {request:?}");
                assert!(!limit.chars().any(char::is_control), "{limit:?} is sent as a header");
            }
        }
    }
    assert_eq!(keys.len(), requests.len());
}

/// From both sides: while the first hits are in their window nothing gets in, and after it everything does.
#[tokio::test]
async fn windows_roll() {
    let app = TestApp::with_limits(
        "domain: d\ndescriptors: [{key: a, rate_limit: {unit: second, requests_per_unit: 2}}]",
    )
    .start()
    .await;
    let before = sluice::clock::instant();
    app.answers(&["a=1 -> ok 1/2 second", "a=1 -> ok 0/2 second"]).await;
    let mut admitted = 0;
    while admitted < 2 {
        let said = app.say("a=1").await;
        let elapsed = before.elapsed();
        assert!(elapsed.as_secs() < 5, "still {said}");
        if said.starts_with("ok") {
            assert!(elapsed.as_millis() >= 1000, "early: {elapsed:?}");
            admitted += 1;
        } else {
            assert_eq!(said, "OVER d:a=1:second; over 0/2 second");
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// A hit comes back one window after it was spent, not when a clock's second begins.
#[tokio::test]
async fn each_hit_comes_back_for_itself() {
    let app = TestApp::with_limits(
        "domain: d\ndescriptors: [{key: a, limits: [{name: n, kind: rolling, capacity: 10, window_seconds: 2}]}]",
    )
    .start()
    .await;
    app.answers(&["a=1 x4 -> ok 6/10 unknown n"]).await;
    tokio::time::sleep(std::time::Duration::from_millis(1200)).await;
    app.answers(&["a=1 x6 -> ok 0/10 unknown n", "a=1 -> OVER d:a=1:n; over 0/10 unknown n"]).await;
    let said = crate::wait::until("the first four", async || {
        let said = app.say("a=1 x0").await;
        if said == "ok 0/10 unknown n" { Err(said) } else { Ok(said) }
    });
    assert_eq!(said.await, "ok 4/10 unknown n", "the six are still in their window");
    app.answers(&["a=1 x4 -> ok 0/10 unknown n", "a=1 -> OVER d:a=1:n; over 0/10 unknown n"]).await;
}
