//! Ten thousand limits are replaced while requests are answered: how long it takes, and whether anybody has to wait.
//!
//! The promise: under 200 ms, without a pause in answers. The worst answers of the quiet time before are printed beside
//! those under reload, because another process on the machine can make any of them slow.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use sluice::api::pb;
use sluice::app::{App, Options};
use sluice::config::Files;
use sluice::config::settings::value::Listen;
use sluice::control::files::SOURCE;
use sluice::grpc::rls;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use sluice::service::Service;

const LIMITS: u64 = 10_000;
const RELOADS: u64 = 20;

/// Every value of a key has a limit.
fn derived(capacity: u64) -> String {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    for n in 0..LIMITS {
        let limit = format!("{{unit: minute, requests_per_unit: {capacity}}}");
        writeln!(text, "- key: tenant\n  value: t{n}\n  rate_limit: {limit}").expect("a String takes text");
    }
    text
}

/// As many limits with names of their own.
fn named(capacity: u64) -> String {
    let mut text = "domain: d\nlimits:\n".to_owned();
    for n in 0..LIMITS {
        let limit = format!("kind: rolling, capacity: {capacity}, window_seconds: 60");
        writeln!(text, "- {{key: 'named:{n}', {limit}}}").expect("a String takes text");
    }
    text.push_str("descriptors: [{key: tenant, limits: [{ref: 'named:1'}]}]\n");
    text
}

async fn start(dir: &Path) -> App {
    let mut loaded = sluice::config::load(Some(dir)).expect("the files must be right");
    loaded.settings.grpc.listen = Listen::Tcp("127.0.0.1:0".parse().expect("an address"));
    loaded.settings.admin.listen = "127.0.0.1:0".parse().expect("an address");
    let options =
        Options { loaded, files: dir.join("not-watched").into(), state_dir: Some(dir.join("state")) };
    App::start(options).await.expect("it must start")
}

/// Asks, and asks again, until told to stop; how long each answer took.
async fn ask(service: Arc<Service>, stop: Arc<AtomicBool>) -> Vec<Duration> {
    let entry = Entry { key: "tenant".to_owned(), value: "t1".to_owned() };
    let descriptor = pb::RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request =
        pb::RateLimitRequest { domain: "d".to_owned(), descriptors: vec![descriptor], hits_addend: 1 };
    let mut took = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let start = sluice::clock::instant();
        rls::should_rate_limit(&service, &request, None).await.expect("every call is answered");
        took.push(start.elapsed());
        tokio::time::sleep(Duration::from_micros(100)).await;
    }
    took
}

async fn asked_during(app: &App, work: impl Future<Output = ()>) -> Vec<Duration> {
    let stop = Arc::new(AtomicBool::new(false));
    let asking = tokio::spawn(ask(Arc::clone(&app.service), Arc::clone(&stop)));
    work.await;
    stop.store(true, Ordering::Relaxed);
    asking.await.expect("nobody panics")
}

fn at(mut took: Vec<Duration>, part: f64) -> f64 {
    took.sort();
    let index = ((took.len() - 1) as f64 * part).round();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "an index of the list")]
    let index = index as usize;
    took[index].as_secs_f64() * 1e6
}

async fn row(name: &str, text: fn(u64) -> String) {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("limits/a.yaml");
    std::fs::create_dir(dir.path().join("limits")).expect("a directory");
    std::fs::write(&file, text(1_000_000)).expect("a file");
    let app = start(dir.path()).await;
    let quiet = asked_during(&app, tokio::time::sleep(Duration::from_secs(2))).await;
    let mut reloads: Vec<Duration> = Vec::new();
    let busy = asked_during(&app, async {
        for n in 1..=RELOADS {
            std::fs::write(&file, text(1_000_000 + n)).expect("a file");
            let start: Instant = sluice::clock::instant();
            let path = dir.path().to_owned();
            let files = tokio::task::spawn_blocking(move || Files::read(&path)).await.expect("a thread");
            app.control.update(SOURCE, files.content).await.expect("the files must be right");
            reloads.push(start.elapsed());
        }
    })
    .await;
    assert_eq!(app.service.live.load().version, 1 + RELOADS);
    println!(
        "{name:<22} {:>9.1} {:>9.1} {:>10.0} {:>10.0} {:>10.0} {:>10.0}",
        at(reloads.clone(), 0.5) / 1e3,
        at(reloads, 1.0) / 1e3,
        at(quiet.clone(), 0.999),
        at(quiet, 1.0),
        at(busy.clone(), 0.999),
        at(busy, 1.0)
    );
    app.stop().await;
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().expect("a runtime");
    println!("{:<22} {:>19} {:>21} {:>21}", "", "reload ms", "answer µs, quiet", "answer µs, reloading");
    println!(
        "{:<22} {:>9} {:>9} {:>10} {:>10} {:>10} {:>10}",
        "10,000 limits", "p50", "max", "p99.9", "max", "p99.9", "max"
    );
    runtime.block_on(async {
        row("values of a key", derived).await;
        row("with names", named).await;
    });
}
