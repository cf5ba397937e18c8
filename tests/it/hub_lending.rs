//! Hubs that lend, on a real TigerBeetle server: what a fleet spends is what the ledger counts, to the unit, and no window sees more
//! than the capacity, whoever of the fleet stands still or is killed while something is lent.

use std::net::SocketAddr;
use std::time::Duration;

use sluice::config::settings::value::LedgerUri;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::http;
use crate::hub::{hub_on, ready, sidecar};
use crate::hub_process::HubProcess;
use crate::slab_fleet::instance::{admits, pending, start_on};
use crate::slab_fleet::load::Load;
use crate::slab_fleet::oracle::{Pause, answered_between, most_in_a_window};
use crate::stall::Stalls;
use crate::testapp::TestApp;
use crate::tigerbeetle::Server;
use crate::wait::until;

/// More than the sixteen slabs in a life from which on a hub lends.
const SIDECARS: usize = 20;

/// Slabs of the first live for a second, of the second for a fifth of one.
const LIMITS: &str = "
domain: d
limits:
- {key: minute, kind: rolling, capacity: 1000000, window_seconds: 60}
- {key: ten, kind: rolling, capacity: 8000, window_seconds: 10}
descriptors:
- {key: minute, limits: [{ref: minute}]}
- {key: ten, limits: [{ref: ten}]}
";

async fn metric(text: impl Future<Output = http::Answer>, name: &str) -> u64 {
    let text = text.await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{name} is not in\n{text}"))
}

const LENT: &str = "sluice_hub_slab_answers_total{from=\"slab\"}";

/// Asks this often at each of them, some at a time; how many were admitted.
async fn spend(clients: &[RateLimitServiceClient<Channel>], rounds: usize) -> u64 {
    let mut spending: JoinSet<u64> = JoinSet::new();
    for client in clients {
        let client = client.clone();
        spending.spawn(async move {
            let mut admitted = 0;
            for _ in 0..rounds {
                admitted += u64::from(admits(&client, "minute=x", None).await.expect("an answer must come"));
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            admitted
        });
    }
    spending.join_all().await.iter().sum()
}

/// Waits until the ledger holds so much of a limit, as an instance sees it.
async fn until_used(admin: SocketAddr, key: &str, expected: u64) {
    until(&format!("{expected} to be used"), async || {
        let limit = http::get(admin, &format!("/v1/limits/{key}")).await;
        if limit.json()["used"] == expected { Ok(()) } else { Err(limit.body) }
    })
    .await;
}

/// A hub on this server, and sidecars of it.
async fn fleet(server: &Server) -> (TestApp, Vec<TestApp>) {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let hub = hub_on(uri).start().await;
    let mut sidecars: Vec<TestApp> = Vec::new();
    for _ in 0..SIDECARS {
        let app = sidecar(LIMITS, &[&hub]).start().await;
        ready(&app).await;
        sidecars.push(app);
    }
    (hub, sidecars)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_counts_what_a_fleet_has_spent_of_what_it_was_lent() {
    let server = Server::start();
    let (hub, mut sidecars) = fleet(&server).await;
    let clients: Vec<_> = sidecars.iter().map(TestApp::client).collect();
    let mut spent = spend(&clients, 400).await;
    assert!(metric(hub.get("/metrics"), LENT).await > 0, "the hub must lend");
    // What was not spent goes back, and nothing of what was.
    until_used(sidecars[0].app.admin, "minute", spent).await;
    until("all loans to be over", async || match metric(hub.get("/metrics"), "sluice_hub_loans").await {
        0 => Ok(()),
        loans => Err(loans.to_string()),
    })
    .await;

    // One that stops gives back what it was lent.
    spent += spend(&clients, 100).await;
    drop(clients);
    let last = sidecars.swap_remove(0);
    for app in sidecars {
        app.stop().await;
    }
    until_used(last.app.admin, "minute", spent).await;
    last.stop().await;
    let units = async |event: &str| {
        metric(hub.get("/metrics"), &format!("sluice_hub_slab_units_total{{event=\"{event}\"}}")).await
    };
    let (taken, spent_of_it, given_back) =
        (units("taken").await, units("handed_out").await, units("given_back").await);
    assert_eq!(taken, spent_of_it + given_back, "nothing is held any more");
    assert!(spent_of_it > 0 && given_back > 0, "{spent_of_it} spent, {given_back} given back");
    hub.stop().await;
    assert_eq!(pending(&server, "minute").await, spent);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_stops_takes_back_what_it_has_lent() {
    let server = Server::start();
    let (hub, sidecars) = fleet(&server).await;
    let clients: Vec<_> = sidecars.iter().map(TestApp::client).collect();
    let spent = spend(&clients, 300).await;
    assert!(metric(hub.get("/metrics"), LENT).await > 0, "the hub must lend");
    // Its sidecars have loans of it now.
    hub.stop().await;
    let left = pending(&server, "minute").await;
    assert_eq!(left, spent, "all that was told is given back before it ends");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_sees_more_than_the_capacity_whoever_dies_with_a_loan() {
    const WINDOW_US: u64 = 10_000_000;
    let server = Server::start();
    let hub = async || HubProcess::start(&server.address(), 5_000, "127.0.0.1:0", "").await;
    let mut hubs = [hub().await, hub().await];
    let uri = format!("hub:{},{}", hubs[0].address, hubs[1].address);
    let mut sidecars = start_on(&[&uri], LIMITS, 5_000, SIDECARS).await;
    let load = Load::start_slowly(&sidecars, "ten=x", 1, Duration::from_secs(10), 8_000);
    let lent = async |hub: &HubProcess| metric(http::get(hub.sluice.admin, "/metrics"), LENT).await;
    load.until_admitted(7_000, None, "the first window").await;
    tokio::time::sleep(Duration::from_secs(4)).await;
    let stalls = Stalls::since_now();
    let from_us = load.now_us();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let to_us = load.now_us();
    let stood_still = stalls.time().as_secs_f64() / 5.0;
    let lent_by = [lent(&hubs[0]).await, lent(&hubs[1]).await];
    assert!(lent_by.iter().max() > Some(&100), "{lent_by:?}");
    let home = usize::from(lent_by[1] > lent_by[0]);

    // One stands still for longer than its loan, and goes on.
    sidecars[3].stop().await;
    let paused_us = load.now_us();
    tokio::time::sleep(Duration::from_millis(1_200)).await;
    let pause = Pause { instance: 3, from_us: paused_us, to_us: load.now_us() };
    sidecars[3].go_on();
    load.until_admitted(1, Some(3), "it goes on").await;
    // One is killed with what it was lent, and then the hub that has lent it.
    sidecars[7].sluice.process.signal("KILL");
    assert!(!sidecars[7].sluice.process.exit().await.success());
    load.until_admitted(500, None, "without one sidecar").await;
    hubs[home].sluice.process.signal("KILL");
    assert!(!hubs[home].sluice.process.exit().await.success());
    load.until_admitted(8_000, None, "with one hub").await;
    assert!(lent(&hubs[1 - home]).await > 0, "the other hub lends now");

    let admissions = load.finish().await;
    let most = most_in_a_window(&admissions, &[pause], WINDOW_US);
    let used = answered_between(&admissions, from_us, to_us) as f64 / 8_000.0;
    println!(
        "{most} of 8000 in the fullest window; {used:.3} used in steady overload; lent {lent_by:?} times"
    );
    assert!(most <= 8_000, "{most} of 8000 in one window");
    assert!(used + stood_still >= 0.95, "{used} of the limit was used, {stood_still} stood still");

    // What those have left behind who were killed comes back by the ledger's timeout.
    until_used(sidecars[0].sluice.admin, "ten", 0).await;
    assert_eq!(pending(&server, "ten").await, 0);
}
