//! Requests that are wrong in every way we could think of. Each is refused for what it is, and the server goes on.

use std::net::SocketAddr;
use std::time::Duration;

use prost::Message;
use sluice::api::pb;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::testapp::TestApp;
use crate::wire::{METHOD, Wire, framed};

const LIMITS: &str =
    "domain: d\ndescriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1000000}}]";

fn request(descriptors: usize, entries: usize) -> pb::RateLimitRequest {
    let entry = Entry { key: "a".into(), value: "1".into() };
    let descriptor = pb::RateLimitDescriptor { entries: vec![entry; entries], ..Default::default() };
    pb::RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor; descriptors], hits_addend: 0 }
}

/// `request(1, 1)` with something else in it.
fn but(change: impl FnOnce(&mut pb::RateLimitRequest)) -> Vec<u8> {
    let mut request = request(1, 1);
    change(&mut request);
    request.encode_to_vec()
}

async fn still_answers(app: &TestApp) {
    let said = app.say("a=1").await;
    assert!(said.starts_with("ok"), "{said}");
    assert_eq!(app.get("/readyz").await.status, 200);
}

#[tokio::test]
async fn broken_messages_are_refused_by_the_field() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    let good = request(1, 1).encode_to_vec();
    let rows: Vec<(&str, Vec<u8>, &str)> = vec![
        ("nothing at all", vec![], "domain: must not be empty"),
        ("empty domain", but(|r| r.domain.clear()), "domain: must not be empty"),
        ("no descriptors", but(|r| r.descriptors.clear()), "descriptors: at least one"),
        ("65 descriptors", request(65, 1).encode_to_vec(), "descriptors: 65 given, at most 64"),
        ("no entries", request(1, 0).encode_to_vec(), "descriptors[0].entries: at least one"),
        ("65 entries", request(1, 65).encode_to_vec(), "descriptors[0].entries: 65 given, at most 64"),
        (
            "an empty key",
            but(|r| r.descriptors[0].entries[0].key.clear()),
            "descriptors[0].entries[0].key: must not be empty",
        ),
        (
            "negative hits",
            but(|r| r.descriptors[0].is_negative_hits = true),
            "descriptors[0].is_negative_hits: only a completion",
        ),
        ("truncated", good[..good.len() - 1].to_vec(), "RateLimitRequest.descriptors"),
        ("one byte", vec![0x0a], ""),
        ("a length beyond the end", vec![0x0a, 0x7f, b'd'], "RateLimitRequest.domain"),
        ("field number 0", vec![0x00, 0x00], ""),
        ("an unknown wire type", vec![0x0f], ""),
        (
            "an endless varint",
            vec![0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            "",
        ),
        ("a number where text belongs", vec![0x08, 0x01], "RateLimitRequest.domain"),
        ("text where a number belongs", vec![0x1a, 0x01, b'1'], "RateLimitRequest.hits_addend"),
        (
            "a domain that is not UTF-8",
            vec![0x0a, 0x02, 0xc3, 0x28],
            "RateLimitRequest.domain: invalid string",
        ),
        (
            "a key that is not UTF-8",
            vec![0x0a, 0x01, b'd', 0x12, 0x05, 0x0a, 0x03, 0x0a, 0x01, 0xff],
            "Entry.key",
        ),
        (
            "a value that is not UTF-8",
            vec![0x0a, 0x01, b'd', 0x12, 0x08, 0x0a, 0x06, 0x0a, 0x01, b'a', 0x12, 0x01, 0xff],
            "Entry.value",
        ),
        ("HTTP", b"GET / HTTP/1.1\r\n\r\n".to_vec(), ""),
        ("JSON", br#"{"domain": "d"}"#.to_vec(), ""),
    ];
    for (what, message, expected) in rows {
        let reply = wire.should_rate_limit(&message).await;
        assert_eq!(reply.code, Code::InvalidArgument, "{what}: {reply:?}");
        assert!(reply.message.contains(expected), "{what}: {reply:?}");
    }
    still_answers(&app).await;
}

#[tokio::test]
async fn as_many_as_are_allowed_are_read() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    let response = wire.should_rate_limit(&request(64, 1).encode_to_vec()).await.response();
    assert_eq!(response.statuses.len(), 64);
    assert_eq!(app.used("d:a=1:hour").await, 64);
    let response = wire.should_rate_limit(&request(1, 64).encode_to_vec()).await.response();
    assert_eq!(response.statuses[0].current_limit, None);
}

#[tokio::test]
async fn more_limits_than_a_chain_holds_are_refused() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let asked = |count: usize| (0..count).map(|n| format!("a={n}")).collect::<Vec<_>>().join(" + ");
    let all_ok = vec!["ok 999999/1000000 hour"; 32].join("; ");
    let rows = [
        format!("{} -> {all_ok}", asked(32)),
        format!(
            "{} -> InvalidArgument: descriptors: the descriptors ask for more than 32 limits…",
            asked(33)
        ),
        "used d:a=0:hour -> 1".to_owned(),
    ];
    app.answers(&rows.each_ref().map(String::as_str)).await;
}

#[tokio::test]
async fn messages_that_are_too_large_are_refused() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    let sized = |bytes: usize| but(|request| request.descriptors[0].entries[0].value = "x".repeat(bytes));
    let largest = (1 << 20) - (sized(1 << 20).len() - (1 << 20));
    let limit = wire.should_rate_limit(&sized(largest)).await.response().statuses[0].current_limit.clone();
    assert_eq!(limit.map(|limit| limit.requests_per_unit), Some(1_000_000), "a whole mebibyte is read");
    for bytes in [largest + 1, 3 << 20, 5 << 20, 64 << 20] {
        let reply = wire.should_rate_limit(&sized(bytes)).await;
        assert_eq!(reply.code, Code::InvalidArgument, "{bytes}: {reply:?}");
        assert!(reply.message.contains("1048576"), "{bytes}: {reply:?}");
    }
    // Only a length, and nothing behind it: nobody waits for four gigabytes.
    let reply = wire.call(METHOD, &[0, 0xff, 0xff, 0xff, 0xff]).await;
    assert_eq!(reply.code, Code::InvalidArgument, "{reply:?}");
    still_answers(&app).await;
}

#[tokio::test]
async fn calls_that_are_no_calls_of_ours() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    let good = framed(&request(1, 1).encode_to_vec());
    for path in [
        "/envoy.service.ratelimit.v3.RateLimitService/ShouldNotRateLimit",
        "/envoy.service.ratelimit.v3.RateLimitService/",
        "/envoy.service.ratelimit.v2.RateLimitService/ShouldRateLimit",
        "/nobody.Knows/This",
        "/",
    ] {
        let reply = wire.call(path, &good).await;
        assert_eq!(reply.code, Code::Unimplemented, "{path}: {reply:?}");
    }
    // gRPC's own framing: no message, half a length, a flag that means nothing, a compression nobody named.
    for body in [&[][..], &[0, 0, 0], &[7, 0, 0, 0, 0], &[1, 0, 0, 0, 0], &[0, 0, 0, 0, 9, 1]] {
        let reply = wire.call(METHOD, body).await;
        assert_ne!(reply.code, Code::Ok, "{body:?}: {reply:?}");
    }
    still_answers(&app).await;
}

/// Whatever is sent to a port, the server closes the connection or answers, and others notice nothing.
#[tokio::test]
async fn garbage_on_the_ports_disturbs_nobody() {
    let app = TestApp::with_limits(LIMITS).start().await;
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut rows: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nhost: x\r\n\r\n".to_vec(),
        b"POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\ncontent-length: 99999999999\r\n\r\n"
            .to_vec(),
        b"\r\n\r\n\r\n".to_vec(),
        b"GET / HTTP/9.9\r\n\r\n".to_vec(),
        vec![0; 4096],
        vec![0xff; 4096],
        // The start of TLS.
        vec![0x16, 0x03, 0x01, 0x02, 0x00, 0x01, 0x00, 0x01, 0xfc, 0x03, 0x03],
        PREFACE[..10].to_vec(),
        PREFACE.to_vec(),
        [PREFACE, &[0xff; 64]].concat(),
        // A frame of 16 MiB, a reset of a stream that never was, a header block that is none, data on stream 0.
        [PREFACE, settings, &[0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]].concat(),
        [PREFACE, settings, &[0, 0, 4, 3, 0, 0, 0, 0, 9, 0, 0, 0, 8]].concat(),
        [PREFACE, settings, &[0, 0, 4, 1, 4, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff]].concat(),
        [PREFACE, settings, &[0, 0, 1, 0, 0, 0, 0, 0, 0, 1]].concat(),
    ];
    let mut random = fastrand::Rng::with_seed(7);
    rows.extend((0..50).map(|_| (0..random.usize(1..2000)).map(|_| random.u8(..)).collect()));
    for row in &rows {
        for address in [app.grpc(), app.app.admin] {
            send_garbage(address, row).await;
        }
    }
    still_answers(&app).await;
}

/// Sends, says that there will be no more, and reads until the server hangs up.
async fn send_garbage(address: SocketAddr, bytes: &[u8]) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // A server that has hung up already is as good.
    let _ = stream.write_all(bytes).await;
    let _ = stream.shutdown().await;
    let closed = tokio::time::timeout(Duration::from_secs(10), stream.read_to_end(&mut Vec::new())).await;
    assert!(closed.is_ok(), "{address} holds on to {:?}", String::from_utf8_lossy(bytes));
}

/// Messages with some bytes changed: refused or answered, never an internal error, never a crash.
#[tokio::test]
async fn mutated_messages_are_refused_or_answered() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    let mut random = fastrand::Rng::with_seed(42);
    let good = request(3, 2).encode_to_vec();
    for round in 0..2000 {
        let mut message = good.clone();
        for _ in 0..random.usize(1..6) {
            let at = random.usize(..message.len());
            match random.u8(0..3) {
                0 => message[at] = random.u8(..),
                1 => message.truncate(at + 1),
                _ => message.insert(at, random.u8(..)),
            }
        }
        let reply = wire.should_rate_limit(&message).await;
        assert!(
            matches!(reply.code, Code::Ok | Code::InvalidArgument),
            "round {round}: {reply:?} to {message:?}"
        );
    }
    still_answers(&app).await;
}

#[tokio::test]
async fn bad_json_is_a_bad_request() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let deep = "[".repeat(100_000);
    for body in [
        "",
        "nonsense",
        "null",
        "[]",
        "5",
        "{",
        "{}",
        r#"{"domain": 5}"#,
        r#"{"domain": "d"}"#,
        r#"{"domain": "d", "descriptors": {}}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": 1}]}]}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}], "typo": 1}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}], "hitsAddend": -1}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}], "hitsAddend": 4294967296}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]} {}"#,
        r#"{"domain": "", "descriptors": [{"entries": [{"key": "a", "value": "1"}]}]}"#,
        r#"{"domain": "d", "descriptors": [{"entries": [{"key": "", "value": "1"}]}]}"#,
        &deep,
    ] {
        let answer = app.post("/json", body).await;
        let shown = &body[..body.len().min(99)];
        assert_eq!(answer.status, 400, "{shown}: {answer:?}");
        assert_eq!(answer.json()["error"], "invalid_request", "{shown}");
        assert_ne!(answer.json()["detail"], "", "{shown}");
    }
    let not_utf8 = crate::http::send(app.app.admin, "POST", "/json", &[], vec![b'"', 0xff, b'"']).await;
    assert_eq!(not_utf8.status, 400);
    let large = app.post("/json", &"x".repeat((1 << 20) + 1)).await;
    assert_eq!((large.status, large.json()["error"].as_str()), (413, Some("too_large")));
    still_answers(&app).await;
}

#[tokio::test]
async fn admin_errors_are_json() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for (method, path, status, error) in [
        ("GET", "/nowhere", 404, "no such route"),
        ("GET", "/json", 405, "method_not_allowed"),
        ("DELETE", "/metrics", 405, "method_not_allowed"),
        ("GET", "/v1/limits/nobody", 404, "unknown_limit_key:nobody"),
        ("GET", "/v1/limits/d:b=1:hour", 404, "unknown_limit_key:d:b=1:hour"),
        ("GET", "/v1/limits/d:a=1:minute", 404, "unknown_limit_key:d:a=1:minute"),
        ("GET", "/v1/limits/d:a=%253a:hour", 404, "unknown_limit_key:d:a=%3a:hour"),
        ("GET", "/v1/limits/%FF", 400, "invalid_request"),
    ] {
        let answer = crate::http::send(app.app.admin, method, path, &[], "").await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert_eq!(answer.json()["error"], error, "{method} {path}");
        assert!(answer.json()["detail"].is_string(), "{method} {path}");
    }
}
