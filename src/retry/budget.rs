//! The retry budget of one domain: how many retries are let in for the originals of the last seconds.
//!
//! Retries can turn a partial outage into a whole one. Counts originals and retries, and decides whether one more retry is admitted. Knows
//! neither ledger nor descriptors nor clock. The policy comes with each call, so a reload holds from
//! the next request on and no count is lost.
//!
//! One tenant can't spend all of it: a part is kept for those who have had little, see [`RetryBudget::admit_retry`].

use std::sync::atomic::{AtomicU64, Ordering};

use super::hints::Hints;
use super::policy::Budget;
use super::window::SlidingCount;
use crate::limit::LimitId;

/// A tenth of the shortest window. 10 × 10 s × 2 counts × 8 bytes = 1.6 KiB for the default window, 48 KiB for the longest.
const BUCKET_MS: u64 = 100;

/// Beyond the budget this much more of it is kept for tenants that have had less than their share.
const KEPT: f64 = 0.5;

/// A share is this part of the budget, and at least one retry a window. So ten tenants can have theirs.
const SHARE: f64 = 0.05;

/// Tenants whose retries are counted apart; those that meet in a slot share it. 256 × 8 bytes = 2 KiB.
const SLOTS: usize = 256;

/// Originals and admitted retries of one domain.
#[derive(Debug)]
pub struct RetryBudget {
    /// The longest that it can count.
    window_seconds: u64,
    originals: SlidingCount,
    retries: SlidingCount,
    tenants: Tenants,
    /// The budget is a limit too: it says no, and those who hear it wait longer each time.
    pub(super) hints: Hints,
}

/// What one domain counted over a window.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    pub originals: u64,
    pub retries: u64,
}

impl RetryBudget {
    /// One that counts over windows of up to `window_seconds`.
    pub fn new(window_seconds: u64) -> Self {
        Self::with_hash(window_seconds, ahash::RandomState::new())
    }

    /// With given keys for the hash of tenants, so that in a simulation the same tenants share slots each time.
    pub(crate) fn with_hash(window_seconds: u64, hash: ahash::RandomState) -> Self {
        let count = || SlidingCount::new(window_seconds * 1000, BUCKET_MS);
        let (originals, retries, tenants) = (count(), count(), Tenants::new(hash));
        Self { window_seconds, originals, retries, tenants, hints: Hints::default() }
    }

    /// Whether it counts for as long as this policy asks.
    pub(crate) fn is_long_enough(&self, policy: &Budget) -> bool {
        policy.window_seconds <= self.window_seconds
    }

    /// A request that is not a retry, whatever becomes of it.
    pub fn record_original(&self, now_ms: u64) {
        self.originals.add(1, now_ms);
    }

    /// Whether one more retry fits: retries ≤ max(ratio × originals, floor), counted over the window. Those
    /// that are refused don't count, else a flood of them would keep every retry out.
    ///
    /// When it is spent, a tenant that has had less than its share is still let in, until half of the budget has gone that
    /// way too. So whoever spends it all spends nobody else's share.
    pub fn admit_retry(&self, tenant: Option<LimitId>, now_ms: u64, policy: &Budget) -> bool {
        let window_ms = policy.window_seconds * 1000;
        // Counted first, and subtracted again if it is refused: threads that do this at once may admit too few for a moment, never too many.
        self.retries.add(1, now_ms);
        let own = tenant.map(|tenant| self.tenants.add(tenant, now_ms / window_ms));
        let retries = self.retries.sum(now_ms, window_ms);
        let floor = policy.min_retries_per_second * policy.window_seconds;
        let fits = retries <= floor || {
            let earned = earned(policy.ratio, self.originals.sum(now_ms, window_ms));
            retries as f64 <= earned || own.is_some_and(|own| is_kept(own, retries, earned.max(floor as f64)))
        };
        if !fits {
            self.retries.take_back(now_ms);
            tenant.inspect(|tenant| self.tenants.take_back(*tenant, now_ms / window_ms));
        }
        fits
    }

    /// What was counted over the window.
    pub(crate) fn counted(&self, now_ms: u64, policy: &Budget) -> Counted {
        let window_ms = policy.window_seconds * 1000;
        Counted {
            originals: self.originals.sum(now_ms, window_ms),
            retries: self.retries.sum(now_ms, window_ms),
        }
    }
}

impl Counted {
    /// Admitted retries per original.
    pub fn ratio(self) -> f64 {
        self.retries as f64 / self.originals.max(1) as f64
    }
}

impl std::iter::Sum for Counted {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, one| Self {
            originals: sum.originals + one.originals,
            retries: sum.retries + one.retries,
        })
    }
}

/// Whether the `own`th retry of a tenant is within the part that is kept for those who have had little.
fn is_kept(own: u64, retries: u64, budget: f64) -> bool {
    budget >= 1.0 && own as f64 <= (budget * SHARE).max(1.0) && retries as f64 <= budget * (1.0 + KEPT)
}

/// Admitted retries by tenant, in the window that is running and the one before it. Tenants are account ids, which come from names that
/// clients choose: a keyed hash keeps them from aiming at another's slot.
///
/// Both windows count as a whole. So whoever spends the budget just before a window ends has not got a share at its beginning, and a share
/// comes back after two windows at most.
#[derive(Debug)]
struct Tenants {
    hash: ahash::RandomState,
    /// A [`TenantCount`] each, packed so that all of it changes together.
    slots: Box<[AtomicU64]>,
}

impl Tenants {
    fn new(hash: ahash::RandomState) -> Self {
        Self { hash, slots: (0..SLOTS).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Counts a retry; how many there were with this one.
    fn add(&self, tenant: LimitId, window: u64) -> u64 {
        let more = |count: TenantCount| {
            let count = count.at(window);
            TenantCount { current: (count.current + 1).min(TenantCount::MAX), ..count }
        };
        let before = self.update(tenant, more);
        let after = more(before);
        after.previous + after.current
    }

    /// Subtracts one that was counted in this window.
    fn take_back(&self, tenant: LimitId, window: u64) {
        self.update(tenant, |count| match count.window.wrapping_sub(window) & TenantCount::WINDOWS {
            0 => TenantCount { current: count.current.saturating_sub(1), ..count },
            1 => TenantCount { previous: count.previous.saturating_sub(1), ..count },
            _ => count,
        });
    }

    /// Changes the count of a tenant; what it was before.
    fn update(&self, tenant: LimitId, change: impl Fn(TenantCount) -> TenantCount) -> TenantCount {
        let [low, ..] = self.hash.hash_one(tenant).to_le_bytes();
        let packed = |word| Some(change(TenantCount::unpacked(word)).packed());
        let before = self.slots[usize::from(low)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, packed);
        TenantCount::unpacked(before.unwrap_or_default())
    }
}

/// The retries of one tenant.
#[derive(Debug, Clone, Copy)]
struct TenantCount {
    /// The lower 24 bits of the number of the window.
    window: u64,
    /// Of the window before that.
    previous: u64,
    current: u64,
}

impl TenantCount {
    const WINDOWS: u64 = (1 << 24) - 1;
    /// More than a share is, whatever the budget: 20 bits.
    const MAX: u64 = (1 << 20) - 1;

    fn unpacked(word: u64) -> Self {
        Self { window: word >> 40, previous: (word >> 20) & Self::MAX, current: word & Self::MAX }
    }

    fn packed(self) -> u64 {
        (self.window << 40) | (self.previous << 20) | self.current
    }

    /// What still counts in this window.
    fn at(self, window: u64) -> Self {
        let window = window & Self::WINDOWS;
        match window.wrapping_sub(self.window) & Self::WINDOWS {
            // The last one is a thread that read its clock just before the window ended.
            0 | Self::WINDOWS => self,
            1 => Self { window, previous: self.current, current: 0 },
            _ => Self { window, previous: 0, current: 0 },
        }
    }
}

/// Whether the value of the entry that marks retries does so: a number of at least 1.
pub fn marks_retry(value: &str) -> bool {
    // By its digits, so that a number too large for any integer is still a retry.
    value.bytes().all(|byte| byte.is_ascii_digit()) && value.bytes().any(|byte| byte != b'0')
}

/// The retries that so many originals allow.
fn earned(ratio: f64, originals: u64) -> f64 {
    // 0.29 × 100 is 28.999999999999996 in binary; people mean 29.
    const ROUNDING: f64 = 1e-9;
    ratio * originals as f64 * (1.0 + ROUNDING)
}

#[cfg(test)]
mod tests {
    use super::super::policy::RetryPolicy;
    use super::*;

    fn policy(ratio: f64, window_seconds: u64, min_retries_per_second: u64) -> Budget {
        Budget { ratio, window_seconds, min_retries_per_second, ..RetryPolicy::default().budget }
    }

    fn with_originals(n: u64) -> RetryBudget {
        let budget = RetryBudget::new(300);
        (0..n).for_each(|_| budget.record_original(0));
        budget
    }

    fn admitted(budget: &RetryBudget, now_ms: u64, policy: &Budget) -> usize {
        (0..5000).filter(|_| budget.admit_retry(None, now_ms, policy)).count()
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
        assert_eq!(budget.counted(0, &policy).ratio(), 0.3);
    }

    #[test]
    fn the_ratio_is_zero_on_an_idle_server_and_finite_without_originals() {
        let budget = RetryBudget::new(300);
        let policy = policy(0.3, 10, 10);
        assert_eq!(budget.counted(0, &policy).ratio(), 0.0);
        budget.admit_retry(None, 0, &policy);
        assert_eq!(budget.counted(0, &policy).ratio(), 1.0);
    }

    #[test]
    fn a_changed_policy_holds_from_the_next_call_on_the_same_counts() {
        let budget = with_originals(100);
        assert_eq!(admitted(&budget, 5_000, &policy(0.3, 10, 0)), 30);
        assert_eq!(admitted(&budget, 5_000, &policy(0.5, 10, 0)), 20);
        assert_eq!(admitted(&budget, 20_000, &policy(0.5, 10, 0)), 0);
        assert_eq!(admitted(&budget, 20_000, &policy(0.6, 60, 0)), 10, "the longer window sees them again");
    }

    fn admitted_of(budget: &RetryBudget, tenant: u128, policy: &Budget) -> usize {
        (0..1000).filter(|_| budget.admit_retry(Some(LimitId::new(tenant)), 0, policy)).count()
    }

    #[test]
    fn one_tenant_alone_has_all_of_it() {
        for (originals, floor, expected) in [(0, 10, 100), (1000, 10, 300), (10, 0, 3), (0, 0, 0)] {
            let budget = with_originals(originals);
            assert_eq!(admitted_of(&budget, 1, &policy(0.3, 10, floor)), expected, "{originals} {floor}");
        }
    }

    #[test]
    fn who_spends_it_all_spends_nobody_elses_share() {
        let (budget, policy) = (with_originals(0), policy(0.3, 10, 10));
        assert_eq!(admitted_of(&budget, 1, &policy), 100);
        assert_eq!((admitted_of(&budget, 2, &policy), admitted_of(&budget, 3, &policy)), (5, 5));
        assert_eq!(admitted_of(&budget, 2, &policy), 0, "it had its share");
        // However many come, together they are let in for half of the budget more at most.
        let more: usize = (4..1000).map(|tenant| admitted_of(&budget, tenant, &policy)).sum();
        assert_eq!(more, 40);
        assert_eq!(budget.counted(0, &policy).retries, 150);
    }

    #[test]
    fn a_share_comes_back_after_two_windows() {
        let (budget, policy) = (with_originals(0), policy(0.0, 10, 1));
        let at = |tenant, now_ms| {
            (0..100).filter(|_| budget.admit_retry(Some(LimitId::new(tenant)), now_ms, &policy)).count()
        };
        assert_eq!([at(1, 0), at(2, 0), at(2, 0)], [10, 1, 0]);
        assert_eq!([at(1, 10_000), at(2, 10_000), at(3, 10_000)], [10, 0, 1], "2 had its share a window ago");
        assert_eq!([at(1, 20_000), at(2, 20_000)], [10, 1]);
    }

    #[test]
    fn one_tenant_alone_has_no_more_of_it_when_a_window_ends() {
        for (before_ms, after_ms) in [(9_900, 10_000), (0, 9_999), (5_000, 14_999), (19_999, 29_899)] {
            let (budget, policy) = (with_originals(0), policy(0.0, 10, 1));
            let at = |now_ms| {
                (0..100).filter(|_| budget.admit_retry(Some(LimitId::new(1)), now_ms, &policy)).count()
            };
            assert_eq!([at(before_ms), at(after_ms)], [10, 0], "{before_ms} {after_ms}");
        }
    }

    #[test]
    fn a_count_moves_with_its_window_and_what_is_refused_is_taken_from_where_it_was_counted() {
        let tenants = Tenants::new(ahash::RandomState::with_seeds(1, 2, 3, 4));
        let tenant = LimitId::new(1);
        assert_eq!([tenants.add(tenant, 7), tenants.add(tenant, 7), tenants.add(tenant, 8)], [1, 2, 3]);
        tenants.take_back(tenant, 7);
        assert_eq!(tenants.add(tenant, 7), 3, "a clock that was read before the window ended");
        tenants.take_back(tenant, 8);
        assert_eq!(tenants.add(tenant, 9), 2, "only that of window 8");
        tenants.take_back(tenant, 7);
        assert_eq!(tenants.add(tenant, 9), 3, "window 7 is over");
        assert_eq!(tenants.add(tenant, 12), 1);
        assert_eq!(tenants.add(tenant, 12 + (1 << 24)), 2, "windows are told apart by 24 bits");
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
