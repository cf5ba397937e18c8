//! What this instance knows of the debt of an account without asking. Knows no session and no clock.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Nobody has looked yet.
const UNKNOWN: u64 = u64::MAX;

/// What was read is believed for so long: others know of a debt within a second.
#[cfg(feature = "tigerbeetle")]
const BELIEVED_MS: u64 = 1_000;

#[derive(Debug)]
pub(super) struct Owing {
    owed: AtomicU64,
    /// When it was last changed here.
    changed_at_ms: AtomicU64,
    /// When it was last looked at, or somebody began to.
    looked_at_ms: AtomicU64,
    /// The life of what is reserved to pay; 0 for a limit that doesn't repay.
    window_seconds: AtomicU32,
}

impl Default for Owing {
    fn default() -> Self {
        Self {
            owed: AtomicU64::new(UNKNOWN),
            changed_at_ms: AtomicU64::new(0),
            looked_at_ms: AtomicU64::new(0),
            window_seconds: AtomicU32::new(0),
        }
    }
}

impl Owing {
    /// What a limit that repays owes; `None` if nobody has looked, or if it doesn't repay.
    pub(super) fn owed(&self) -> Option<u64> {
        let owed = self.owed.load(Ordering::Acquire);
        (owed != UNKNOWN).then_some(owed)
    }

    /// How long what pays is reserved; `None` for a limit that doesn't repay.
    pub(super) fn window_seconds(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.window_seconds.load(Ordering::Acquire))
    }

    /// What the limit is like now. This runs for every reserve, so it mostly only reads.
    pub(super) fn meet(&self, window_seconds: Option<NonZeroU32>) {
        if self.window_seconds() == window_seconds {
            return;
        }
        self.window_seconds.store(window_seconds.map_or(0, NonZeroU32::get), Ordering::Release);
        if window_seconds.is_none() {
            self.forget();
        }
    }

    /// More is owed from now on.
    pub(super) fn add(&self, amount: u64, now_ms: u64) {
        self.changed_at_ms.store(now_ms, Ordering::Relaxed);
        let more = |owed: u64| Some(if owed == UNKNOWN { amount } else { owed.saturating_add(amount) });
        // It always has a new value.
        let _ = self.owed.fetch_update(Ordering::AcqRel, Ordering::Acquire, |owed| {
            more(owed).map(|owed| owed.min(UNKNOWN - 1))
        });
    }

    /// What was read after `asked_at_ms`. It is not believed if the debt has been changed here since.
    pub(super) fn read(&self, owed: u64, asked_at_ms: u64) {
        self.looked_at_ms.fetch_max(asked_at_ms, Ordering::Relaxed);
        if self.changed_at_ms.load(Ordering::Relaxed) < asked_at_ms {
            self.owed.store(owed.min(UNKNOWN - 1), Ordering::Release);
        }
    }

    /// Whether what is known is too old to be believed. True for one caller only, who then has to look.
    #[cfg(feature = "tigerbeetle")]
    pub(super) fn is_to_be_looked_at(&self, now_ms: u64) -> bool {
        let old = |at_ms: u64| (now_ms >= at_ms.saturating_add(BELIEVED_MS)).then_some(now_ms);
        self.looked_at_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, old).is_ok()
    }

    #[cfg_attr(
        not(feature = "tigerbeetle"),
        allow(dead_code, reason = "others pay for what is behind a hub")
    )]
    /// So much was paid. What is owed then: more may have been added meanwhile.
    pub(super) fn pay(&self, amount: u64, now_ms: u64) -> u64 {
        self.changed_at_ms.store(now_ms, Ordering::Relaxed);
        let less = |owed: u64| (owed != UNKNOWN).then(|| owed.saturating_sub(amount));
        let before = self.owed.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
        before.map_or(0, |owed| owed.saturating_sub(amount))
    }

    /// This instance has just made it so.
    pub(super) fn set(&self, owed: u64, now_ms: u64) {
        self.changed_at_ms.store(now_ms, Ordering::Relaxed);
        self.owed.store(owed.min(UNKNOWN - 1), Ordering::Release);
    }

    pub(super) fn forget(&self) {
        self.owed.store(UNKNOWN, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_is_believed_unless_it_was_changed_since() {
        let owing = Owing::default();
        assert_eq!(owing.owed(), None);
        owing.read(0, 10);
        assert_eq!(owing.owed(), Some(0));
        owing.add(5, 20);
        owing.read(0, 15);
        assert_eq!(owing.owed(), Some(5));
        owing.read(3, 21);
        assert_eq!(owing.owed(), Some(3));
        assert_eq!((owing.pay(2, 25), owing.owed()), (1, Some(1)));
        owing.add(7, 26);
        assert_eq!((owing.pay(1, 27), owing.owed()), (7, Some(7)), "what was added meanwhile is still owed");
        owing.add(u64::MAX, 30);
        assert_eq!(owing.owed(), Some(u64::MAX - 1));
    }

    #[cfg(feature = "tigerbeetle")]
    #[test]
    fn what_was_read_is_believed_for_a_second_and_then_one_looks() {
        let owing = Owing::default();
        assert!(owing.is_to_be_looked_at(5_000), "nobody has looked");
        assert!(!owing.is_to_be_looked_at(5_001), "somebody does");
        owing.read(0, 5_500);
        assert!(!owing.is_to_be_looked_at(6_499));
        assert!(owing.is_to_be_looked_at(6_500) && !owing.is_to_be_looked_at(6_500));
    }

    #[test]
    fn a_limit_that_repays_no_more_owes_nothing_that_matters() {
        let owing = Owing::default();
        owing.meet(NonZeroU32::new(60));
        owing.add(5, 1);
        owing.meet(NonZeroU32::new(61));
        assert_eq!((owing.owed(), owing.window_seconds()), (Some(5), NonZeroU32::new(61)));
        owing.meet(None);
        assert_eq!((owing.owed(), owing.window_seconds()), (None, None));
    }
}
