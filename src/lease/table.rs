//! The lease table: leases by their plain id, for those who did not keep the token, and for whoever looks.
//!
//! It is bounded: when it is full, the lease that ends first makes room, and can then be completed by its token only. A
//! lease that was completed stays for a while, so that a second completion changes nothing. Holds bytes and knows no limits.

use std::collections::BTreeMap;

use hashbrown::HashTable;
use parking_lot::Mutex;

use crate::limit::LeaseBits;

/// A lease weighs one place of the table per this many bytes, so that long keys can't fill memory.
const BYTES_PER_PLACE: usize = 256;

/// Leases end on multiples of this; never early.
const TICK_MS: u64 = 1000;

/// How long a completed lease stays at least. When the table is half full it stays no longer: retries of a completion come within seconds.
pub(super) const COMPLETED_MS: u64 = 60_000;

/// Leases dropped under one lock, so that callers get in between.
const ENDED_PER_LOCK: usize = 1000;

/// No place.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LeaseState {
    Open,
    Completed,
}

/// A lease as the table holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    pub(crate) state: LeaseState,
    pub(crate) bytes: Box<[u8]>,
}

/// What a name came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opened {
    New,
    /// It was open before and holds the same.
    Again(LeaseRecord),
    /// It holds something else, or was completed.
    Taken,
}

/// The lease table as the server shares it. A plain mutex, because a section takes a few look-ups and never waits.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    inner: Mutex<Inner>,
    places_max: usize,
}

#[derive(Debug, Default)]
struct Inner {
    entries: Vec<LeaseEntry>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    /// The first entry of each tick at which some end.
    ends: BTreeMap<u64, u32>,
    places: usize,
    hasher: ahash::RandomState,
}

#[derive(Debug)]
struct LeaseEntry {
    id: LeaseBits,
    bytes: Box<[u8]>,
    ends_ms: u64,
    /// Neighbours among the entries of the same tick.
    before: u32,
    after: u32,
    state: LeaseState,
    /// Somebody was told of it.
    is_told: bool,
    /// It is another name of a lease that has an entry of its own.
    is_alias: bool,
    /// Answers under way that tell of it.
    unsent: u16,
}

impl LeaseEntry {
    fn new(id: LeaseBits, bytes: Box<[u8]>, ends_ms: u64, state: LeaseState) -> Self {
        let ends_ms = ends_ms.checked_next_multiple_of(TICK_MS).unwrap_or(u64::MAX);
        let (before, after) = (NONE, NONE);
        Self { id, bytes, ends_ms, before, after, state, is_told: false, is_alias: false, unsent: 0 }
    }

    fn places(&self) -> usize {
        1 + self.bytes.len() / BYTES_PER_PLACE
    }
}

impl LeaseTable {
    pub(crate) fn new(places_max: usize) -> Self {
        Self { inner: Mutex::default(), places_max }
    }

    /// Remembers an open lease until `ends_ms`. If there is one with this id, that one stays; `is_same` says whether it holds
    /// the same. Unless it is something else, an answer that tells of it is under way: [`Self::sent`] or [`Self::unsent`]
    /// ends that.
    pub(crate) fn open(
        &self,
        id: LeaseBits,
        bytes: Box<[u8]>,
        ends_ms: u64,
        is_same: impl FnOnce(&[u8]) -> bool,
    ) -> Opened {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.find(id) {
            return inner.again(at, is_same);
        }
        let entry = LeaseEntry { unsent: 1, ..LeaseEntry::new(id, bytes, ends_ms, LeaseState::Open) };
        inner.insert(entry, self.places_max);
        Opened::New
    }

    /// The same for a name under which nothing was reserved yet; `None` if the table doesn't know the name.
    pub(crate) fn again(&self, id: LeaseBits, is_same: impl FnOnce(&[u8]) -> bool) -> Option<Opened> {
        let mut inner = self.inner.lock();
        let at = inner.find(id)?;
        Some(inner.again(at, is_same))
    }

    /// Remembers another name of a lease that has an entry of its own, unless there is something of that name.
    pub(crate) fn open_alias(&self, id: LeaseBits, bytes: Box<[u8]>, ends_ms: u64) {
        let mut inner = self.inner.lock();
        if inner.find(id).is_none() {
            let entry =
                LeaseEntry { is_alias: true, ..LeaseEntry::new(id, bytes, ends_ms, LeaseState::Open) };
            inner.insert(entry, self.places_max);
        }
    }

    /// An answer under way was sent.
    pub(crate) fn sent(&self, id: LeaseBits) {
        let mut inner = self.inner.lock();
        if let Some(at) = inner.find(id) {
            let entry = &mut inner.entries[at as usize];
            entry.unsent = entry.unsent.saturating_sub(1);
            entry.is_told = true;
        }
    }

    /// An answer under way will never be sent. `Some(true)`: nobody was told of this lease or will be, and it is forgotten;
    /// `None`: it is not in the table.
    pub(crate) fn unsent(&self, id: LeaseBits) -> Option<bool> {
        let mut inner = self.inner.lock();
        let at = inner.find(id)?;
        let entry = &mut inner.entries[at as usize];
        entry.unsent = entry.unsent.saturating_sub(1);
        let is_nobodys = entry.unsent == 0 && !entry.is_told && entry.state == LeaseState::Open;
        if is_nobodys {
            inner.remove(at);
        }
        Some(is_nobodys)
    }

    pub(crate) fn find(&self, id: LeaseBits) -> Option<LeaseRecord> {
        let inner = self.inner.lock();
        inner.find(id).map(|at| inner.record(at))
    }

    /// Remembers that a lease was completed; false if that was known. `bytes` are for one that was reserved elsewhere.
    pub(crate) fn complete(&self, id: LeaseBits, bytes: Box<[u8]>, ends_ms: u64, now_ms: u64) -> bool {
        let mut inner = self.inner.lock();
        let ends_ms = if inner.places > self.places_max / 2 {
            ends_ms.min(now_ms.saturating_add(COMPLETED_MS))
        } else {
            ends_ms
        };
        let bytes = match inner.find(id) {
            None => bytes,
            Some(at) if inner.entries[at as usize].state == LeaseState::Completed => return false,
            Some(at) => inner.remove(at).bytes,
        };
        inner.insert(LeaseEntry::new(id, bytes, ends_ms, LeaseState::Completed), self.places_max);
        true
    }

    /// Drops what has ended; how many leases ended without anybody completing them here.
    pub(crate) fn sweep(&self, now_ms: u64) -> usize {
        let mut unseen = 0;
        loop {
            let mut inner = self.inner.lock();
            for _ in 0..ENDED_PER_LOCK {
                match inner.ends.first_key_value() {
                    Some((&ends_ms, &at)) if ends_ms <= now_ms => {
                        let entry = inner.remove(at);
                        unseen += usize::from(entry.state == LeaseState::Open && !entry.is_alias);
                    }
                    _ => return unseen,
                }
            }
        }
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.inner.lock().by_id.len()
    }
}

impl Inner {
    fn find(&self, id: LeaseBits) -> Option<u32> {
        self.by_id.find(self.hasher.hash_one(id), |&at| self.entries[at as usize].id == id).copied()
    }

    fn record(&self, at: u32) -> LeaseRecord {
        let entry = &self.entries[at as usize];
        LeaseRecord { state: entry.state, bytes: entry.bytes.clone() }
    }

    fn again(&mut self, at: u32, is_same: impl FnOnce(&[u8]) -> bool) -> Opened {
        let entry = &mut self.entries[at as usize];
        if entry.state == LeaseState::Completed || !is_same(&entry.bytes) {
            return Opened::Taken;
        }
        entry.unsent = entry.unsent.saturating_add(1);
        Opened::Again(self.record(at))
    }

    fn insert(&mut self, entry: LeaseEntry, places_max: usize) {
        let (id, ends_ms, places) = (entry.id, entry.ends_ms, entry.places());
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
                u32::try_from(self.entries.len() - 1).expect("the table's maximum must fit in 32 bits")
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

    fn remove(&mut self, at: u32) -> LeaseEntry {
        let gone = LeaseEntry::new(LeaseBits::NONE, Box::default(), 0, LeaseState::Open);
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
mod tests;
