//! Hubs that lend, on a real TigerBeetle server: what a fleet spends is what the ledger counts, to the unit, and no window sees more
//! than the capacity, whoever of the fleet stands still or is killed while something is lent.

use std::net::SocketAddr;
use std::time::Duration;

use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::pb;
use sluice::ledger::hub::pb::answer::What as Answer;
use sluice::ledger::hub::pb::ask::What as Ask;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::http;
use crate::hub::{hub_on, ready, sidecar};
use crate::hub_hostile::Raw;
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

/// Loans of the first are half a second long, of the second a tenth.
const LIMITS: &str = "
domain: d
limits:
- {key: long, kind: rolling, capacity: 1000000, window_seconds: 600}
- {key: ten, kind: rolling, capacity: 5000, window_seconds: 10}
descriptors:
- {key: long, limits: [{ref: long}]}
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
                admitted += u64::from(admits(&client, "long=x", None).await.expect("an answer must come"));
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

#[tokio::test(flavor = "multi_thread")]
async fn the_ledger_counts_what_a_fleet_has_spent_of_what_it_was_lent() {
    let server = Server::start();
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let (first, second) = (hub_on(uri.clone()).start().await, hub_on(uri).start().await);
    let mut sidecars: Vec<TestApp> = Vec::new();
    for _ in 0..SIDECARS {
        let app = sidecar(LIMITS, &[&first, &second]).start().await;
        ready(&app).await;
        sidecars.push(app);
    }
    let clients: Vec<_> = sidecars.iter().map(TestApp::client).collect();
    let mut spent = spend(&clients, 300).await;
    // The limit has its home at one of them.
    let lent = [metric(first.get("/metrics"), LENT).await, metric(second.get("/metrics"), LENT).await];
    let (home, other) = if lent[0] > lent[1] { (first, second) } else { (second, first) };
    assert!(lent.iter().max() > Some(&0), "a hub must lend");
    // What was not spent goes back, and nothing of what was.
    until_used(sidecars[0].app.admin, "long", spent).await;
    until("all loans to be over", async || match metric(home.get("/metrics"), "sluice_hub_loans").await {
        0 => Ok(()),
        loans => Err(loans.to_string()),
    })
    .await;
    let units = async |event: &str| {
        metric(home.get("/metrics"), &format!("sluice_hub_slab_units_total{{event=\"{event}\"}}")).await
    };
    let (taken, handed_out, given_back) =
        (units("taken").await, units("handed_out").await, units("given_back").await);
    assert_eq!(taken, handed_out + given_back, "nothing is held any more");
    assert!(handed_out > 0 && given_back > 0, "{handed_out} handed out, {given_back} given back");

    // A hub that stops while something of it is lent takes that back, and the other one goes on.
    spent += spend(&clients, 100).await;
    let (more, _) = tokio::join!(spend(&clients, 100), home.stop());
    spent += more;
    until_used(sidecars[0].app.admin, "long", spent).await;

    // So does a sidecar that stops give back what it was lent.
    spent += spend(&clients, 200).await;
    assert!(metric(other.get("/metrics"), LENT).await > 0, "the other hub must lend");
    drop(clients);
    let last = sidecars.swap_remove(0);
    for app in sidecars {
        app.stop().await;
    }
    until_used(last.app.admin, "long", spent).await;
    last.stop().await;
    other.stop().await;
    assert_eq!(pending(&server, "long").await, spent);
}

/// Asks for slabs that nobody would send, and ends of loans that nobody has.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_slabs_and_loans_harm_nobody() {
    let server = Server::start();
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let hub = hub_on(uri).start().await;
    ready(&hub).await;
    let mut raw = Raw::greeted(&hub).await;
    let slab = |name: usize, amount, action: pb::Action, capacity| {
        let (key, overage) = ("k".to_owned(), pb::Overage::Deny.into());
        let transfer =
            pb::Transfer { key, action: action.into(), amount, lifetime_seconds: 62, capacity, overage };
        let lease = format!("{}", sluice::limit::LeaseId::fresh(1, name as u128));
        let keep = pb::Keep::ForCompletion.into();
        pb::Chain { lease, keep, transfers: vec![transfer], slab_window_seconds: 60 }
    };
    let end = |name: usize, key: &str| {
        let lease = format!("{}", sluice::limit::LeaseId::fresh(1, name as u128));
        pb::LoanEnd { lease, key: key.to_owned(), spent: u64::MAX, last_ago_ms: u64::MAX }
    };
    // Some that are lent something, and tell what can't be.
    until("the hub to lend", async || {
        for n in 10_000..10_060 {
            let chain = slab(n, 20, pb::Action::Reserve, 1_000_000);
            raw.ask(n as u64, Some(Ask::Apply(chain))).await;
            raw.say(pb::SidecarMessage { loan_ends: vec![end(n, "k")], ..Default::default() }).await;
        }
        match metric(hub.get("/metrics"), LENT).await {
            0 => Err("nothing was lent".to_owned()),
            _ => Ok(()),
        }
    })
    .await;
    for n in 0..200 {
        let amount = [0, 0, 1, u64::MAX][n % 4];
        let action = [pb::Action::Reserve, pb::Action::TakeUpTo][n / 4 % 2];
        let mut chain = slab(n, amount, action, [1_000_000, u64::MAX / 2][n / 100]);
        match n % 10 {
            7 => chain.transfers.push(pb::Transfer { key: "other".to_owned(), ..chain.transfers[0].clone() }),
            6 => chain.transfers[0].capacity = u64::MAX,
            8 => chain.transfers[0].action = pb::Action::Void.into(),
            9 => chain.slab_window_seconds = u32::MAX,
            _ => {}
        }
        raw.ask(n as u64, Some(Ask::Apply(chain))).await;
        let loan_ends = vec![end(n / 2, ["k", "nobody"][n % 2])];
        raw.say(pb::SidecarMessage { loan_ends, ..Default::default() }).await;
    }
    for wrong in [
        (vec![pb::LoanEnd::default()], "loan_ends[0].key: must have 1 to 262144 bytes, and has 0"),
        (vec![pb::LoanEnd::default(); 4097], "loan_ends: there may be 4096 in a message, not 4097"),
    ] {
        let other = Raw::greeted(&hub).await;
        other.say(pb::SidecarMessage { loan_ends: wrong.0, ..Default::default() }).await;
        let status = other.ended().await;
        assert!(status.message().contains(wrong.1), "{status}");
    }
    // All of it is over soon, and an honest sidecar gets an answer.
    assert_eq!(metric(hub.get("/metrics"), "sluice_slab_panics_total").await, 0);
    until("all loans to be over", async || match metric(hub.get("/metrics"), "sluice_hub_loans").await {
        0 => Ok(()),
        loans => Err(loans.to_string()),
    })
    .await;
    let mut honest = slab(1_000, 10, pb::Action::Reserve, 100_000);
    honest.transfers[0].key = "another".to_owned();
    let honest = raw.ask(1_000, Some(Ask::Apply(honest))).await;
    assert!(matches!(honest, Answer::Outcome(pb::Outcome { refusal: None, .. })), "{honest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_window_sees_more_than_the_capacity_whoever_dies_with_a_loan() {
    const WINDOW_US: u64 = 10_000_000;
    let server = Server::start();
    let hub = async || HubProcess::start(&server.address(), 5_000, "127.0.0.1:0", "").await;
    let mut hubs = [hub().await, hub().await];
    let uri = format!("hub:{},{}", hubs[0].address, hubs[1].address);
    let mut sidecars = start_on(&[&uri], LIMITS, 5_000, SIDECARS).await;
    let load = Load::start_slowly(&sidecars, "ten=x", 2, Duration::from_secs(10), 5_000);
    let lent = async |hub: &HubProcess| metric(http::get(hub.sluice.admin, "/metrics"), LENT).await;
    load.until_admitted(4_500, None, "the first window").await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let stalls = Stalls::since_now();
    let from_us = load.now_us();
    tokio::time::sleep(Duration::from_secs(10)).await;
    let to_us = load.now_us();
    let stood_still = 2.0 * stalls.time().as_secs_f64() / 10.0;
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
    load.until_admitted(4_000, None, "with one hub").await;
    assert!(lent(&hubs[1 - home]).await > 0, "the other hub lends now");

    let admissions = load.finish().await;
    let most = most_in_a_window(&admissions, &[pause], WINDOW_US);
    let used = answered_between(&admissions, from_us, to_us) as f64 / 5_000.0;
    println!(
        "{most} of 5000 in the fullest window; {used:.3} used in steady overload; lent {lent_by:?} times"
    );
    assert!(most <= 5_000, "{most} of 5000 in one window");
    assert!(used + stood_still >= 0.95, "{used} of the limit was used, {stood_still} stood still");

    // What those have left behind who were killed comes back by the ledger's timeout.
    until_used(sidecars[0].sluice.admin, "ten", 0).await;
    assert_eq!(pending(&server, "ten").await, 0);
}
