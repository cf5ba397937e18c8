//! Four real Sluices on one real TigerBeetle: one is killed, one is stopped for five seconds, one is told to end, and the
//! server stands still for a while. Nobody outside ever sees more than the capacity in a window.

use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use sluice::config::settings::value::Listen;

use crate::ask::{request, told};
use crate::sluice::{Sluice, directory, serve};
use crate::testapp::channel;
use crate::tigerbeetle::Server;
use crate::tigerbeetle_load::{account, until_used};

const WINDOW: Duration = Duration::from_secs(2);
const CAPACITY: usize = 400;

const LIMITS: &str = "
domain: d
limits: [{key: shared, kind: rolling, capacity: 400, window_seconds: 2}]
descriptors: [{key: all, limits: [{ref: shared}]}]
";

async fn start(server: &Server) -> Sluice {
    let settings = "ledger: {timeout_ms: 2000}\n";
    let dir = directory(&[("config/limits/limits.yaml", LIMITS), ("config/sluice.yaml", settings)]);
    let ledger = format!("tigerbeetle:0@{}", server.address());
    let command =
        serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", &ledger]);
    Sluice::start(dir, command).await
}

/// Asks until `end`; when each request that was admitted was sent and answered.
#[allow(clippy::disallowed_methods, reason = "the oracle has a clock of its own")]
async fn ask(address: String, started: Instant, end: Duration) -> Vec<(Duration, Duration)> {
    let mut client = RateLimitServiceClient::new(channel(&Listen::Tcp(address.parse().unwrap())).await);
    let mut admitted = Vec::new();
    while started.elapsed() < end {
        let (asked, sent) = (request("all=1"), started.elapsed());
        let mut call = tonic::Request::new(asked.clone());
        call.set_timeout(Duration::from_secs(8));
        let answer = client.should_rate_limit(call).await.map(tonic::Response::into_inner);
        let failed = answer.is_err();
        if told(&asked, &answer).starts_with("ok") {
            admitted.push((sent, started.elapsed()));
        }
        tokio::time::sleep(Duration::from_millis(if failed { 50 } else { 4 })).await;
    }
    admitted
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods, reason = "the oracle has a clock of its own")]
async fn whoever_dies_stops_or_ends_no_window_sees_more_than_the_capacity() {
    let server = Arc::new(Server::start());
    let mut sluices = Vec::new();
    for _ in 0..4 {
        sluices.push(start(&server).await);
    }
    let started = Instant::now();
    let end = Duration::from_secs(14);
    let mut callers = tokio::task::JoinSet::new();
    for sluice in &sluices {
        (0..4).for_each(|_| drop(callers.spawn(ask(sluice.grpc.clone(), started, end))));
    }
    let at = |seconds| {
        let at = Duration::from_secs(seconds);
        async move { tokio::time::sleep(at.saturating_sub(started.elapsed())).await }
    };
    at(3).await;
    sluices[0].process.signal("KILL");
    at(4).await;
    sluices[1].process.signal("STOP");
    at(5).await;
    server.signal("STOP");
    at(6).await;
    server.signal("CONT");
    at(7).await;
    sluices[2].process.signal("TERM");
    at(9).await;
    sluices[1].process.signal("CONT");
    let mut admitted: Vec<(Duration, Duration)> = callers.join_all().await.concat();
    admitted.sort();
    for (n, (start, _)) in admitted.iter().enumerate() {
        let within = admitted[n..].iter().filter(|(_, answered)| *answered < *start + WINDOW).count();
        assert!(within <= CAPACITY, "{within} in the window from {start:?} on");
    }
    let late = admitted.iter().filter(|(sent, _)| *sent > Duration::from_secs(10)).count();
    println!("{} admitted, {late} of them in the last 4 s", admitted.len());
    assert!(late > CAPACITY, "those who are left use what the others had: {late}");
    assert!(sluices[2].process.exit().await.success());
    for n in [1, 3] {
        sluices[n].process.signal("TERM");
        assert!(sluices[n].process.exit().await.success());
    }
    until_used(&server.ledger().await, &account("shared"), 0).await;
}
