//! Real faults in real processes: kill -9, SIGSTOP, an address nobody listens on, a wrong cluster.
//!
//! The promise under all of them: no answer later than its deadline, everything acknowledged is found afterwards, what
//! was not acknowledged is given back, and nothing is admitted above the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use sluice::ledger::tigerbeetle::{Cluster, Options, TigerBeetle, TransferIds};
use sluice::ledger::{Account, Keep, Ledger, LedgerError, Verdict};
use sluice::telemetry::Metrics;

use crate::tigerbeetle::{Replicas, Server, apply, free_port, until_ready};
use crate::tigerbeetle_load::{account, balance, chain, fresh, reserve, until_used};

const TIMEOUT: Duration = Duration::from_millis(400);
/// Two cores run the server, the load and other tests: what an answer may be late by.
const SLACK: Duration = Duration::from_millis(1_200);

/// Callers that never stop asking.
struct Load {
    ledger: TigerBeetle,
    /// Takes whatever comes, so that acknowledgements can be counted.
    roomy: Arc<Account>,
    /// Takes 200 in all.
    tight: Arc<Account>,
    roomy_acked: AtomicU64,
    tight_acked: AtomicU64,
    failed: AtomicU64,
    slowest_ms: AtomicU64,
    stop: AtomicBool,
}

const ROOMY: u64 = 1_000_000_000;
const TIGHT: u64 = 200;

impl Load {
    fn start(ledger: &TigerBeetle) -> (Arc<Self>, tokio::task::JoinSet<()>) {
        let load = Arc::new(Self {
            ledger: ledger.clone(),
            roomy: account("roomy"),
            tight: account("tight"),
            roomy_acked: AtomicU64::new(0),
            tight_acked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            slowest_ms: AtomicU64::new(0),
            stop: AtomicBool::new(false),
        });
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..32 {
            let load = Arc::clone(&load);
            callers.spawn(async move {
                while !load.stop.load(Ordering::Relaxed) {
                    load.once(n % 8 == 0).await;
                }
            });
        }
        (load, callers)
    }

    #[allow(clippy::disallowed_methods, reason = "a test may look at the clock")]
    async fn once(&self, tight: bool) {
        let mut transfers = vec![reserve(&self.roomy, 1, ROOMY, 3600)];
        if tight {
            transfers.push(reserve(&self.tight, 1, TIGHT, 3600));
        }
        let started = Instant::now();
        let answer = apply(&self.ledger, chain(fresh(), Keep::ForCompletion, transfers), TIMEOUT).await;
        let took = u64::try_from(started.elapsed().as_millis()).unwrap();
        self.slowest_ms.fetch_max(took, Ordering::Relaxed);
        match answer.map(|outcome| outcome.verdict) {
            Ok(Verdict::Done) => {
                self.roomy_acked.fetch_add(1, Ordering::Relaxed);
                self.tight_acked.fetch_add(u64::from(tight), Ordering::Relaxed);
            }
            Ok(Verdict::Refused(_)) => {}
            Ok(Verdict::NotAsked) => panic!("TigerBeetle must be asked"),
            Err(_) => {
                self.failed.fetch_add(1, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }

    fn acked(&self) -> u64 {
        self.roomy_acked.load(Ordering::Relaxed)
    }

    /// Waits until this many more were acknowledged.
    async fn until_acked(&self, more: u64, what: &str) {
        let goal = self.acked() + more;
        let reached = async {
            while self.acked() < goal {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let done = tokio::time::timeout(Duration::from_secs(90), reached).await;
        assert!(done.is_ok(), "{what}: {} of {goal} acknowledged, {:?}", self.acked(), self.ledger.ready());
    }

    /// Ends the load and audits the ledger.
    async fn audit(&self, mut callers: tokio::task::JoinSet<()>) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(caller) = callers.join_next().await {
            caller.unwrap();
        }
        let slowest = Duration::from_millis(self.slowest_ms.load(Ordering::Relaxed));
        assert!(slowest < TIMEOUT + SLACK, "an answer took {slowest:?}");
        assert!(self.failed.load(Ordering::Relaxed) > 0, "the fault was not felt");
        until_used(&self.ledger, &self.roomy, self.acked()).await;
        let tight = self.tight_acked.load(Ordering::Relaxed);
        assert!(tight <= TIGHT, "over-admitted: {tight}");
        until_used(&self.ledger, &self.tight, tight).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_that_is_killed_loses_nothing() {
    let mut server = Server::start();
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    until_ready(&ledger, Duration::from_secs(60)).await;
    let (load, callers) = Load::start(&ledger);
    load.until_acked(500, "before the fault").await;
    server.kill();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert!(ledger.ready().is_err(), "readiness must fall");
    let refused =
        apply(&ledger, chain(fresh(), Keep::Nothing, vec![reserve(&load.roomy, 1, ROOMY, 3600)]), TIMEOUT)
            .await;
    assert!(matches!(refused, Err(LedgerError::Unavailable(_))), "{refused:?}");
    server.restart();
    load.until_acked(500, "after the restart").await;
    until_ready(&ledger, Duration::from_secs(10)).await;
    load.audit(callers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_single_server_that_stops_answering_loses_nothing() {
    let server = Server::start();
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    until_ready(&ledger, Duration::from_secs(60)).await;
    let (load, callers) = Load::start(&ledger);
    load.until_acked(500, "before the fault").await;
    server.signal("STOP");
    // Those in flight run into their deadline; later ones hear at once that nobody is there.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    assert!(ledger.ready().is_err(), "readiness must fall");
    server.signal("CONT");
    load.until_acked(500, "after it went on").await;
    load.audit(callers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn three_replicas_survive_the_loss_of_any() {
    let mut cluster = Replicas::start();
    let ledger = cluster.ledger();
    until_ready(&ledger, Duration::from_secs(90)).await;
    let (load, callers) = Load::start(&ledger);
    load.until_acked(200, "before the fault").await;
    for replica in 0..3 {
        cluster.replicas[replica].kill();
        load.until_acked(100, &format!("without replica {replica}")).await;
        cluster.restart(replica);
        load.until_acked(100, &format!("with replica {replica} again")).await;
    }
    cluster.replicas[1].signal("STOP");
    load.until_acked(100, "with replica 1 frozen").await;
    cluster.replicas[1].signal("CONT");
    // All at once: nobody answers until two are back.
    (0..3).for_each(|replica| cluster.replicas[replica].kill());
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    (0..3).for_each(|replica| cluster.restart(replica));
    load.until_acked(100, "after all were killed").await;
    load.audit(callers).await;
}

fn ledger_at(port: u16, cluster: u128) -> TigerBeetle {
    let cluster = Cluster { id: cluster, addresses: vec![format!("localhost:{port}")] };
    let options = Options {
        cluster,
        transfer_ids: TransferIds::TimeOrdered,
        timeout: TIMEOUT,
        queue_max: 100,
        sums: true,
        events: None,
    };
    TigerBeetle::start(options, Arc::new(Metrics::default())).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_comes_later_is_found_by_name() {
    let port = free_port();
    let ledger = ledger_at(port, 0);
    let limit = account("later");
    let work = || chain(fresh(), Keep::Nothing, vec![reserve(&limit, 1, 10, 3600)]);
    assert!(matches!(apply(&ledger, work(), TIMEOUT).await, Err(LedgerError::Unavailable(_))));
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let reason = ledger.ready().unwrap_err();
    assert!(reason.contains(&format!("localhost:{port}")), "{reason}");
    let server = Server::start_on(port);
    until_ready(&ledger, Duration::from_secs(60)).await;
    assert_eq!(apply(&ledger, work(), Duration::from_secs(5)).await.unwrap().verdict, Verdict::Done);
    assert_eq!(balance(&ledger, &limit, 10).await.used, 1);
    drop(server);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_cluster_is_unready_with_a_reason() {
    let server = Server::start();
    let ledger = ledger_at(server.port, 7);
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let reason = ledger.ready().unwrap_err();
    assert!(reason.contains("cluster 7"), "{reason}");
    let work = chain(fresh(), Keep::Nothing, vec![reserve(&account("wrong"), 1, 10, 3600)]);
    assert!(matches!(apply(&ledger, work, TIMEOUT).await, Err(LedgerError::Unavailable(_))));
}

/// The data file is replaced: accounts that were known are gone, and are made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_new_data_file_is_provisioned_again() {
    let mut server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("replaced");
    let work = || chain(fresh(), Keep::Nothing, vec![reserve(&limit, 1, 10, 3600)]);
    assert_eq!(apply(&ledger, work(), TIMEOUT).await.unwrap().verdict, Verdict::Done);
    server.kill();
    let port = server.port;
    drop(server);
    let _server = Server::start_on(port);
    let mut last = None;
    for _ in 0..400 {
        let answer = apply(&ledger, work(), TIMEOUT).await;
        if matches!(&answer, Ok(outcome) if outcome.verdict == Verdict::Done) {
            return;
        }
        last = Some(answer);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("never admitted again: {last:?}");
}
