//! The rows of the embedded ledger on the real TigerBeetle server.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluice::ledger::tigerbeetle::TigerBeetle;
use sluice::ledger::{Account, Balance, Chain, Ledger, Outcome, Want};
use sluice::limit::Overage;

use crate::ledger_rows::ROWS;
use crate::scenario::{Bench, run};
use crate::tigerbeetle::{Server, apply};

#[derive(Clone)]
pub struct OnTigerBeetle {
    pub ledger: TigerBeetle,
}

impl Bench for OnTigerBeetle {
    const NAMES_ALL: bool = false;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        apply(&self.ledger, chain, Duration::from_secs(10)).await.expect("the ledger must answer")
    }

    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        let (overage, lifetime_seconds) = (Overage::Debt, NonZeroU32::MIN);
        let want = Want { account: Arc::clone(account), capacity, overage, lifetime_seconds };
        let balances = self.ledger.balances(vec![want]).await.expect("the ledger must answer");
        balances[0]
    }

    async fn paid(&mut self) {
        // Limits that owe are looked at once a second.
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }

    async fn wait(&mut self, seconds: u64) {
        // Expiry is never early, and may be a pulse late.
        tokio::time::sleep(Duration::from_millis(seconds * 1000 + 250)).await;
    }
}

/// All rows at once: they share the server but no limit.
#[tokio::test(flavor = "multi_thread")]
async fn tigerbeetle() {
    let server = Server::start();
    let ledger = server.ledger().await;
    join_all(ROWS.iter().enumerate().map(async |(index, row)| {
        let mut bench = OnTigerBeetle { ledger: ledger.clone() };
        run(&mut bench, &format!("row{index}"), row).await;
    }))
    .await;
}
