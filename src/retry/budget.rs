//! The retry budget: how many retries are let in for the originals of the last seconds.
//!
//! Retries after a partial outage are what turns it into a whole one. Counts two things, decides one; the
//! ledger, descriptors and clocks are other people's. The policy comes with each call, so a reload holds from
//! the next request on and no count is lost.

use super::policy::{BUDGET_WINDOW_SECONDS_MAX, Budget};
use super::window::SlidingCount;

/// A tenth of the shortest window; 10 × 300 s × 2 counts × 8 bytes = 48 KiB.
const BUCKET_MS: u64 = 100;

/// Originals and admitted retries of this server.
#[derive(Debug)]
pub struct RetryBudget {
    originals: SlidingCount,
    retries: SlidingCount,
}

impl RetryBudget {
    pub fn new() -> Self {
        let count = || SlidingCount::new(BUDGET_WINDOW_SECONDS_MAX * 1000, BUCKET_MS);
        Self { originals: count(), retries: count() }
    }

    /// A request that is not a retry, whatever becomes of it.
    pub fn record_original(&self, now_ms: u64) {
        self.originals.add(1, now_ms);
    }

    /// Whether one more retry fits: retries ≤ max(ratio × originals, floor), counted over the window. Those
    /// that are refused don't count, else a flood of them would keep every retry out.
    pub fn admit_retry(&self, now_ms: u64, policy: &Budget) -> bool {
        // Counted first and taken back: threads that meet here admit too few for a moment, never too many.
        self.retries.add(1, now_ms);
        let window_ms = policy.window_seconds * 1000;
        let retries = self.retries.sum(now_ms, window_ms);
        let fits = retries <= policy.min_retries_per_second * policy.window_seconds
            || covers(policy.ratio, self.originals.sum(now_ms, window_ms), retries);
        if !fits {
            self.retries.take_back(now_ms);
        }
        fits
    }

    /// Admitted retries per original over the window.
    pub fn ratio(&self, now_ms: u64, policy: &Budget) -> f64 {
        let window_ms = policy.window_seconds * 1000;
        let originals = self.originals.sum(now_ms, window_ms);
        self.retries.sum(now_ms, window_ms) as f64 / originals.max(1) as f64
    }
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self::new()
    }
}

/// Whether the value of the entry that marks retries does so: a number of at least 1.
pub fn marks_retry(value: &str) -> bool {
    // By its digits, so that a number too large for any integer is still a retry.
    value.bytes().all(|byte| byte.is_ascii_digit()) && value.bytes().any(|byte| byte != b'0')
}

fn covers(ratio: f64, originals: u64, retries: u64) -> bool {
    // 0.29 × 100 is 28.999999999999996 in binary; people mean 29.
    const ROUNDING: f64 = 1e-9;
    retries as f64 <= ratio * originals as f64 * (1.0 + ROUNDING)
}

#[cfg(test)]
mod tests {
    use super::super::policy::RetryPolicy;
    use super::*;

    fn policy(ratio: f64, window_seconds: u64, min_retries_per_second: u64) -> Budget {
        Budget { ratio, window_seconds, min_retries_per_second, ..RetryPolicy::default().budget }
    }

    fn with_originals(n: u64) -> RetryBudget {
        let budget = RetryBudget::new();
        (0..n).for_each(|_| budget.record_original(0));
        budget
    }

    fn admitted(budget: &RetryBudget, now_ms: u64, policy: &Budget) -> usize {
        (0..5000).filter(|_| budget.admit_retry(now_ms, policy)).count()
    }

    #[test]
    fn allowed_retries_by_hand() {
        let rows = [
            // ratio, window, floor, originals → allowed
            (0.3, 10, 10, 1000, 300),
            (0.3, 10, 10, 334, 100), // 100.2, as much as the floor
            (0.3, 10, 10, 340, 102), // just above the floor
            (0.3, 10, 10, 10, 100),  // 3, the floor of 10 × 10 is higher
            (0.1, 10, 10, 1000, 100),
            (0.3, 10, 10, 50, 100), // 15
            (0.3, 10, 0, 50, 15),
            (0.3, 10, 0, 10, 3),
            (0.3, 10, 0, 9, 2), // 2.7
            (0.29, 10, 0, 100, 29),
            (0.0, 10, 0, 1000, 0),
            (1.0, 1, 0, 7, 7),
            (0.0, 300, 1, 0, 300),
            (2.5, 10, 0, 100, 250),
        ];
        for (ratio, window, floor, originals, expected) in rows {
            let budget = with_originals(originals);
            let policy = policy(ratio, window, floor);
            assert_eq!(admitted(&budget, 0, &policy), expected, "{policy:?}, {originals} originals");
        }
    }

    #[test]
    fn the_window_slides() {
        let budget = with_originals(100);
        let policy = policy(0.3, 10, 0);
        assert_eq!(admitted(&budget, 5_000, &policy), 30);
        assert_eq!(admitted(&budget, 9_999, &policy), 0, "30 of 100 were let in");
        assert_eq!(admitted(&budget, 10_000, &policy), 0, "the originals have left");
        (0..100).for_each(|_| budget.record_original(14_000));
        assert_eq!(admitted(&budget, 14_999, &policy), 0, "the retries of second 5 still count");
        assert_eq!(admitted(&budget, 15_000, &policy), 30);
    }

    #[test]
    fn refused_retries_do_not_count() {
        let budget = with_originals(10);
        let policy = policy(0.3, 10, 0);
        admitted(&budget, 0, &policy);
        assert_eq!(budget.ratio(0, &policy), 0.3);
    }

    #[test]
    fn the_ratio_is_zero_on_an_idle_server_and_finite_without_originals() {
        let budget = RetryBudget::new();
        let policy = policy(0.3, 10, 10);
        assert_eq!(budget.ratio(0, &policy), 0.0);
        budget.admit_retry(0, &policy);
        assert_eq!(budget.ratio(0, &policy), 1.0);
    }

    #[test]
    fn a_changed_policy_holds_from_the_next_call_on_the_same_counts() {
        let budget = with_originals(100);
        assert_eq!(admitted(&budget, 5_000, &policy(0.3, 10, 0)), 30);
        assert_eq!(admitted(&budget, 5_000, &policy(0.5, 10, 0)), 20);
        assert_eq!(admitted(&budget, 20_000, &policy(0.5, 10, 0)), 0);
        assert_eq!(admitted(&budget, 20_000, &policy(0.6, 60, 0)), 10, "the longer window sees them again");
    }

    #[test]
    fn a_retry_is_marked_by_a_number_of_at_least_one() {
        for value in ["1", "3", "01", "10", "99999999999999999999999"] {
            assert!(marks_retry(value), "{value}");
        }
        for value in ["", "0", "00", "-1", "+1", "1.5", "one", " 1", "1e3"] {
            assert!(!marks_retry(value), "{value}");
        }
    }

    #[test]
    fn threads_never_admit_too_many() {
        let budget = with_originals(1000);
        let policy = policy(0.3, 10, 0);
        let total: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(|| admitted(&budget, 0, &policy))).collect();
            workers.into_iter().map(|worker| worker.join().unwrap()).sum()
        });
        assert!(total <= 300, "{total}");
        assert_eq!(total + admitted(&budget, 0, &policy), 300);
    }
}
