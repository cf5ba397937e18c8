//! What the embedded ledger holds: accounts, records, their indexes and the order in which records expire.
//!
//! Slabs with free lists and tables of 32-bit places, so that a million reservations cost well under 150 MB. An account
//! exists only while it has a record: keys that nobody asks about any more cost nothing. No rules here.

mod timeline;

use std::collections::BTreeMap;

use hashbrown::HashTable;

pub(super) use self::timeline::Releases;
use self::timeline::Timelines;
use super::record::{Fate, Purpose, Record};
use crate::limit::{LeaseBits, LimitId};

/// No place.
pub(super) const NONE: u32 = u32::MAX;

/// While its account has fewer records than this, and the ledger fewer than that (64 bytes each, so 16 MB), a hit that nobody
/// names again comes back to the millisecond.
const EXACT_OF_ACCOUNT: u32 = 1 << 10;
const EXACT_IN_ALL: usize = 1 << 18;

/// Beyond that such hits are counted together within 1/1000 of their window, at least 10 ms, so that one busy limit holds
/// at most about two thousand records whatever its rate. They come back never early and at most that much late.
const PARTS_OF_WINDOW: u64 = 1000;
const PART_MS_MIN: u64 = 10;

#[derive(Debug, Clone, Copy)]
pub(super) struct Slot {
    id: LimitId,
    pub capacity: u64,
    pub pending: u64,
    /// Its newest record.
    first: u32,
    /// The newest record of hits that are counted together.
    counting: u32,
    records: u32,
}

/// A record has ended by itself.
#[derive(Debug, Clone, Copy)]
pub(super) struct Freed {
    pub(super) account: LimitId,
    pub(super) at_ms: u64,
}

#[derive(Debug, Default)]
pub(super) struct Store {
    slots: Vec<Slot>,
    free_slots: Vec<u32>,
    by_account: HashTable<u32>,
    records: Vec<Record>,
    free_records: Vec<u32>,
    /// The first record of each lease.
    by_lease: HashTable<u32>,
    /// The first record of each moment at which some end.
    ends: BTreeMap<u64, u32>,
    /// Of large accounts at which somebody waits.
    timelines: Timelines,
    hasher: ahash::RandomState,
}

fn place(index: usize) -> u32 {
    u32::try_from(index).expect("the ledger's maximum must fit in 32 bits")
}

impl Store {
    pub(super) fn records(&self) -> usize {
        self.records.len() - self.free_records.len()
    }

    pub(super) fn slot(&self, slot: u32) -> &Slot {
        &self.slots[slot as usize]
    }

    pub(super) fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot as usize]
    }

    pub(super) fn record(&self, at: u32) -> &Record {
        &self.records[at as usize]
    }

    pub(super) fn record_mut(&mut self, at: u32) -> &mut Record {
        &mut self.records[at as usize]
    }

    /// The place of an account, or `NONE`.
    pub(super) fn account(&self, id: LimitId) -> u32 {
        let hash = self.hasher.hash_one(id);
        self.by_account.find(hash, |&slot| self.slots[slot as usize].id == id).copied().unwrap_or(NONE)
    }

    pub(super) fn account_or_new(&mut self, id: LimitId, capacity: u64) -> u32 {
        let found = self.account(id);
        if found != NONE {
            return found;
        }
        let new = Slot { id, capacity, pending: 0, first: NONE, counting: NONE, records: 0 };
        let slot = match self.free_slots.pop() {
            Some(slot) => {
                self.slots[slot as usize] = new;
                slot
            }
            None => {
                self.slots.push(new);
                place(self.slots.len() - 1)
            }
        };
        let (slots, hasher) = (&self.slots, &self.hasher);
        self.by_account
            .insert_unique(hasher.hash_one(id), slot, |&other| hasher.hash_one(slots[other as usize].id));
        slot
    }

    pub(super) fn find(&self, lease: LeaseBits, account: u32, purpose: Purpose) -> Option<u32> {
        let is_it = |record: &Record| record.account == account && record.purpose == purpose;
        self.of_lease(lease).find(|&at| is_it(&self.records[at as usize]))
    }

    /// What became of each record of a lease.
    pub(super) fn fates(&self, lease: LeaseBits) -> impl Iterator<Item = Fate> {
        self.of_lease(lease).map(|at| self.records[at as usize].fate)
    }

    /// The records of a lease.
    fn of_lease(&self, lease: LeaseBits) -> impl Iterator<Item = u32> {
        let hash = self.hasher.hash_one(lease);
        let first = self.by_lease.find(hash, |&at| self.records[at as usize].lease == lease).copied();
        std::iter::successors(first, |&at| {
            Some(self.records[at as usize].next_of_lease).filter(|&at| at != NONE)
        })
    }

    /// Adds hits that nobody names again.
    pub(super) fn count(&mut self, slot: u32, amount: u64, now_ms: u64, lifetime_ms: u64) {
        let is_exact = self.slots[slot as usize].records < EXACT_OF_ACCOUNT && self.records() < EXACT_IN_ALL;
        let grain_ms = if is_exact { 1 } else { (lifetime_ms / PARTS_OF_WINDOW).max(PART_MS_MIN) };
        self.count_until(slot, amount, (now_ms + lifetime_ms).next_multiple_of(grain_ms));
    }

    /// The same, to the millisecond.
    pub(super) fn count_until(&mut self, slot: u32, amount: u64, until_ms: u64) {
        let counting = self.slots[slot as usize].counting;
        if counting != NONE && self.records[counting as usize].until_ms == until_ms {
            self.records[counting as usize].amount += amount;
            self.slots[slot as usize].pending += amount;
            self.note_taken(counting, amount);
        } else {
            let at = self
                .insert(Record::counted(LeaseBits::NONE, slot, Purpose::Reserve, amount, false), until_ms);
            self.slots[slot as usize].counting = at;
        }
    }

    pub(super) fn insert(&mut self, record: Record, until_ms: u64) -> u32 {
        let at = match self.free_records.pop() {
            Some(at) => {
                self.records[at as usize] = record;
                at
            }
            None => {
                self.records.push(record);
                place(self.records.len() - 1)
            }
        };
        let slot = &mut self.slots[record.account as usize];
        let after = std::mem::replace(&mut slot.first, at);
        slot.records += 1;
        if record.fate == Fate::Counted {
            slot.pending += record.amount;
        }
        self.records[at as usize].after_of_account = after;
        if after != NONE {
            self.records[after as usize].before_of_account = at;
        }
        self.link_end(at, until_ms);
        if record.fate == Fate::Counted {
            self.note_taken(at, record.amount);
        }
        if !record.is_anonymous() {
            self.link_lease(at);
        }
        at
    }

    /// The record no longer counts; its name is remembered until `until_ms`.
    pub(super) fn end(&mut self, at: u32, fate: Fate, until_ms: u64) {
        let record = self.records[at as usize];
        if record.fate == Fate::Counted {
            self.slots[record.account as usize].pending -= record.amount;
            self.note_given_back(at);
        }
        self.records[at as usize].fate = fate;
        self.unlink_end(at);
        self.link_end(at, until_ms);
    }

    pub(super) fn remove(&mut self, at: u32) {
        self.unlink_end(at);
        let record = self.records[at as usize];
        if record.fate == Fate::Counted {
            self.note_given_back(at);
            // So that a scan over all records skips this place while it is free.
            self.records[at as usize].fate = Fate::Voided;
        }
        if !record.is_anonymous() {
            self.unlink_lease(at);
        }
        let slot = &mut self.slots[record.account as usize];
        if record.fate == Fate::Counted {
            slot.pending -= record.amount;
        }
        slot.records -= 1;
        if slot.counting == at {
            slot.counting = NONE;
        }
        let Record { before_of_account: before, after_of_account: after, .. } = record;
        if after != NONE {
            self.records[after as usize].before_of_account = before;
        }
        match before {
            NONE => slot.first = after,
            before => self.records[before as usize].after_of_account = after,
        }
        if slot.first == NONE {
            self.remove_account(record.account);
        }
        self.free_records.push(at);
    }

    pub(super) fn is_due(&self, now_ms: u64) -> bool {
        self.ends.first_key_value().is_some_and(|(&until_ms, _)| until_ms <= now_ms)
    }

    /// Ends the record that is due first.
    pub(super) fn expire_next(&mut self, now_ms: u64) -> Option<Freed> {
        let (&until_ms, &at) = self.ends.first_key_value()?;
        if until_ms > now_ms {
            return None;
        }
        let record = self.records[at as usize];
        let freed = Freed { account: self.slots[record.account as usize].id, at_ms: until_ms };
        if record.for_retries && record.fate == Fate::Counted {
            self.end(at, Fate::Expired, now_ms + super::RETRY_MEMORY_MS);
        } else {
            self.remove(at);
        }
        Some(freed)
    }

    fn link_end(&mut self, at: u32, until_ms: u64) {
        let first = self.ends.entry(until_ms).or_insert(NONE);
        let after = std::mem::replace(first, at);
        if after != NONE {
            self.records[after as usize].before = at;
        }
        let record = &mut self.records[at as usize];
        (record.until_ms, record.before, record.after) = (until_ms, NONE, after);
    }

    fn unlink_end(&mut self, at: u32) {
        let Record { until_ms, before, after, .. } = self.records[at as usize];
        if after != NONE {
            self.records[after as usize].before = before;
        }
        match (before, after) {
            (NONE, NONE) => drop(self.ends.remove(&until_ms)),
            (NONE, after) => drop(self.ends.insert(until_ms, after)),
            (before, after) => self.records[before as usize].after = after,
        }
    }

    fn link_lease(&mut self, at: u32) {
        let lease = self.records[at as usize].lease;
        let (records, hasher) = (&mut self.records, &self.hasher);
        let hash = hasher.hash_one(lease);
        match self.by_lease.find_mut(hash, |&first| records[first as usize].lease == lease) {
            Some(first) => {
                records[at as usize].next_of_lease = *first;
                *first = at;
            }
            None => {
                self.by_lease
                    .insert_unique(hash, at, |&other| hasher.hash_one(records[other as usize].lease));
            }
        }
    }

    fn unlink_lease(&mut self, at: u32) {
        let Record { lease, next_of_lease, .. } = self.records[at as usize];
        let hash = self.hasher.hash_one(lease);
        let records = &mut self.records;
        let entry = self.by_lease.find_entry(hash, |&first| records[first as usize].lease == lease);
        let Ok(mut entry) = entry else { return };
        let mut before = *entry.get();
        match (before == at, next_of_lease) {
            (true, NONE) => drop(entry.remove()),
            (true, next) => *entry.get_mut() = next,
            (false, next) => {
                while records[before as usize].next_of_lease != at {
                    before = records[before as usize].next_of_lease;
                }
                records[before as usize].next_of_lease = next;
            }
        }
    }

    fn remove_account(&mut self, slot: u32) {
        let id = self.slots[slot as usize].id;
        let hash = self.hasher.hash_one(id);
        let slots = &self.slots;
        if let Ok(entry) = self.by_account.find_entry(hash, |&other| slots[other as usize].id == id) {
            entry.remove();
            self.timelines.remove(&slot);
            self.free_slots.push(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;

    #[test]
    fn hits_come_back_to_the_millisecond_unless_a_limit_is_busy() {
        let mut store = Store::default();
        let [few, many] = [1, 2].map(|id| store.account_or_new(LimitId::new(id), 1 << 40));
        let until_ms = |store: &Store, slot: u32| store.record(store.slot(slot).first).until_ms;
        store.count(few, 1, 1_234_567, MINUTE_MS);
        assert_eq!(until_ms(&store, few), 1_294_567);
        let mut most = 0;
        for now_ms in 1_300_000..1_500_000 {
            while store.expire_next(now_ms).is_some() {}
            store.count(many, 1, now_ms, MINUTE_MS);
            let until_ms = until_ms(&store, many);
            assert!((0..MINUTE_MS / PARTS_OF_WINDOW).contains(&(until_ms - now_ms - MINUTE_MS)), "{now_ms}");
            most = most.max(store.records());
        }
        assert!(most <= EXACT_OF_ACCOUNT as usize + 1_001, "{most}");
    }
}
