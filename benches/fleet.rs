//! Prints what clients cost a limit, with and without hints, and with hints that know when there will be room. Virtual time:
//! the numbers are the same anywhere.

use std::num::NonZeroU32;

use sluice::retry::policy::RetryPolicy;

#[path = "../tests/support/fleet.rs"]
mod fleet;

use fleet::{After, Fleet, Report, closed, informed_policy, patient_policy};

/// How many fleets each line about informed hints is of.
const SEEDS: u64 = 20;

type Wait = fn(usize, u32, &mut fastrand::Rng) -> After;

const MANNERS: [(&str, Wait); 5] = [
    ("follow the hints", |_, _, _| After::Obey),
    ("own backoff, full jitter, 0.3 to 3 s", |_, denials, rng| {
        After::Own(rng.u64(0..=(300u64 << denials.min(4)).min(3000)))
    }),
    ("every second", |_, _, _| After::Own(1000)),
    ("every 100 ms", |_, _, _| After::Own(100)),
    ("at once", |_, _, _| After::Own(0)),
];

const OBEDIENCE: [(&str, Wait); 5] =
    [
        ("all obey", |_, _, _| After::Obey),
        ("half obey, half every second", |client, _, _| {
            if client.is_multiple_of(2) { After::Obey } else { After::Own(1000) }
        }),
        ("half obey, half every 100 ms", |client, _, _| {
            if client.is_multiple_of(2) { After::Obey } else { After::Own(100) }
        }),
        ("nobody obeys, every second", |_, _, _| After::Own(1000)),
        ("nobody obeys, every 100 ms", |_, _, _| After::Own(100)),
    ];

fn main() {
    informed();
    formula();
}

/// The same limit for clients that obey or don't, by the formula and by what the ledger knows. One seed says little where not
/// all obey, so every line is of many: the means, and for the attempts also the least and the most of any seed.
fn informed() {
    println!("\n20 per 10 s, clients think for 10 s, hints by the formula and informed, {SEEDS} seeds");
    println!(
        "  {:>6} {:30} {:9} {:>9} {:>17} {:>9} {:>7} {:>8} {:>8} {:>5}",
        "demand", "clients", "hints", "attempts", "least to most", "returns", "used", "p50", "p99", "herd"
    );
    for demand in [1.25, 1.5, 2.0, 4.0] {
        for (manner, wait) in OBEDIENCE {
            for (name, policy) in [("formula", RetryPolicy::default()), ("informed", informed_policy())] {
                let fleet = closed(demand);
                let run =
                    |seed| fleet.run(&policy, seed, |client, denials, _, rng| wait(client, denials, rng));
                let reports: Vec<Report> = (1..=SEEDS).map(run).collect();
                let mean = |value: fn(&Report) -> f64| reports.iter().map(value).sum::<f64>() / SEEDS as f64;
                let attempts = || reports.iter().map(|report| report.attempts_per_admission);
                println!(
                    "  {demand:>6} {manner:30} {name:9} {:>9.2} {:>7.2} to {:>6.2} {:>9.2} {:>6.1}% {:>6.1} s {:>6.1} s {:>5.0}",
                    mean(|report| report.attempts_per_admission),
                    attempts().fold(f64::INFINITY, f64::min),
                    attempts().fold(0.0, f64::max),
                    mean(|report| report.returns_per_admission),
                    mean(|report| report.goodput * 100.0),
                    mean(|report| report.wait_ms_p50 as f64 / 1000.0),
                    mean(|report| report.wait_ms_p99 as f64 / 1000.0),
                    mean(|report| report.herd as f64),
                );
            }
        }
    }
}

fn formula() {
    let seconds = |n| NonZeroU32::new(n).expect("a window must have seconds");
    let scenarios = [
        (Fleet::new(500, seconds(60), 20_000), "default policy", RetryPolicy::default()),
        (Fleet::new(166, seconds(10), 10_000), "default policy", RetryPolicy::default()),
        (Fleet::new(16, seconds(1), 10_000), "default policy", RetryPolicy::default()),
        (Fleet::new(300, seconds(60), 20_000), "default policy", RetryPolicy::default()),
        (Fleet::new(300, seconds(60), 20_000), "max_ms 30000, window_fraction 0.5", patient_policy()),
        (Fleet::new(300, seconds(60), 20_000), "informed", informed_policy()),
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
            let report = fleet.run(&policy, 1, |client, denials, _, rng| wait(client, denials, rng));
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
