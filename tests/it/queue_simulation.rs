//! What the queue promises, in simulations: honest estimates, order, shares, and no limit ever over its capacity.

use std::collections::HashMap;

use sluice::queue::JobId;

use crate::queue_world::{SECOND, World, concurrency, rolling};

/// Arrivals at random, on average one every `every_ms`, for `seconds`; then everybody is served.
pub fn steady(world: &mut World, every_ms: u64, seconds: u64, mut arrive: impl FnMut(&mut World)) {
    let end_ms = world.now_ms + seconds * SECOND;
    loop {
        let gap = -(1.0 - world.rng.f64()).ln() * every_ms as f64;
        let next_ms = world.now_ms + (gap as u64).max(1);
        if next_ms > end_ms {
            break;
        }
        world.run_to(next_ms);
        arrive(world);
    }
    world.run_to(end_ms + 3_600 * SECOND);
}

fn assert_honest(world: &World, from_ms: u64, at_least: usize) {
    let (honest, promised) = world.honesty(from_ms);
    assert!(promised >= at_least, "only {promised} had to wait");
    assert!(honest * 10 >= promised * 9, "{honest} of {promised} waited within a quarter of the promise");
    assert!(world.jobs.values().all(|job| job.served_ms.is_some()), "somebody was never served");
}

#[test]
fn a_rolling_limit_keeps_its_promises_under_steady_load() {
    for seed in 0..5 {
        // 60 a minute, a backlog of a minute and a half, then one a second.
        let mut world = World::new(&[(rolling(60), 60)], seed);
        (0..150).for_each(|_| {
            world.arrive(&[(0, 1)]);
        });
        let from_ms = world.now_ms;
        steady(&mut world, 1000, 600, |world| {
            world.arrive(&[(0, 1)]);
        });
        assert_honest(&world, from_ms, 500);
        assert!(world.served.is_sorted_by_key(|id| world.jobs[id].came_ms), "first come, first served");
    }
}

#[test]
fn amounts_of_all_sizes_are_promised_as_well() {
    for seed in 0..5 {
        // LLM tokens: 30,000 a minute, 100 to 1,900 a job, one every two seconds.
        let mut world = World::new(&[(rolling(60), 30_000)], seed);
        let arrive = |world: &mut World| {
            let tokens = world.rng.u64(100..=1900);
            world.arrive(&[(0, tokens)]);
        };
        (0..80).for_each(|_| arrive(&mut world));
        let from_ms = world.now_ms;
        steady(&mut world, 2000, 600, arrive);
        assert_honest(&world, from_ms, 200);
    }
}

#[test]
fn what_was_used_up_at_once_comes_back_at_once_and_that_is_promised() {
    let mut world = World::new(&[(rolling(60), 100)], 1);
    (0..100).for_each(|_| {
        world.arrive(&[(0, 1)]);
    });
    world.run_for(20 * SECOND);
    let [first, last] = [world.arrive(&[(0, 1)]), world.arrive(&[(0, 1)])];
    // 40 s until the window is over, 6 ms of work, a fifth on top: 48.01 s.
    assert_eq!([first, last].map(|id| world.jobs[&id].promised_seconds), [49, 49]);
    world.run_for(41 * SECOND);
    let waited = [first, last].map(|id| world.waited_ms(id));
    assert_eq!(waited, [Some(40_000), Some(40_000)]);
}

#[test]
fn a_concurrency_limit_keeps_its_promises_under_steady_load() {
    for seed in 0..5 {
        // 20 at a time for 4 s on average are 5 a second; a backlog of 300, then 5 a second.
        let mut world = World::new(&[(concurrency(300), 20)], seed);
        world.hold_ms = Some(4000);
        (0..320).for_each(|_| {
            world.arrive(&[(0, 1)]);
        });
        world.run_for(10 * SECOND);
        let from_ms = world.now_ms;
        steady(&mut world, 200, 300, |world| {
            world.arrive(&[(0, 1)]);
        });
        assert_honest(&world, from_ms, 1000);
    }
}

#[test]
fn nobody_promises_what_nobody_knows() {
    let mut world = World::new(&[(concurrency(300), 1)], 1);
    world.arrive(&[(0, 1)]);
    // Nobody has given it back yet: B(E), and E is 0.
    let second = world.arrive(&[(0, 1)]);
    assert_eq!(world.jobs[&second].promised_seconds, 4);
}

/// One job needs two limits that others hold in turn: they are never free at the same time by chance.
#[test]
fn one_who_needs_two_limits_is_not_starved_by_those_who_need_one() {
    for queue in [true, false] {
        let mut world = World::new(&[(concurrency(300), 1), (concurrency(300), 1)], 3);
        world.policy.reserved_share = 1.0;
        world.hold_ms = Some(1000);
        world.arrive(&[(0, 1)]);
        world.run_for(400);
        world.arrive(&[(1, 1)]);
        let two = world.arrive(&[(0, 1), (1, 1)]);
        for n in 0..1000 {
            if queue {
                // Whoever came later waits behind it in the end.
                for limit in 0..2 {
                    if world.places.depth() < 20 || n % 50 == limit {
                        world.arrive(&[(limit, 1)]);
                    }
                }
            } else {
                for limit in 0..2 {
                    world.newcomer(limit, Some(1000));
                }
            }
            world.run_for(100);
        }
        let waited = world.waited_ms(two);
        assert!(waited.is_some_and(|ms| ms < 60 * SECOND), "queue {queue}: {waited:?}");
    }
}

#[test]
fn a_thousand_jobs_over_fifty_limits_are_served_in_order_and_hold_up_nobody() {
    for seed in 0..3 {
        // One shared limit that is wide, 49 tenants: most have 10 a minute, tenant 1 has one an hour.
        let mut limits = vec![(rolling(60), 600), (rolling(3600), 1)];
        limits.extend((2..50).map(|_| (rolling(60), 10)));
        let mut world = World::new(&limits, seed);
        let mut by_tenant: HashMap<usize, Vec<JobId>> = HashMap::new();
        for _ in 0..1000 {
            let tenant = world.rng.usize(1..50);
            let id = world.arrive(&[(0, 1), (tenant, 1)]);
            by_tenant.entry(tenant).or_default().push(id);
        }
        assert!(world.places.depth() > 400, "most have to wait");
        world.run_for(300 * SECOND);
        for (tenant, jobs) in &by_tenant {
            let order: Vec<JobId> = world.served.iter().copied().filter(|id| jobs.contains(id)).collect();
            assert_eq!(order, jobs[..order.len()], "tenant {tenant}: first come, first served");
            if *tenant == 1 {
                assert_eq!(order.len(), 1, "one an hour");
            } else {
                assert_eq!(order.len(), jobs.len(), "tenant {tenant} was held up");
                // 10 at once, 10 a minute later, …: not a moment later than its own limit says.
                for (n, id) in jobs.iter().enumerate() {
                    let waited_ms = world.waited_ms(*id).unwrap();
                    let own_limit_ms = (n as u64 / 10) * 60 * SECOND;
                    assert!(
                        waited_ms <= own_limit_ms + 120 * SECOND,
                        "tenant {tenant}, job {n}: {waited_ms} ms"
                    );
                }
            }
        }
    }
}
