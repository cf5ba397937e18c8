//! A million keys that are seen once: what the next request pays for them. In this process, on the memory ledger.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use sluice::admission::Request;
use sluice::app::{App, Options};
use sluice::config::load;
use sluice::config::settings::value::Listen;
use sluice::limit::key::Entry;
use sluice::registry::Ask;
use sluice::service::Service;
use smallvec::smallvec;

use super::process;

const KEYS: u32 = 1_000_000;
const DECISIONS: u32 = 100_000;

/// Nanoseconds of a decision for a known tenant, before and after.
pub fn before_and_after(runtime: &tokio::runtime::Runtime) -> (f64, f64) {
    let mut loaded = load(Some(&process::config_dir())).expect("the limits must be right");
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    loaded.settings.grpc.listen = Listen::Tcp(free);
    loaded.settings.admin.listen = free;
    let state_dir = process::directory().join("state");
    let app = runtime
        .block_on(App::start(Options {
            loaded,
            files: process::config_dir().into(),
            state_dir: Some(state_dir),
        }))
        .expect("it must start");
    let service = Arc::clone(&app.service);
    let before = known(&service);
    (0..KEYS).for_each(|n| decide(&service, &format!("once-{n}")));
    (before, known(&service))
}

/// The best of some rounds: what else the machine does only adds.
fn known(service: &Service) -> f64 {
    let round = |_| {
        let started = Instant::now();
        (0..DECISIONS).for_each(|n| decide(service, &format!("tenant-{}", n % 100)));
        started.elapsed().as_nanos() as f64 / f64::from(DECISIONS)
    };
    (0..5).map(round).fold(f64::INFINITY, f64::min)
}

fn decide(service: &Service, tenant: &str) {
    let entries = smallvec![Entry { key: "one", value: tenant }];
    let asks = [Ask { entries, hits: 1, limit: None }];
    let request = Request { domain: "bench", asks: &asks, is_retry: false, request_id: None };
    let snapshot = service.live.load();
    // The memory ledger never waits, so one poll is the whole future.
    let decided =
        pin!(service.admission.decide(&snapshot, &request)).poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(decided, Poll::Ready(Ok(decision)) if decision.denial.is_none()));
}
