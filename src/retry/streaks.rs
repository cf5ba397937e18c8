//! How many times in a row each limit has said no.
//!
//! A fixed table, so a flood of keys can't grow it: when a set is full, the key that was quiet for longest
//! goes. Best effort by design: nothing is persisted, and a lost streak only makes a hint shorter. Knows
//! neither limits nor hints, only account ids and milliseconds.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

/// Keys that share a set. Eight tags of one byte fill the word that `allow` reads.
const WAYS: usize = 8;
/// 8,192 sets × 8 ways × 32 bytes = 2 MiB of entries, and 64 KiB of tags that stay in the second-level cache.
const SETS: usize = 8_192;
/// Streaks remembered at once.
pub const KEYS_MAX: usize = SETS * WAYS;

/// Denials in a row by account id.
pub struct Streaks {
    /// Account ids come from names that clients choose: a keyed hash keeps them from aiming at one set.
    hash: ahash::RandomState,
    /// One word per set, a byte per way, 0 for a free one. Written under the set's mutex, read without.
    tags: Box<[AtomicU64]>,
    /// A mutex held for a few compares; the tags keep all keys without a streak away from it.
    sets: Box<[Mutex<[Entry; WAYS]>]>,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    id: u128,
    seen_ms: u64,
    quiet_ms: u32,
    /// 0: this way is free.
    streak: u32,
}

impl Entry {
    fn is(&self, id: u128) -> bool {
        self.streak > 0 && self.id == id
    }

    fn streak_at(&self, now_ms: u64) -> u32 {
        let quiet = now_ms.saturating_sub(self.seen_ms) >= u64::from(self.quiet_ms);
        if quiet { 0 } else { self.streak }
    }
}

/// Where an id lives.
#[derive(Clone, Copy)]
struct Place {
    set: usize,
    tag: u8,
}

impl Streaks {
    pub fn new() -> Self {
        Self {
            hash: ahash::RandomState::new(),
            tags: (0..SETS).map(|_| AtomicU64::new(0)).collect(),
            sets: (0..SETS).map(|_| Mutex::default()).collect(),
        }
    }

    /// Counts a denial; returns the streak with this one. It is forgotten when `id` is quiet for `quiet_ms`.
    pub fn deny(&self, id: u128, now_ms: u64, quiet_ms: u64) -> u32 {
        let place = self.place(id);
        let mut set = self.sets[place.set].lock();
        let known = set.iter().position(|entry| entry.is(id));
        let way = known.unwrap_or_else(|| coldest(&set));
        let before = if known.is_some() { set[way].streak_at(now_ms) } else { 0 };
        let streak = before.saturating_add(1);
        let quiet_ms = u32::try_from(quiet_ms).unwrap_or(u32::MAX);
        set[way] = Entry { id, seen_ms: now_ms, quiet_ms, streak };
        self.set_tag(place.set, way, place.tag);
        streak
    }

    /// Halves the streak. Runs for every limit of every admitted request, so a key without one costs a hash
    /// and one load.
    pub fn allow(&self, id: u128, now_ms: u64) {
        let place = self.place(id);
        if !has_byte(self.tags[place.set].load(Ordering::Relaxed), place.tag) {
            return;
        }
        let mut set = self.sets[place.set].lock();
        let Some(way) = set.iter().position(|entry| entry.is(id)) else { return };
        let entry = &mut set[way];
        entry.streak = entry.streak_at(now_ms) / 2;
        entry.seen_ms = now_ms;
        if entry.streak == 0 {
            self.set_tag(place.set, way, 0);
        }
    }

    fn place(&self, id: u128) -> Place {
        let bytes = self.hash.hash_one(id).to_le_bytes();
        let set = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % SETS;
        Place { set, tag: bytes[7].max(1) }
    }

    /// Only under the mutex of `set`.
    fn set_tag(&self, set: usize, way: usize, tag: u8) {
        let mut bytes = self.tags[set].load(Ordering::Relaxed).to_le_bytes();
        bytes[way] = tag;
        self.tags[set].store(u64::from_le_bytes(bytes), Ordering::Relaxed);
    }
}

/// A free way, else the one that was quiet for longest.
fn coldest(set: &[Entry; WAYS]) -> usize {
    let age = |way: &usize| (set[*way].streak > 0, set[*way].seen_ms);
    (0..WAYS).min_by_key(age).expect("a set must have ways")
}

/// Whether any byte of `word` is `byte`: the bytes that are equal become 0, and only a 0 borrows.
fn has_byte(word: u64, byte: u8) -> bool {
    const ONES: u64 = u64::from_le_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_le_bytes([0x80; 8]);
    let zeros = word ^ (ONES * u64::from(byte));
    zeros.wrapping_sub(ONES) & !zeros & HIGHS != 0
}

impl Default for Streaks {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Streaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Streaks(at most {KEYS_MAX})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUIET: u64 = 20_000;

    #[test]
    fn denials_count_up_and_an_allow_halves() {
        let streaks = Streaks::new();
        for expected in 1..=9 {
            assert_eq!(streaks.deny(7, 100, QUIET), expected);
        }
        streaks.allow(7, 100); // 9 → 4
        assert_eq!(streaks.deny(7, 100, QUIET), 5);
        for _ in 0..3 {
            streaks.allow(7, 100); // 5 → 2 → 1 → 0
        }
        assert_eq!(streaks.deny(7, 100, QUIET), 1);
    }

    #[test]
    fn keys_do_not_share_a_streak() {
        let streaks = Streaks::new();
        for id in 0..1000 {
            assert_eq!(streaks.deny(id, 0, QUIET), 1, "{id}");
        }
        streaks.allow(5, 0);
        assert_eq!((streaks.deny(5, 0, QUIET), streaks.deny(6, 0, QUIET)), (1, 2));
    }

    #[test]
    fn a_quiet_key_is_forgotten_and_not_a_moment_earlier() {
        let streaks = Streaks::new();
        let thrice = |start| [0; 3].map(|_| streaks.deny(1, start, QUIET));
        assert_eq!(thrice(0), [1, 2, 3]);
        assert_eq!(streaks.deny(1, QUIET - 1, QUIET), 4);
        assert_eq!(streaks.deny(1, 2 * QUIET - 1, QUIET), 1, "quiet since the last denial");
        // An allow is a sign of life as well: 4 → 2 just before the end of the quiet time.
        assert_eq!(thrice(3 * QUIET), [1, 2, 3]);
        streaks.deny(1, 3 * QUIET, QUIET);
        streaks.allow(1, 4 * QUIET - 1);
        assert_eq!(streaks.deny(1, 5 * QUIET - 2, QUIET), 3);
        // An allow after it finds nothing to halve.
        streaks.allow(1, 7 * QUIET);
        assert_eq!(streaks.deny(1, 7 * QUIET, QUIET), 1);
    }

    #[test]
    fn a_full_set_drops_the_coldest_key() {
        let streaks = Streaks::new();
        let set = streaks.place(0).set;
        let ids: Vec<u128> = (0..).filter(|id| streaks.place(*id).set == set).take(WAYS + 1).collect();
        for (n, id) in ids[..WAYS].iter().enumerate() {
            streaks.deny(*id, 100 + n as u64, QUIET);
        }
        streaks.deny(ids[0], 200, QUIET); // the second is the coldest now
        streaks.deny(ids[WAYS], 201, QUIET);
        assert_eq!(streaks.deny(ids[0], 202, QUIET), 3);
        assert_eq!(streaks.deny(ids[2], 202, QUIET), 2);
        assert_eq!(streaks.deny(ids[WAYS], 202, QUIET), 2);
        assert_eq!(streaks.deny(ids[1], 202, QUIET), 1, "forgotten");
    }

    #[test]
    fn a_flood_of_keys_leaves_the_one_that_is_denied_all_the_time() {
        let streaks = Streaks::new();
        for n in 0..1_000_000u64 {
            streaks.deny(u128::from(n) + 1, n, QUIET);
            if n % 1000 == 0 {
                streaks.deny(0, n, QUIET);
            }
        }
        assert_eq!(streaks.deny(0, 1_000_000, QUIET), 1001);
    }

    #[test]
    fn threads_lose_no_denial() {
        let streaks = Streaks::new();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        streaks.deny(3, 0, QUIET);
                    }
                });
            }
        });
        assert_eq!(streaks.deny(3, 0, QUIET), 40_001);
    }

    #[test]
    fn a_byte_is_found_wherever_it_is() {
        let word = u64::from_le_bytes([1, 0, 0x80, 0xff, 0x7f, 2, 0, 0x81]);
        for byte in 0..=255u8 {
            assert_eq!(has_byte(word, byte), word.to_le_bytes().contains(&byte), "{byte}");
        }
    }

    #[test]
    fn an_entry_is_as_large_as_the_arithmetic_says() {
        assert_eq!((size_of::<Entry>(), KEYS_MAX), (32, 65_536));
    }
}
