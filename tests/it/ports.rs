//! Peers that want to be kept: bodies that never end, connections that are never used, answers that nobody takes.
//! What they cost is measured in resident bytes of a process of its own.

mod open_files;
mod web_pages;

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::Code;

use crate::http;
use crate::sluice::Sluice;
use crate::testapp::TestApp;
use crate::wire::{METHOD, Wire, framed};

const LIMITS: &str = "
domain: d
descriptors: [{key: a, rate_limit: {unit: hour, requests_per_unit: 1000000}}]
limits: [{key: pool, kind: concurrency, capacity: 1, timeout_seconds: 60}]
";

const RESERVE: &str = "/sluice.v1.LeaseService/Reserve";

const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

const MIB: usize = 1 << 20;

/// A RateLimitRequest: domain `d`, one descriptor with the entry `a=1`.
const ASK: &[u8] = b"\x0a\x01d\x12\x08\x0a\x06\x0a\x01a\x12\x011";

impl Sluice {
    fn grpc_address(&self) -> SocketAddr {
        self.grpc.parse().unwrap()
    }

    fn resident_bytes(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() * 1024
    }

    /// The most that it has, looked at until `done`, beyond what it has now.
    async fn growth_during<T>(&self, done: impl Future<Output = T>) -> (usize, T) {
        let before = self.resident_bytes();
        let mut most = before;
        let mut done = std::pin::pin!(done);
        loop {
            tokio::select! {
                it = &mut done => return (most.max(self.resident_bytes()) - before, it),
                () = tokio::time::sleep(Duration::from_millis(20)) => most = most.max(self.resident_bytes()),
            }
        }
    }

    async fn metric(&self, start: &str) -> u64 {
        let metrics = http::get(self.admin, "/metrics").await.body;
        let line = metrics.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap_or_else(|| panic!("no {start} in\n{metrics}")).trim().parse().unwrap()
    }

    /// Both ports answer somebody who comes now.
    async fn still_answers(&self) {
        let soon = tokio::time::timeout(Duration::from_secs(5), async {
            assert_eq!(http::get(self.admin, "/livez").await.status, 200);
            let reply = Wire::connect(self.grpc_address()).await.should_rate_limit(&[]).await;
            assert_eq!(reply.code, Code::InvalidArgument, "{reply:?}");
        });
        soon.await.expect("both ports must answer");
    }
}

/// The start of a message: its length, and all of it but its last byte.
fn unfinished(bytes: usize) -> Bytes {
    let length = u32::try_from(bytes).unwrap().to_be_bytes();
    [&[0], &length[..], &vec![b'x'; bytes - 1]].concat().into()
}

/// One connection that begins so many messages and ends none: what it costs, and what each was told.
async fn begin_messages(path: &str, count: usize, bytes: usize) -> (usize, Vec<(Code, usize)>) {
    let sluice = Sluice::with_limits(LIMITS).await;
    let wire = Wire::connect(sluice.grpc_address()).await;
    let start = unfinished(bytes);
    let attack = async {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..count {
            let mut call = wire.open(path).await;
            call.send(start.clone());
            calls.spawn(call.reply());
        }
        sluice.still_answers().await;
        calls.join_all().await
    };
    let attack = tokio::time::timeout(Duration::from_secs(40), attack);
    let (growth, replies) = sluice.growth_during(attack).await;
    println!("{path}: {count} messages of {bytes} bytes: {} MiB", growth / MIB);
    let mut codes: Vec<(Code, usize)> = Vec::new();
    for reply in replies.expect("all of them must be answered") {
        match codes.iter_mut().find(|(code, _)| *code == reply.code) {
            Some((_, count)) => *count += 1,
            None => codes.push((reply.code, 1)),
        }
    }
    println!("{codes:?}");
    sluice.still_answers().await;
    (growth, codes)
}

/// 64 MiB is what a connection's requests may hold; the rest is what the allocator and the other connections need.
const CONNECTION_GROWTH_MAX: usize = 128 * MIB;

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_never_end_are_refused_and_held_within_bounds() {
    // Each has a server of its own.
    let begun = [METHOD, RESERVE].map(|path| begin_messages(path, 1000, MIB));
    for (path, (growth, codes)) in [METHOD, RESERVE].iter().zip(futures_util::future::join_all(begun).await) {
        assert!(growth < CONNECTION_GROWTH_MAX, "{path}: {growth} bytes");
        let of = |code| codes.iter().find(|(it, _)| *it == code).map_or(0, |(_, count)| *count);
        let (refused, waited) = (of(Code::ResourceExhausted), of(Code::DeadlineExceeded));
        assert!(refused > 0 && waited > 0 && refused + waited == 1000, "{path}: {codes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_has_the_same_largest_message() {
    let paths = [METHOD, RESERVE, "/sluice.v1.LeaseService/ReserveBatch", "/grpc.health.v1.Health/Check"];
    for path in paths {
        let (growth, codes) = begin_messages(path, 200, 4 * MIB).await;
        assert_eq!(codes, [(Code::InvalidArgument, 200)], "{path}");
        assert!(growth < CONNECTION_GROWTH_MAX, "{path}: {growth} bytes");
    }
}

/// What a call costs before its body; [`sluice::grpc`] counts 12 KiB for it.
#[tokio::test(flavor = "multi_thread")]
async fn calls_that_send_only_their_headers_are_counted_for_what_they_cost() {
    let sluice = Sluice::with_limits(LIMITS).await;
    let wire = Wire::connect(sluice.grpc_address()).await;
    let open = async {
        let mut calls = Vec::new();
        for _ in 0..4096 {
            calls.push(wire.open(METHOD).await);
        }
        // A ping's answer would do; so does another connection's.
        sluice.still_answers().await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        calls
    };
    let (growth, calls) = sluice.growth_during(open).await;
    println!("4096 open calls: {growth} bytes, {} each", growth / 4096);
    assert!(growth / 4096 <= 12 << 10, "{} bytes each", growth / 4096);
    let first = calls.into_iter().next().unwrap().reply();
    let reply = tokio::time::timeout(Duration::from_secs(20), first).await.expect("a body has a deadline");
    assert_eq!(reply.code, Code::DeadlineExceeded, "{reply:?}");
    sluice.still_answers().await;
}

/// Calls on a connection that lets us send so many bytes of each answer. It ends when the server closes it.
async fn answers_that_nobody_takes(address: SocketAddr, window: u32) {
    let stream = TcpStream::connect(address).await.unwrap();
    let (send, connection) =
        h2::client::Builder::new().initial_window_size(window).handshake::<_, Bytes>(stream).await.unwrap();
    let closed = tokio::spawn(async move { drop(connection.await) });
    let mut kept = Vec::new();
    for _ in 0..100 {
        let request = ::http::Request::post(format!("http://sluice{METHOD}"));
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let mut send = send.clone().ready().await.unwrap();
        let (answer, mut body) = send.send_request(request, false).unwrap();
        body.send_data(framed(ASK).into(), true).unwrap();
        kept.push(answer.await.unwrap());
    }
    let closed = tokio::time::timeout(Duration::from_secs(60), closed).await;
    closed.unwrap_or_else(|_| panic!("a window of {window}: it must be closed")).unwrap();
}

/// With a window of 1 all of an answer is in the hands of the HTTP/2 library.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_answers_are_not_taken_is_closed() {
    let sluice = Sluice::with_limits(LIMITS).await;
    let address = sluice.grpc_address();
    // One that takes its answers may be silent for as long.
    let idle = Wire::connect(address).await;
    idle.should_rate_limit(ASK).await.response();
    tokio::join!(answers_that_nobody_takes(address, 0), answers_that_nobody_takes(address, 1));
    assert_eq!(sluice.metric("sluice_connections_closed_total{port=\"grpc\",reason=\"unread\"}").await, 2);
    idle.should_rate_limit(ASK).await.response();
    sluice.still_answers().await;
}

async fn send(address: SocketAddr, bytes: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.unwrap();
    // One that is refused already takes no more.
    let _ = stream.write_all(bytes).await;
    stream
}

/// Status and body of what comes back, if anything does.
async fn heard(mut stream: TcpStream) -> Option<(u16, String)> {
    let mut bytes = Vec::new();
    // A reset after the answer is an answer.
    let _ = stream.read_to_end(&mut bytes).await;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    Some((head.split(' ').nth(1)?.parse().ok()?, body.to_owned()))
}

fn post(path: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{body}")
        .into_bytes()
}

#[tokio::test(flavor = "multi_thread")]
async fn admin_bodies_that_never_end_are_refused_and_held_within_bounds() {
    let sluice = Sluice::with_limits(LIMITS).await;
    let start = post("/v1/reserve", &format!("content-length: {MIB}\r\n\r\n{}", "x".repeat(MIB - 1)));
    let attack = async {
        let mut calls = tokio::task::JoinSet::new();
        for _ in 0..300 {
            let stream = send(sluice.admin, &start).await;
            calls.spawn(heard(stream));
        }
        sluice.still_answers().await;
        calls.join_all().await
    };
    let attack = tokio::time::timeout(Duration::from_secs(40), attack);
    let (growth, answers) = sluice.growth_during(attack).await;
    let answers = answers.expect("all of them must be answered");
    let of = |status| answers.iter().flatten().filter(|answer| answer.0 == status).count();
    println!("300 bodies: {} MiB, {} times 503, {} times 408", growth / MIB, of(503), of(408));
    assert!(growth < 192 * MIB, "{growth} bytes; 64 MiB may be held, and buffers double as they grow");
    assert!(of(503) > 0 && of(408) > 0, "{answers:?}");
    for (status, error) in [(503, "overloaded"), (408, "request_timeout")] {
        let (_, body) = answers.iter().flatten().find(|answer| answer.0 == status).unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert!(body["error"] == error && body["detail"].is_string(), "{body}");
    }
    assert_eq!(
        sluice.metric("sluice_requests_refused_total{port=\"admin\",reason=\"slow\"}").await,
        of(408) as u64
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_in_pieces_has_to_end_too() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let mut stream = send(app.app.admin, &post("/json", "transfer-encoding: chunked\r\n\r\n")).await;
    let (mut read, mut write) = stream.split();
    let trickle = async {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            if write.write_all(b"1\r\n \r\n").await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let mut answer = [0; 16];
    let heard = async { read.read_exact(&mut answer).await.unwrap() };
    tokio::select! {
        _ = heard => {}
        () = trickle => {}
        () = tokio::time::sleep(Duration::from_secs(20)) => panic!("it is still read"),
    }
    assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 408 Req");
}

#[tokio::test(flavor = "multi_thread")]
async fn bodies_that_are_too_large_are_refused_in_json() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let large = "x".repeat(MIB + 1);
    for (method, path) in [
        ("POST", "/json"),
        ("POST", "/v1/reserve"),
        ("POST", "/v1/complete"),
        ("POST", "/v1/reserve/batch"),
        ("POST", "/v1/complete/batch"),
        ("PUT", "/v1/limits"),
        ("PUT", "/v1/retry-policy"),
    ] {
        let answer = app.send(method, path, &large).await;
        assert_eq!((answer.status, &answer.json()["error"]), (413, &json!("too_large")), "{method} {path}");
        assert!(answer.json()["detail"].is_string(), "{method} {path}");
    }
    // Whoever asks whether it may send so much is answered before it has sent anything.
    let asking = format!("content-length: {}\r\nexpect: 100-continue\r\n\r\n", MIB + 1);
    let (status, body) = heard(send(app.app.admin, &post("/v1/reserve", &asking)).await).await.unwrap();
    assert!(status == 413 && body.contains("too_large"), "{status} {body}");
    // In pieces, so that nobody has said beforehand how long it will be.
    let piece = format!("{:x}\r\n{}\r\n", MIB / 2, "x".repeat(MIB / 2));
    let chunked = format!("transfer-encoding: chunked\r\n\r\n{}", piece.repeat(3));
    let (status, body) = heard(send(app.app.admin, &post("/v1/reserve", &chunked)).await).await.unwrap();
    assert!(status == 413 && body.contains("too_large"), "{status} {body}");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_have_bounds() {
    let app = TestApp::with_limits(LIMITS).start().await;
    // As many as fit, more than there may be, and longer than there may be.
    for (count, bytes, expected) in [(50, 100, 200), (200, 10, 431), (50, 4000, 431)] {
        let headers: String = (0..count).map(|n| format!("x-{n}: {}\r\n", "x".repeat(bytes))).collect();
        let request = format!("GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n");
        let (status, _) = heard(send(app.app.admin, request.as_bytes()).await).await.expect("an answer");
        assert_eq!(status, expected, "{count} of {bytes} bytes");
    }
    let stream = TcpStream::connect(app.grpc()).await.unwrap();
    let (send, connection) = h2::client::handshake(stream).await.unwrap();
    tokio::spawn(async move { drop(connection.await) });
    let mut send = send.ready().await.unwrap();
    let mut request = ::http::Request::post(format!("http://sluice{METHOD}"));
    for n in 0..40 {
        request = request.header(format!("x-{n}"), "x".repeat(1000));
    }
    let (answer, _) = send.send_request(request.body(()).unwrap(), false).unwrap();
    let status = answer.await.map(|answer| answer.status().as_u16());
    assert!(matches!(status, Ok(431) | Err(_)), "40 kB of headers: {status:?}");
    let wire = Wire::connect(app.grpc()).await;
    assert_eq!(wire.should_rate_limit(&[]).await.code, Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread")]
async fn reflection_is_for_a_few() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let wire = Wire::connect(app.grpc()).await;
    let list = framed(&[0x3a, 0x01, b'*']);
    let mut open = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let mut call = wire.open(REFLECTION).await;
        call.send(list.clone().into());
        open.spawn(call.reply());
    }
    // Sixteen are answered, and end when their request should have; the others are refused.
    let replies = tokio::time::timeout(Duration::from_secs(20), open.join_all()).await;
    let replies = replies.expect("all of them must end");
    let refused = replies.iter().filter(|reply| reply.code == Code::ResourceExhausted).count();
    let answered = replies.iter().filter(|reply| reply.code == Code::Ok && !reply.body.is_empty()).count();
    assert_eq!((answered, refused), (16, 4), "{replies:?}");
    let again = wire.call(REFLECTION, &list).await;
    assert_eq!(again.code, Code::Ok, "{again:?}");
}
