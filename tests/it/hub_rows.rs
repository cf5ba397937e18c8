//! Everything that runs on the ledgers runs through a hub too, and agrees.

use sluice::config::settings::value::LedgerUri;

use crate::hub::{OnHub, hub_on, ledger, ready, sidecar};
use crate::ledger_rows::ROWS;
use crate::scenario::{Bench, run};
use crate::testapp::TestApp;
use crate::{lease_rows, lease_scenario, queue_rows};

/// All rows at once: they share the hub but no limit.
async fn rows<B: Bench + Clone>(bench: B) {
    let rows = ROWS.iter().enumerate().map(|(index, row)| {
        let mut bench = bench.clone();
        async move { run(&mut bench, &format!("row{index}"), row).await }
    });
    futures_util::future::join_all(rows).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ledger_rows_through_a_hub_on_memory() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    rows(OnHub::<true> { ledger: ledger(&[&hub]).await }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lease_rows_through_a_hub_on_memory() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let app = sidecar(lease_scenario::LIMITS, &[&hub]).start().await;
    ready(&app).await;
    lease_rows::run_all(&app, lease_scenario::Port::Http).await;
    lease_rows::run_all(&app, lease_scenario::Port::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn names_that_only_the_ledger_behind_a_hub_knows() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let app = sidecar(lease_scenario::LIMITS, &[&hub]);
    let app = app.and_settings(|settings| settings.leases.book_max = 1).start().await;
    ready(&app).await;
    lease_rows::run_forgotten(&app).await;
}

async fn queue_rows_on(hub: &TestApp) {
    let app = sidecar(queue_rows::LIMITS, &[hub]).and_file("retry_policy.yaml", queue_rows::POLICY);
    let app = app.start().await;
    ready(&app).await;
    queue_rows::run_all(&app).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_rows_through_a_hub_on_memory() {
    let hub = hub_on(LedgerUri::Memory).and_file("retry_policy.yaml", queue_rows::POLICY);
    queue_rows_on(&hub.start().await).await;
}

#[cfg(feature = "tigerbeetle")]
mod on_tigerbeetle {
    use super::*;
    use crate::tigerbeetle::Server;
    use crate::tigerbeetle_load::agrees_with_memory;

    async fn hub(server: &Server) -> TestApp {
        let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
        // How many may wait, and what is kept for them, is the hub's to say.
        let hub = hub_on(uri).and_file("retry_policy.yaml", queue_rows::POLICY).start().await;
        ready(&hub).await;
        hub
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn ledger_rows_through_a_hub() {
        let server = Server::start();
        let hub = hub(&server).await;
        rows(OnHub::<false> { ledger: ledger(&[&hub]).await }).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn lease_and_queue_rows_through_a_hub() {
        let server = Server::start();
        let hub = hub(&server).await;
        let app = sidecar(lease_scenario::LIMITS, &[&hub]).start().await;
        ready(&app).await;
        lease_rows::run_all(&app, lease_scenario::Port::Http).await;
        queue_rows_on(&hub).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_seeded_load_agrees_with_the_memory_ledger_event_by_event() {
        let server = Server::start();
        let hubs = [hub(&server).await, hub(&server).await];
        let mut through_hubs = OnHub::<false> { ledger: ledger(&[&hubs[0], &hubs[1]]).await };
        agrees_with_memory(&mut through_hubs, 3).await;
    }
}
