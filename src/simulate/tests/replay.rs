//! What a server decided, written down and simulated: the same denials, one for one. The server is the whole of it, on virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::Arc;

use smallvec::smallvec;

use super::World;
use crate::app::{self, App};
use crate::clock::VirtualTime;
use crate::config;
use crate::config::settings::value::Listen;
use crate::lease::Report;
use crate::limit::key::Entry;
use crate::registry::Ask;
use crate::service::Service;
use crate::service::check::{Check, Completion};

const LIMITS: &str = "
domain: d
limits: [{key: all, kind: rolling, capacity: 40, window_seconds: 11}]
descriptors:
- key: t
  limits:
  - {ref: all, cost: 1}
  - {name: tokens, kind: rolling, capacity: 50, window_seconds: 37, reconcile: true}
  - {name: inflight, kind: concurrency, capacity: 2, timeout_seconds: 4}
- key: late
  limits: [{name: used, kind: rolling, capacity: 30, window_seconds: 13, charge: always, overage: repay}]
- {key: quiet, shadow_mode: true, rate_limit: {unit: second, requests_per_unit: 1}}
";

const REQUESTS: u64 = 3_000;
/// Nothing that times are rounded to divides it.
const FIRST_MS: u64 = 1_763_300_000_123;

#[test]
fn a_recorded_run_replays_to_the_same_denials() {
    let mut world = World::new(LIMITS);
    world.write("here/retry_policy.yaml", b"retry_policy: {rolling: {informed: true}}");
    let dir = world.options.config.dir.clone().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut time = VirtualTime::begin(FIRST_MS);
    let (recorded, denied) = runtime.block_on(async {
        let mut loaded = config::load(Some(&dir)).unwrap();
        let free = SocketAddr::from(([127, 0, 0, 1], 0));
        (loaded.settings.grpc.listen, loaded.settings.admin.listen) = (Listen::Tcp(free), free);
        let options = app::Options { loaded, files: dir.clone().into(), state_dir: None };
        let app = App::start(options).await.unwrap();
        record(&app.service, &mut time).await
    });
    // The tasks of the server go with it.
    drop((runtime, time));
    assert!((REQUESTS / 10..REQUESTS * 9 / 10).contains(&denied), "{denied} of {REQUESTS}");
    let path = world.write("recorded.jsonl", recorded.as_bytes());
    world.options.traffic.push(path);
    let report = world.run();
    assert_eq!((report.requests, report.broken), (REQUESTS, 0));
    assert_eq!((report.recorded.denied, report.denied), (denied, denied));
    assert_eq!(report.recorded.agree, REQUESTS, "one for one");
}

/// Asks a server at random, as Envoy would, and writes down what it said.
async fn record(service: &Arc<Service>, time: &mut VirtualTime) -> (String, u64) {
    let (mut rng, mut lines, mut denied) = (fastrand::Rng::with_seed(4), String::new(), 0);
    let mut open: BinaryHeap<Reverse<(u64, String)>> = BinaryHeap::new();
    let mut now_ms = FIRST_MS;
    for _ in 0..REQUESTS {
        now_ms += rng.u64(0..250);
        while open.peek().is_some_and(|Reverse((ends_ms, _))| *ends_ms <= now_ms) {
            let Reverse((ends_ms, lease)) = open.pop().unwrap();
            time.set(ends_ms);
            complete(service, &lease).await;
        }
        time.set(now_ms);
        let (key, value) = (["t", "t", "t", "late", "quiet"][rng.usize(..5)], format!("{}", rng.u8(..4)));
        let (hits, duration_ms) = (rng.u64(1..10), rng.u64(0..6_000));
        let ask = Ask { entries: smallvec![Entry { key, value: &value }], hits, limit: None };
        let mut check =
            Check { domain: "d", asks: smallvec![ask], completions: Vec::new(), request_id: None };
        let checked = service.check(&mut check).await.unwrap();
        let status = if checked.denial.is_some() { 429 } else { 200 };
        denied += u64::from(checked.denial.is_some());
        if let Some(lease) = checked.lease {
            lease.unsent.unwrap().sent();
            open.push(Reverse((now_ms + duration_ms, lease.handle)));
        }
        let (seconds, ms) = (now_ms / 1000, now_ms % 1000);
        writeln!(
            lines,
            r#"{{"time": {seconds}.{ms:03}, "domain": "d", "descriptors": [{{"entries": [{{"key": "{key}", "value": "{value}"}}]}}], "hits": {hits}, "duration_ms": {duration_ms}, "status": {status}}}"#
        )
        .unwrap();
    }
    (lines, denied)
}

async fn complete(service: &Arc<Service>, lease: &str) {
    let report = Report { lease, limit: None, used: None };
    let completions = vec![Completion { index: 0, report }];
    let mut check = Check { domain: "d", asks: smallvec![], completions, request_id: None };
    service.check(&mut check).await.unwrap();
}
