//! Counts over a sliding window: a ring of buckets, exact under any number of threads, without a lock.
//!
//! A bucket leaves the window whole, so a window is short by at most one bucket. Knows nothing of what it counts.

use std::sync::atomic::{AtomicU64, Ordering};

/// A bucket is one word, its number above and its count below, so that both change together.
const COUNT_BITS: u32 = 32;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;

/// Events by bucket of time.
#[derive(Debug)]
pub(crate) struct SlidingCount {
    bucket_ms: u64,
    ring: Box<[AtomicU64]>,
}

impl SlidingCount {
    /// Remembers `window_ms`, in buckets of `bucket_ms`.
    pub(crate) fn new(window_ms: u64, bucket_ms: u64) -> Self {
        Self { bucket_ms, ring: (0..window_ms / bucket_ms).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Adds `n` events. A bucket holds four billion, more than any machine counts in the time of one.
    pub(crate) fn add(&self, n: u32, now_ms: u64) {
        let number = self.number(now_ms);
        let slot = &self.ring[self.slot(number)];
        let mut word = slot.load(Ordering::Relaxed);
        while word >> COUNT_BITS != number {
            // A bucket of an earlier round: whoever comes first starts it anew.
            let fresh = number << COUNT_BITS | u64::from(n);
            match slot.compare_exchange_weak(word, fresh, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return,
                Err(changed) => word = changed,
            }
        }
        slot.fetch_add(u64::from(n), Ordering::Relaxed);
    }

    /// Takes back one event that was added with the same `now_ms`.
    pub(super) fn take_back(&self, now_ms: u64) {
        let number = self.number(now_ms);
        self.ring[self.slot(number)].fetch_sub(1, Ordering::Relaxed);
    }

    /// The count of each bucket of the window that ends now, the newest first.
    pub(super) fn counts(&self, now_ms: u64, window_ms: u64) -> impl Iterator<Item = u64> {
        let newest = self.number(now_ms);
        let buckets = (window_ms / self.bucket_ms).min(self.ring.len() as u64).min(newest + 1);
        let (before, after) = self.ring.split_at(self.slot(newest) + 1);
        let newest_first = before.iter().rev().chain(after.iter().rev());
        (0..buckets).zip(newest_first).map(move |(age, slot)| {
            let word = slot.load(Ordering::Relaxed);
            if word >> COUNT_BITS == newest - age { word & COUNT_MASK } else { 0 }
        })
    }

    pub(crate) fn sum(&self, now_ms: u64, window_ms: u64) -> u64 {
        self.counts(now_ms, window_ms).sum()
    }

    fn number(&self, now_ms: u64) -> u64 {
        (now_ms / self.bucket_ms) & COUNT_MASK
    }

    #[expect(clippy::cast_possible_truncation, reason = "below the length of the ring")]
    fn slot(&self, number: u64) -> usize {
        (number % self.ring.len() as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_leave_with_their_bucket() {
        let count = SlidingCount::new(1000, 100);
        count.add(3, 50);
        count.add(4, 150);
        assert_eq!(count.counts(150, 1000).collect::<Vec<_>>(), [4, 3]);
        assert_eq!(count.sum(999, 1000), 7);
        assert_eq!(count.sum(1000, 1000), 4, "bucket 0 is 1000 ms old");
        assert_eq!(count.sum(1099, 1000), 4);
        assert_eq!(count.sum(1100, 1000), 0);
    }

    #[test]
    fn any_window_up_to_the_whole_ring_can_be_asked_for() {
        let count = SlidingCount::new(1000, 100);
        for bucket in 0..25 {
            count.add(1, bucket * 100);
        }
        for (window_ms, expected) in [(100, 1), (300, 3), (1000, 10), (9000, 10)] {
            assert_eq!(count.sum(2400, window_ms), expected, "{window_ms}");
        }
    }

    #[test]
    fn a_slot_that_comes_round_starts_anew() {
        let count = SlidingCount::new(1000, 100);
        count.add(5, 0);
        count.add(1, 1000);
        count.add(1, 1000);
        count.take_back(1000);
        assert_eq!(count.sum(1000, 1000), 1);
    }

    #[test]
    fn threads_lose_nothing_also_where_a_bucket_turns() {
        let count = SlidingCount::new(100_000, 100);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..50_000).for_each(|ms| count.add(1, ms)));
            }
        });
        assert_eq!(count.sum(49_999, 100_000), 200_000);
    }
}
