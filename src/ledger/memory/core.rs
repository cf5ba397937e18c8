//! The rules of [`crate::ledger`] without a lock or a clock: `now` is an argument.
//!
//! A chain is tried on copies of its accounts ([`trial`]), and carried out only when all of it can be done. What is held is
//! in [`super::store`], what is owed in [`super::debts`].

mod names;
mod repay;
mod trial;

use self::trial::{Stop, Trial, settled};
use super::debts::Debts;
use super::record::{Fate, Purpose, Record};
use super::store::{NONE, Releases, Store};
use super::{EXPIRED_PER_CALL, RESERVATIONS_MAX, RETRY_MEMORY_MS};
use crate::ledger::debt_log::DebtChange;
use crate::ledger::{
    Account, Action, Balance, Chain, Hold, Keep, LedgerError, Outcome, Refusal, RefusalCode, Release,
    Schedule, Transfer, Verdict,
};
use crate::limit::LeaseBits;

/// What settles leases may take a part of the records beyond the maximum: one in so many.
const SETTLING_PART: usize = 16;

/// The rules, and what they are applied to.
#[derive(Debug)]
pub struct Core {
    store: Store,
    debts: Debts,
    records_max: usize,
}

impl Default for Core {
    fn default() -> Self {
        Self::new(RESERVATIONS_MAX)
    }
}

impl Core {
    pub fn new(records_max: usize) -> Self {
        Self { store: Store::default(), debts: Debts::default(), records_max }
    }

    /// Whether it has no room for another reservation.
    pub fn is_full(&self) -> bool {
        self.store.records() >= self.records_max
    }

    pub fn apply(&mut self, chain: &Chain, now_ms: u64) -> Result<Outcome, LedgerError> {
        // Taking as much as there is, and a debt, depend on everything that is due. So does a refusal, see below.
        let needs_all = |transfer: &Transfer| match transfer.action {
            Action::TakeUpTo(_) | Action::Debt(_) => true,
            _ => self.debts.is_repaying(transfer.account.id),
        };
        let needs_all = chain.transfers.iter().any(needs_all);
        self.expire(now_ms, if needs_all { usize::MAX } else { EXPIRED_PER_CALL });
        self.meet_terms(chain, now_ms);
        let (mut trial, mut tried) = self.attempt(chain);
        if matches!(tried, Err(Stop::Refused(_))) && self.store.is_due(now_ms) {
            self.expire(now_ms, usize::MAX);
            (trial, tried) = self.attempt(chain);
        }
        let is_repeat = matches!(tried, Err(Stop::DoneBefore));
        let verdict = match tried {
            Ok(()) if self.store.records() + self.new_records(chain) > self.room_for(chain) => {
                return Err(LedgerError::Full(self.records_max));
            }
            Ok(()) => {
                self.commit(chain, &mut trial, now_ms);
                self.pay_with_what_is_free(chain, &mut trial, now_ms);
                Verdict::Done
            }
            Err(Stop::DoneBefore) => {
                self.share(chain);
                trial.taken = self.taken_before(chain);
                Verdict::Done
            }
            Err(Stop::Refused(refusal)) => {
                self.remember_refusal(chain, refusal, now_ms);
                Verdict::Refused(refusal)
            }
        };
        Ok(Outcome { is_repeat, ..self.outcome(chain, &mut trial, verdict) })
    }

    /// How many records a chain adds. A void adds none, and when the ledger is full it takes one away.
    fn new_records(&self, chain: &Chain) -> usize {
        let voids = chain.transfers.iter().filter(|transfer| transfer.action.is_void()).count();
        let freed = if self.is_full() { voids } else { 0 };
        // A debt is a record, and so is what pays for it.
        let debts =
            chain.transfers.iter().filter(|transfer| matches!(transfer.action, Action::Debt(_))).count();
        (chain.transfers.len() + debts - voids).saturating_sub(freed)
    }

    /// How many records there may be after a chain. What settles a lease has room of its own, so that a ledger that is
    /// full of leases can be emptied.
    fn room_for(&self, chain: &Chain) -> usize {
        let is_new =
            |transfer: &Transfer| matches!(transfer.action, Action::Reserve(_) | Action::TakeUpTo(_));
        let settles = !chain.transfers.iter().any(is_new);
        if settles { self.records_max + self.records_max / SETTLING_PART } else { self.records_max }
    }

    /// What an account holds, brought to `capacity` if that can be done now.
    pub fn balance(&mut self, account: &Account, capacity: u64, now_ms: u64) -> Balance {
        self.expire(now_ms, usize::MAX);
        self.meet_capacity(account.id, capacity, now_ms);
        let debt = self.debts.get(account.id).map_or(0, |debt| debt.owed);
        let slot = self.store.account(account.id);
        if slot == NONE {
            return Balance { capacity, used: 0, debt };
        }
        let there = self.store.slot_mut(slot);
        there.capacity = settled(there.capacity, there.pending, capacity);
        Balance { capacity: there.capacity, used: there.pending, debt }
    }

    /// What an account holds, and when that comes back to others, in no order. `None` if it is not known yet: each call
    /// finds out a part, so that none takes long.
    pub fn schedule(&mut self, account: &Account, now_ms: u64) -> Option<Schedule> {
        if self.expire(now_ms, EXPIRED_PER_CALL) == EXPIRED_PER_CALL {
            return None;
        }
        let releases = match self.store.account(account.id) {
            NONE => Some(Vec::new()),
            slot => match self.store.releases(slot, now_ms) {
                Releases::Known(releases) => Some(releases),
                Releases::NotYet => return None,
                Releases::Unknown => None,
            },
        };
        Some(self.schedule_of(account, releases, now_ms))
    }

    /// The schedule of an account that gets back what it holds by these `releases`; they are `None` if that is not known.
    fn schedule_of(&self, account: &Account, releases: Option<Vec<Release>>, now_ms: u64) -> Schedule {
        let used = match self.store.account(account.id) {
            NONE => 0,
            slot => self.store.slot(slot).pending,
        };
        let is_whole = releases.is_some();
        let schedule = Schedule { used, releases: releases.unwrap_or_default(), is_whole };
        match self.debts.get(account.id).and_then(|debt| Some((debt, debt.window_ms()?))) {
            Some((debt, window_ms)) => schedule.after_debt(debt.owed, debt.capacity, window_ms, now_ms),
            None => schedule,
        }
    }

    /// Ends at most `most` records that are due; how many it was.
    pub fn expire(&mut self, now_ms: u64, most: usize) -> usize {
        let mut done = 0;
        while done < most {
            let Some(freed) = self.store.expire_next(now_ms) else { break };
            // In the order of time: what comes back pays at once, however late it is looked at.
            self.pay(freed.account, freed.at_ms);
            done += 1;
        }
        done
    }

    /// The limits that got into debt, or out of it, since this was last asked.
    pub fn take_debt_changes(&mut self) -> Vec<DebtChange> {
        self.debts.take_changes()
    }

    /// Drops what is known of accounts that nobody asks about any more.
    pub fn forget_timelines(&mut self, now_ms: u64) {
        self.store.forget_timelines(now_ms);
    }

    /// Reservations and names held now.
    pub fn records(&self) -> usize {
        self.store.records()
    }

    /// From here on it succeeds.
    fn commit(&mut self, chain: &Chain, trial: &mut Trial, now_ms: u64) {
        let lease = if is_anonymous(chain) { LeaseBits::NONE } else { chain.lease.bits() };
        let mut takes = 0;
        for transfer in &chain.transfers {
            let id = transfer.account.id;
            let tried = trial.account(id);
            if tried.slot == NONE {
                tried.slot = self.store.account_or_new(id, tried.capacity);
            }
            let slot = tried.slot;
            self.store.slot_mut(slot).capacity = tried.capacity;
            match transfer.action {
                Action::Reserve(hold) => self.hold(chain, lease, slot, Purpose::Reserve, hold, now_ms),
                Action::Rereserve(hold) => self.hold(chain, lease, slot, Purpose::Rereserve, hold, now_ms),
                Action::TakeUpTo(hold) => {
                    let amount = trial.taken[takes];
                    takes += 1;
                    self.hold(chain, lease, slot, Purpose::Take, Hold { amount, ..hold }, now_ms);
                }
                Action::Void | Action::VoidTaken | Action::VoidRereserved => {
                    let purpose = match transfer.action {
                        Action::VoidTaken => Purpose::Take,
                        Action::VoidRereserved => Purpose::Rereserve,
                        _ => Purpose::Reserve,
                    };
                    self.void(lease, slot, purpose, now_ms);
                    // An account goes with its last record.
                    tried.slot = self.store.account(id);
                }
                Action::Debt(hold) => {
                    self.debts.add(&transfer.account, hold);
                    let name = Record::name_only(lease, slot, Purpose::Debt, Fate::Voided, hold.amount);
                    self.store.insert(name, now_ms + RETRY_MEMORY_MS);
                }
            }
        }
    }

    fn hold(
        &mut self,
        chain: &Chain,
        lease: LeaseBits,
        slot: u32,
        purpose: Purpose,
        hold: Hold,
        now_ms: u64,
    ) {
        let lifetime_ms = u64::from(hold.lifetime_seconds.get()) * 1000;
        match chain.keep {
            Keep::Nothing | Keep::ForUndo => self.store.count(slot, hold.amount, now_ms, lifetime_ms),
            // Nobody gives it back by name, so only the name has a record, and only while it may be sent again.
            Keep::Name => {
                self.store.count(slot, hold.amount, now_ms, lifetime_ms);
                let name = Record::name_only(lease, slot, purpose, Fate::Voided, hold.amount);
                self.store.insert(name, now_ms + RETRY_MEMORY_MS);
            }
            Keep::ForCompletion | Keep::ForRetries => {
                let for_retries = chain.keep == Keep::ForRetries;
                let record = Record::counted(lease, slot, purpose, hold.amount, for_retries);
                self.store.insert(record, now_ms + lifetime_ms);
            }
        }
    }

    fn void(&mut self, lease: LeaseBits, slot: u32, purpose: Purpose, now_ms: u64) {
        let at = self.store.find(lease, slot, purpose).expect("what was tried must be there");
        // A full ledger does not remember names.
        if self.store.record(at).for_retries && !self.is_full() {
            self.store.end(at, Fate::Voided, now_ms + RETRY_MEMORY_MS);
        } else {
            self.store.remove(at);
        }
    }

    /// A name that the caller may send again stays refused.
    fn remember_refusal(&mut self, chain: &Chain, refusal: Refusal, now_ms: u64) {
        if !chain.keep.is_named() || refusal.code != RefusalCode::ExceedsCredits || self.is_full() {
            return;
        }
        let transfer = &chain.transfers[refusal.index];
        let (purpose, hold) = match transfer.action {
            Action::Reserve(hold) => (Purpose::Reserve, hold),
            Action::Rereserve(hold) => (Purpose::Rereserve, hold),
            _ => return,
        };
        let slot = self.store.account_or_new(transfer.account.id, hold.capacity);
        let record = Record::name_only(chain.lease.bits(), slot, purpose, Fate::Refused, hold.amount);
        self.store.insert(record, now_ms + RETRY_MEMORY_MS);
    }
}

/// Nobody names the chain again, so it needs no record of its own. This ledger never waits, so no caller can leave in the middle of it.
fn is_anonymous(chain: &Chain) -> bool {
    matches!(chain.keep, Keep::Nothing | Keep::ForUndo)
}

#[cfg(test)]
mod tests;
