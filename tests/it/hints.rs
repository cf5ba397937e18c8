//! What the hints are worth: a fleet of clients that follow them, and the same fleet without.

use std::num::NonZeroU32;

use sluice::retry::policy::RetryPolicy;

use crate::fleet::{After, Fleet, Report, patient_policy};

const SEEDS: u64 = 6;

fn minute(capacity: usize) -> Fleet {
    Fleet::new(capacity, NonZeroU32::new(60).unwrap(), 20_000)
}

fn ten_seconds(capacity: usize) -> Fleet {
    Fleet::new(capacity, NonZeroU32::new(10).unwrap(), 10_000)
}

fn run(fleet: &Fleet, policy: &RetryPolicy, seed: u64, fixed_ms: Option<u64>) -> Report {
    fleet.run(policy, seed, |_, _, _, _| fixed_ms.map_or(After::Obey, After::Own))
}

/// Not every fleet gets there with the defaults, by the law above: 480 a minute (demand 1.25) takes 1.96 to 2.09
/// attempts, 16 a second after 10 s of thinking 2.5 to 2.9, twice the capacity of a minute 5.
#[test]
fn clients_that_follow_the_hints_use_the_limit_with_fewer_than_two_attempts() {
    let rows = [
        (minute(500), 1.2, RetryPolicy::default()),
        (ten_seconds(166), 1.2, RetryPolicy::default()),
        (minute(300), 2.0, patient_policy()),
    ];
    for (fleet, demand, policy) in rows {
        assert!((fleet.demand() - demand).abs() < 0.01, "{}", fleet.demand());
        assert_eq!(policy.validate(), vec![]);
        for seed in 0..SEEDS {
            let report = run(&fleet, &policy, seed, None);
            assert!(report.goodput >= 0.9, "{fleet:?}, seed {seed}: {report:?}");
            assert!(report.attempts_per_admission < 2.0, "{fleet:?}, seed {seed}: {report:?}");
        }
    }
}

#[test]
fn the_same_clients_without_hints_hammer_the_limit_for_the_same_admissions() {
    let fleet = Fleet { settle_windows: 2, windows: 3, ..minute(500) };
    let policy = RetryPolicy::default();
    for (fixed_ms, at_least) in [(0, 200.0), (100, 20.0), (1000, 3.0)] {
        let report = run(&fleet, &policy, 1, Some(fixed_ms));
        assert!(report.goodput <= 1.0, "{report:?}");
        assert!(report.attempts_per_admission > at_least, "every {fixed_ms} ms: {report:?}");
    }
}

#[test]
fn attempts_follow_from_the_wait_and_the_length_of_a_hint() {
    // Hints of a minute's window are 5000 to 5050, and the round trip is 10: 5035 on average.
    for capacity in [500, 400, 300] {
        let fleet = minute(capacity);
        let report = run(&fleet, &RetryPolicy::default(), 1, None);
        let expected = 1.0 + report.wait_ms_mean / 5035.0;
        assert!((report.attempts_per_admission / expected - 1.0).abs() < 0.01, "{expected} {report:?}");
    }
}
