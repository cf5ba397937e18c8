//! What was decided about one limit since somebody last looked. Kept beside its account.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::telemetry::Reason;

/// Counts of one limit. Threads add to it; one takes all of it.
///
/// Everything is `SeqCst`, so that nothing is left behind: who adds and then sees that the limit is listed adds before the one
/// who takes, because that one unlists it first and takes the counts afterwards.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    admitted: AtomicU32,
    denied: AtomicU32,
    used: AtomicU64,
    last_denied_ms: AtomicU64,
    /// Reason in the lowest bits, the hint above.
    last_denial: AtomicU64,
    is_listed: AtomicBool,
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) used: u64,
}

/// What a limit said when it last denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LastDenial {
    pub(crate) at_ms: u64,
    pub(crate) reason: Reason,
    pub(crate) retry_after_ms: Option<u64>,
}

const REASON_BITS: u32 = 8;
/// No hint.
const NEVER: u64 = u64::MAX >> REASON_BITS;

impl Tally {
    /// Whether the limit has to be listed now.
    pub(super) fn admit(&self, amount: u64) -> bool {
        self.admitted.fetch_add(1, Ordering::SeqCst);
        self.used.fetch_add(amount, Ordering::SeqCst);
        self.must_be_listed()
    }

    /// The same.
    pub(super) fn deny(&self, last: LastDenial) -> bool {
        let hint = last.retry_after_ms.map_or(NEVER, |ms| ms.min(NEVER - 1));
        self.last_denied_ms.store(last.at_ms, Ordering::Relaxed);
        self.last_denial.store((hint << REASON_BITS) | last.reason as u64, Ordering::Relaxed);
        self.denied.fetch_add(1, Ordering::SeqCst);
        self.must_be_listed()
    }

    fn must_be_listed(&self) -> bool {
        !self.is_listed.load(Ordering::SeqCst) && !self.is_listed.swap(true, Ordering::SeqCst)
    }

    /// All that was counted. Call for a limit that is listed, which it is not any more then.
    pub(super) fn take(&self) -> Counts {
        self.is_listed.store(false, Ordering::SeqCst);
        Counts {
            admitted: u64::from(self.admitted.swap(0, Ordering::SeqCst)),
            denied: u64::from(self.denied.swap(0, Ordering::SeqCst)),
            used: self.used.swap(0, Ordering::SeqCst),
        }
    }

    pub(super) fn last_denial(&self) -> LastDenial {
        let word = self.last_denial.load(Ordering::Relaxed);
        let hint = word >> REASON_BITS;
        let place = usize::try_from(word & ((1 << REASON_BITS) - 1)).unwrap_or(0);
        LastDenial {
            at_ms: self.last_denied_ms.load(Ordering::Relaxed),
            reason: Reason::ALL.get(place).copied().unwrap_or(Reason::OverLimit),
            retry_after_ms: (hint != NEVER).then_some(hint),
        }
    }
}
