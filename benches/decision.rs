//! What one decision costs on one core, and that matching doesn't get slower with more values.
//!
//! The contract: a million decisions a second of match and memory reserve, with 3 requirements and 10,000 tenants.

#[path = "shared/chain.rs"]
mod chain;

use std::fmt::Write;
use std::hint::black_box;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sluice::admission::Request;
use sluice::api::pb;
use sluice::app::{App, Options};
use sluice::config::settings::value::Listen;
use sluice::config::{Document, load, load_limits};
use sluice::grpc::rls;
use sluice::ledger::Accounts;
use sluice::ledger::memory::Memory;
use sluice::limit::key::Entry;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry as WireEntry;
use sluice::registry::{Ask, Registry};
use sluice::service::Service;
use sluice::snapshot::Snapshot;
use smallvec::smallvec;

const TENANTS: usize = 10_000;

/// Three requirements for each request of a tenant; the second model needs a lease as well.
const LIMITS: &str = "
domain: llm
limits:
- {key: 'all:rpm', kind: rolling, capacity: 1000000000000, window_seconds: 60}
descriptors:
- key: tenant
  descriptors:
  - key: model
    value: plain
    limits:
    - {ref: 'all:rpm', cost: 1}
    - {name: rpm, kind: rolling, capacity: 1000000000, window_seconds: 60, cost: 1}
    - {name: tpm, kind: rolling, capacity: 1000000000000, window_seconds: 60}
  - key: model
    value: leased
    limits:
    - {ref: 'all:rpm', cost: 1}
    - {name: tpm, kind: rolling, capacity: 1000000000000, window_seconds: 1, reconcile: true}
    - {name: inflight, kind: concurrency, capacity: 1000000000, timeout_seconds: 1}
  - key: model
    value: blocked
    limits:
    - {ref: 'all:rpm', cost: 1}
    - {name: rpm, kind: rolling, capacity: 1, window_seconds: 4000000000, cost: 1}
    - {name: tpm, kind: rolling, capacity: 1000000000000, window_seconds: 60}
";

fn registry(yaml: &str) -> Registry {
    let file = Document { name: "limits.yaml".to_owned(), text: yaml.to_owned() };
    load_limits(&[file], None).expect("the limits must be right").registry
}

fn tenants() -> Vec<String> {
    (0..TENANTS).map(|n| format!("tenant-{n:05}")).collect()
}

/// Everybody in turn, in an order that no cache foresees.
fn shuffled(count: usize) -> impl FnMut() -> usize {
    let mut order: Vec<usize> = (0..count).collect();
    fastrand::Rng::with_seed(1).shuffle(&mut order);
    let mut at = 0;
    move || {
        at = if at + 1 == count { 0 } else { at + 1 };
        order[at]
    }
}

fn ask<'a>(tenant: &'a str, model: &'a str) -> Ask<'a> {
    let entries = smallvec![Entry { key: "tenant", value: tenant }, Entry { key: "model", value: model }];
    Ask { entries, hits: 100, limit: None }
}

/// The memory ledger never waits, so one poll is the whole future.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the memory ledger must not wait"),
    }
}

/// Matching and reserving, and nothing around them.
fn pure(c: &mut Criterion) {
    let mut group = c.benchmark_group("decision");
    group.throughput(Throughput::Elements(1));
    let (registry, accounts, tenants) = (registry(LIMITS), Accounts::new(1_000_000), tenants());
    let mut next = shuffled(TENANTS);
    group.bench_function("match: 3 requirements, 10k tenants", |b| {
        b.iter(|| registry.plan("llm", &[ask(&tenants[next()], "plain")], &accounts));
    });
    let memory = Memory::default();
    let mut now_ms = 1_000_000;
    let mut calls = 0u64;
    group.bench_function("match and memory reserve", |b| {
        b.iter(|| {
            // A million calls a second, so that windows roll as they would.
            calls += 1;
            now_ms += u64::from(calls.is_multiple_of(1000));
            let plan = registry.plan("llm", &[ask(&tenants[next()], "plain")], &accounts);
            let plan = plan.expect("three requirements must be few enough");
            memory.apply_at(black_box(&chain::reserve(&plan, now_ms)), now_ms)
        });
    });
    group.finish();
}

/// A server, of which only the inside is used.
fn service(runtime: &tokio::runtime::Runtime) -> Arc<Service> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::create_dir(dir.path().join("limits")).expect("a directory");
    std::fs::write(dir.path().join("limits/llm.yaml"), LIMITS).expect("a file");
    let mut loaded = load(Some(dir.path())).expect("the limits must be right");
    let free = SocketAddr::from(([127, 0, 0, 1], 0));
    loaded.settings.grpc.listen = Listen::Tcp(free);
    loaded.settings.admin.listen = free;
    let options =
        Options { loaded, files: dir.path().to_owned().into(), state_dir: Some(dir.path().join("state")) };
    let app = runtime.block_on(App::start(options)).expect("it must start");
    Arc::clone(&app.service)
}

/// The decision with its budget, hints, streaks, metrics and clocks; and the same from message to message.
fn whole(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let service = service(&runtime);
    let snapshot: Arc<Snapshot> = service.live.load_full();
    let tenants = tenants();
    let mut next = shuffled(TENANTS);
    let mut group = c.benchmark_group("whole decision");
    group.throughput(Throughput::Elements(1));
    for (name, model) in [("allowed", "plain"), ("allowed, with a lease", "leased"), ("denied", "blocked")] {
        if model == "blocked" {
            for tenant in &tenants {
                let asks = [ask(tenant, model)];
                let request = Request { domain: "llm", asks: &asks, is_retry: false, request_id: None };
                drop(now(service.admission.decide(&snapshot, &request)));
            }
        }
        group.bench_function(name, |b| {
            b.iter(|| {
                let asks = [ask(&tenants[next()], model)];
                let request = Request { domain: "llm", asks: &asks, is_retry: false, request_id: None };
                now(service.admission.decide(&snapshot, black_box(&request)))
            });
        });
    }
    let messages: Vec<pb::RateLimitRequest> = tenants.iter().map(|tenant| message(tenant)).collect();
    group.bench_function("allowed, from message to message", |b| {
        b.iter(|| now(rls::should_rate_limit(&service, black_box(&messages[next()]), None)));
    });
    group.finish();
}

fn message(tenant: &str) -> pb::RateLimitRequest {
    let entry = |key: &str, value: &str| WireEntry { key: key.to_owned(), value: value.to_owned() };
    let entries = vec![entry("tenant", tenant), entry("model", "plain")];
    let descriptor = pb::RateLimitDescriptor { entries, ..Default::default() };
    pb::RateLimitRequest { domain: "llm".to_owned(), descriptors: vec![descriptor], hits_addend: 0 }
}

/// One level with more and more values. The same thousand are asked for, so that what grows is the level and not the
/// part of it that a cache has to hold.
fn matching(c: &mut Criterion) {
    let mut group = c.benchmark_group("match one value of");
    group.throughput(Throughput::Elements(1));
    for (kind, star) in [("exact", ""), ("patterns", "/*")] {
        for count in [10, 10_000, 100_000] {
            let mut yaml = "domain: d\ndescriptors:\n".to_owned();
            for n in 0..count {
                let line = "rate_limit: {unit: hour, requests_per_unit: 4000000000}";
                writeln!(yaml, "- {{key: path, value: '/p{n:06}{star}', {line}}}")
                    .expect("a String must take text");
            }
            let (registry, accounts) = (registry(&yaml), Accounts::new(1_000_000));
            let asked = count.min(1000);
            let step = count / asked;
            let values: Vec<String> =
                (0..asked).map(|n| format!("/p{:06}{}", n * step, star.replace('*', "x"))).collect();
            let mut next = shuffled(asked);
            group.bench_function(BenchmarkId::new(kind, count), |b| {
                b.iter(|| {
                    let entries = smallvec![Entry { key: "path", value: &values[next()] }];
                    registry.plan("d", &[Ask { entries, hits: 1, limit: None }], &accounts)
                });
            });
        }
    }
    group.finish();
}

criterion_group!(benches, pure, whole, matching);
criterion_main!(benches);
