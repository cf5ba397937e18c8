//! When to come back: hints for the refused, a budget for retries, one backoff for our own waits.
//!
//! Clients that are denied and retry at once can bring a service down. This module is what admission asks after it has decided:
//! [`Hints`] is what each limit remembers for its hints, [`RetryBudget`] what each domain remembers of its retries,
//! [`policy::RetryPolicy`] is what the operator wrote, [`RetryHint`] is what the client hears. It never reads the ledger, a clock or the wire: time,
//! randomness and the policy of the request's snapshot come as arguments. Randomness is a function that gives a number
//! in `0..=n`.

pub mod policy;

mod hint;
mod hints;

pub(crate) mod forecast;
pub mod informed;
mod promises;
pub mod schedule;

pub mod eta;

pub mod budget;
pub(crate) mod window;

pub mod backoff;

use std::num::NonZeroU32;

use crate::limit::{Kind, LimitId};

pub use budget::RetryBudget;
use eta::Stage;
pub use hints::Hints;
use policy::RetryPolicy;

/// How long the refused should wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryHint {
    /// `retry-after-ms`, and `duration_until_reset`.
    pub ms: u64,
}

/// Some limits said no: the largest hint over them, and which of `failed` it is from. `None` without any.
pub fn on_denied<'h>(
    failed: impl IntoIterator<Item = (&'h Hints, Kind)>,
    policy: &RetryPolicy,
    now_ms: u64,
    mut rand: impl FnMut(u64) -> u64,
) -> Option<(usize, RetryHint)> {
    let hints = failed.into_iter().map(|(hints, kind)| denied(hints, kind, policy, now_ms, &mut rand));
    // The first of equals, so that the answer doesn't depend on how many tie.
    hints.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best })
}

/// All limits of a request said yes.
pub fn on_allowed<'h>(
    passed: impl IntoIterator<Item = (&'h Hints, Kind)>,
    policy: &RetryPolicy,
    now_ms: u64,
) {
    passed.into_iter().for_each(|(hints, kind)| hints.allow(now_ms, || hint::quiet_ms(kind, policy)));
}

fn denied(
    hints: &Hints,
    kind: Kind,
    policy: &RetryPolicy,
    now_ms: u64,
    rand: impl FnMut(u64) -> u64,
) -> RetryHint {
    let streak = hints.deny(now_ms, hint::quiet_ms(kind, policy));
    RetryHint { ms: hint::hint_ms(kind, streak, policy, rand) }
}

/// A retry of `tenant` came: it goes on, or hears at once when to come back. The budget is a rolling limit of its own, so
/// its hint is that of one with its window.
pub fn admit_retry(
    budget: &RetryBudget,
    tenant: Option<LimitId>,
    policy: &RetryPolicy,
    now_ms: u64,
    rand: impl FnMut(u64) -> u64,
) -> Result<(), RetryHint> {
    let window_seconds = u32::try_from(policy.budget.window_seconds).ok().and_then(NonZeroU32::new);
    let kind = Kind::Rolling { window_seconds: window_seconds.unwrap_or(NonZeroU32::MAX) };
    if budget.admit_retry(tenant, now_ms, &policy.budget) {
        on_allowed([(&budget.hints, kind)], policy, now_ms);
        return Ok(());
    }
    Err(denied(&budget.hints, kind, policy, now_ms, rand))
}

impl RetryHint {
    /// For a limit that has been decreasing for `elapsed_ms`.
    pub fn decreasing(policy: &RetryPolicy, elapsed_ms: u64) -> Self {
        let table = policy.queue.elapsed.as_deref().unwrap_or_default();
        let row_ms = eta::elapsed_seconds(table, elapsed_ms).map(|seconds| seconds * 1000);
        Self { ms: row_ms.unwrap_or(policy.decreasing_ms) }
    }

    /// For what found `waiting` others in a queue that is full.
    pub fn queue_full(policy: &RetryPolicy, waiting: u64, drain_per_second: Option<f64>) -> Self {
        let stage = Stage::Queued { position: waiting };
        Self { ms: eta::eta_seconds(stage, drain_per_second, &policy.queue) * 1000 }
    }

    /// `retry-after`: whole seconds, rounded up, at least 1.
    pub fn retry_after_seconds(self) -> u64 {
        self.ms.div_ceil(1000).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::policy::ElapsedStep;
    use super::*;

    const MINUTE: Kind = Kind::Rolling { window_seconds: NonZeroU32::new(60).unwrap() };
    const SECOND: Kind = Kind::Rolling { window_seconds: NonZeroU32::new(1).unwrap() };
    const HOLD: Kind = Kind::Concurrency { timeout_seconds: NonZeroU32::new(300).unwrap() };

    fn none(_: u64) -> u64 {
        0
    }

    fn hint(ms: u64) -> RetryHint {
        RetryHint { ms }
    }

    #[test]
    fn the_largest_hint_wins_and_names_its_limit() {
        let (limits, policy) = ([0; 4].map(|_| Hints::default()), RetryPolicy::default());
        let failed: Vec<_> = limits.iter().zip([HOLD, SECOND, MINUTE, MINUTE]).collect();
        assert_eq!(on_denied(failed.clone(), &policy, 0, none), Some((2, hint(5000))));
        // The first two again: streak 2 each, 50 × 4 and 100 × 1.5².
        assert_eq!(on_denied(failed[..2].to_vec(), &policy, 0, none), Some((1, hint(225))));
        assert_eq!(on_denied([], &policy, 0, none), None);
    }

    #[test]
    fn an_allow_halves_the_streak_of_each_limit() {
        let (limits, policy) = ([0; 2].map(|_| Hints::default()), RetryPolicy::default());
        let deny = || on_denied([(&limits[0], HOLD)], &policy, 0, none).unwrap().1.ms;
        assert_eq!([deny(), deny(), deny(), deny()], [100, 200, 400, 800]);
        on_allowed(limits.iter().map(|hints| (hints, HOLD)), &policy, 0); // 4 → 2
        assert_eq!(deny(), 400);
    }

    #[test]
    fn a_streak_is_forgotten_after_ten_times_the_maximum_of_its_kind() {
        let (limits, policy) = ([0; 2].map(|_| Hints::default()), RetryPolicy::default());
        let deny =
            |place: usize, kind, now| on_denied([(&limits[place], kind)], &policy, now, none).unwrap().1.ms;
        assert_eq!((deny(0, HOLD, 0), deny(1, SECOND, 0)), (100, 150));
        assert_eq!((deny(0, HOLD, 20_000), deny(1, SECOND, 20_000)), (100, 225), "10 × 2000 have passed");
        assert_eq!(deny(1, SECOND, 69_999), 337);
        assert_eq!(deny(1, SECOND, 119_999), 150, "10 × 5000 have passed");
    }

    #[test]
    fn a_retry_beyond_the_budget_hears_a_hint_that_grows() {
        let budget = RetryBudget::new(10);
        let mut policy = RetryPolicy::default();
        policy.budget.min_retries_per_second = 0;
        (0..10).for_each(|_| budget.record_original(0));
        let admit = |now| admit_retry(&budget, None, &policy, now, none);
        assert_eq!([admit(0), admit(0), admit(0)], [Ok(()); 3]); // 0.3 × 10
        // A rolling limit of 10 s: a tenth of it × 1.5^streak.
        assert_eq!([admit(0), admit(0)], [Err(hint(1500)), Err(hint(2250))]);
        assert_eq!(budget.counted(0, &policy.budget).ratio(), 0.3);
        budget.record_original(11_000);
        assert_eq!(admit(11_000), Err(hint(3375)), "0.3 of one original is no retry");
    }

    #[test]
    fn decreasing_follows_the_table_only_when_there_is_one() {
        let mut policy = RetryPolicy::default();
        assert_eq!(RetryHint::decreasing(&policy, 0), hint(10_000));
        let row = |below_seconds, retry_after_seconds| ElapsedStep { below_seconds, retry_after_seconds };
        policy.queue.elapsed = Some(vec![row(Some(60), 4), row(None, 300)]);
        assert_eq!(RetryHint::decreasing(&policy, 59_999), hint(4_000));
        assert_eq!(RetryHint::decreasing(&policy, 60_000), hint(300_000));
    }

    #[test]
    fn a_full_queue_answers_its_estimate() {
        let policy = RetryPolicy::default();
        assert_eq!(RetryHint::queue_full(&policy, 65_536, Some(10_000.0)), hint(8_000));
        assert_eq!(RetryHint::queue_full(&policy, 65_536, None), hint(300_000));
    }

    #[test]
    fn whole_seconds_are_rounded_up_and_at_least_one() {
        for (ms, seconds) in [(0, 1), (1, 1), (1000, 1), (1001, 2), (5050, 6), (300_000, 300)] {
            assert_eq!(hint(ms).retry_after_seconds(), seconds, "{ms}");
        }
    }
}
