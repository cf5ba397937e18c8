//! What the hints of one limit depend on: how often in a row it has said no, how long it is held, and what callers were told.
//!
//! All of it is kept beside the limit's account and nowhere else. So it costs nothing to find, and is forgotten with the account.
//! Nothing is persisted: a lost streak only makes a hint shorter. Knows neither balances nor clocks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use super::promises::Promises;

/// The streak takes the highest bits, and when it last changed the others: 34 years of milliseconds.
const SEEN_BITS: u32 = 40;
const STREAK_MAX: u64 = u64::MAX >> SEEN_BITS;

/// How many holds a mean is of, at most; their number takes the lowest bits beside it.
const HOLDS_COUNTED_MAX: u64 = 32;
const HOLDS_BITS: u32 = 8;

/// What one limit remembers of denials and holds.
#[derive(Debug, Default)]
pub struct Hints {
    /// Denials in a row and when the last one was, in one word so that threads lose none; 0 without a streak.
    streak: AtomicU64,
    /// How long holders of a concurrency limit were seen to hold it, on average, and in the lowest bits how many were;
    /// 0 if nobody was.
    hold: AtomicU64,
    /// What callers were told; nothing unless hints are informed. A plain mutex: sections are short and only ask the ledger
    /// for what it knows without waiting.
    promises: Mutex<Option<Box<Promises>>>,
    /// There are some, read without the lock.
    has_promises: AtomicBool,
}

impl Hints {
    /// Counts a denial; returns the streak with this one. A streak is forgotten when it was quiet for `quiet_ms`.
    pub(super) fn deny(&self, now_ms: u64, quiet_ms: u64) -> u32 {
        let mut new = 0;
        let more = |word| {
            new = (streak_at(word, now_ms, quiet_ms) + 1).min(STREAK_MAX);
            Some(packed(new, now_ms))
        };
        // The closure always returns a value, so this can't fail.
        let _ = self.streak.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        u32::try_from(new).unwrap_or(u32::MAX)
    }

    /// Halves the streak. This runs for every limit of every admitted request, so without a streak it only reads, and
    /// only with one it asks for the quiet time.
    pub(super) fn allow(&self, now_ms: u64, quiet_ms: impl FnOnce() -> u64) {
        if self.streak.load(Ordering::Relaxed) == 0 {
            return;
        }
        let quiet_ms = quiet_ms();
        let half = |word| Some(packed(streak_at(word, now_ms, quiet_ms) / 2, now_ms));
        // As above.
        let _ = self.streak.fetch_update(Ordering::Relaxed, Ordering::Relaxed, half);
    }

    /// Whether anything is remembered of what callers were told.
    pub(super) fn has_promises(&self) -> bool {
        self.has_promises.load(Ordering::Relaxed)
    }

    /// Does something with what callers were told. Nothing is kept that is empty afterwards.
    pub(super) fn with_promises<T>(&self, act: impl FnOnce(&mut Promises) -> T) -> T {
        let mut there = self.promises.lock();
        let promises = there.get_or_insert_default();
        let answer = act(promises);
        let is_empty = promises.is_empty();
        if is_empty {
            *there = None;
        }
        self.has_promises.store(!is_empty, Ordering::Relaxed);
        answer
    }

    pub fn mean_hold_ms(&self) -> Option<u64> {
        let hold = self.hold.load(Ordering::Relaxed);
        (hold != 0).then_some(hold >> HOLDS_BITS)
    }

    /// Somebody gave the limit back after so long. The mean is that of the first holds, then of about the last 32, so
    /// that one odd holder doesn't change a promise.
    pub fn saw_hold(&self, ms: u64) {
        let ms = ms.clamp(1, u64::MAX >> (2 * HOLDS_BITS));
        let more = |old: u64| {
            let (mean, count) = (old >> HOLDS_BITS, old & ((1 << HOLDS_BITS) - 1));
            let count = (count + 1).min(HOLDS_COUNTED_MAX);
            Some((((mean * (count - 1) + ms) / count) << HOLDS_BITS) | count)
        };
        // As above.
        let _ = self.hold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }
}

fn packed(streak: u64, now_ms: u64) -> u64 {
    if streak == 0 { 0 } else { (streak << SEEN_BITS) | seen(now_ms) }
}

fn seen(now_ms: u64) -> u64 {
    now_ms & ((1 << SEEN_BITS) - 1)
}

fn streak_at(word: u64, now_ms: u64, quiet_ms: u64) -> u64 {
    let is_quiet = seen(now_ms).saturating_sub(seen(word)) >= quiet_ms;
    if is_quiet { 0 } else { word >> SEEN_BITS }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: u64 = 20_000;

    fn deny(hints: &Hints, now_ms: u64) -> u32 {
        hints.deny(now_ms, QUIET)
    }

    fn allow(hints: &Hints, now_ms: u64) {
        hints.allow(now_ms, || QUIET);
    }

    #[test]
    fn denials_count_up_and_an_allow_halves() {
        let hints = Hints::default();
        for expected in 1..=9 {
            assert_eq!(deny(&hints, 100), expected);
        }
        allow(&hints, 100); // 9 → 4
        assert_eq!(deny(&hints, 100), 5);
        for _ in 0..3 {
            allow(&hints, 100); // 5 → 2 → 1 → 0
        }
        assert_eq!(deny(&hints, 100), 1);
    }

    #[test]
    fn a_quiet_limit_is_forgotten_and_not_a_moment_earlier() {
        let hints = Hints::default();
        let thrice = |start| [0; 3].map(|_| deny(&hints, start));
        assert_eq!(thrice(0), [1, 2, 3]);
        assert_eq!(deny(&hints, QUIET - 1), 4);
        assert_eq!(deny(&hints, 2 * QUIET - 1), 1, "quiet since the last denial");
        // An allow is a sign of life as well: 4 → 2 just before the end of the quiet time.
        assert_eq!(thrice(3 * QUIET), [1, 2, 3]);
        deny(&hints, 3 * QUIET);
        allow(&hints, 4 * QUIET - 1);
        assert_eq!(deny(&hints, 5 * QUIET - 2), 3);
        // An allow after it finds nothing to halve.
        allow(&hints, 7 * QUIET);
        assert_eq!(deny(&hints, 7 * QUIET), 1);
    }

    #[test]
    fn a_streak_stops_growing_where_its_bits_end() {
        let hints = Hints { streak: AtomicU64::new(packed(STREAK_MAX - 1, 5)), ..Hints::default() };
        let max = u32::try_from(STREAK_MAX).unwrap();
        assert_eq!([deny(&hints, 5), deny(&hints, 5)], [max, max]);
    }

    #[test]
    fn a_clock_that_goes_back_a_little_forgets_nothing() {
        let hints = Hints::default();
        deny(&hints, 1_000);
        assert_eq!(deny(&hints, 990), 2);
    }

    #[test]
    fn threads_lose_no_denial() {
        let hints = Hints::default();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        deny(&hints, 0);
                    }
                });
            }
        });
        assert_eq!(deny(&hints, 0), 40_001);
    }

    #[test]
    fn the_mean_hold_is_of_the_last_ones() {
        let hints = Hints::default();
        assert_eq!(hints.mean_hold_ms(), None);
        hints.saw_hold(100);
        hints.saw_hold(300);
        assert_eq!(hints.mean_hold_ms(), Some(200));
        (0..1_000).for_each(|_| hints.saw_hold(5_000));
        assert!(hints.mean_hold_ms().is_some_and(|ms| ms > 4_900), "{:?}", hints.mean_hold_ms());
    }
}
