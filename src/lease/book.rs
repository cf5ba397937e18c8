//! The book: leases by their plain id, for those who did not keep the token, and for whoever looks.
//!
//! Bounded: when it is full, whatever ends first makes room, and can then be completed by its token only. A lease that was
//! completed stays for a while, so that a second completion changes nothing. Holds bytes and knows no limits.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use parking_lot::Mutex;

/// A lease weighs one place of the book per this many bytes, so that long keys can't fill memory.
const BYTES_PER_PLACE: usize = 256;

/// Leases end on multiples of this; never early.
const TICK_MS: u64 = 1000;

/// How long a completed lease stays once the book is half full: retries of a completion come within seconds.
const COMPLETED_MS: u64 = 60_000;

/// Leases dropped under one lock, so that callers get in between.
const ENDED_PER_LOCK: usize = 1000;

/// No place.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    Open,
    Completed,
}

/// A lease as the book has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub state: State,
    pub bytes: Box<[u8]>,
}

/// The book as the server shares it. A plain mutex: sections are under a microsecond and never wait.
#[derive(Debug)]
pub struct Book {
    inner: Mutex<Inner>,
    places_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    /// The first entry of each tick at which some end.
    ends: BTreeMap<u64, u32>,
    places: usize,
    hasher: ahash::RandomState,
}

#[derive(Debug)]
struct Entry {
    id: u128,
    bytes: Box<[u8]>,
    ends_ms: u64,
    /// Neighbours among the entries of the same tick.
    before: u32,
    after: u32,
    state: State,
}

impl Entry {
    fn places(&self) -> usize {
        1 + self.bytes.len() / BYTES_PER_PLACE
    }
}

impl Book {
    pub fn new(places_max: usize) -> Self {
        Self { inner: Mutex::default(), places_max }
    }

    /// Remembers an open lease until `ends_ms`. If there is one with this id, that one stays, and is returned.
    pub fn open(&self, id: u128, bytes: Box<[u8]>, ends_ms: u64) -> Option<Page> {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.find(id) {
            return Some(inner.page(at));
        }
        inner.insert(id, bytes, ends_ms, State::Open, self.places_max);
        None
    }

    pub fn find(&self, id: u128) -> Option<Page> {
        let inner = self.inner.lock();
        inner.find(id).map(|at| inner.page(at))
    }

    /// Remembers that a lease was completed; false if that was known. `bytes` are for one that was reserved elsewhere.
    pub fn complete(&self, id: u128, bytes: Box<[u8]>, ends_ms: u64, now_ms: u64) -> bool {
        let mut inner = self.inner.lock();
        let ends_ms = if inner.places > self.places_max / 2 {
            ends_ms.min(now_ms.saturating_add(COMPLETED_MS))
        } else {
            ends_ms
        };
        let bytes = match inner.find(id) {
            None => bytes,
            Some(at) if inner.entries[at as usize].state == State::Completed => return false,
            Some(at) => inner.remove(at).bytes,
        };
        inner.insert(id, bytes, ends_ms, State::Completed, self.places_max);
        true
    }

    /// Drops what has ended; how many leases ended without anybody completing them here.
    pub fn sweep(&self, now_ms: u64) -> usize {
        let mut unseen = 0;
        loop {
            let mut inner = self.inner.lock();
            for _ in 0..ENDED_PER_LOCK {
                match inner.ends.first_key_value() {
                    Some((&ends_ms, &at)) if ends_ms <= now_ms => {
                        unseen += usize::from(inner.remove(at).state == State::Open);
                    }
                    _ => return unseen,
                }
            }
        }
    }

    pub fn len(&self) -> usize {
        self.inner.lock().by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Inner {
    fn find(&self, id: u128) -> Option<u32> {
        self.by_id.find(self.hasher.hash_one(id), |&at| self.entries[at as usize].id == id).copied()
    }

    fn page(&self, at: u32) -> Page {
        let entry = &self.entries[at as usize];
        Page { state: entry.state, bytes: entry.bytes.clone() }
    }

    fn insert(&mut self, id: u128, bytes: Box<[u8]>, ends_ms: u64, state: State, places_max: usize) {
        let ends_ms = ends_ms.checked_next_multiple_of(TICK_MS).unwrap_or(u64::MAX);
        let entry = Entry { id, bytes, ends_ms, before: NONE, after: NONE, state };
        let places = entry.places();
        if places > places_max {
            return;
        }
        while self.places + places > places_max {
            let Some((_, &first)) = self.ends.first_key_value() else { break };
            self.remove(first);
        }
        self.places += places;
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                u32::try_from(self.entries.len() - 1).expect("the book's maximum must fit in 32 bits")
            }
        };
        let (entries, hasher) = (&self.entries, &self.hasher);
        self.by_id.insert_unique(hasher.hash_one(id), at, |&at| hasher.hash_one(entries[at as usize].id));
        let after = self.ends.insert(ends_ms, at).unwrap_or(NONE);
        self.entries[at as usize].after = after;
        if after != NONE {
            self.entries[after as usize].before = at;
        }
    }

    fn remove(&mut self, at: u32) -> Entry {
        let gone =
            Entry { id: 0, bytes: Box::default(), ends_ms: 0, before: NONE, after: NONE, state: State::Open };
        let entry = std::mem::replace(&mut self.entries[at as usize], gone);
        let hash = self.hasher.hash_one(entry.id);
        if let Ok(there) = self.by_id.find_entry(hash, |&other| other == at) {
            there.remove();
        }
        if entry.after != NONE {
            self.entries[entry.after as usize].before = entry.before;
        }
        match (entry.before, entry.after) {
            (NONE, NONE) => drop(self.ends.remove(&entry.ends_ms)),
            (NONE, after) => drop(self.ends.insert(entry.ends_ms, after)),
            (before, after) => self.entries[before as usize].after = after,
        }
        self.places -= entry.places();
        self.free.push(at);
        entry
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(length: usize) -> Box<[u8]> {
        vec![7; length].into_boxed_slice()
    }

    fn open(book: &Book, id: u128, ends_ms: u64) -> Option<State> {
        book.open(id, bytes(9), ends_ms).map(|page| page.state)
    }

    #[test]
    fn a_lease_is_found_until_it_ends() {
        let book = Book::new(10);
        assert_eq!(open(&book, 1, 5_000), None);
        assert_eq!(book.find(1), Some(Page { state: State::Open, bytes: bytes(9) }));
        assert_eq!(book.find(2), None);
        assert_eq!(book.sweep(4_999), 0);
        assert_eq!(book.sweep(5_000), 1);
        assert_eq!((book.find(1), book.len()), (None, 0));
    }

    #[test]
    fn the_first_of_a_name_stays() {
        let book = Book::new(10);
        assert_eq!(open(&book, 1, 5_000), None);
        assert_eq!(book.open(1, bytes(3), 9_000).unwrap().bytes.len(), 9);
        assert!(book.complete(1, bytes(9), 5_000, 0));
        assert_eq!(open(&book, 1, 5_000), Some(State::Completed));
        assert_eq!(book.len(), 1);
    }

    #[test]
    fn a_completed_lease_is_completed_once_and_never_counts_as_unseen() {
        let book = Book::new(10);
        open(&book, 1, 5_000);
        assert!(book.complete(1, bytes(9), 5_000, 0));
        assert!(!book.complete(1, bytes(9), 5_000, 0));
        assert!(book.complete(2, bytes(9), 5_000, 0), "one that was reserved elsewhere");
        assert_eq!(book.find(2).unwrap().state, State::Completed);
        assert_eq!((book.sweep(9_000), book.len()), (0, 0));
    }

    #[test]
    fn what_ends_first_makes_room() {
        let book = Book::new(3);
        for (id, ends_ms) in [(1, 30_000), (2, 10_000), (3, 20_000), (4, 40_000)] {
            open(&book, id, ends_ms);
        }
        let there = |id| book.find(id).is_some();
        assert_eq!([there(1), there(2), there(3), there(4)], [true, false, true, true]);
    }

    #[test]
    fn once_half_full_completed_leases_go_after_a_minute() {
        let book = Book::new(4);
        for id in 1..=3 {
            open(&book, id, 3_600_000);
        }
        book.complete(1, bytes(9), 3_600_000, 1_000);
        assert_eq!(book.sweep(61_000), 0);
        assert_eq!((book.find(1), book.len()), (None, 2));
    }

    #[test]
    fn long_leases_weigh_more() {
        let book = Book::new(4);
        open(&book, 1, 1_000);
        open(&book, 2, 2_000);
        assert!(book.open(3, bytes(2 * BYTES_PER_PLACE), 3_000).is_none());
        assert_eq!((book.find(1), book.len()), (None, 2));
        assert!(book.open(4, bytes(4 * BYTES_PER_PLACE), 9_000).is_none());
        assert_eq!((book.find(4), book.len()), (None, 2), "it would never fit");
    }

    proptest! {
        /// Whatever happens in whatever order, the book agrees with a plain list.
        #[test]
        fn agrees_with_a_list(
            steps in prop::collection::vec((0..4u8, 1..12u128, 1..20u64), 0..200),
        ) {
            let book = Book::new(1_000);
            let mut list: BTreeMap<u128, (State, u64)> = BTreeMap::new();
            let mut now_ms = 0;
            for (what, id, seconds) in steps {
                let ends_ms = now_ms + seconds * 1000;
                match what {
                    0 => {
                        let there = list.get(&id).map(|(state, _)| *state);
                        prop_assert_eq!(open(&book, id, ends_ms), there);
                        list.entry(id).or_insert((State::Open, ends_ms));
                    }
                    1 => {
                        let known = list.get(&id).is_some_and(|(state, _)| *state == State::Completed);
                        prop_assert_eq!(book.complete(id, bytes(9), ends_ms, now_ms), !known);
                        if !known {
                            list.insert(id, (State::Completed, ends_ms));
                        }
                    }
                    2 => prop_assert_eq!(book.find(id).map(|page| page.state), list.get(&id).map(|(state, _)| *state)),
                    _ => {
                        now_ms += seconds * 500;
                        let ended = |ends_ms: u64| ends_ms.next_multiple_of(TICK_MS) <= now_ms;
                        let unseen = list.values().filter(|(s, e)| *s == State::Open && ended(*e)).count();
                        prop_assert_eq!(book.sweep(now_ms), unseen);
                        list.retain(|_, (_, ends_ms)| !ended(*ends_ms));
                    }
                }
                prop_assert_eq!(book.len(), list.len());
            }
        }
    }
}
