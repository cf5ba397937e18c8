//! When to come back: hints for the refused, a budget for retries, one backoff for our own waits.
//!
//! A denied client that retries at once is the outage. This module is what admission asks after it has decided:
//! [`Retry`] remembers what the hints depend on, [`policy::RetryPolicy`] is what the operator wrote, [`RetryHint`]
//! is what the client hears. It never reads the ledger, a clock or the wire: time, randomness and the policy of the
//! request's snapshot come as arguments. Randomness is a function that gives a number in `0..=n`.

pub mod policy;

pub mod hint;
pub mod streaks;

pub mod eta;

pub mod budget;
mod window;

pub mod backoff;

use std::num::NonZeroU32;

use crate::limit::Kind;

use budget::RetryBudget;
use eta::Stage;
use policy::RetryPolicy;
use streaks::Streaks;

/// The budget keeps its streak beside those of the limits. No account has this id.
const BUDGET_ID: u128 = 0;

/// What one server remembers about denials and retries.
#[derive(Debug, Default)]
pub struct Retry {
    streaks: Streaks,
    budget: RetryBudget,
}

/// How long the refused should wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct RetryHint {
    /// `retry-after-ms`, and `duration_until_reset`.
    pub ms: u64,
}

impl Retry {
    /// Some limits said no: the largest hint over them, and which of `failed` it is from. `None` without any.
    pub fn on_denied(
        &self,
        failed: impl IntoIterator<Item = (u128, Kind)>,
        policy: &RetryPolicy,
        now_ms: u64,
        mut rand: impl FnMut(u64) -> u64,
    ) -> Option<(usize, RetryHint)> {
        let hints = failed.into_iter().map(|(id, kind)| self.denied(id, kind, policy, now_ms, &mut rand));
        // The first of equals, so that the answer doesn't depend on how many tie.
        hints.enumerate().reduce(|best, next| if next.1 > best.1 { next } else { best })
    }

    /// All limits of a request said yes.
    pub fn on_allowed(&self, ids: impl IntoIterator<Item = u128>, now_ms: u64) {
        ids.into_iter().for_each(|id| self.streaks.allow(id, now_ms));
    }

    /// A request came that is not a retry.
    pub fn on_original(&self, now_ms: u64) {
        self.budget.record_original(now_ms);
    }

    /// A retry came: it goes on, or hears at once when to come back. The budget is a rolling limit of its own, so its
    /// hint is that of one with its window.
    pub fn admit_retry(
        &self,
        policy: &RetryPolicy,
        now_ms: u64,
        rand: impl FnMut(u64) -> u64,
    ) -> Result<(), RetryHint> {
        if self.budget.admit_retry(now_ms, &policy.budget) {
            self.streaks.allow(BUDGET_ID, now_ms);
            return Ok(());
        }
        let window_seconds = u32::try_from(policy.budget.window_seconds).ok().and_then(NonZeroU32::new);
        let kind = Kind::Rolling { window_seconds: window_seconds.unwrap_or(NonZeroU32::MAX) };
        Err(self.denied(BUDGET_ID, kind, policy, now_ms, rand))
    }

    /// Admitted retries per original: the metric.
    pub fn budget_ratio(&self, policy: &RetryPolicy, now_ms: u64) -> f64 {
        self.budget.ratio(now_ms, &policy.budget)
    }

    fn denied(
        &self,
        id: u128,
        kind: Kind,
        policy: &RetryPolicy,
        now_ms: u64,
        rand: impl FnMut(u64) -> u64,
    ) -> RetryHint {
        let streak = self.streaks.deny(id, now_ms, hint::quiet_ms(kind, policy));
        RetryHint { ms: hint::hint_ms(kind, streak, policy, rand) }
    }
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
        let (retry, policy) = (Retry::default(), RetryPolicy::default());
        let failed = [(1, HOLD), (2, SECOND), (3, MINUTE), (4, MINUTE)];
        assert_eq!(retry.on_denied(failed, &policy, 0, none), Some((2, hint(5000))));
        // The first two again: streak 2 each, 50 × 4 and 100 × 1.5².
        assert_eq!(retry.on_denied(failed[..2].to_vec(), &policy, 0, none), Some((1, hint(225))));
        assert_eq!(retry.on_denied([], &policy, 0, none), None);
    }

    #[test]
    fn an_allow_halves_the_streak_of_each_limit() {
        let (retry, policy) = (Retry::default(), RetryPolicy::default());
        let deny = || retry.on_denied([(1, HOLD)], &policy, 0, none).unwrap().1.ms;
        assert_eq!([deny(), deny(), deny(), deny()], [100, 200, 400, 800]);
        retry.on_allowed([1, 2], 0); // 4 → 2
        assert_eq!(deny(), 400);
    }

    #[test]
    fn a_streak_is_forgotten_after_ten_times_the_maximum_of_its_kind() {
        let (retry, policy) = (Retry::default(), RetryPolicy::default());
        let deny = |id, kind, now| retry.on_denied([(id, kind)], &policy, now, none).unwrap().1.ms;
        assert_eq!((deny(1, HOLD, 0), deny(2, SECOND, 0)), (100, 150));
        assert_eq!((deny(1, HOLD, 20_000), deny(2, SECOND, 20_000)), (100, 225), "10 × 2000 have passed");
        assert_eq!(deny(2, SECOND, 69_999), 337);
        assert_eq!(deny(2, SECOND, 119_999), 150, "10 × 5000 have passed");
    }

    #[test]
    fn a_retry_beyond_the_budget_hears_a_hint_that_grows() {
        let retry = Retry::default();
        let mut policy = RetryPolicy::default();
        policy.budget.min_retries_per_second = 0;
        (0..10).for_each(|_| retry.on_original(0));
        let admit = |now| retry.admit_retry(&policy, now, none);
        assert_eq!([admit(0), admit(0), admit(0)], [Ok(()); 3]); // 0.3 × 10
        // A rolling limit of 10 s: a tenth of it × 1.5^streak.
        assert_eq!([admit(0), admit(0)], [Err(hint(1500)), Err(hint(2250))]);
        assert_eq!(retry.budget_ratio(&policy, 0), 0.3);
        retry.on_original(11_000);
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
