//! What `sluice simulate` costs beside the decisions themselves: a million requests over 10,000 tenants and three limits, read from a
//! file, and the same million matched and reserved from memory, in turns. Prints a table, and the most memory that was used.
//!
//! The contract: at most twice the time, and 100 MB for any length of log.

#[path = "shared/chain.rs"]
mod chain;

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;
use std::time::Instant;

use sluice::config::{Document, Problem, load_limits};
use sluice::ledger::Accounts;
use sluice::ledger::memory::Memory;
use sluice::limit::key::Entry;
use sluice::registry::Ask;
use sluice::simulate::{Options, Progress, Watch, run};
use smallvec::smallvec;

const TENANTS: usize = 10_000;
const REQUESTS: usize = 1_000_000;
const ROUNDS: usize = 3;

const LIMITS: &str = "
domain: llm
limits:
- {key: 'all:rpm', kind: rolling, capacity: 1000000000000, window_seconds: 60}
descriptors:
- key: tenant
  limits:
  - {ref: 'all:rpm', cost: 1}
  - {name: rpm, kind: rolling, capacity: 1000000000, window_seconds: 60, cost: 1}
  - {name: tpm, kind: rolling, capacity: 1000000000000, window_seconds: 60}
";

/// Nobody listens.
struct Silent;

impl Watch for Silent {
    fn broken(&mut self, problem: &Problem) {
        eprintln!("{problem}");
    }

    fn progress(&mut self, _: Progress) {}
}

/// Whose turn it is, in an order that no cache foresees.
fn tenants() -> Vec<usize> {
    let mut rng = fastrand::Rng::with_seed(1);
    (0..REQUESTS).map(|_| rng.usize(..TENANTS)).collect()
}

/// Matching and reserving, and nothing around them, as in the benchmark `decision`.
fn pure(order: &[usize], per_ms: usize) -> f64 {
    let file = Document { name: "limits.yaml".to_owned(), text: LIMITS.to_owned() };
    let registry = load_limits(&[file], None).expect("the limits must be right").registry;
    let (accounts, memory) = (Accounts::new(1_000_000), Memory::default());
    let names: Vec<String> = (0..TENANTS).map(|n| format!("tenant-{n:05}")).collect();
    let start = started();
    for (n, tenant) in order.iter().enumerate() {
        let now_ms = 1_000_000 + (n / per_ms) as u64;
        let entries = smallvec![Entry { key: "tenant", value: names[*tenant].as_str() }];
        let plan = registry.plan("llm", &[Ask { entries, hits: 100, limit: None }], &accounts);
        let plan = plan.expect("three requirements must be few enough");
        memory.apply_at(&chain::reserve(&plan, now_ms), now_ms).expect("the ledger must have room");
    }
    start.elapsed().as_secs_f64()
}

fn simulated(dir: &Path) -> f64 {
    let options = Options {
        config: dir.to_owned().into(),
        traffic: vec![dir.join("traffic.jsonl")],
        ..Options::default()
    };
    let start = started();
    let report = run(&options, &mut Silent).expect("it must run");
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!((report.requests, report.admitted), (REQUESTS as u64, REQUESTS as u64));
    seconds
}

#[allow(clippy::disallowed_methods, reason = "a benchmark reads the time")]
fn started() -> Instant {
    Instant::now()
}

/// The most memory that this process had, in MB.
fn memory_mb() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or("0 kB");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024
}

/// As a stream, so that it takes no memory that is measured.
fn write_traffic(dir: &Path, order: &[usize], per_ms: usize) -> std::io::Result<()> {
    let mut file = BufWriter::new(File::create(dir.join("traffic.jsonl"))?);
    for (n, tenant) in order.iter().enumerate() {
        let (seconds, ms) = (n / per_ms / 1000, n / per_ms % 1000);
        let entry = format!("{{\"key\":\"tenant\",\"value\":\"tenant-{tenant:05}\"}}");
        let descriptors = format!("[{{\"entries\":[{entry}]}}]");
        writeln!(
            file,
            "{{\"time\":{seconds}.{ms:03},\"domain\":\"llm\",\"descriptors\":{descriptors},\"hits\":100}}"
        )?;
    }
    file.flush()
}

fn main() -> std::io::Result<()> {
    let order = tenants();
    println!("a million requests over 10,000 tenants and three limits, the best of {ROUNDS} rounds");
    // The simulations first, so that nothing else is in the memory that they are measured by.
    let logs = [1, 1_000].map(|per_ms| {
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::create_dir(dir.path().join("limits")).expect("a directory");
        fs::write(dir.path().join("limits/llm.yaml"), LIMITS).expect("a file");
        write_traffic(dir.path(), &order, per_ms).expect("a file");
        let seconds = simulated(dir.path());
        (per_ms, dir, seconds, memory_mb())
    });
    println!("  {:>10} {:>12} {:>12} {:>7} {:>9}", "the log is", "pure", "simulated", "ratio", "memory");
    for (per_ms, dir, first_seconds, memory_mb) in logs {
        let (mut pure_seconds, mut simulated_seconds) = (f64::MAX, first_seconds);
        for _ in 0..ROUNDS {
            pure_seconds = pure_seconds.min(pure(&order, per_ms));
            simulated_seconds = simulated_seconds.min(simulated(dir.path()));
        }
        println!(
            "  {:>8} s {pure_seconds:>10.3} s {simulated_seconds:>10.3} s {:>7.2} {memory_mb:>6} MB",
            REQUESTS / per_ms / 1000,
            simulated_seconds / pure_seconds,
        );
    }
    Ok(())
}
