//! The way from Envoy to the upstream: one more try on another host if no connection could be made, and none of what may
//! have run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpSocket};

use crate::envoy::{Envoy, FAIL_CLOSED, LEASES, RATELIMIT};
use crate::silent::Silent;
use crate::sluice::Sluice;

const BOOTSTRAPS: [(&str, &str); 3] =
    [("ratelimit", RATELIMIT), ("fail-closed", FAIL_CLOSED), ("leases", LEASES)];

/// A limit that lets all pass; the domain of leases.yaml is not there, which does as well.
const PLENTY: &str =
    "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1000}}]";

const TOTAL_MAX: Duration = Duration::from_secs(3);

async fn retries(envoy: &Envoy) -> u64 {
    envoy.stat("cluster.upstream.upstream_rq_retry").await
}

/// A port that refuses connections, and that nobody else is given.
struct Refusing {
    port: u16,
    _socket: TcpSocket,
}

impl Refusing {
    fn new() -> Self {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        Self { port: socket.local_addr().unwrap().port(), _socket: socket }
    }
}

#[tokio::test]
async fn who_meets_a_host_that_refuses_is_served_by_the_other() {
    let (sluice, refusing) = (Sluice::with_limits(PLENTY).await, Refusing::new());
    for (name, bootstrap) in BOOTSTRAPS {
        let setup = Envoy::of(bootstrap).upstream_beside(&[refusing.port]);
        let envoy = setup.start(&[sluice.grpc_port()]).await;
        for _ in 0..12 {
            let answer = envoy.get("/", &[]).await;
            assert_eq!(
                (answer.status, answer.body.as_str()),
                (200, "from the upstream"),
                "{name}: {answer:?}"
            );
        }
        assert_eq!(envoy.upstream.arrived(), 12, "{name}");
        let tried = envoy.stat("cluster.upstream.upstream_cx_connect_fail").await;
        assert!(tried > 0, "{name}: the host that refuses must have been tried");
    }
}

#[tokio::test]
async fn who_meets_a_host_that_is_silent_is_served_by_the_other_in_time() {
    let (sluice, silent) = (Sluice::with_limits(PLENTY).await, Silent::start().await);
    for (name, bootstrap) in BOOTSTRAPS {
        let setup = Envoy::of(bootstrap).upstream_beside(&[silent.port]);
        let envoy = setup.start(&[sluice.grpc_port()]).await;
        for _ in 0..4 {
            let start = ::sluice::clock::instant();
            assert_eq!(envoy.get("/", &[]).await.status, 200, "{name}");
            assert!(start.elapsed() < TOTAL_MAX, "{name}: {:?}", start.elapsed());
        }
        let tried = envoy.stat("cluster.upstream.upstream_cx_connect_timeout").await;
        assert!(tried > 0, "{name}: the silent host must have been tried");
    }
}

/// Also while nobody answers for Sluice, and the failure mode lets the request go on to the upstream.
#[tokio::test]
async fn with_nobody_there_it_is_over_after_two_tries_and_in_time() {
    let sluice = Sluice::with_limits(PLENTY).await;
    let (refusing, silent) =
        ([Refusing::new(), Refusing::new()], [Silent::start().await, Silent::start().await]);
    let gone = Refusing::new();
    for (ports, asked) in [
        (refusing.each_ref().map(|it| it.port), sluice.grpc_port()),
        (silent.each_ref().map(|it| it.port), sluice.grpc_port()),
        (silent.each_ref().map(|it| it.port), gone.port),
    ] {
        let setup = Envoy::of(RATELIMIT).impatient().upstream_at(&ports);
        let envoy = setup.start(&[asked]).await;
        let start = ::sluice::clock::instant();
        assert_eq!(envoy.get("/", &[]).await.status, 503);
        assert!(start.elapsed() < TOTAL_MAX, "{:?}", start.elapsed());
        assert_eq!(retries(&envoy).await, 1);
    }
}

/// It may have run: an answer, whatever it says, and a connection that breaks after the request was sent.
#[tokio::test]
async fn what_may_have_run_is_not_sent_again() {
    let sluice = Sluice::with_limits(PLENTY).await;
    let busy = Router::new()
        .route("/503", get(async || StatusCode::SERVICE_UNAVAILABLE))
        .route("/429", get(async || StatusCode::TOO_MANY_REQUESTS))
        .route("/never", get(async || std::future::pending::<()>().await));
    for (name, bootstrap) in BOOTSTRAPS {
        let mut setup = Envoy::of(bootstrap).before(busy.clone());
        if name == "leases" {
            setup = setup.changed("timeout: 290s", "timeout: 2.9s");
        }
        let envoy = setup.start(&[sluice.grpc_port()]).await;
        for (path, status) in [("/503", 503), ("/429", 429), ("/never", 504)] {
            let before = envoy.upstream.arrived();
            assert_eq!(envoy.get(path, &[]).await.status, status, "{name}");
            assert_eq!(envoy.upstream.arrived(), before + 1, "{name}: {path}");
        }
        assert_eq!(retries(&envoy).await, 0, "{name}");

        let breaking = Breaking::start().await;
        let setup = Envoy::of(bootstrap).upstream_at(&[breaking.port]);
        let envoy = setup.start(&[sluice.grpc_port()]).await;
        assert_eq!(envoy.get("/", &[]).await.status, 503, "{name}");
        assert_eq!(breaking.heard.load(Ordering::SeqCst), 1, "{name}");
        assert_eq!(retries(&envoy).await, 0, "{name}");
    }
}

/// Reads a request and closes the connection instead of answering.
struct Breaking {
    port: u16,
    heard: Arc<AtomicUsize>,
}

impl Breaking {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, heard) = (listener.local_addr().unwrap().port(), Arc::new(AtomicUsize::new(0)));
        let count = Arc::clone(&heard);
        tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                if stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {
                    count.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        Self { port, heard }
    }
}
