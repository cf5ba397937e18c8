//! What was decided about one limit since somebody last looked. Kept beside its account, so it is small.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::telemetry::Reason;

/// Counts of one limit. Threads add to it; one takes all of it.
///
/// All counters are `SeqCst`, so that no count is lost. A thread that adds and then sees that the limit is listed has added
/// before the counts are taken: the thread that takes them first removes the mark, and reads the other counts afterwards.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// With the highest bit, [`LISTED`], when the limit waits to be gathered.
    admitted: AtomicU32,
    denied: AtomicU32,
    used: AtomicU64,
    /// See [`LastDenial::packed`].
    last_denial: AtomicU64,
}

const LISTED: u32 = 1 << 31;

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

const REASON_BITS: u32 = 4;
const HINT_BITS: u32 = 28;
/// No hint. The longest is a little less: three days.
const NEVER: u64 = (1 << HINT_BITS) - 1;

impl LastDenial {
    /// The time in the highest 32 bits, which is enough for what is looked at within 49 days; then the hint, then the reason.
    fn packed(self) -> u64 {
        let hint = self.retry_after_ms.map_or(NEVER, |ms| ms.min(NEVER - 1));
        (self.at_ms << (REASON_BITS + HINT_BITS)) | (hint << REASON_BITS) | self.reason as u64
    }

    fn unpacked(word: u64, now_ms: u64) -> Self {
        let hint = (word >> REASON_BITS) & NEVER;
        let place = usize::try_from(word & ((1 << REASON_BITS) - 1)).unwrap_or(0);
        let low = word >> (REASON_BITS + HINT_BITS);
        let ago = (now_ms & u64::from(u32::MAX)).wrapping_sub(low) & u64::from(u32::MAX);
        LastDenial {
            at_ms: now_ms.saturating_sub(ago),
            reason: Reason::ALL.get(place).copied().unwrap_or(Reason::OverLimit),
            retry_after_ms: (hint != NEVER).then_some(hint),
        }
    }
}

impl Tally {
    /// Whether the limit has to be listed now.
    pub(super) fn admit(&self, amount: u64) -> bool {
        self.used.fetch_add(amount, Ordering::SeqCst);
        let before = self.admitted.fetch_add(1, Ordering::SeqCst);
        before & LISTED == 0 && self.list()
    }

    /// Whether the limit has to be listed now.
    pub(super) fn deny(&self, last: LastDenial) -> bool {
        self.last_denial.store(last.packed(), Ordering::Relaxed);
        self.denied.fetch_add(1, Ordering::SeqCst);
        self.admitted.load(Ordering::SeqCst) & LISTED == 0 && self.list()
    }

    /// Marks the limit as listed. True for one of the threads that try at the same time.
    fn list(&self) -> bool {
        self.admitted.fetch_or(LISTED, Ordering::SeqCst) & LISTED == 0
    }

    /// Takes all that was counted. To be called for a limit that is listed; it is not listed any more afterwards.
    pub(super) fn take(&self) -> Counts {
        Counts {
            admitted: u64::from(self.admitted.swap(0, Ordering::SeqCst) & !LISTED),
            denied: u64::from(self.denied.swap(0, Ordering::SeqCst)),
            used: self.used.swap(0, Ordering::SeqCst),
        }
    }

    pub(super) fn last_denial(&self, now_ms: u64) -> LastDenial {
        LastDenial::unpacked(self.last_denial.load(Ordering::Relaxed), now_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_remembered_in_one_word() {
        for (at_ms, retry_after_ms) in
            [(0, None), (5_000_000_000, Some(60_000)), (u64::from(u32::MAX), Some(0))]
        {
            for reason in Reason::ALL {
                let last = LastDenial { at_ms, reason, retry_after_ms };
                assert_eq!(LastDenial::unpacked(last.packed(), at_ms), last);
                assert_eq!(LastDenial::unpacked(last.packed(), at_ms + 86_400_000), last);
            }
        }
    }
}
