//! When accounts get back what they hold, in a bounded number of steps per call.
//!
//! An account with few records is simply walked. One with more gets a timeline the first time that somebody asks: its
//! amounts by the time at which they come back, in at most [`BUCKETS_MAX`] buckets. It is made by a scan over all records, a
//! part with each call, and kept up to date by whatever is inserted or removed behind the scan. A timeline that nobody asks
//! for any more is dropped, so that accounts at which nobody waits cost nothing.

use std::collections::BTreeMap;

use super::{Fate, NONE, Store, place};
use crate::ledger::Release;

/// An account with at most so many records is walked with each call: some twenty microseconds. One whose hits nobody names again
/// has no more.
const WALK_MAX: usize = 2048;

/// Records that one call looks at while it makes a timeline: some tens of microseconds.
const SCAN_PER_CALL: usize = 4096;

/// Buckets of one timeline. Beyond that two become one, so that a time is at most 1/1024 of the whole span late.
const BUCKETS_MAX: usize = 2048;

/// Timelines at the same time: 2048 buckets of some 30 bytes each, so 16 MB.
const TIMELINES_MAX: usize = 256;

/// A timeline that nobody asked for so long is dropped.
const FORGOTTEN_AFTER_MS: u64 = 10_000;

/// The timelines by the place of their account.
pub(super) type Timelines = BTreeMap<u32, Timeline>;

#[derive(Debug)]
pub(super) struct Timeline {
    /// Records below this place are counted; all are once it is `NONE`.
    scanned: u32,
    grain_ms: u64,
    amounts: BTreeMap<u64, u64>,
    asked_ms: u64,
}

/// What an account will get back and when.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::ledger::memory) enum Releases {
    /// In no order.
    Known(Vec<Release>),
    /// Ask again: another part of the records has been looked at.
    NotYet,
    /// There are timelines for too many other accounts.
    Unknown,
}

impl Store {
    /// What an account will get back and when.
    pub(in crate::ledger::memory) fn releases(&mut self, slot: u32, now_ms: u64) -> Releases {
        if !self.timelines.contains_key(&slot) {
            if let Some(releases) = self.walk(slot) {
                return Releases::Known(releases);
            }
            self.forget_timelines(now_ms);
            if self.timelines.len() >= TIMELINES_MAX {
                return Releases::Unknown;
            }
            self.timelines.insert(slot, Timeline::new(now_ms));
        }
        let timeline = self.timelines.get_mut(&slot).expect("it was made above if it was not there");
        timeline.asked_ms = now_ms;
        if timeline.scanned != NONE {
            let from = timeline.scanned as usize;
            let to = self.records.len().min(from + SCAN_PER_CALL);
            let here = self.records[from..to].iter().filter(|record| record.account == slot);
            // A record that was removed is marked as voided until its place is used again.
            here.filter(|record| record.fate == Fate::Counted)
                .for_each(|record| timeline.add(record.until_ms, record.amount));
            timeline.scanned = if to == self.records.len() { NONE } else { place(to) };
            if timeline.scanned != NONE {
                return Releases::NotYet;
            }
        }
        let amounts = timeline.amounts.iter();
        Releases::Known(amounts.map(|(&at_ms, &amount)| Release { at_ms, amount }).collect())
    }

    /// Drops the timelines that nobody asks for any more.
    pub(in crate::ledger::memory) fn forget_timelines(&mut self, now_ms: u64) {
        self.timelines.retain(|_, timeline| now_ms < timeline.asked_ms + FORGOTTEN_AFTER_MS);
    }

    /// A record takes its amount from now on.
    pub(super) fn note_taken(&mut self, at: u32, amount: u64) {
        if !self.timelines.is_empty() {
            let record = &self.records[at as usize];
            if let Some(timeline) = self.timelines.get_mut(&record.account).filter(|it| at < it.scanned) {
                timeline.add(record.until_ms, amount);
            }
        }
    }

    /// A record that took its amount no longer does. Must be told before its time changes.
    pub(super) fn note_given_back(&mut self, at: u32) {
        if !self.timelines.is_empty() {
            let record = &self.records[at as usize];
            if let Some(timeline) = self.timelines.get_mut(&record.account).filter(|it| at < it.scanned) {
                timeline.remove(record.until_ms, record.amount);
            }
        }
    }

    /// The releases of an account that has few records.
    pub(in crate::ledger::memory) fn walk(&self, slot: u32) -> Option<Vec<Release>> {
        let mut at = self.slots[slot as usize].first;
        let mut releases = Vec::new();
        for _ in 0..WALK_MAX {
            if at == NONE {
                return Some(releases);
            }
            let record = &self.records[at as usize];
            if record.fate == Fate::Counted {
                releases.push(Release { at_ms: record.until_ms, amount: record.amount });
            }
            at = record.after_of_account;
        }
        None
    }
}

impl Timeline {
    fn new(now_ms: u64) -> Self {
        Self { scanned: 0, grain_ms: 1, amounts: BTreeMap::new(), asked_ms: now_ms }
    }

    fn add(&mut self, until_ms: u64, amount: u64) {
        *self.amounts.entry(until_ms.next_multiple_of(self.grain_ms)).or_insert(0) += amount;
        while self.amounts.len() > BUCKETS_MAX {
            self.grain_ms *= 2;
            for (at_ms, amount) in std::mem::take(&mut self.amounts) {
                *self.amounts.entry(at_ms.next_multiple_of(self.grain_ms)).or_insert(0) += amount;
            }
        }
    }

    fn remove(&mut self, until_ms: u64, amount: u64) {
        let at_ms = until_ms.next_multiple_of(self.grain_ms);
        let left = self.amounts.get_mut(&at_ms).expect("what was counted must be there");
        *left -= amount;
        if *left == 0 {
            self.amounts.remove(&at_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::record::{Purpose, Record};
    use super::*;
    use crate::limit::{LeaseBits, LimitId};

    const NOW_MS: u64 = 1_000_000;

    fn reserve(store: &mut Store, slot: u32, lease: u128, amount: u64, until_ms: u64) -> u32 {
        store.insert(Record::counted(LeaseBits::new(lease), slot, Purpose::Reserve, amount, false), until_ms)
    }

    /// Asks until it is known; how many calls that took.
    fn ask(store: &mut Store, slot: u32, now_ms: u64) -> (Vec<Release>, usize) {
        for calls in 1.. {
            match store.releases(slot, now_ms) {
                Releases::Known(mut releases) => {
                    releases.sort_unstable();
                    return (releases, calls);
                }
                Releases::NotYet => {}
                Releases::Unknown => panic!("there must be place for it"),
            }
        }
        unreachable!("the range has no end")
    }

    #[test]
    fn a_call_looks_at_a_bounded_number_of_records() {
        let mut store = Store::default();
        let [busy, quiet] = [1, 2].map(|id| store.account_or_new(LimitId::new(id), 1 << 40));
        for lease in 1..=130_000u64 {
            reserve(&mut store, busy, u128::from(lease), 1, NOW_MS + 10 * lease);
        }
        reserve(&mut store, quiet, 1, 1, NOW_MS + 10);
        assert_eq!(ask(&mut store, quiet, NOW_MS), (vec![Release { at_ms: NOW_MS + 10, amount: 1 }], 1));
        let (releases, calls) = ask(&mut store, busy, NOW_MS);
        assert_eq!(calls, 130_001_usize.div_ceil(SCAN_PER_CALL), "a part with each call");
        assert_eq!(ask(&mut store, busy, NOW_MS).1, 1, "and from then on at once");
        assert!(releases.len() <= BUCKETS_MAX, "{} buckets", releases.len());
        assert_eq!(releases.iter().map(|release| release.amount).sum::<u64>(), 130_000);
        // Never early, and at most 1/1024 of the span late.
        let mut back = 0;
        for release in &releases {
            back += release.amount;
            let last_ms = NOW_MS + 10 * back;
            assert!((last_ms..=last_ms + 1_300_000 / 1024 + 10).contains(&release.at_ms), "{release:?}");
        }
        store.forget_timelines(NOW_MS + FORGOTTEN_AFTER_MS);
        assert!(store.timelines.is_empty(), "nobody asks any more");
    }

    /// Whatever happens while a timeline is made, and after: it says what a walk over all records says.
    #[test]
    fn a_timeline_says_what_the_records_say() {
        for seed in 0..4 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut store = Store::default();
            let slots = [1, 2].map(|id| store.account_or_new(LimitId::new(id), 1 << 40));
            let (mut lease, mut now_ms) = (0, NOW_MS);
            let mut named: Vec<u32> = Vec::new();
            let mut known = 0;
            for _ in 0..20_000 {
                let slot = slots[usize::from(rng.u8(..8) == 0)];
                lease += 1;
                match rng.u8(..10) {
                    0..5 => named.push(reserve(
                        &mut store,
                        slot,
                        lease,
                        rng.u64(1..9),
                        now_ms + rng.u64(60_000..90_000),
                    )),
                    5 => store.count(slot, rng.u64(1..9), now_ms, 60_000),
                    6 if !named.is_empty() => store.remove(named.swap_remove(rng.usize(..named.len()))),
                    7 if !named.is_empty() => {
                        let at = named.swap_remove(rng.usize(..named.len()));
                        store.end(at, Fate::Voided, now_ms + 90_000);
                    }
                    8 => now_ms += rng.u64(..5),
                    _ => {
                        let Releases::Known(mut releases) = store.releases(slots[0], now_ms) else {
                            continue;
                        };
                        // A walk over all is slow.
                        if rng.u8(..20) > 0 {
                            continue;
                        }
                        releases.sort_unstable();
                        let Some(timeline) = store.timelines.get(&slots[0]) else { continue };
                        let mut expected: BTreeMap<u64, u64> = BTreeMap::new();
                        let mut at = store.slots[slots[0] as usize].first;
                        while at != NONE {
                            let record = &store.records[at as usize];
                            if record.fate == Fate::Counted {
                                let at_ms = record.until_ms.next_multiple_of(timeline.grain_ms);
                                *expected.entry(at_ms).or_insert(0) += record.amount;
                            }
                            at = record.after_of_account;
                        }
                        let said: Vec<(u64, u64)> = releases.iter().map(|it| (it.at_ms, it.amount)).collect();
                        assert_eq!(said, expected.into_iter().collect::<Vec<_>>(), "seed {seed}");
                        known += 1;
                    }
                }
            }
            assert!(known > 20, "seed {seed}: only {known} were compared");
        }
    }
}
