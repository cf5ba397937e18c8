//! How long a refused request should wait, from the kind of the limit and its streak of denials.
//!
//! Two formulas and nothing else: no clock, no table, no balance. The ledger is not read on this path, so a
//! hint is a guess that grows while denials go on.

use crate::limit::Kind;

use super::policy::{ConcurrencyHint, RetryPolicy, RollingHint};

/// The wait for one failed requirement; `rand(n)` is a number in `0..=n`.
pub(super) fn hint_ms(kind: Kind, streak: u32, policy: &RetryPolicy, rand: impl FnOnce(u64) -> u64) -> u64 {
    match kind {
        Kind::Concurrency { timeout_seconds } => {
            let ConcurrencyHint { base_ms, max_ms, factor, jitter_ms } = policy.concurrency;
            let cap_ms = max_ms.min(u64::from(timeout_seconds.get()) * 1000);
            clamp(grown(base_ms, factor, streak), base_ms, cap_ms) + rand(jitter_ms)
        }
        Kind::Rolling { window_seconds } => {
            let RollingHint { base_ms, max_ms, factor, jitter_ms, window_fraction, .. } = policy.rolling;
            let window_ms = f64::from(window_seconds.get()) * 1000.0;
            let base_ms = base_ms.max(whole(window_ms * window_fraction));
            clamp(grown(base_ms, factor, streak), base_ms, max_ms) + rand(jitter_ms)
        }
    }
}

/// A streak is forgotten when its limit was quiet for this long.
pub(super) fn quiet_ms(kind: Kind, policy: &RetryPolicy) -> u64 {
    10 * if kind.is_concurrency() { policy.concurrency.max_ms } else { policy.rolling.max_ms }
}

fn grown(base_ms: u64, factor: f64, streak: u32) -> u64 {
    whole(base_ms as f64 * factor.powf(f64::from(streak)))
}

/// If the lower bound is above the upper one, the upper one wins: `max_ms` is a promise, and the base only where the formula starts.
fn clamp(ms: u64, low: u64, high: u64) -> u64 {
    ms.max(low).min(high)
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, which is what a clamp wants")]
fn whole(ms: f64) -> u64 {
    ms as u64
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn rolling(window_seconds: u32) -> Kind {
        Kind::Rolling { window_seconds: NonZeroU32::new(window_seconds).unwrap() }
    }

    fn concurrency(timeout_seconds: u32) -> Kind {
        Kind::Concurrency { timeout_seconds: NonZeroU32::new(timeout_seconds).unwrap() }
    }

    /// Without jitter.
    fn bare(kind: Kind, streak: u32, policy: &RetryPolicy) -> u64 {
        hint_ms(kind, streak, policy, |_| 0)
    }

    #[test]
    fn concurrency_by_hand() {
        let policy = RetryPolicy::default(); // 50 × 2^streak, 50 to min(2000, timeout)
        let rows = [
            (300, 0, 50),
            (300, 1, 100),
            (300, 2, 200),
            (300, 3, 400),
            (300, 4, 800),
            (300, 5, 1600),
            (300, 6, 2000), // 3200
            (300, 60, 2000),
            (300, u32::MAX, 2000),
            (1, 4, 800),
            (1, 5, 1000), // 1600, but every hold is back after a second
            (u32::MAX, 6, 2000),
        ];
        for (timeout, streak, expected) in rows {
            assert_eq!(bare(concurrency(timeout), streak, &policy), expected, "{timeout} s, streak {streak}");
        }
    }

    #[test]
    fn rolling_by_hand() {
        let policy = RetryPolicy::default(); // max(100, a tenth of the window) × 1.5^streak, up to 5000
        let rows = [
            (1, 0, 100),
            (1, 1, 150),
            (1, 2, 225),
            (1, 3, 337),   // 337.5
            (1, 4, 506),   // 506.25
            (1, 9, 3844),  // 3844.3359375
            (1, 10, 5000), // 5766.50390625
            (10, 0, 1000),
            (10, 1, 1500),
            (10, 2, 2250),
            (10, 3, 3375),
            (10, 4, 5000), // 5062.5
            (50, 0, 5000),
            (60, 0, 5000), // a tenth is 6000: the upper bound wins
            (60, 1, 5000),
            (60, 60, 5000),
            (u32::MAX, u32::MAX, 5000),
        ];
        for (window, streak, expected) in rows {
            assert_eq!(bare(rolling(window), streak, &policy), expected, "{window} s, streak {streak}");
        }
    }

    #[test]
    fn a_factor_of_one_never_grows() {
        let mut policy = RetryPolicy::default();
        policy.concurrency.factor = 1.0;
        policy.rolling.factor = 1.0;
        for streak in [0, 1, 60, u32::MAX] {
            assert_eq!(bare(concurrency(300), streak, &policy), 50);
            assert_eq!(bare(rolling(10), streak, &policy), 1000);
        }
    }

    #[test]
    fn a_timeout_below_the_base_is_the_hint() {
        let mut policy = RetryPolicy::default();
        policy.concurrency.base_ms = 1500;
        assert_eq!(bare(concurrency(1), 1, &policy), 1000);
        assert_eq!(bare(concurrency(2), 0, &policy), 1500);
    }

    #[test]
    fn each_knob_by_hand() {
        type Row = (fn(&mut RetryPolicy), Kind, u32, u64);
        let rows: [Row; 7] = [
            (|p| p.concurrency.base_ms = 80, concurrency(300), 1, 160),
            (|p| p.concurrency.factor = 1.5, concurrency(300), 3, 168), // 168.75
            (|p| p.concurrency.max_ms = 300, concurrency(300), 3, 300), // 400
            (|p| p.rolling.base_ms = 400, rolling(1), 1, 600),
            (|p| p.rolling.window_fraction = 0.2, rolling(10), 1, 3000),
            (|p| p.rolling.window_fraction = 0.2, rolling(10), 2, 4500),
            (|p| p.rolling.window_fraction = 0.2, rolling(10), 3, 5000), // 6750
        ];
        for (change, kind, streak, expected) in rows {
            let mut policy = RetryPolicy::default();
            change(&mut policy);
            assert_eq!(bare(kind, streak, &policy), expected, "{policy:?} {kind:?} {streak}");
        }
    }

    #[test]
    fn jitter_is_added_after_the_clamp() {
        let policy = RetryPolicy::default();
        let most = |n| n;
        assert_eq!(hint_ms(concurrency(300), 1, &policy, most), 125);
        assert_eq!(hint_ms(concurrency(300), 60, &policy, most), 2025);
        assert_eq!(hint_ms(rolling(60), 1, &policy, most), 5050);
        assert_eq!(hint_ms(rolling(1), 1, &policy, |_| 7), 157);
    }

    #[test]
    fn no_policy_that_validates_overflows() {
        let mut policy = RetryPolicy::default();
        let day = super::super::policy::WAIT_MS_MAX;
        policy.rolling = RollingHint {
            base_ms: day,
            max_ms: day,
            factor: super::super::policy::FACTOR_MAX,
            jitter_ms: day,
            window_fraction: 1.0,
            ..policy.rolling
        };
        assert_eq!(policy.validate(), vec![]);
        assert_eq!(hint_ms(rolling(u32::MAX), u32::MAX, &policy, |n| n), 2 * day);
    }
}
