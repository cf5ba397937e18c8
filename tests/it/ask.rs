//! A small language for requests and answers, so that the next case costs one line.
//!
//! `path=/a x3 + user=bob -> OVER d:path=/a:minute; over 0/5 minute; ok 9/10 hour`
//!
//! A request is descriptors with `+` between them; the domain is `d` unless `in other:` comes first:
//! * `path=/a user=bob`: one descriptor of two entries; `""` stands for an empty value
//! * `x3`: the descriptor's own hits; `<5/minute>`: a limit that comes with it; `each 3:` in front: the request's hits
//! * `5 times:` in front: the same request so often, and the answer is the last one
//! * `as r1:` in front: the request is called r1, as Envoy does with `%UNIQUE_ID%`
//!
//! An answer is a status per descriptor; `OVER`, `NEVER` or another reason with the limit that said no before them:
//! * `bare`, `free` (unlimited), `ok 4/5 minute name`, `over 0/5 minute`: what is left, of how many, per what, called what
//! * `InvalidArgument: text`, if there is no answer; `…` at the end stands for any rest
//!
//! `used KEY -> 3` asks the admin port. Whatever the row says, every answer is checked for what must always hold.

use sluice::api::pb;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use tonic::Status;

use crate::testapp::TestApp;

impl TestApp {
    /// Runs the rows in order; panics with the one that did not hold.
    pub async fn answers(&self, rows: &[&str]) {
        for row in rows {
            let (asked, expected) =
                row.split_once("->").unwrap_or_else(|| panic!("`{row}` has no `->` in it"));
            let (asked, expected) = (asked.trim(), expected.trim());
            let said = match asked.strip_prefix("used ") {
                Some(key) => self.used(key).await.to_string(),
                None => self.say(asked).await,
            };
            match expected.strip_suffix('…') {
                Some(start) => assert!(said.starts_with(start), "`{row}`, but it said `{said}`"),
                None => assert_eq!(said, expected, "`{row}`"),
            }
        }
    }

    pub async fn used(&self, key: &str) -> u64 {
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/v1/limits/{encoded}")).await;
        assert_eq!(answer.status, 200, "{key}: {answer:?}");
        assert_eq!(answer.json()["key"], key);
        answer.json()["used"].as_u64().expect("used must be a number")
    }

    /// The answer to a request, both in the language above.
    pub async fn say(&self, asked: &str) -> String {
        let Asked { times, name, request } = parse(asked);
        let mut said = String::new();
        for _ in 0..times {
            let mut call = tonic::Request::new(request.clone());
            if let Some(name) = name {
                call.metadata_mut().insert("x-sluice-request-id", name.parse().unwrap());
            }
            let answer = self.client().should_rate_limit(call).await;
            said = told(&request, &answer.map(tonic::Response::into_inner));
        }
        said
    }
}

/// The message that a text stands for.
pub fn request(asked: &str) -> pb::RateLimitRequest {
    parse(asked).request
}

struct Asked<'a> {
    times: u32,
    name: Option<&'a str>,
    request: pb::RateLimitRequest,
}

fn parse(asked: &str) -> Asked<'_> {
    let mut request = pb::RateLimitRequest { domain: "d".to_owned(), ..Default::default() };
    let (mut times, mut name) = (1, None);
    let mut rest = asked.trim();
    while let Some((head, tail)) = rest.split_once(": ") {
        match head.split_whitespace().collect::<Vec<_>>()[..] {
            ["in", domain] => request.domain = domain.to_owned(),
            ["each", hits] => request.hits_addend = hits.parse().unwrap(),
            ["as", id] => name = Some(id),
            [count, "times"] => times = count.parse().unwrap(),
            _ => panic!("`{head}:` means nothing in `{asked}`"),
        }
        rest = tail.trim();
    }
    request.descriptors = rest.split(" + ").map(descriptor).collect();
    Asked { times, name, request }
}

fn descriptor(text: &str) -> pb::RateLimitDescriptor {
    let mut descriptor = pb::RateLimitDescriptor::default();
    for word in text.split_whitespace() {
        if let Some(hits) = word.strip_prefix('x').and_then(|hits| hits.parse().ok()) {
            descriptor.hits_addend = Some(pb::UInt64Value { value: hits });
        } else if let Some(limit) = word.strip_prefix('<').and_then(|word| word.strip_suffix('>')) {
            let (requests, unit) = limit.split_once('/').expect("a limit is <5/minute>");
            let unit = pb::Unit::from_str_name(&unit.to_uppercase()).expect("a limit has a unit");
            let requests_per_unit = requests.parse().unwrap();
            descriptor.limit = Some(RateLimitOverride { requests_per_unit, unit: unit.into() });
        } else {
            let (key, value) = word.split_once('=').unwrap_or_else(|| panic!("`{word}` is no entry"));
            let value = if value == "\"\"" { "" } else { value };
            descriptor.entries.push(Entry { key: key.to_owned(), value: value.to_owned() });
        }
    }
    descriptor
}

/// An answer in the language above.
pub fn told(request: &pb::RateLimitRequest, answer: &Result<pb::RateLimitResponse, Status>) -> String {
    let response = match answer {
        Ok(response) => response,
        Err(status) => return format!("{:?}: {}", status.code(), status.message()),
    };
    check(request, response);
    let statuses = response.statuses.iter().map(status).collect::<Vec<_>>().join("; ");
    if response.overall_code() == pb::Code::Ok {
        return statuses;
    }
    let reason = match header(response, "x-sluice-reason").expect("a denial must have a reason") {
        "over_limit" => "OVER",
        "never_fits" => "NEVER",
        other => other,
    };
    let limit = header(response, "x-sluice-limit").unwrap_or("-");
    format!("{reason} {limit}; {statuses}")
}

fn status(status: &pb::DescriptorStatus) -> String {
    let code = match status.code() {
        pb::Code::Ok => "ok",
        pb::Code::OverLimit => "over",
        pb::Code::Unknown => panic!("a status must have a code: {status:?}"),
    };
    let Some(limit) = &status.current_limit else {
        return match (code, status.limit_remaining) {
            ("ok", 0) => "bare".to_owned(),
            ("ok", u32::MAX) => "free".to_owned(),
            _ => code.to_owned(),
        };
    };
    let unit = limit.unit().as_str_name().to_lowercase();
    let text = format!("{code} {}/{} {unit} {}", status.limit_remaining, limit.requests_per_unit, limit.name);
    text.trim_end().to_owned()
}

pub fn header<'r>(response: &'r pb::RateLimitResponse, name: &str) -> Option<&'r str> {
    let mut found = response.response_headers_to_add.iter().filter(|header| header.key == name);
    let value = found.next().map(|header| header.value.as_str());
    assert!(found.next().is_none(), "{name} must be there once: {response:?}");
    value
}

/// What every answer must be like.
fn check(request: &pb::RateLimitRequest, response: &pb::RateLimitResponse) {
    assert_eq!(response.statuses.len(), request.descriptors.len(), "a status per descriptor: {response:?}");
    assert_ne!(response.overall_code(), pb::Code::Unknown, "Envoy takes it as allowed: {response:?}");
    let denied = response.overall_code() == pb::Code::OverLimit;
    let over: Vec<_> =
        response.statuses.iter().filter(|status| status.code() == pb::Code::OverLimit).collect();
    if !denied {
        assert_eq!(response.response_headers_to_add, [], "only a denial has headers");
        return;
    }
    assert!(!over.is_empty(), "somebody said no: {response:?}");
    assert_eq!(response.dynamic_metadata, None, "Envoy would complete a lease that is none");
    let Some(hint_ms) = header(response, "retry-after-ms") else {
        assert_eq!(header(response, "x-sluice-reason"), Some("never_fits"));
        assert_eq!(header(response, "retry-after"), None, "waiting doesn't help");
        return;
    };
    let hint_ms: u64 = hint_ms.parse().expect("a hint is whole milliseconds");
    let seconds: u64 = header(response, "retry-after").and_then(|text| text.parse().ok()).unwrap_or(0);
    assert_eq!(seconds, hint_ms.div_ceil(1000).max(1), "rounded up, at least 1");
    for status in over {
        let reset = status.duration_until_reset.as_ref().expect("who is over hears when to come back");
        let reset_ms = reset.seconds * 1000 + i64::from(reset.nanos) / 1_000_000;
        assert_eq!(u64::try_from(reset_ms), Ok(hint_ms), "the hint, in both places");
    }
}
