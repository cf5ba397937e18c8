//! Slabs over the real TigerBeetle server: seen from outside, by the times of requests and answers and by balances.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice::config::settings::value::{LedgerUri, Slabs as SlabSetting};
use sluice::ledger::tigerbeetle::TigerBeetle;
use sluice::ledger::{Account, Action, Chain, Keep, Ledger, Slabs, Transfer, Verdict};
use sluice::limit::LeaseId;
use sluice::telemetry::Metrics;

use crate::stall::Stalls;
use crate::testapp::TestApp;
use crate::tigerbeetle::Server;
use crate::tigerbeetle_load::{account, balance, chain, fresh, reserve, until_used};

/// One Sluice, as far as slabs go.
struct Instance {
    slabs: Slabs<TigerBeetle>,
    below: TigerBeetle,
    metrics: Arc<Metrics>,
}

impl Instance {
    async fn start(server: &Server) -> Self {
        let below = server.ledger().await;
        let metrics = Arc::<Metrics>::default();
        let slabs = Slabs::start(below.clone(), true, Duration::from_secs(5), Arc::clone(&metrics));
        Self { slabs, below, metrics }
    }

    async fn hit(&self, lease: LeaseId, keep: Keep, transfers: Vec<Transfer>) -> bool {
        let chain: Chain = chain(lease, keep, transfers);
        self.slabs.apply(&chain).await.expect("the ledger must answer").verdict == Verdict::Done
    }

    /// Taken, handed out, given back.
    fn units(&self) -> [u64; 3] {
        let units = &self.metrics.slab_units;
        [units.taken.get(), units.handed_out.get(), units.given_back.get()]
    }
}

/// A hit that may come from a slab.
fn hit(account: &Arc<Account>, amount: u64, capacity: u64, seconds: u32) -> Transfer {
    let mut transfer = reserve(account, amount, capacity, seconds);
    if let Action::Reserve(hold) = &mut transfer.action {
        hold.is_exact = false;
    }
    transfer
}

/// Many callers of two instances ask for far more than there is. Whatever the moment of an admission, it is between its
/// request and its answer.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods, reason = "the oracle has a clock of its own")]
async fn no_window_sees_more_than_the_capacity_and_nearly_all_of_it_is_used() {
    const WINDOW: Duration = Duration::from_secs(2);
    const CAPACITY: u64 = 400;
    const WINDOWS: u32 = 5;
    let server = Server::start();
    let instances = [Arc::new(Instance::start(&server).await), Arc::new(Instance::start(&server).await)];
    let (started, stalls) = (Instant::now(), Stalls::since_now());
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..12 {
        // Three times as many at one of them.
        let instance = Arc::clone(&instances[usize::from(n % 4 == 0)]);
        let limit = account("shared");
        callers.spawn(async move {
            let mut admitted = Vec::new();
            while started.elapsed() < WINDOW * WINDOWS {
                let sent = started.elapsed();
                if instance.hit(fresh(), Keep::Nothing, vec![hit(&limit, 1, CAPACITY, 2)]).await {
                    admitted.push((sent, started.elapsed()));
                }
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            admitted
        });
    }
    let mut admitted: Vec<(Duration, Duration)> = callers.join_all().await.concat();
    admitted.sort();
    for (at, (start, _)) in admitted.iter().enumerate() {
        let within = admitted[at..].iter().filter(|(_, answered)| *answered < *start + WINDOW).count();
        assert!(within as u64 <= CAPACITY, "{within} in the window from {start:?} on");
    }
    let later = admitted.iter().filter(|(_, answered)| *answered >= WINDOW).count();
    let used = later as f64 / (CAPACITY * u64::from(WINDOWS - 1)) as f64;
    // Nobody can use anything while the machine stands still.
    let running = 1.0 - stalls.time().div_duration_f64(WINDOW * (WINDOWS - 1));
    assert!(used >= 0.9 * running, "{used:.3} of the capacity was used in {running:.3} of the time");
    let mut from_slabs = 0;
    for instance in &instances {
        instance.slabs.close().await;
        let [taken, handed_out, given_back] = instance.units();
        assert_eq!(taken, handed_out + given_back, "nothing is held any more");
        from_slabs += handed_out;
    }
    println!("{} admitted, {from_slabs} from slabs, {used:.3} used", admitted.len());
    assert!(from_slabs * 2 > admitted.len() as u64, "{from_slabs} of {}", admitted.len());
    let reader = server.ledger().await;
    until_used(&reader, &account("shared"), 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn closing_gives_back_at_once_what_nobody_spent() {
    let server = Server::start();
    let instance = Instance::start(&server).await;
    let limit = account("closed");
    for _ in 0..60 {
        assert!(instance.hit(fresh(), Keep::Nothing, vec![hit(&limit, 1, 10_000, 60)]).await);
    }
    let shown = instance.slabs.slab(&limit).expect("it must have a slab by now");
    let used = balance(&instance.below, &limit, 10_000).await.used;
    assert!(shown.held > 0 && used >= 60 + shown.held, "{used} with {shown:?}");
    instance.slabs.close().await;
    let reader = server.ledger().await;
    assert_eq!(balance(&reader, &limit, 10_000).await.used, 60);
    assert_eq!(instance.slabs.slab(&limit), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn exact_limits_are_asked_for_together_with_what_no_slab_covers() {
    let server = Server::start();
    let instance = Instance::start(&server).await;
    let (hot, exact) = (account("hot"), account("exact"));
    for _ in 0..30 {
        assert!(instance.hit(fresh(), Keep::Nothing, vec![hit(&hot, 1, 1_000, 60)]).await);
    }
    let both = || vec![hit(&hot, 1, 1_000, 60), reserve(&exact, 1, 5, 60)];
    for n in 0..8 {
        assert_eq!(instance.hit(fresh(), Keep::Nothing, both()).await, n < 5, "{n}");
    }
    // The same id again is free, admitted or not.
    let named = LeaseId::of_request("abc", sluice::clock::unix_ms());
    for _ in 0..5 {
        assert!(instance.hit(named.clone(), Keep::Name, vec![hit(&hot, 1, 1_000, 60)]).await);
        assert!(!instance.hit(LeaseId::of_request("d", 0), Keep::Name, both()).await);
    }
    instance.slabs.close().await;
    let reader = server.ledger().await;
    assert_eq!(balance(&reader, &exact, 5).await.used, 5);
    assert_eq!(balance(&reader, &hot, 1_000).await.used, 30 + 5 + 1, "what was refused was put back");
}

/// However hard a limit is hammered, the ledger is asked at most a hundred times a second, and what was refused a moment
/// ago is refused here.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods, reason = "the rate is over real time")]
async fn a_limit_that_is_full_is_hardly_asked() {
    let server = Server::start();
    let instance = Arc::new(Instance::start(&server).await);
    let started = Instant::now();
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..32 {
        let (instance, limit) = (Arc::clone(&instance), account("hammered"));
        callers.spawn(async move {
            let mut asked = 0;
            while started.elapsed() < Duration::from_secs(3) {
                instance.hit(fresh(), Keep::Nothing, vec![hit(&limit, 1, 30, 3_600)]).await;
                asked += 1;
                tokio::task::yield_now().await;
            }
            asked
        });
    }
    let asked: u64 = callers.join_all().await.iter().sum();
    let answers = &instance.metrics.slab_answers;
    let (full, ledger) = (answers.full.get(), answers.ledger.get());
    println!("{asked} requests, {full} refused here, {ledger} at the ledger");
    assert!(ledger < 300, "{ledger} of {asked}");
    assert_eq!(balance(&instance.below, &account("hammered"), 30).await.used, 30);
    instance.slabs.close().await;
}

const LIMITS: &str = "
domain: d
descriptors:
  - key: hot
    rate_limit: {unit: minute, requests_per_unit: 10000}
  - key: exact
    rate_limit: {unit: minute, requests_per_unit: 10000, exact: true}
";

async fn app_on(server: &Server, slabs: SlabSetting) -> TestApp {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let app = TestApp::with_limits(LIMITS).and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 10_000;
        settings.ledger.slabs = slabs;
    });
    let app = app.start().await;
    app.readiness(200).await;
    app
}

/// The value of a counter of slabs.
async fn counter(app: &TestApp, name: &str) -> u64 {
    let metrics = app.get("/metrics").await.body;
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{name} is not in\n{metrics}")).parse().unwrap()
}

async fn slab(app: &TestApp, key: &str) -> serde_json::Value {
    let answer = app.get(&format!("/v1/limits/{}", key.replace(':', "%3A").replace('=', "%3D"))).await;
    serde_json::from_str::<serde_json::Value>(&answer.body).unwrap()["slab"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_shows_its_slabs_and_gives_them_back_when_it_stops() {
    let server = Server::start();
    let app = app_on(&server, SlabSetting::On).await;
    for _ in 0..100 {
        assert!(app.say("hot=a").await.starts_with("ok "));
        assert!(app.say("exact=a").await.starts_with("ok "));
    }
    let shown = slab(&app, "d:hot=a:minute").await;
    assert!(shown["held"].as_u64().unwrap() > 0 && shown["ends_in_ms"].as_u64().unwrap() <= 1_000, "{shown}");
    assert!(shown["handed_out"].is_u64(), "{shown}");
    assert_eq!(slab(&app, "d:exact=a:minute").await, serde_json::Value::Null);
    assert!(counter(&app, "sluice_slab_answers_total{from=\"slab\"}").await > 0);
    assert!(counter(&app, "sluice_slab_answers_total{from=\"ledger\"}").await > 0);
    assert_eq!(counter(&app, "sluice_slab_answers_total{from=\"full\"}").await, 0);
    let taken = counter(&app, "sluice_slab_units_total{event=\"taken\"}").await;
    let handed_out = counter(&app, "sluice_slab_units_total{event=\"handed_out\"}").await;
    assert!(handed_out > 0 && handed_out <= 100 && taken >= handed_out, "{handed_out} of {taken}");
    assert!(counter(&app, "sluice_slab_units_total{event=\"given_back\"}").await <= taken);
    app.stop().await;
    let reader = server.ledger().await;
    assert_eq!(balance(&reader, &account("d:hot=a:minute"), 10_000).await.used, 100);
    assert_eq!(balance(&reader, &account("d:exact=a:minute"), 10_000).await.used, 100);
}

#[tokio::test(flavor = "multi_thread")]
async fn slabs_can_be_turned_off() {
    let server = Server::start();
    let app = app_on(&server, SlabSetting::Off).await;
    for _ in 0..50 {
        assert!(app.say("hot=a").await.starts_with("ok "));
    }
    assert_eq!(slab(&app, "d:hot=a:minute").await, serde_json::Value::Null);
    assert_eq!(counter(&app, "sluice_slab_units_total{event=\"taken\"}").await, 0);
    assert_eq!(app.used("d:hot=a:minute").await, 50);
}
