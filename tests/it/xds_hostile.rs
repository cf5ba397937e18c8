//! An xDS server that is not what it should be: what is live stays, nothing grows, and a good answer later counts.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::google::protobuf::Any;
use sluice::control::xds::pb::{RateLimitDescriptor, RateLimitUnit};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::ads::{Ads, TYPE_URL, any, config, limit, under};
use crate::testapp::TestApp;
use crate::xds::{at, following};

const MINUTE: RateLimitUnit = RateLimitUnit::Minute;

fn of_type(type_url: &str, value: &[u8]) -> Any {
    Any { type_url: type_url.to_owned(), value: value.to_vec() }
}

async fn good(ads: &Ads, app: &TestApp, version: &str) {
    ads.accepted(version, &[config("d", [limit("path", version, 5, MINUTE)])]).await;
    app.answers(&[&format!("path={version} -> ok 4/5 minute")]).await;
    assert_eq!(app.get("/v1/config").await.json()["problems"], serde_json::json!([]));
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_it_sends_is_refused_and_the_next_good_answer_counts() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    good(&ads, &app, "v1").await;
    let deep = (0..200).fold(limit("k", "v", 1, MINUTE), |below, _| under("k", "v", [below]));
    let nested = (0..40).fold(limit("k", "v", 1, MINUTE), |below, _| under("k", "v", [below]));
    let one = any(&config("d", [limit("k", "", 1, MINUTE)]));
    let cut = one.value[..one.value.len() - 1].to_vec();
    let long = "n".repeat(3 << 20);
    let row = |n: usize| limit("k", &format!("{n}"), 1, RateLimitUnit::Unknown);
    let all_wrong = config("many", (0..20_000).map(row).collect::<Vec<RateLimitDescriptor>>());
    let cases: [(Vec<Any>, &str); 10] = [
        (vec![of_type(TYPE_URL, b"\xff\xff\xff\xff\xff")], "xds:resources[0]: can't be decoded"),
        (vec![of_type(TYPE_URL, &cut)], "xds:resources[0]: can't be decoded"),
        (vec![of_type("", &one.value)], "xds:resources[0]: is a , not a "),
        (
            vec![of_type("type.googleapis.com/envoy.config.cluster.v3.Cluster", b"")],
            "is a type.googleapis.com/envoy",
        ),
        (vec![of_type(TYPE_URL, b"")], "xds:: domain: must not be empty"),
        (vec![any(&config("d", [deep]))], "recursion limit reached"),
        (vec![any(&config("d", [nested]))], "are nested deeper than 32 levels"),
        (
            vec![one.clone(), one.clone()],
            "xds:d: domain: is also the domain of xds:d; a domain has one place",
        ),
        (vec![any(&all_wrong)], "and 19000 more mistakes"),
        (vec![any(&config(&long, [limit("", "", 1, MINUTE)]))], "xds:nnn"),
    ];
    for (n, (resources, expected)) in cases.into_iter().enumerate() {
        let refused = ads.refused_any(&format!("bad{n}"), resources).await;
        assert!(refused.contains(expected), "{expected} in {}", &refused[..refused.len().min(2000)]);
        assert!(refused.len() < 2 << 20, "{} bytes", refused.len());
        good(&ads, &app, &format!("good{n}")).await;
    }
}

/// gRPC servers hang up on who sends them more than 4 MB, so that they would never hear why.
#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_is_not_longer_than_a_server_can_hear() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    let value = "v".repeat(900);
    let row = |n: usize| limit("k", &format!("{value}{n}"), 1, RateLimitUnit::Unknown);
    let domain = |n: usize| config(&format!("{value}{n}"), (0..900).map(row).collect::<Vec<_>>());
    let refused = ads.refused("1", &(0..3).map(domain).collect::<Vec<_>>()).await;
    assert!((1 << 19..2 << 20).contains(&refused.len()), "{} bytes", refused.len());
    let end = &refused[refused.len() - 40..];
    assert!(end.ends_with(" more problems"), "{end}");
    good(&ads, &app, "v1").await;
}

/// More than 64 MB ends the stream: what is live stays, and a smaller answer is heard.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_too_large_changes_nothing() {
    let ads = Ads::start().await;
    let app = following(&ads).start().await;
    good(&ads, &app, "v1").await;
    ads.push_any("2", vec![of_type(TYPE_URL, &vec![0; 65 << 20])]);
    let again = ads.heard().await;
    assert_eq!((again.version_info.as_str(), again.response_nonce.as_str()), ("", ""), "a new stream");
    app.answers(&["path=v1 -> ok 3/5 minute"]).await;
    good(&ads, &app, "v3").await;
}

/// What a broken server does with connections, one after the other.
async fn be_broken(listener: &TcpListener, how: usize) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut opening = [0; 24];
    match how {
        0 => drop(stream),
        1 => {
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").await.unwrap();
            let _ = stream.read(&mut opening).await;
        }
        2 => {
            // Settings, and then a frame that is longer than any may be.
            stream.read_exact(&mut opening).await.unwrap();
            stream.write_all(&[0, 0, 0, 4, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]).await.unwrap();
            let _ = stream.read(&mut opening).await;
        }
        3 => reset(stream),
        _ => {
            // The stream is refused by a trailer in place of headers.
            let _ = tokio::time::timeout(Duration::from_secs(5), refuse(stream)).await;
        }
    }
}

/// Closes with a reset, as a peer that was killed does.
fn reset(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
}

async fn refuse(stream: TcpStream) {
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((_, mut answer))) = connection.accept().await {
        let trailers = http::Response::builder()
            .header("content-type", "application/grpc")
            .header("grpc-status", "7")
            .header("grpc-message", "who are you");
        let _ = answer.send_response(trailers.body(()).unwrap(), true);
        connection.graceful_shutdown();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_break_are_opened_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let app = at(&address.to_string()).start().await;
    for how in 0..5 {
        tokio::time::timeout(Duration::from_secs(10), be_broken(&listener, how))
            .await
            .expect("it tries again");
        assert_eq!((app.get("/livez").await.status, app.get("/readyz").await.status), (200, 503));
    }
    drop(listener);
    let ads = Ads::start_at(address).await;
    good(&ads, &app, "v1").await;
    assert_eq!(app.get("/readyz").await.status, 200);
}
