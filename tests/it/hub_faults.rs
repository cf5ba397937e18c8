//! Several sidecars over hubs that die, stand still and stop, on a real TigerBeetle server: nothing is lost and nothing is
//! counted twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::Hub;
use sluice::ledger::{Keep, Ledger, Verdict};
use sluice::limit::LeaseId;

use crate::hub::{TIMEOUT, balance, hub_on, ledger, until_used};
use crate::testapp::TestApp;
use crate::work::{account, chain, fresh, reserve};

/// Four sidecars, each of which knows the limit only by its key, and two hundred callers.
async fn admits_exactly(hubs: &[&TestApp]) {
    let mut sidecars = Vec::new();
    for _ in 0..4 {
        sidecars.push(ledger(hubs).await);
    }
    for (round, is_named) in [("fresh", false), ("named", true)] {
        let mut callers = tokio::task::JoinSet::new();
        let accounts: Vec<_> =
            sidecars.iter().map(|_| (account(round), account(&format!("{round}:other")))).collect();
        for n in 0..200 {
            let (sidecar, (limit, other)) = (Arc::clone(&sidecars[n % 4]), accounts[n % 4].clone());
            let (lease, keep) = match is_named {
                true => (LeaseId::parse(&format!("{round}-{n}")), Keep::ForRetries),
                false => (fresh(), Keep::Nothing),
            };
            callers.spawn(async move {
                // The roomy limit first: it must be given back when the tight one refuses.
                let transfers = vec![reserve(&other, 1, 1_000, 3600), reserve(&limit, 1, 50, 3600)];
                sidecar.apply(&chain(lease, keep, transfers)).await.unwrap().verdict
            });
        }
        let verdicts = callers.join_all().await;
        assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Done).count(), 50);
        let (limit, other) = &accounts[0];
        assert_eq!(balance(&sidecars[1], limit, 50).await.used, 50);
        assert_eq!(balance(&sidecars[2], other, 1_000).await.used, 50);
    }
}

/// A caller that leaves gets its reservation given back, whenever it leaves.
async fn callers_leave(hubs: &[&TestApp]) {
    let sidecar = ledger(hubs).await;
    let limit = account("left");
    let first = chain(fresh(), Keep::Nothing, vec![reserve(&limit, 1, 1_000_000, 3600)]);
    assert_eq!(sidecar.apply(&first).await.unwrap().verdict, Verdict::Done);
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..300u64 {
        let (sidecar, limit) = (Arc::clone(&sidecar), limit.clone());
        let keep = if n % 2 == 0 { Keep::ForRetries } else { Keep::ForCompletion };
        callers.spawn(async move {
            let work = chain(fresh(), keep, vec![reserve(&limit, 1, 1_000_000, 3600)]);
            match tokio::time::timeout(Duration::from_micros(n * 37 % 8_000), sidecar.apply(&work)).await {
                Ok(answer) => u64::from(answer.unwrap().verdict == Verdict::Done),
                Err(_) => 0,
            }
        });
    }
    let kept: u64 = callers.join_all().await.into_iter().sum();
    until_used(&sidecar, &limit, 1_000_000, 1 + kept).await;
    sidecar.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sidecars_of_a_hub_on_memory_admit_exactly_the_capacity() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    admits_exactly(&[&hub]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_hold_nothing_on_memory() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    callers_leave(&[&hub]).await;
}

/// Callers that reserve under names, one after the other, until they are told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    admitted: Arc<AtomicU64>,
    callers: tokio::task::JoinSet<()>,
}

impl Load {
    fn start(sidecars: &[Arc<Hub>], key: &str) -> Self {
        let (stop, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..sidecars.len() * 4 {
            let sidecar = Arc::clone(&sidecars[caller % sidecars.len()]);
            let (stop, admitted, key) = (Arc::clone(&stop), Arc::clone(&admitted), key.to_owned());
            callers.spawn(async move {
                let limits: Vec<_> = (0..4).map(|n| account(&format!("{key}:{n}"))).collect();
                let mut n = caller;
                while !stop.load(Ordering::Relaxed) {
                    n += 1;
                    let transfers = vec![reserve(&limits[n % 4], 1, 1_000_000, 3600)];
                    let lease = LeaseId::parse(&format!("{key}-{caller}-{n}"));
                    let outcome = sidecar.apply(&chain(lease, Keep::ForRetries, transfers)).await;
                    let outcome = outcome.unwrap_or_else(|error| panic!("a call failed: {error}"));
                    assert_eq!(outcome.verdict, Verdict::Done);
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        Self { stop, admitted, callers }
    }

    async fn until_more(&self, more: u64) {
        let goal = self.admitted.load(Ordering::Relaxed) + more;
        crate::wait::until("more admissions", async || match self.admitted.load(Ordering::Relaxed) {
            enough if enough >= goal => Ok(()),
            count => Err(format!("{count} of {goal}")),
        })
        .await;
    }

    /// Ends it. What all limits hold is what was admitted, to the unit.
    async fn finish(mut self, sidecar: &Arc<Hub>, key: &str) {
        self.stop.store(true, Ordering::Relaxed);
        while let Some(caller) = self.callers.join_next().await {
            caller.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
        }
        let mut used = 0;
        for n in 0..4 {
            used += balance(sidecar, &account(&format!("{key}:{n}")), 1_000_000).await.used;
        }
        assert_eq!(used, self.admitted.load(Ordering::Relaxed));
    }
}

#[cfg(feature = "tigerbeetle")]
mod on_tigerbeetle {
    use super::*;
    use crate::hub::open;
    use crate::hub_process::HubProcess;
    use crate::tigerbeetle::Server;
    use crate::wait::until;

    fn uri(server: &Server) -> LedgerUri {
        LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn sidecars_of_two_hubs_admit_exactly_the_capacity() {
        let server = Server::start();
        let hubs = [hub_on(uri(&server)).start().await, hub_on(uri(&server)).start().await];
        admits_exactly(&[&hubs[0], &hubs[1]]).await;
        callers_leave(&[&hubs[0], &hubs[1]]).await;
    }

    async fn start(server: &Server, listen: &str) -> HubProcess {
        HubProcess::start(&server.address(), 5_000, listen, "drain: {wait_seconds: 0}\n").await
    }

    async fn sidecars(hubs: &[HubProcess; 2]) -> Vec<Arc<Hub>> {
        let addresses: Vec<String> = hubs.iter().map(|hub| hub.address.clone()).collect();
        let sidecars: Vec<_> = (0..3).map(|_| open(addresses.clone(), TIMEOUT)).collect();
        for sidecar in &sidecars {
            until("a hub", async || sidecar.ready()).await;
        }
        sidecars
    }

    /// One is killed, the other is stopped by its operator once the first is back, and then the first stands still: no call
    /// fails, and every admission is counted once.
    #[tokio::test(flavor = "multi_thread")]
    async fn hubs_that_die_stop_or_stand_still_lose_nothing() {
        let server = Server::start();
        let mut hubs = [start(&server, "127.0.0.1:0").await, start(&server, "127.0.0.1:0").await];
        let sidecars = sidecars(&hubs).await;
        let load = Load::start(&sidecars, "faults");
        load.until_more(300).await;

        hubs[0].sluice.process.signal("KILL");
        assert!(!hubs[0].sluice.process.exit().await.success());
        load.until_more(300).await;
        hubs[0] = start(&server, &hubs[0].address.clone()).await;
        load.until_more(300).await;

        hubs[1].sluice.process.signal("TERM");
        assert!(hubs[1].sluice.process.exit().await.success(), "a hub that stops ends well");
        load.until_more(300).await;
        hubs[1] = start(&server, &hubs[1].address.clone()).await;
        load.until_more(300).await;

        hubs[0].sluice.process.stop().await;
        load.until_more(300).await;
        hubs[0].sluice.process.signal("CONT");
        load.until_more(300).await;
        load.finish(&sidecars[0], "faults").await;
    }
}
