//! envoy/llm.yaml through a real Envoy: who a request is from, what it is expected to take, and what it took.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::envoy::{Envoy, LLM};
use crate::http;
use crate::sluice::Sluice;
use crate::wait::until;

mod answers;
mod overage;

use answers::{ANSWERS, Seen, upstream};

/// More than all the tests take; how much each took is what they look at.
const LIMITS: &str = "
domain: llm
descriptors:
- key: tenant
  limits:
  - {name: tpm, kind: rolling, capacity: 1000000000, window_seconds: 3600, reconcile: true}
  - {name: inflight, kind: concurrency, capacity: 1000, timeout_seconds: 3600}
  descriptors:
  - key: model
    limits: [{name: tpm, kind: rolling, capacity: 1000000000, window_seconds: 3600, reconcile: true}]
";

const ACME: (&str, &str) = ("authorization", "Bearer acme-key");
const CHAT: &str = "/v1/chat/completions";
const BODY: &str = r#"{"model":"gpt-4o","max_tokens":500,"messages":[{"role":"user","content":"hello"}]}"#;
/// Of `BODY`: a token for four bytes, and what it allows to be answered.
const ESTIMATE: u64 = BODY.len() as u64 / 4 + 500;

struct Setup {
    envoy: Envoy,
    sluice: Sluice,
    seen: Seen,
}

impl Setup {
    async fn start(changes: &[(&str, &str)]) -> Self {
        Self::limited(LIMITS, changes).await
    }

    async fn limited(limits: &str, changes: &[(&str, &str)]) -> Self {
        let sluice = Sluice::with_limits(limits).await;
        let seen = Seen::default();
        let setup = Envoy::of(LLM).before(upstream(Arc::clone(&seen)));
        let setup = changes.iter().fold(setup, |setup, (from, to)| setup.changed(from, to));
        Self { envoy: setup.start(&[sluice.grpc_port()]).await, sluice, seen }
    }

    async fn ask(&self, path: &str, headers: &[(&str, &str)], body: &str) -> http::Answer {
        http::send(self.envoy.address, "POST", path, headers, body.to_owned()).await
    }

    /// A request of acme's, once it is over and settled: its status and the tokens that it is charged with.
    async fn charged(&self, path: &str, body: &str) -> (u16, u64) {
        let before = self.used("tenant=acme:tpm").await;
        let status = self.ask(path, &[ACME], body).await.status;
        self.settled().await;
        (status, self.used("tenant=acme:tpm").await - before)
    }

    /// Nothing is held any more: the completion of whatever was asked has been carried out.
    async fn settled(&self) {
        until("all to be completed", async || {
            let metrics = http::get(self.sluice.admin, "/metrics").await.body;
            let count = |event: &str| {
                let start = format!("sluice_leases_total{{event=\"{event}\"}} ");
                let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
                line.map_or(0, |count| count.parse::<u64>().unwrap())
            };
            match (count("reserved"), count("completed")) {
                (reserved, completed) if reserved == completed => Ok(()),
                counts => Err(format!("{counts:?}")),
            }
        })
        .await;
    }

    async fn used(&self, limit: &str) -> u64 {
        let path = format!("/v1/limits/llm%3A{}", limit.replace(':', "%3A"));
        let view = http::get(self.sluice.admin, &path).await.json();
        view["used"].as_u64().unwrap_or_else(|| panic!("{view}"))
    }

    /// A request that is under way, on a connection of its own.
    async fn open(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.envoy.address).await.unwrap();
        let (name, value) = ACME;
        let length = BODY.len();
        let head =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\n{name}: {value}\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + BODY).as_bytes()).await.unwrap();
        stream
    }
}

/// Reads until `count` bytes of the body are there.
async fn read_body(stream: &mut TcpStream, count: usize) {
    let (mut all, mut buffer) = (Vec::new(), [0; 4096]);
    let enough = async {
        loop {
            let head = String::from_utf8_lossy(&all).find("\r\n\r\n");
            if head.is_some_and(|head| all.len() - head >= count) {
                return;
            }
            let read = stream.read(&mut buffer).await.unwrap();
            assert!(read > 0, "it ended: {}", String::from_utf8_lossy(&all));
            all.extend_from_slice(&buffer[..read]);
        }
    };
    tokio::time::timeout(Duration::from_secs(20), enough).await.expect("it must come");
}

/// However the bytes of an answer are cut, it reaches the client as it is, and costs what it says; if it says nothing, the
/// estimate.
#[tokio::test]
async fn what_an_answer_says_that_it_took_is_what_counts() {
    let setup = Setup::start(&[]).await;
    let mut wrong = String::new();
    for answer in ANSWERS {
        for cut in [0, 1, 7, 100] {
            let path = format!("{CHAT}?answer={}&cut={cut}", answer.name);
            let before = setup.used("tenant=acme:tpm").await;
            let got = setup.ask(&path, &[ACME], BODY).await;
            assert_eq!((got.status, got.body.as_str()), (200, answer.body), "{path}");
            setup.settled().await;
            let charged = setup.used("tenant=acme:tpm").await - before;
            if charged != answer.tokens.unwrap_or(ESTIMATE) {
                let _ = writeln!(wrong, "{path}: {charged} instead of {:?}", answer.tokens);
            }
        }
    }
    assert_eq!(wrong, "");
    let model = setup.used("tenant=acme:model=gpt-4o:tpm").await;
    assert_eq!(setup.used("tenant=acme:tpm").await, model, "both limits of a request are settled alike");
}

/// A provider may have been paid for what nobody read: what isn't known to be less stays as it was estimated.
#[tokio::test]
async fn a_client_that_leaves_is_charged_with_what_is_known() {
    let setup = Setup::start(&[]).await;
    for answer in ANSWERS.iter().filter(|answer| answer.name.ends_with("-stream")) {
        let before = setup.used("tenant=acme:tpm").await;
        let mut stream = setup.open(&format!("{CHAT}?answer={}&half=true&cut=50", answer.name)).await;
        read_body(&mut stream, answer.body.len() / 2).await;
        assert_eq!(setup.used("tenant=acme:inflight").await, 1);
        drop(stream);
        setup.settled().await;
        let charged = setup.used("tenant=acme:tpm").await - before;
        assert_eq!(charged, answer.half.unwrap_or(ESTIMATE), "{}", answer.name);
        assert_eq!(setup.used("tenant=acme:inflight").await, 0);
    }
    // Before anything was answered.
    let before = setup.used("tenant=acme:tpm").await;
    let waiting = setup.open(&format!("{CHAT}?answer=openai&half=true&cut=1")).await;
    until("it to be held", async || match setup.used("tenant=acme:inflight").await {
        1 => Ok(()),
        held => Err(held.to_string()),
    })
    .await;
    drop(waiting);
    setup.settled().await;
    assert_eq!(setup.used("tenant=acme:tpm").await - before, ESTIMATE);
}

#[tokio::test]
async fn an_error_of_the_upstream_costs_nothing() {
    let setup = Setup::start(&[]).await;
    for status in [400, 404, 429, 500, 503, 504] {
        let path = format!("{CHAT}?answer=silent&status={status}");
        assert_eq!(setup.charged(&path, BODY).await, (status, 0));
    }
    // Nobody is there: a port that is free again.
    let port = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let away = Envoy::of(LLM).upstream_at(&[port]).start(&[setup.sluice.grpc_port()]).await;
    let refused = http::send(away.address, "POST", CHAT, &[ACME], BODY).await;
    assert_eq!(refused.status, 503, "{refused:?}");
    setup.settled().await;
    assert_eq!(setup.used("tenant=acme:tpm").await, 0);
}

/// It was cut off, not refused: the provider has worked for it.
#[tokio::test]
async fn an_answer_that_takes_too_long_costs_the_estimate() {
    let setup = Setup::start(&[("timeout: 290s", "timeout: 0.3s")]).await;
    let path = format!("{CHAT}?answer=openai&half=true&cut=50");
    assert_eq!(setup.charged(&path, BODY).await, (504, ESTIMATE));
}

#[tokio::test]
async fn who_is_not_known_gets_nowhere() {
    let setup = Setup::start(&[]).await;
    let expired =
        token(r#"{"iss":"https://issuer.example","aud":"llm","exp":1000000000,"tenant":"acme"}"#, KEY);
    let elsewhere =
        token(r#"{"iss":"https://issuer.example","aud":"shop","exp":4102444800,"tenant":"acme"}"#, KEY);
    let forged = token(GOOD, b"another secret, another secret, a");
    let unsigned = format!("{}.{}.", encoded(r#"{"alg":"none"}"#), encoded(GOOD));
    for headers in [
        vec![],
        vec![("x-tenant", "acme".to_owned())],
        vec![("authorization", "Bearer nobody's key".to_owned())],
        vec![("x-api-key", "acme".to_owned())],
        vec![("authorization", format!("Bearer {expired}"))],
        vec![("authorization", format!("Bearer {elsewhere}"))],
        vec![("authorization", format!("Bearer {forged}"))],
        vec![("authorization", format!("Bearer {unsigned}"))],
        // What looks like a token has to be one, whatever else comes with it.
        vec![("authorization", format!("Bearer {forged}")), ("x-api-key", "acme-key".to_owned())],
    ] {
        let headers: Vec<(&str, &str)> =
            headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let refused = setup.ask(&format!("{CHAT}?answer=openai"), &headers, BODY).await;
        let expected = if headers.iter().any(|(_, value)| value.contains(&elsewhere)) { 403 } else { 401 };
        assert_eq!(refused.status, expected, "{headers:?}: {refused:?}");
    }
    assert_eq!(setup.envoy.upstream.arrived(), 0);
    assert_eq!(setup.used("tenant=acme:tpm").await, 0);
}

const GOOD: &str = r#"{"iss":"https://issuer.example","aud":"llm","exp":4102444800,"tenant":"bob"}"#;
pub const KEY: &[u8] = b"not a secret, not a secret, not a";

pub fn encoded(text: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

/// A JSON web token.
pub fn token(claims: &str, key: &[u8]) -> String {
    let signed = format!("{}.{}", encoded(r#"{"alg":"HS256","typ":"JWT"}"#), encoded(claims));
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(key).unwrap();
    mac.update(signed.as_bytes());
    let signature = encoded(mac.finalize().into_bytes());
    format!("{signed}.{signature}")
}

/// The key or the token says who it is; the client's own header says nothing, and neither reaches the provider.
#[tokio::test]
async fn a_tenant_is_who_was_verified() {
    let setup = Setup::start(&[]).await;
    let bob = format!("Bearer {}", token(GOOD, KEY));
    let nameless = token(r#"{"iss":"https://issuer.example","aud":"llm","exp":4102444800}"#, KEY);
    let nameless = format!("Bearer {nameless}");
    for (name, value, tenant) in [
        ("authorization", "Bearer acme-key", "acme"),
        ("x-api-key", "acme-key", "acme"),
        ("x-goog-api-key", "acme-key", "acme"),
        ("authorization", &bob, "bob"),
        ("authorization", &nameless, "nobody"),
    ] {
        let before = setup.used(&format!("tenant={tenant}:tpm")).await;
        let headers =
            [(name, value), ("x-tenant", "eve"), ("X-Tenant", "carol"), ("accept-encoding", "gzip")];
        assert_eq!(setup.ask(&format!("{CHAT}?answer=openai"), &headers, BODY).await.status, 200);
        setup.settled().await;
        assert_eq!(setup.used(&format!("tenant={tenant}:tpm")).await - before, 29, "{name}: {value}");
        let seen = setup.seen.lock().clone();
        for header in ["x-tenant", "authorization", "x-api-key", "x-goog-api-key", "accept-encoding"] {
            assert_eq!(seen.get(header), None, "{header} reached the provider");
        }
    }
    for stranger in ["eve", "carol"] {
        assert_eq!(setup.used(&format!("tenant={stranger}:tpm")).await, 0, "{stranger} asked for nothing");
    }
}

/// From a number that Envoy can't use it would leave the descriptor out, and the request would pass unlimited.
#[tokio::test]
async fn nothing_that_a_client_writes_makes_a_request_free() {
    let setup = Setup::start(&[]).await;
    let silent = format!("{CHAT}?answer=silent");
    let quarter = |body: &str| body.len() as u64 / 4;
    for (field, expected) in [
        (r#""max_tokens":7"#, 7),
        (r#""max_completion_tokens":8"#, 8),
        (r#""max_output_tokens":9"#, 9),
        (r#""generationConfig":{"maxOutputTokens":10}"#, 10),
        (r#""max_tokens":"11""#, 11),
        (r#""stream":true"#, 1000),
        (r#""max_tokens":0"#, 1000),
        (r#""max_tokens":-5"#, 1000),
        (r#""max_tokens":"nan""#, 1000),
        (r#""max_tokens":"many""#, 1000),
        (r#""max_tokens":null"#, 1000),
        (r#""max_tokens":[1]"#, 1000),
        (r#""max_tokens":"inf""#, 1_000_000),
        (r#""max_tokens":2000000000"#, 1_000_000),
        (r#""max_tokens":1e300"#, 1_000_000),
    ] {
        let body = format!(r#"{{"model":"gpt-4o",{field}}}"#);
        assert_eq!(setup.charged(&silent, &body).await, (200, quarter(&body) + expected), "{body}");
    }
    for body in ["", "no JSON", "7", "[]", r#"{"max_tokens":1"#] {
        assert_eq!(setup.charged(&silent, body).await, (200, quarter(body) + 1000), "{body}");
    }
    // Of another type, or in pieces whose sum nobody said beforehand.
    for header in [("content-type", "text/plain"), ("content-type", "application/json; charset=utf-8")] {
        let before = setup.used("tenant=acme:tpm").await;
        assert_eq!(setup.ask(&silent, &[ACME, header], BODY).await.status, 200);
        setup.settled().await;
        assert_eq!(setup.used("tenant=acme:tpm").await - before, ESTIMATE, "{header:?}");
    }
    let before = setup.used("tenant=acme:tpm").await;
    let mut stream = TcpStream::connect(setup.envoy.address).await.unwrap();
    let (first, second) = BODY.split_at(30);
    let request = format!(
        "POST {silent} HTTP/1.1\r\nhost: x\r\nx-api-key: acme-key\r\ntransfer-encoding: chunked\r\n\r\n\
         {:x}\r\n{first}\r\n{:x}\r\n{second}\r\n0\r\n\r\n",
        first.len(),
        second.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    read_body(&mut stream, 10).await;
    setup.settled().await;
    assert_eq!(setup.used("tenant=acme:tpm").await - before, ESTIMATE);
}

#[tokio::test]
async fn a_model_has_one_name_and_it_is_the_one_that_is_called() {
    let setup = Setup::start(&[]).await;
    for (path, body, model) in [
        (CHAT, r#"{"model":"gpt-4o"}"#, "gpt-4o"),
        ("/v1/messages", r#"{"model":"claude-sonnet-4-5"}"#, "claude-sonnet-4-5"),
        ("/v1beta/models/gemini-2.5-pro:generateContent", "{}", "gemini-2.5-pro"),
        ("/v1beta/models/gemini-2.5-pro:streamGenerateContent", r#"{"model":"cheap"}"#, "gemini-2.5-pro"),
        ("/v1beta/x/..//models/gemini%2D2.5-pro:generateContent", "{}", "gemini-2.5-pro"),
        ("/v1/models", "", "none"),
        (CHAT, r#"{"model":""}"#, "none"),
        (CHAT, r#"{"model":{"name":"gpt-4o"}}"#, "none"),
    ] {
        let limit = format!("tenant=acme:model={model}:tpm");
        let before = setup.used(&limit).await;
        assert_eq!(setup.charged(&format!("{path}?answer=openai"), body).await, (200, 29), "{path}");
        assert_eq!(setup.used(&limit).await - before, 29, "{path} {body}");
    }
    assert_eq!(setup.used("tenant=acme:model=cheap:tpm").await, 0);
}

#[tokio::test]
async fn what_is_too_large_to_be_held_is_refused() {
    let setup = Setup::start(&[]).await;
    let most = 16 * 1024 * 1024;
    let body = format!(r#"{{"model":"gpt-4o","max_tokens":1,"content":"{}"}}"#, "x".repeat(most));
    assert_eq!(setup.charged(&format!("{CHAT}?answer=openai"), &body).await, (413, 0));
    assert_eq!(setup.envoy.upstream.arrived(), 0);
    let body = &body[most / 2..];
    assert_eq!(setup.charged(&format!("{CHAT}?answer=openai"), body).await, (200, 29), "half of it is not");

    let path = format!("{CHAT}?answer=openai&pad={}", most / 2);
    assert_eq!(setup.charged(&path, BODY).await, (200, 29));
    let path = format!("{CHAT}?answer=openai&pad={most}");
    assert_eq!(setup.charged(&path, BODY).await, (500, ESTIMATE), "the provider was paid for it");
    // A stream of events is never held.
    let path = format!("{CHAT}?answer=openai-stream&pad={most}");
    assert_eq!(setup.charged(&path, BODY).await.0, 200);
}

/// The route of docs/llm.md, in its place.
#[tokio::test]
async fn streams_that_would_not_tell_can_be_refused() {
    let document = include_str!("../../docs/llm.md");
    let route = document.split("# the first route\n").nth(1).unwrap().split("```").next().unwrap();
    let indent = " ".repeat(24);
    let first = "# A JWT, by its look.";
    let route: String = route.lines().map(|line| format!("{line}\n{indent}")).collect();
    let setup = Setup::start(&[(first, &format!("{route}{first}"))]).await;
    let tells = r#""stream_options":{"include_usage":true}"#;
    for (fields, status) in [
        (r#""stream":true"#.to_owned(), 400),
        (r#""stream":1"#.to_owned(), 400),
        (r#""stream":true,"stream_options":{"include_usage":false}"#.to_owned(), 400),
        (r#""stream":true,"stream_options":{"include_usage":"yes"}"#.to_owned(), 400),
        (format!(r#""stream":true,{tells}"#), 200),
        (r#""stream":false"#.to_owned(), 200),
        (r#""n":1"#.to_owned(), 200),
    ] {
        let body = format!(r#"{{"model":"gpt-4o",{fields}}}"#);
        let expected = if status == 200 { 1_234_567 } else { 0 };
        let path = format!("{CHAT}?answer=openai-stream");
        assert_eq!(setup.charged(&path, &body).await, (status, expected), "{body}");
    }
    let path = "/v1/messages?answer=anthropic-stream";
    assert_eq!(setup.charged(path, r#"{"model":"claude","stream":true}"#).await, (200, 569));
    assert_eq!(
        setup.ask(CHAT, &[], r#"{"stream":true}"#).await.status,
        401,
        "who is not known learns nothing"
    );
}
