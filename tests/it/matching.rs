//! Which limits a request meets, and what it is told: rows through the real gRPC port.
//!
//! The language of the rows is in [`crate::ask`]. Rows of one test share a server and follow each other.

mod several_limits;
mod shadow_and_quota;
mod retries;
mod windows;

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
