//! Hubs and their sidecars for tests: a hub in this process on any ledger, a sidecar's ledger, and whole sidecars.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluice::config::settings::secret::Secret;
use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::{Hub, Options};
use sluice::ledger::{Account, Balance, Chain, Ledger, Outcome, Want};
use sluice::limit::Overage;
use sluice::telemetry::Metrics;

use crate::scenario::Bench;
use crate::testapp::{Builder, TestApp};
use crate::wait::until;

/// Far above what an answer takes, so that a busy machine is not a failure.
pub const TIMEOUT: Duration = Duration::from_secs(10);

/// A hub without limits of its own, on this ledger.
pub fn hub_on(uri: LedgerUri) -> Builder {
    Builder::default().and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 10_000;
        settings.hub.listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    })
}

/// Where its sidecars come.
pub fn address(hub: &TestApp) -> String {
    hub.app.hub.expect("it must be a hub").to_string()
}

/// A sidecar of these hubs, with these limits.
pub fn sidecar(limits: &str, hubs: &[&TestApp]) -> Builder {
    sidecar_of(limits, hubs.iter().map(|hub| address(hub)).collect())
}

/// A sidecar of the hubs at these addresses.
pub fn sidecar_of(limits: &str, addresses: Vec<String>) -> Builder {
    TestApp::with_limits(limits).and_settings(move |settings| {
        settings.ledger.uri = LedgerUri::Hub { addresses };
        settings.ledger.timeout_ms = 5_000;
        settings.leases.secrets = vec![Secret::new("a secret that all have")];
    })
}

pub async fn ready(app: &TestApp) {
    until("readiness", async || {
        let answer = app.get("/readyz").await;
        if answer.status == 200 { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
}

/// The ledger of a sidecar of the hubs at these addresses.
pub fn open(addresses: Vec<String>, timeout: Duration) -> Arc<Hub> {
    let options = Options {
        addresses,
        name: "a test".to_owned(),
        tls: None,
        authorization: None,
        timeout,
        queue_max: 65_536,
        events: None,
    };
    Arc::new(Hub::start(options, Arc::new(Metrics::default())))
}

/// The same, once it can be used.
pub async fn ledger(hubs: &[&TestApp]) -> Arc<Hub> {
    let hub = open(hubs.iter().map(|hub| address(hub)).collect(), TIMEOUT);
    until("a hub", async || hub.ready()).await;
    hub
}

pub async fn balance(ledger: &impl Ledger, account: &Arc<Account>, capacity: u64) -> Balance {
    let (overage, lifetime_seconds) = (Overage::Debt, NonZeroU32::MIN);
    let want = Want { account: Arc::clone(account), capacity, overage, lifetime_seconds };
    ledger.balances(vec![want]).await.expect("the ledger must answer")[0]
}

/// Waits until the account holds exactly this much.
pub async fn until_used(ledger: &impl Ledger, account: &Arc<Account>, capacity: u64, used: u64) {
    until(&format!("{} to hold {used}", account.key), async || {
        let balance = balance(ledger, account, capacity).await;
        if balance.used == used { Ok(()) } else { Err(format!("{balance:?}")) }
    })
    .await;
}

/// A ledger behind a hub that names all limits that did not fit, or the first.
#[derive(Clone)]
pub struct OnHub<const NAMES_ALL: bool> {
    pub ledger: Arc<Hub>,
}

impl<const ALL: bool> Bench for OnHub<ALL> {
    const NAMES_ALL: bool = ALL;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        self.ledger.apply(&chain).await.expect("the ledger must answer")
    }

    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        balance(&self.ledger, account, capacity).await
    }

    async fn paid(&mut self) {
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }

    async fn wait(&mut self, seconds: u64) {
        tokio::time::sleep(Duration::from_millis(seconds * 1000 + 250)).await;
    }
}
