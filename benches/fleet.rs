//! Prints what 200 clients cost a limit, with and without hints. Virtual time: the numbers are the same anywhere.

use std::num::NonZeroU32;

use sluice::retry::RetryHint;
use sluice::retry::policy::RetryPolicy;

#[path = "../tests/support/fleet.rs"]
mod fleet;

use fleet::{Fleet, patient_policy};

type Wait = fn(u32, RetryHint, &mut fastrand::Rng) -> u64;

const MANNERS: [(&str, Wait); 5] = [
    ("follow the hints", |_, hint, _| hint.ms),
    ("own backoff, full jitter, 0.3 to 3 s", |denials, _, rng| {
        rng.u64(0..=(300u64 << denials.min(4)).min(3000))
    }),
    ("every second", |_, _, _| 1000),
    ("every 100 ms", |_, _, _| 100),
    ("at once", |_, _, _| 0),
];

fn main() {
    let seconds = |n| NonZeroU32::new(n).expect("a window must have seconds");
    let scenarios = [
        (Fleet::new(500, seconds(60), 20_000), "default policy", RetryPolicy::default()),
        (Fleet::new(166, seconds(10), 10_000), "default policy", RetryPolicy::default()),
        (Fleet::new(16, seconds(1), 10_000), "default policy", RetryPolicy::default()),
        (Fleet::new(300, seconds(60), 20_000), "default policy", RetryPolicy::default()),
        (Fleet::new(300, seconds(60), 20_000), "max_ms 30000, window_fraction 0.5", patient_policy()),
    ];
    for (fleet, name, policy) in scenarios {
        let (capacity, window, demand) = (fleet.capacity, fleet.window_seconds, fleet.demand());
        println!(
            "\n{} clients, {capacity} per {window} s, demand {demand:.1} × capacity, {name}",
            fleet.clients
        );
        println!(
            "  {:38} {:>8} {:>22} {:>10} {:>10} {:>9}",
            "denied clients", "goodput", "attempts per admission", "attempts/s", "mean wait", "p99 wait"
        );
        for (manner, wait) in MANNERS {
            let report = fleet.run(&policy, 1, wait);
            println!(
                "  {manner:38} {:>7.1}% {:>22.2} {:>10.1} {:>8.1} s {:>7.1} s",
                report.goodput * 100.0,
                report.attempts_per_admission,
                report.attempts_per_second,
                report.wait_ms_mean / 1000.0,
                report.wait_ms_p99 as f64 / 1000.0,
            );
        }
    }
}
