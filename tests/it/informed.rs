//! Hints that are true: hand-computed times, both sides of each promise, and what they are worth to a fleet.

use std::num::NonZeroU32;

use sluice::retry::policy::RetryPolicy;

use crate::fleet::{After, Limit, Report, closed, informed_policy};

const SEEDS: u64 = 3;

/// Where not all obey, one seed says little.
const SEEDS_OF_HALVES: u64 = 20;

fn seconds(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// Without jitter.
fn ask(limit: &mut Limit, policy: &RetryPolicy, now_ms: u64) -> Result<(), u64> {
    limit.ask(false, policy, now_ms, |_| 0).map_err(|hint| hint.ms)
}

#[test]
fn a_tenant_with_five_a_minute_is_told_when_each_comes_back() {
    let (mut limit, policy) = (Limit::new(5, seconds(60)), informed_policy());
    for at_ms in [0, 2_000, 4_000, 6_000, 8_000] {
        assert_eq!(ask(&mut limit, &policy, at_ms), Ok(()));
    }
    let back_ms = [60_000, 62_000, 64_000, 66_000, 68_000];
    for at_ms in back_ms {
        assert_eq!(ask(&mut limit, &policy, 10_000), Err(at_ms - 10_000));
    }
    assert_eq!(ask(&mut limit, &policy, 10_000), Err(60_000), "no hint is longer");
    for at_ms in back_ms {
        assert_eq!(ask(&mut limit, &policy, at_ms), Ok(()), "{at_ms}");
    }
}

#[test]
fn a_promise_refuses_just_before_its_time_and_admits_at_it() {
    let policy = informed_policy();
    for early_ms in [1, 10, 1_000] {
        let mut limit = Limit::new(2, seconds(10));
        for at_ms in [0, 500] {
            assert_eq!(ask(&mut limit, &policy, at_ms), Ok(()));
        }
        assert_eq!(ask(&mut limit, &policy, 1_000), Err(9_000));
        let again = limit.ask(true, &policy, 10_000 - early_ms, |_| 0).map_err(|hint| hint.ms);
        assert_eq!(again, Err(early_ms.max(100)), "it hears the rest, and at least base_ms");
        assert_eq!(ask(&mut limit, &policy, 10_000), Ok(()));
    }
}

#[test]
fn one_who_comes_early_and_says_so_takes_nobodys_time() {
    let (mut limit, policy) = (Limit::new(2, seconds(10)), informed_policy());
    for at_ms in [0, 3_000] {
        assert_eq!(ask(&mut limit, &policy, at_ms), Ok(()));
    }
    assert_eq!(ask(&mut limit, &policy, 4_000), Err(6_000));
    for at_ms in [5_000, 6_000, 7_000] {
        let hint = limit.ask(true, &policy, at_ms, |_| 0).map_err(|hint| hint.ms);
        assert_eq!(hint, Err(10_000 - at_ms));
    }
    assert_eq!(ask(&mut limit, &policy, 8_000), Err(5_000), "the next one is told the second time");
}

#[test]
fn one_who_does_not_come_is_forgotten() {
    let (mut limit, policy) = (Limit::new(1, seconds(10)), informed_policy());
    assert_eq!(ask(&mut limit, &policy, 0), Ok(()));
    assert_eq!(ask(&mut limit, &policy, 1_000), Err(9_000));
    assert_eq!(ask(&mut limit, &policy, 1_000), Err(19_025), "a window after the first, and a little");
    // The first is not seen. Somebody else comes two seconds later.
    assert_eq!(ask(&mut limit, &policy, 12_000), Ok(()));
    assert_eq!(ask(&mut limit, &policy, 12_000), Err(18_050), "after the second, which takes at 20,025");
}

#[test]
fn amounts_above_one_wait_for_as_much_as_they_need() {
    let (mut limit, policy) = (Limit::new(10, seconds(10)), informed_policy());
    for (at_ms, amount) in [(0, 3), (2_000, 3), (4_000, 4)] {
        assert!(limit.ask_for(amount, false, &policy, at_ms, |_| 0).is_ok());
    }
    let mut ask = |amount| limit.ask_for(amount, false, &policy, 5_000, |_| 0).map_err(|hint| hint.ms);
    assert_eq!(ask(5), Err(7_000), "3 come back in 5 s and 3 more in 7 s");
    assert_eq!(ask(1), Err(5_000), "one of the 6 is left over, and it may be one of the first 3");
    assert_eq!(ask(4), Err(9_000));
}

/// Whoever comes at the told time and finds only callers that obey is admitted, whatever they take and whenever they come
/// first.
#[test]
fn whoever_obeys_among_those_who_obey_is_admitted_at_the_told_time() {
    let policy = informed_policy();
    for seed in 0..300 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (capacity, window) = (rng.u64(1..30), rng.u32(1..20));
        let mut limit = Limit::new(capacity, seconds(window));
        // All first tries are before any told time, so that nobody is overtaken by one who was told nothing.
        let mut told: Vec<(u64, u64)> = Vec::new();
        let (mut now_ms, mut used) = (0, 0);
        while used < capacity {
            let amount = rng.u64(1..=(capacity - used).min(4));
            used += amount;
            assert!(limit.ask_for(amount, false, &policy, now_ms, |_| 0).is_ok());
            now_ms += rng.u64(0..u64::from(window) * 900 / capacity.max(4));
        }
        for _ in 0..rng.u64(1..60) {
            let amount = rng.u64(1..=capacity.min(4));
            let hint = limit.ask_for(amount, false, &policy, now_ms, |n| rng.u64(0..=n)).unwrap_err();
            assert!((100..=60_000).contains(&hint.ms), "seed {seed}: {hint:?}");
            // At the longest hint nothing is promised.
            if hint.ms < 60_000 - policy.rolling.jitter_ms {
                told.push((now_ms + hint.ms, amount));
            }
        }
        told.sort_unstable();
        for (at_ms, amount) in told {
            let late_ms = rng.u64(0..10);
            let answer = limit.ask_for(amount, false, &policy, at_ms + late_ms, |_| 0);
            assert!(answer.is_ok(), "seed {seed}: {amount} of {capacity} at {at_ms}: {answer:?}");
        }
    }
}

/// Clients `0, 2, …` obey; the others come back after so long, if that is given.
fn mean(demand: f64, policy: &RetryPolicy, others_ms: Option<u64>, marks: bool) -> Report {
    let seeds = if others_ms.is_some() { SEEDS_OF_HALVES } else { SEEDS };
    let mut sum = Report::default();
    for seed in 0..seeds {
        let mut fleet = closed(demand);
        fleet.marks = marks;
        let report = fleet.run(policy, seed, |client, _, _, _| match others_ms {
            Some(ms) if !client.is_multiple_of(2) => After::Own(ms),
            _ => After::Obey,
        });
        sum.goodput += report.goodput / seeds as f64;
        sum.attempts_per_admission += report.attempts_per_admission / seeds as f64;
        sum.returns_per_admission += report.returns_per_admission / seeds as f64;
        sum.herd = sum.herd.max(report.herd);
        sum.wait_ms_p99 = sum.wait_ms_p99.max(report.wait_ms_p99);
    }
    sum
}

#[test]
fn a_fleet_that_obeys_tries_once_at_a_told_time_and_uses_the_limit() {
    for marks in [false, true] {
        for demand in [1.25, 1.5, 2.0, 4.0] {
            let report = mean(demand, &informed_policy(), None, marks);
            assert!(report.returns_per_admission <= 1.2, "{demand} {marks}: {report:?}");
            assert!(report.goodput >= 0.98, "{demand} {marks}: {report:?}");
            let formula = mean(demand, &RetryPolicy::default(), None, marks);
            assert!(report.wait_ms_p99 < formula.wait_ms_p99, "{demand} {marks}: {report:?} {formula:?}");
            assert!(report.herd <= formula.herd, "{demand} {marks}: {report:?} {formula:?}");
        }
    }
}

#[test]
fn where_half_of_a_fleet_ignores_hints_it_is_no_worse_than_the_formula() {
    for demand in [1.25, 1.5, 2.0, 4.0] {
        let [informed, formula] = [informed_policy(), RetryPolicy::default()]
            .map(|policy| mean(demand, &policy, Some(1_000), false));
        // Two runs of the same differ by some percent.
        let attempts = informed.attempts_per_admission / formula.attempts_per_admission;
        assert!(attempts < 1.1, "{demand}: {informed:?} {formula:?}");
        assert!(informed.goodput > formula.goodput - 0.01, "{demand}: {informed:?} {formula:?}");
    }
}
