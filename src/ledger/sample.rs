//! What was free on an account of a remote ledger when it was last read, and whether it is to be read again. Knows no clock.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Nobody has looked yet.
const UNKNOWN: u64 = u64::MAX;

/// How old a sample may be that says that nothing is left.
const LOOK_MS: u64 = 4_000;

/// For how long nobody looks after an answer has told what is left: a bit longer than a slab lives, because the answer to the ask for the
/// next one tells it again.
const FRESH_MS: u64 = 1_100;

/// For how long after somebody wanted to know it is kept up to date.
const WATCH_MS: u64 = 60_000;

#[derive(Debug)]
pub(super) struct Sample {
    /// What was free then, less what was taken here since.
    available: AtomicU64,
    at_ms: AtomicU64,
    /// When the answer to a chain last had it in it.
    told_at_ms: AtomicU64,
    /// Somebody is about to look.
    sampling: AtomicBool,
}

impl Default for Sample {
    fn default() -> Self {
        Self {
            available: AtomicU64::new(UNKNOWN),
            at_ms: AtomicU64::new(0),
            told_at_ms: AtomicU64::new(0),
            sampling: AtomicBool::new(false),
        }
    }
}

impl Sample {
    /// What is free of `capacity`, as far as is known. When the sample is older than any reservation lives, all that was held then has
    /// come back.
    pub(super) fn available(&self, capacity: u64, lifetime_ms: u64, now_ms: u64) -> Option<u64> {
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Ordering::Relaxed));
        let available = Some(self.available.load(Ordering::Relaxed)).filter(|sample| *sample != UNKNOWN)?;
        Some(if age_ms >= lifetime_ms { capacity } else { available.min(capacity) })
    }

    pub(super) fn set(&self, available: u64, now_ms: u64) {
        self.at_ms.store(now_ms, Ordering::Relaxed);
        self.available.store(available, Ordering::Relaxed);
    }

    /// Whether nothing was left, not longer than `LOOK_MS` ago.
    pub(super) fn is_zero(&self, now_ms: u64) -> bool {
        let age_ms = now_ms.saturating_sub(self.at_ms.load(Ordering::Relaxed));
        age_ms <= LOOK_MS && self.available.load(Ordering::Relaxed) == 0
    }

    /// The answer to a chain that was done had it in it.
    pub(super) fn told(&self, available: u64, now_ms: u64) {
        self.set(available, now_ms);
        self.told_at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether it need not be read yet: an answer has told a moment ago that something is left. For short windows a moment is a quarter of
    /// one.
    pub(super) fn is_fresh(&self, lifetime_ms: u64, now_ms: u64) -> bool {
        let told_ms = self.told_at_ms.load(Ordering::Relaxed);
        let age_ms = now_ms.saturating_sub(told_ms);
        let is_left = self.available.load(Ordering::Relaxed) > 0;
        told_ms > 0 && age_ms <= FRESH_MS.min(lifetime_ms / 4) && is_left
    }

    /// What was just taken here is not free any more.
    pub(super) fn spend(&self, amount: u64) {
        let less = |sample: u64| (sample != UNKNOWN).then(|| sample.saturating_sub(amount));
        // Without a sample there is nothing to spend.
        let _ = self.available.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// False if somebody has asked for a look already.
    pub(super) fn start_sampling(&self) -> bool {
        !self.sampling.load(Ordering::Relaxed) && !self.sampling.swap(true, Ordering::Relaxed)
    }

    pub(super) fn end_sampling(&self) {
        self.sampling.store(false, Ordering::Relaxed);
    }
}

/// When somebody last wanted to know whether anything is left.
#[derive(Debug, Default)]
pub(super) struct Watched(AtomicU64);

impl Watched {
    pub(super) fn note(&self, now_ms: u64) {
        self.0.store(now_ms, Ordering::Relaxed);
    }

    /// Whether somebody wanted to know lately, and so may want to know again.
    pub(super) fn is_so(&self, now_ms: u64) -> bool {
        let noted_ms = self.0.load(Ordering::Relaxed);
        noted_ms > 0 && now_ms.saturating_sub(noted_ms) <= WATCH_MS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nothing_is_left_is_believed_for_some_seconds() {
        let (sample, watched) = (Sample::default(), Watched::default());
        watched.note(100_000);
        assert!(!sample.is_zero(100_000) && watched.is_so(160_000) && !watched.is_so(160_001));
        sample.set(0, 100_000);
        assert!(sample.is_zero(104_000) && !sample.is_zero(104_001));
        sample.set(1, 105_000);
        assert!(!sample.is_zero(105_000));
        sample.spend(1);
        assert!(sample.is_zero(105_000));
    }

    #[test]
    fn a_sample_is_fresh_for_a_moment_if_something_was_left() {
        let sample = Sample::default();
        assert!(!sample.is_fresh(60_000, 0), "nobody has looked yet");
        sample.set(5, 9_000);
        assert!(!sample.is_fresh(60_000, 9_000), "nobody was told");
        sample.told(5, 10_000);
        assert!(sample.is_fresh(60_000, 11_100) && !sample.is_fresh(60_000, 11_101));
        assert!(sample.is_fresh(1_000, 10_250) && !sample.is_fresh(1_000, 10_251), "a quarter of the window");
        sample.spend(5);
        assert!(!sample.is_fresh(60_000, 10_000), "nothing is left");
    }

    #[test]
    fn a_sample_is_spent_here_and_outlived_by_what_it_saw() {
        let sample = Sample::default();
        sample.spend(1);
        assert_eq!(sample.available(9, 1000, 5), None);
        sample.set(7, 5_000);
        sample.spend(3);
        assert_eq!(sample.available(9, 1000, 5_999), Some(4));
        sample.spend(30);
        assert_eq!(sample.available(9, 1000, 5_999), Some(0));
        assert_eq!(sample.available(9, 1000, 6_000), Some(9), "all that was held then is back");
        sample.set(50, 7_000);
        assert_eq!(sample.available(9, 1000, 7_000), Some(9), "never more than the capacity");
    }
}
