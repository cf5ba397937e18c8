//! What this instance knows of an account of TigerBeetle without asking: written by the tasks of this ledger only.
//!
//! Others take from the same accounts, so all of it may be old. Knows no session and no clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::ledger::Account;
use crate::limit::id::digest_id;

/// "Not known" in the numbers below.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
pub struct Known {
    /// The capacity that the account was last seen to hold.
    funded: AtomicU64,
    /// What was free when the background reader last looked, less what was taken here since.
    sample: AtomicU64,
    sampled_at_ms: AtomicU64,
    /// The background reader is about to look.
    sampling: AtomicBool,
    /// When a transfer was last refused for lack of room.
    refused_at_ms: AtomicU64,
    /// The debt account is known to exist.
    has_debt_account: AtomicBool,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            funded: AtomicU64::new(UNKNOWN),
            sample: AtomicU64::new(UNKNOWN),
            sampled_at_ms: AtomicU64::new(0),
            sampling: AtomicBool::new(false),
            refused_at_ms: AtomicU64::new(0),
            has_debt_account: AtomicBool::new(false),
        }
    }
}

impl Account {
    /// The capacity that TigerBeetle was last seen to hold, for tests.
    pub fn funded(&self) -> Option<u64> {
        self.known.funded()
    }

    /// What its debt account is called: SHA-256 of `acct:debt:<key>`.
    pub(super) fn debt_id(&self) -> u128 {
        digest_id(&["acct:debt:", self.key.as_str()])
    }
}

impl Known {
    pub(super) fn funded(&self) -> Option<u64> {
        known(self.funded.load(Ordering::Acquire))
    }

    pub(super) fn set_funded(&self, capacity: Option<u64>) {
        self.funded.store(capacity.unwrap_or(UNKNOWN), Ordering::Release);
    }

    /// What is free of `capacity`, as far as is known. What was held when a sample was taken is back once it is as old
    /// as the holds get.
    pub(super) fn sample(&self, capacity: u64, lifetime_ms: u64, now_ms: u64) -> Option<u64> {
        let age_ms = now_ms.saturating_sub(self.sampled_at_ms.load(Ordering::Relaxed));
        let sample = known(self.sample.load(Ordering::Relaxed))?;
        Some(if age_ms >= lifetime_ms { capacity } else { sample.min(capacity) })
    }

    pub(super) fn set_sample(&self, available: u64, now_ms: u64) {
        self.sampled_at_ms.store(now_ms, Ordering::Relaxed);
        self.sample.store(available, Ordering::Relaxed);
    }

    /// What was just taken here is not free any more.
    pub(super) fn spend_sample(&self, amount: u64) {
        let less = |sample| known(sample).map(|sample| sample.saturating_sub(amount));
        // Without a sample there is nothing to spend.
        let _ = self.sample.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// False if somebody has asked for a look already.
    pub(super) fn start_sampling(&self) -> bool {
        !self.sampling.load(Ordering::Relaxed) && !self.sampling.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_sampling(&self) {
        self.sampling.store(false, Ordering::Relaxed);
    }

    pub(super) fn set_refused(&self, now_ms: u64) {
        self.refused_at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether it was full less than `ms` ago.
    pub(super) fn refused_within(&self, ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.refused_at_ms.load(Ordering::Relaxed)) < ms
    }

    pub(super) fn has_debt_account(&self) -> bool {
        self.has_debt_account.load(Ordering::Acquire)
    }

    pub(super) fn set_has_debt_account(&self, known: bool) {
        self.has_debt_account.store(known, Ordering::Release);
    }
}

fn known(value: u64) -> Option<u64> {
    (value != UNKNOWN).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unknown_until_they_are_set() {
        let known = Known::default();
        assert_eq!((known.funded(), known.sample(9, 1000, 5)), (None, None));
        known.spend_sample(1);
        assert_eq!(known.sample(9, 1000, 5), None);
        known.set_funded(Some(0));
        known.set_sample(7, 5);
        assert_eq!((known.funded(), known.sample(9, 1000, 5)), (Some(0), Some(7)));
        known.set_funded(None);
        assert_eq!(known.funded(), None);
    }

    #[test]
    fn a_sample_is_spent_here_and_outlived_by_what_it_saw() {
        let known = Known::default();
        known.set_sample(7, 5_000);
        known.spend_sample(3);
        assert_eq!(known.sample(9, 1000, 5_999), Some(4));
        known.spend_sample(30);
        assert_eq!(known.sample(9, 1000, 5_999), Some(0));
        assert_eq!(known.sample(9, 1000, 6_000), Some(9), "all that was held then is back");
        known.set_sample(50, 7_000);
        assert_eq!(known.sample(9, 1000, 7_000), Some(9), "never more than the capacity");
    }
}
