//! A hub between Sluice and TigerBeetle: what it adds to a decision that has to be asked for, and what many sidecars that decide
//! from slabs cost it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use futures_util::future::join_all;
use sluice::protos::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use sluice::protos::envoy::service::ratelimit::v3::RateLimitRequest;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tokio::time::{Instant, MissedTickBehavior};

use super::load::{self, Shape};
use super::process::{self, Server, TigerBeetle};
use super::slabs::CONNECTED_AFTER;
use super::{SHAPES, Subject, Table, load_name};

const SIDECARS: usize = 100;

/// What each of them is asked: so many at a time, so often. That is 10,000 and 20,000 a second of all together. They come in bursts because
/// two cores can't drive as many one by one.
const BURSTS: [u64; 2] = [25, 50];
const EVERY: Duration = Duration::from_millis(250);

/// From the first request until all is as it stays: the first slabs have come back, whose window is 60 s.
const STEADY_AFTER: Duration = Duration::from_secs(65);

const FLEET_SECONDS: u64 = 20;

impl Table {
    pub(super) fn hub_rows(&mut self) {
        let tigerbeetle = TigerBeetle::start();
        let uri = format!("tigerbeetle:0@{}", tigerbeetle.address);
        let direct = Server::start(&mut process::sluice(&uri));
        let mut hub = Server::start(process::sluice_called("hub", &uri).args(["--hub", "127.0.0.1:0"]));
        let hub_admin = hub.admin();
        let hub_uri = format!("hub:{}", hub.hub());
        let sidecar = Server::start(&mut process::sluice(&hub_uri));
        sleep(CONNECTED_AFTER);

        let alone = SHAPES[0];
        let rows = self.together(
            &load_name(alone, true),
            &[exact("exact, directly", &direct, alone), exact("exact, through a hub", &sidecar, alone)],
        );
        if let (Some(direct), Some(hub)) = (rows[0].p50_ms, rows[1].p50_ms) {
            let name = "exact, one caller, through a hub, p50 ms above the same directly";
            self.target(name, "<= 0.40", hub - direct, |n| n <= 0.4);
        }
        drop((direct, sidecar));
        self.fleet_row((&hub, &hub_admin), &hub_uri, &tigerbeetle);
    }

    fn fleet_row(&mut self, (hub, admin): (&Server, &str), hub_uri: &str, tigerbeetle: &TigerBeetle) {
        let before = hub.process.usage().cpu_seconds;
        sleep(Duration::from_secs(FLEET_SECONDS));
        let alone = (hub.process.usage().cpu_seconds - before) / FLEET_SECONDS as f64;
        let sidecars: Vec<Server> = (0..SIDECARS)
            .map(|n| Server::start(&mut process::sluice_called(&format!("sidecar-{n}"), hub_uri)))
            .collect();
        sleep(CONNECTED_AFTER);
        let (answers, burst) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(BURSTS[0])));
        let callers = sidecars
            .iter()
            .map(|sidecar| ask_in_bursts(sidecar.grpc.clone(), Arc::clone(&burst), Arc::clone(&answers)));
        let callers: Vec<_> = callers.map(|caller| self.runtime.spawn(caller)).collect();
        for at_once in BURSTS {
            burst.store(at_once, Ordering::Relaxed);
            sleep(STEADY_AFTER);
            let before = (answers.load(Ordering::Relaxed), hub.process.usage().cpu_seconds);
            let ledger_before = tigerbeetle.process.usage();
            let transfers = || process::metric(admin, "sluice_ledger_batch_events_sum");
            let transfers_before = transfers();
            sleep(Duration::from_secs(FLEET_SECONDS));
            let usage = hub.process.usage();
            let per_second = (answers.load(Ordering::Relaxed) - before.0) as f64 / FLEET_SECONDS as f64;
            let of_a_core = (usage.cpu_seconds - before.1) / FLEET_SECONDS as f64;
            let ledger = tigerbeetle.process.usage();
            println!(
                "meanwhile TigerBeetle does {:.0} transfers/s, takes {:.2} % of a core and writes {:.0} kB/s",
                (transfers() - transfers_before) / FLEET_SECONDS as f64,
                (ledger.cpu_seconds - ledger_before.cpu_seconds) / FLEET_SECONDS as f64 * 100.0,
                (ledger.written_bytes - ledger_before.written_bytes) as f64 / FLEET_SECONDS as f64 / 1e3
            );
            println!(
                "{SIDECARS} sidecars answer {per_second:.0}/s from slabs of one limit: the hub takes {:.2} % of a core and \
                 {} MB; alone it takes {:.2} %",
                of_a_core * 100.0,
                usage.resident_bytes >> 20,
                alone * 100.0
            );
            // A hub without sidecars works too: the client of TigerBeetle wakes up 100 times a second in each of two sessions.
            let cost = (of_a_core - alone) * 100.0 * 10_000.0 / per_second;
            let asked = at_once as u128 * 1000 / EVERY.as_millis();
            let name = format!("100 sidecars, {asked}/s each: % of a core of the hub per 10,000 decisions/s");
            self.target(&name, "< 5.00", cost, |n| n < 5.0);
        }
        for caller in &callers {
            assert!(!caller.is_finished(), "a sidecar failed to answer");
            caller.abort();
        }
    }
}

fn exact<'a>(name: &'a str, server: &'a Server, shape: Shape) -> Subject<'a> {
    let run = move |seconds| load::hot(&server.grpc, "exact", shape, seconds);
    Subject { name, run: Box::new(run), server: Some(server), disk: None }
}

/// One caller of a sidecar, until it is stopped.
async fn ask_in_bursts(grpc: String, burst: Arc<AtomicU64>, answers: Arc<AtomicU64>) {
    let client = RateLimitServiceClient::connect(format!("http://{grpc}")).await.unwrap();
    let entry = Entry { key: "one".into(), value: "x".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request =
        RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], ..Default::default() };
    let mut ticks = tokio::time::interval_at(Instant::now() + EVERY.mul_f64(fastrand::f64()), EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        ticks.tick().await;
        let burst = (0..burst.load(Ordering::Relaxed)).map(|_| {
            let (mut client, request) = (client.clone(), request.clone());
            async move { client.should_rate_limit(request).await.unwrap() }
        });
        for answer in join_all(burst).await {
            assert_eq!(answer.into_inner().overall_code, 1);
            answers.fetch_add(1, Ordering::Relaxed);
        }
    }
}
