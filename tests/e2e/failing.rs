//! Sluice is away, hangs, restarts, or has lost its ledger: what clients see is what the failure mode says, soon, and limits
//! hold again by themselves.

use std::time::Duration;

use crate::envoy::{Envoy, FAIL_CLOSED, RATELIMIT};
use crate::silent::Silent;
use crate::sluice::{Sluice, directory, serve};
use crate::stall::steadily;
use crate::wait::until;

/// Nothing passes, so that whoever does was not counted.
const BLOCKED: &str =
    "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 0}}]";

/// The total that the bootstraps promise.
const TOTAL_MAX: Duration = Duration::from_secs(3);

/// An Envoy for each failure mode, with the timeouts that people copy.
struct Both {
    open: Envoy,
    closed: Envoy,
}

impl Both {
    async fn asking(ports: &[u16]) -> Self {
        let start = async |bootstrap| Envoy::of(bootstrap).impatient().start(ports).await;
        let both = Self { open: start(RATELIMIT).await, closed: start(FAIL_CLOSED).await };
        both.limited().await;
        both
    }

    async fn statuses(&self) -> (u16, u16) {
        (self.open.get("/", &[]).await.status, self.closed.get("/", &[]).await.status)
    }

    /// Waits until limits hold.
    async fn limited(&self) {
        until("limits to hold", async || match self.statuses().await {
            (429, 429) => Ok(()),
            statuses => Err(format!("{statuses:?}")),
        })
        .await;
    }

    /// Nobody can be asked: each answers as its failure mode says, and in time.
    async fn on_their_own(&self) {
        for _ in 0..3 {
            let start = ::sluice::clock::instant();
            let passed = self.open.get("/", &[]).await;
            assert_eq!((passed.status, passed.body.as_str()), (200, "from the upstream"));
            assert!(start.elapsed() < TOTAL_MAX, "{:?}", start.elapsed());
            let start = ::sluice::clock::instant();
            let refused = self.closed.get("/", &[]).await;
            assert_eq!((refused.status, refused.header("x-sluice-reason")), (503, ""), "{refused:?}");
            assert!(start.elapsed() < TOTAL_MAX, "{:?}", start.elapsed());
        }
    }
}

#[tokio::test]
async fn while_sluice_is_away_the_failure_mode_decides() {
    let mut sluice = Sluice::with_limits(BLOCKED).await;
    let envoys = Both::asking(&[sluice.grpc_port()]).await;
    sluice.process.signal("TERM");
    assert_eq!(sluice.process.exit().await.code(), Some(0));
    envoys.on_their_own().await;

    let command = serve(sluice.dir.path(), &["--grpc", &sluice.grpc, "--admin", "127.0.0.1:0"]);
    let _again = Sluice::start(directory(&[]), command).await;
    envoys.limited().await;
}

#[tokio::test]
async fn while_sluice_hangs_nobody_waits_for_long() {
    let sluice = Sluice::with_limits(BLOCKED).await;
    let envoys = Both::asking(&[sluice.grpc_port()]).await;
    sluice.process.stop().await;
    envoys.on_their_own().await;
    sluice.process.signal("CONT");
    envoys.limited().await;
}

#[tokio::test]
async fn a_sluice_that_was_killed_is_found_again() {
    let mut sluice = Sluice::with_limits(BLOCKED).await;
    let envoys = Both::asking(&[sluice.grpc_port()]).await;
    sluice.process.signal("KILL");
    sluice.process.exit().await;
    let command = serve(sluice.dir.path(), &["--grpc", &sluice.grpc, "--admin", "127.0.0.1:0"]);
    let _again = Sluice::start(directory(&[]), command).await;
    envoys.limited().await;
}

/// Every call that meets the one that is gone goes to the other, so no request passes uncounted.
#[tokio::test]
async fn with_one_of_two_gone_limits_hold() {
    let stays = Sluice::with_limits(BLOCKED).await;
    let mut goes = Sluice::with_limits(BLOCKED).await;
    let envoys = Both::asking(&[stays.grpc_port(), goes.grpc_port()]).await;
    goes.process.signal("KILL");
    goes.process.exit().await;
    // The connections that broke with it have to be noticed first.
    envoys.limited().await;
    for _ in 0..20 {
        assert_eq!(envoys.statuses().await, (429, 429));
    }
}

/// The same for a host that drops packets: the connection times out, and there is time for the other.
#[tokio::test]
async fn with_one_of_two_out_of_reach_limits_hold() {
    steadily(async |_| {
        let sluice = Sluice::with_limits(BLOCKED).await;
        let silent = Silent::start().await;
        let envoys = Both::asking(&[sluice.grpc_port(), silent.port]).await;
        for _ in 0..4 {
            let start = ::sluice::clock::instant();
            assert_eq!(envoys.statuses().await, (429, 429));
            assert!(start.elapsed() < 2 * TOTAL_MAX, "{:?}", start.elapsed());
        }
        let tried = envoys.open.stat("cluster.sluice.upstream_cx_connect_timeout").await;
        assert!(tried > 0, "the silent host must have been tried");
    })
    .await;
}

/// TigerBeetle is away: Sluice says so instead of guessing, and Envoy decides.
#[cfg(feature = "tigerbeetle")]
#[tokio::test]
async fn while_the_ledger_is_away_the_failure_mode_decides() {
    // Not BLOCKED, which needs no ledger to be refused. Exact, because another limit that was full a moment ago is refused
    // for half a second without asking the ledger.
    let limits = "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 1, exact: true}}]";
    let mut ledger = crate::tigerbeetle::Server::start();
    let dir = directory(&[("config/limits/limits.yaml", limits)]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger"]);
    command.arg(format!("tigerbeetle:0@{}", ledger.address()));
    let sluice = Sluice::start(dir, command).await;
    let envoys = Both::asking(&[sluice.grpc_port()]).await;
    ledger.kill();
    until("Sluice to notice", async || match crate::http::get(sluice.admin, "/readyz").await.status {
        503 => Ok(()),
        status => Err(status.to_string()),
    })
    .await;
    envoys.on_their_own().await;
    ledger.restart();
    envoys.limited().await;
}
