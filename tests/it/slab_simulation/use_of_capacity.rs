//! How much of a limit is used while more is asked of it than it has: the loss is units that lie in a slab, and those that
//! come back later than they could.

use super::plan::{Event, LimitPlan, Plan, SECOND};
use super::world::World;

/// One limit under overload: `loads` says how many times the whole capacity each instance is asked for. With hubs, those lend.
fn used(
    (window_seconds, capacity): (u32, u64),
    loads: &[f64],
    units_max: u64,
    hubs: usize,
    seed: u64,
) -> f64 {
    let mut rng = fastrand::Rng::with_seed(seed);
    let window_us = u64::from(window_seconds) * SECOND;
    let windows = if window_seconds > 10 { 4 } else { 6 };
    let end_us = windows * window_us;
    let mut events = Vec::new();
    for (instance, load) in loads.iter().enumerate() {
        let mean_us = window_us as f64 / capacity as f64 / load * (1 + units_max) as f64 / 2.0;
        let mut at_us = 0;
        let whole: f64 = loads.iter().sum();
        loop {
            // The first window is filled evenly: what is taken in one moment would come back in one, for ever.
            let mean_us = if at_us < window_us { mean_us * whole } else { mean_us };
            at_us += (mean_us * -(1.0 - rng.f64()).ln()) as u64;
            if at_us >= end_us {
                break;
            }
            let needs = vec![(0, rng.u64(1..=units_max))];
            events.push((at_us, Event::Arrive { instance, needs, id: None }));
        }
    }
    events.sort_by_key(|(at_us, _)| *at_us);
    let limits = vec![LimitPlan { window_seconds, capacity, is_exact: false }];
    let plan = Plan {
        seed,
        instances: loads.len(),
        hubs,
        lends_from: 0,
        untold_per_mille: 0,
        limits,
        latency_us: 1_500,
        is_calm: true,
        end_us,
        events,
    };
    let mut world = World::new(&plan, false);
    // From the second window on: in the first one everything is free.
    world.tally.measured_from_us = window_us;
    let tally = world.run().unwrap_or_else(|failure| panic!("{}", failure.what));
    tally.measured[0] as f64 / (capacity * (windows - 1)) as f64
}

#[test]
fn under_steady_overload_nearly_all_of_a_limit_is_used() {
    let loads: [&[f64]; 6] =
        [&[1.7], &[4.0], &[1.0, 1.0], &[3.0, 0.3, 0.05], &[0.7, 0.5, 0.3, 0.2], &[1.0, 1.0, 1.0, 1.0]];
    let limits = [
        (1, 100, 0.90),
        (1, 1_000, 0.90),
        (2, 500, 0.90),
        (5, 200, 0.95),
        (5, 1_500, 0.95),
        (10, 1_000, 0.95),
        (60, 1_000, 0.95),
    ];
    let mut problems = Vec::new();
    for (n, (window_seconds, capacity, least)) in limits.into_iter().enumerate() {
        for (m, loads) in loads.iter().enumerate() {
            let units_max = [1, 3][(n + m) % 2];
            // Half of them through a hub too; all of them would take twice as long.
            for hubs in 0..=(n + m / 2) % 2 {
                let used = used((window_seconds, capacity), loads, units_max, hubs, 100 + m as u64);
                let row = format!(
                    "{capacity} in {window_seconds} s, {loads:?}, up to {units_max} units, {hubs} hubs: {used:.3}"
                );
                println!("{row}");
                if used < least {
                    problems.push(row);
                }
            }
        }
    }
    assert_eq!(problems, [""; 0], "less was used than promised");
}
