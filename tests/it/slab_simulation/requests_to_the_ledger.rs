//! How often the ledger is asked for a limit that is over, however hard it is hammered: slabs, requests that ask by
//! themselves, and everything that is given back. None of them goes together with another here.

use super::plan::{Event, LimitPlan, Plan, SECOND};
use super::world::World;

/// What a second may see, once the limit is spent.
const REQUESTS_A_SECOND_MAX: usize = 100;

/// Between two requests of all callers together.
const GAP_US: u64 = 400;

/// How long it takes to spend a limit in a rush, at the most.
const RUSH_US: u64 = 200_000;

struct Hammered {
    window_seconds: u32,
    capacity: u64,
    units_max: u64,
    instances: usize,
    /// One way, at most.
    latency_us: u64,
    /// The first window is spent evenly, not in a rush.
    is_even: bool,
}

impl Hammered {
    /// The most requests of one instance in any second after the first window.
    fn requests(&self, seed: u64) -> usize {
        let mut rng = fastrand::Rng::with_seed(seed);
        let window_us = u64::from(self.window_seconds) * SECOND;
        let end_us = window_us + 3 * SECOND;
        let even_us = window_us * (1 + self.units_max) / 2 / self.capacity;
        let mut events = Vec::new();
        let mut at_us = 0;
        loop {
            let gap_us = if self.is_even && at_us < window_us { even_us.max(GAP_US) } else { GAP_US };
            at_us += rng.u64(1..=gap_us * 2);
            if !self.is_even && (RUSH_US..window_us - RUSH_US).contains(&at_us) {
                at_us = window_us - RUSH_US;
            }
            if at_us >= end_us {
                break;
            }
            let (instance, needs) = (rng.usize(0..self.instances), vec![(0, rng.u64(1..=self.units_max))]);
            events.push((at_us, Event::Arrive { instance, needs, id: None }));
        }
        let (window_seconds, capacity) = (self.window_seconds, self.capacity);
        let limits = vec![LimitPlan { window_seconds, capacity, is_exact: false }];
        let (instances, latency_us) = (self.instances, self.latency_us);
        let plan = Plan {
            seed,
            instances,
            hubs: 0,
            lends_from: 0,
            untold_per_mille: 0,
            limits,
            latency_us,
            is_calm: true,
            end_us,
            events,
        };
        let tally = World::new(&plan, false).run().unwrap_or_else(|failure| panic!("{}", failure.what));
        // Until then it may not be over.
        let from_us = window_us + SECOND / 2;
        let most = |mut asked_us: Vec<u64>| {
            asked_us.retain(|at_us| (from_us..end_us).contains(at_us));
            asked_us.sort_unstable();
            let within = |first: usize| {
                asked_us[first..].iter().take_while(|at_us| **at_us < asked_us[first] + SECOND).count()
            };
            (0..asked_us.len()).map(within).max().unwrap_or(0)
        };
        tally.asked_us.into_iter().map(most).max().unwrap_or(0)
    }
}

#[test]
fn a_limit_that_is_over_costs_few_requests_however_hard_it_is_hammered() {
    let mut problems = Vec::new();
    for window_seconds in [1, 2, 3, 5] {
        for capacity in [1, 39, 40, 100, 2_000] {
            for (n, units_max) in [1, 3, 10].into_iter().enumerate() {
                let instances = if n == 1 { 3 } else { 1 };
                let latency_us = [300, 1_500][(n + capacity as usize) % 2];
                for is_even in [false, true] {
                    let hammered =
                        Hammered { window_seconds, capacity, units_max, instances, latency_us, is_even };
                    let requests = hammered.requests(capacity + u64::from(window_seconds));
                    let row = format!(
                        "{capacity} in {window_seconds} s, up to {units_max} units, {instances} instances, \
                         even: {is_even}: {requests} requests in a second"
                    );
                    println!("{row}");
                    if requests > REQUESTS_A_SECOND_MAX {
                        problems.push(row);
                    }
                }
            }
        }
    }
    assert_eq!(problems, [""; 0], "the ledger was asked too often");
}
