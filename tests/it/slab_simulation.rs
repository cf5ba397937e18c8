//! Slabs on virtual time: the production core, several instances, a model of the ledger, and faults drawn from a seed.
//!
//! After every step every unit admitted in the last window is held by the ledger, which never holds more than the
//! capacity; what the core counts is what the callers got; in the end everything is back. A seed that fails is made as
//! short as it can be and printed with its history; it belongs into `slab_simulation/seeds.txt`, which is run every time.

mod instance;
mod ledger;
mod oracle;
mod plan;
mod requests_to_the_ledger;
mod shrink;
mod use_of_capacity;
mod world;

use std::time::{Duration, Instant};

use self::plan::Plan;
use self::world::{Tally, World};

/// For how long `make test` draws new seeds.
const FRESH_SEEDS_FOR: Duration = Duration::from_secs(4);

/// Once directly on the ledger, and once through hubs; how many slabs hubs have lent.
fn run(seed: u64) -> (Tally, u64) {
    let through_hubs = run_plan(&Plan::draw(seed).with_hubs());
    (run_plan(&Plan::draw(seed)), through_hubs.lent)
}

fn run_plan(plan: &Plan) -> Tally {
    World::new(plan, false).run().unwrap_or_else(|failure| {
        println!("seed {}: {}", plan.seed, failure.what);
        panic!("{}", shrink::report(plan.clone()));
    })
}

#[test]
fn seeds_that_failed_once() {
    for line in include_str!("slab_simulation/seeds.txt").lines() {
        let seed = line.split('#').next().unwrap_or_default().trim();
        if !seed.is_empty() {
            run(seed.parse().unwrap());
        }
    }
}

#[test]
#[allow(clippy::disallowed_methods, reason = "how long the test may take is not part of what it tests")]
fn fresh_seeds() {
    let first = fastrand::u64(..u64::MAX / 2);
    let started = Instant::now();
    let (mut count, mut lent) = (0, 0);
    while started.elapsed() < FRESH_SEEDS_FOR {
        lent += run(first + count).1;
        count += 1;
    }
    println!("{count} seeds from {first} on; hubs have lent {lent} slabs");
    assert!(lent > 0, "no hub has lent anything");
}

/// `make torture SEEDS=1000`: as many as one likes; SLUICE_FIRST_SEED says where to begin.
#[test]
#[ignore = "as long as one likes: make torture"]
fn torture() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let seeds: u64 = number("SLUICE_SEEDS").expect("SLUICE_SEEDS must be a number");
    let first: u64 = number("SLUICE_FIRST_SEED").unwrap_or_else(|| fastrand::u64(..u64::MAX / 2));
    println!("{seeds} seeds from {first} on");
    let mut from_slabs = 0;
    let mut others = 0;
    let mut all_lent = 0;
    for seed in first..first + seeds {
        let (tally, lent) = run(seed);
        all_lent += lent;
        from_slabs += tally.from_slabs;
        others += tally.from_ledger + tally.full + tally.refused + tally.failed;
    }
    println!("{from_slabs} requests admitted from slabs, {others} others; hubs have lent {all_lent} slabs");
}
