//! The rules of [`crate::ledger`] without a lock or a clock: `now` is an argument.
//!
//! A chain is tried on copies of its accounts, and carried out only when all of it can be done. What is held is in
//! [`super::store`].

mod names;

use smallvec::SmallVec;

use super::record::{Fate, Purpose, Record};
use super::store::{NONE, Store};
use super::trial::{Taken, Trial, Tried, settled, take, take_up_to};
use super::{EXPIRED_PER_CALL, RELEASES_MAX, RESERVATIONS_MAX, RETRY_MEMORY_MS};
use crate::ledger::{
    Account, Action, Balance, Chain, Hold, Keep, LedgerError, Outcome, Refusal, RefusalCode, Schedule,
    Transfer, TransferSet, Verdict,
};

/// Of the most records, the part that only what settles leases may take beyond them.
const SETTLING_PART: usize = 16;

/// The rules, and what they are applied to.
#[derive(Debug)]
pub struct Core {
    store: Store,
    records_max: usize,
}

impl Default for Core {
    fn default() -> Self {
        Self::new(RESERVATIONS_MAX)
    }
}

/// How a trial ended short of "it can be done".
enum Stop {
    /// This very chain was done before.
    DoneBefore,
    Refused(Refusal),
}

impl Core {
    pub fn new(records_max: usize) -> Self {
        Self { store: Store::default(), records_max }
    }

    /// Whether it has no room for another reservation.
    pub fn is_full(&self) -> bool {
        self.store.records() >= self.records_max
    }

    pub fn apply(&mut self, chain: &Chain, now_ms: u64) -> Result<Outcome, LedgerError> {
        self.store.expire(now_ms, EXPIRED_PER_CALL);
        let (mut trial, mut taken) = (Trial::new(), SmallVec::new());
        let mut tried = self.attempt(chain, &mut trial, &mut taken);
        // What is due but not freed yet must not deny anybody.
        if matches!(tried, Err(Stop::Refused(_))) && self.store.is_due(now_ms) {
            self.store.expire(now_ms, usize::MAX);
            (trial, taken) = (Trial::new(), SmallVec::new());
            tried = self.attempt(chain, &mut trial, &mut taken);
        }
        let is_repeat = matches!(tried, Err(Stop::DoneBefore));
        let verdict = match tried {
            Ok(()) if self.store.records() + self.new_records(chain) > self.room_for(chain) => {
                return Err(LedgerError::Full(self.records_max));
            }
            Ok(()) => {
                self.commit(chain, &mut trial, &taken, now_ms);
                Verdict::Done
            }
            Err(Stop::DoneBefore) => {
                self.share(chain);
                taken = self.taken_before(chain);
                Verdict::Done
            }
            Err(Stop::Refused(refusal)) => {
                self.remember_refusal(chain, refusal, now_ms);
                Verdict::Refused(refusal)
            }
        };
        let available = self.available(chain, &mut trial, verdict);
        if verdict != Verdict::Done {
            taken.clear();
        }
        Ok(Outcome { verdict, available, is_repeat, taken })
    }

    /// How many records a chain adds. A void adds none, and when the ledger is full it takes one away.
    fn new_records(&self, chain: &Chain) -> usize {
        let voids = chain.transfers.iter().filter(|transfer| transfer.action.is_void()).count();
        let freed = if self.is_full() { voids } else { 0 };
        (chain.transfers.len() - voids).saturating_sub(freed)
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
        self.store.expire(now_ms, usize::MAX);
        let slot = self.store.account(account.id);
        if slot == NONE {
            return Balance { capacity, used: 0, debt: 0 };
        }
        let there = self.store.slot_mut(slot);
        there.capacity = settled(there.capacity, there.pending, capacity);
        Balance { capacity: there.capacity, used: there.pending, debt: there.debt }
    }

    /// What an account holds, and when that comes back.
    pub fn schedule(&mut self, account: &Account, now_ms: u64) -> Schedule {
        self.store.expire(now_ms, usize::MAX);
        let slot = self.store.account(account.id);
        if slot == NONE {
            return Schedule { is_whole: true, ..Schedule::default() };
        }
        let used = self.store.slot(slot).pending;
        let Some(mut releases) = self.store.releases(slot, RELEASES_MAX) else {
            return Schedule { used, ..Schedule::default() };
        };
        releases.sort_unstable();
        Schedule { used, releases, is_whole: true }
    }

    /// Ends at most `most` records that are due; how many it was.
    pub fn expire(&mut self, now_ms: u64, most: usize) -> usize {
        self.store.expire(now_ms, most)
    }

    /// Reservations and names held now.
    pub fn records(&self) -> usize {
        self.store.records()
    }

    /// Tries the transfers in order on copies of the accounts. Changes nothing.
    fn attempt(&self, chain: &Chain, trial: &mut Trial, taken: &mut Taken) -> Result<(), Stop> {
        for (index, transfer) in chain.transfers.iter().enumerate() {
            let place = self.enter(trial, transfer);
            match self.step(chain, index, transfer, &mut trial[place]) {
                Ok(units) => taken.extend(units),
                Err(Some(code)) => return Err(Stop::Refused(self.refusal(chain, trial, index, code))),
                Err(None) => {
                    return Err(match self.is_still_held(chain) {
                        Ok(()) => Stop::DoneBefore,
                        Err((index, code)) => Stop::Refused(Refusal::one(index, code)),
                    });
                }
            }
        }
        Ok(())
    }

    /// One transfer: what it took if that was not certain. `Err(None)`: the chain was done before.
    fn step(
        &self,
        chain: &Chain,
        index: usize,
        transfer: &Transfer,
        tried: &mut Tried,
    ) -> Result<Option<u64>, Option<RefusalCode>> {
        match transfer.action {
            Action::Reserve(hold) => {
                self.known(chain, index, tried.slot, Purpose::Reserve, hold.amount)?;
                take(tried, hold).map_err(Some)?;
            }
            Action::TakeUpTo(hold) => {
                let known = self.find(chain, tried.slot, Purpose::Take).map(|record| record.amount);
                self.known(chain, index, tried.slot, Purpose::Take, known.unwrap_or_default())?;
                return take_up_to(tried, hold).map(Some).map_err(Some);
            }
            Action::Rereserve(hold) => {
                self.known(chain, index, tried.slot, Purpose::Rereserve, hold.amount)?;
                // From what the account has, also while that is being lowered.
                take(tried, Hold { capacity: hold.capacity.max(tried.capacity), ..hold }).map_err(Some)?;
            }
            Action::Debt { amount } => self.known(chain, index, tried.slot, Purpose::Debt, amount)?,
            Action::Void => self.void_step(chain, index, tried, Purpose::Reserve)?,
            Action::VoidTaken => self.void_step(chain, index, tried, Purpose::Take)?,
            Action::VoidRereserved => self.void_step(chain, index, tried, Purpose::Rereserve)?,
        }
        Ok(None)
    }

    fn void_step(
        &self,
        chain: &Chain,
        index: usize,
        tried: &mut Tried,
        purpose: Purpose,
    ) -> Result<(), Option<RefusalCode>> {
        match self.find(chain, tried.slot, purpose) {
            None => Err(Some(RefusalCode::PendingTransferNotFound)),
            Some(record) => match record.fate {
                Fate::Counted => {
                    tried.pending -= record.amount;
                    Ok(())
                }
                // Only this lease's void could have done it: it is being sent again.
                Fate::Voided if index == 0 => Err(None),
                Fate::Voided => Err(Some(RefusalCode::PendingTransferAlreadyVoided)),
                Fate::Expired => Err(Some(RefusalCode::PendingTransferExpired)),
                Fate::Refused => Err(Some(RefusalCode::PendingTransferNotFound)),
            },
        }
    }

    /// Whether the caller used this name before, and what for.
    fn known(
        &self,
        chain: &Chain,
        index: usize,
        slot: u32,
        purpose: Purpose,
        amount: u64,
    ) -> Result<(), Option<RefusalCode>> {
        match self.find(chain, slot, purpose) {
            None => Ok(()),
            Some(record) if record.fate == Fate::Refused => Err(Some(RefusalCode::IdAlreadyFailed)),
            Some(record) if index == 0 && record.amount == amount => Err(None),
            Some(_) => Err(Some(RefusalCode::ExistsWithDifferentFields)),
        }
    }

    fn find(&self, chain: &Chain, slot: u32, purpose: Purpose) -> Option<&Record> {
        self.place(chain, slot, purpose).map(|at| self.store.record(at))
    }

    fn place(&self, chain: &Chain, slot: u32, purpose: Purpose) -> Option<u32> {
        if is_anonymous(chain) || slot == NONE {
            return None;
        }
        self.store.find(chain.lease.bits(), slot, purpose)
    }

    /// What a chain that is sent again took the first time.
    fn taken_before(&self, chain: &Chain) -> Taken {
        let takes = chain.transfers.iter().filter(|it| matches!(it.action, Action::TakeUpTo(_)));
        let slots = takes.map(|transfer| self.store.account(transfer.account.id));
        slots.map(|slot| self.find(chain, slot, Purpose::Take).map_or(0, |record| record.amount)).collect()
    }

    /// The place of the transfer's account in the trial.
    fn enter(&self, trial: &mut Trial, transfer: &Transfer) -> usize {
        let id = transfer.account.id;
        if let Some(place) = trial.iter().position(|tried| tried.id == id) {
            return place;
        }
        let slot = self.store.account(id);
        let (capacity, pending) = match slot {
            NONE => match transfer.action {
                Action::Reserve(hold) | Action::TakeUpTo(hold) | Action::Rereserve(hold) => {
                    (hold.capacity, 0)
                }
                Action::Void | Action::VoidTaken | Action::VoidRereserved | Action::Debt { .. } => (0, 0),
            },
            slot => (self.store.slot(slot).capacity, self.store.slot(slot).pending),
        };
        trial.push(Tried { id, slot, capacity, pending, pending_before: pending });
        trial.len() - 1
    }

    /// What is free on each account afterwards, also on those that the trial did not come to.
    fn available(&self, chain: &Chain, trial: &mut Trial, verdict: Verdict) -> SmallVec<[u64; 4]> {
        let of = |transfer: &Transfer| {
            let place = self.enter(trial, transfer);
            let tried = &trial[place];
            let pending = if verdict == Verdict::Done { tried.pending } else { tried.pending_before };
            tried.capacity.saturating_sub(pending)
        };
        chain.transfers.iter().map(of).collect()
    }

    /// Names the others of the chain that don't fit either.
    fn refusal(&self, chain: &Chain, trial: &mut Trial, index: usize, code: RefusalCode) -> Refusal {
        let mut failed = TransferSet::one(index);
        if code == RefusalCode::ExceedsCredits {
            for (later, transfer) in chain.transfers.iter().enumerate().skip(index + 1) {
                let place = self.enter(trial, transfer);
                let code = self.step(chain, later, transfer, &mut trial[place]);
                if code == Err(Some(RefusalCode::ExceedsCredits)) {
                    failed.insert(later);
                }
            }
        }
        Refusal { index, code, failed }
    }

    /// From here on it succeeds.
    fn commit(&mut self, chain: &Chain, trial: &mut Trial, taken: &Taken, now_ms: u64) {
        let mut taken = taken.iter();
        let lease = if is_anonymous(chain) { 0 } else { chain.lease.bits() };
        for transfer in &chain.transfers {
            let id = transfer.account.id;
            let tried =
                trial.iter_mut().find(|tried| tried.id == id).expect("every account must have been tried");
            if tried.slot == NONE {
                tried.slot = self.store.account_or_new(id, tried.capacity);
            }
            let slot = tried.slot;
            self.store.slot_mut(slot).capacity = tried.capacity;
            match transfer.action {
                Action::Reserve(hold) => self.hold(chain, lease, slot, Purpose::Reserve, hold, now_ms),
                Action::Rereserve(hold) => self.hold(chain, lease, slot, Purpose::Rereserve, hold, now_ms),
                Action::TakeUpTo(hold) => {
                    let amount = *taken.next().expect("what was tried must have taken something");
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
                Action::Debt { amount } => {
                    let slot_debt = &mut self.store.slot_mut(slot).debt;
                    *slot_debt = slot_debt.saturating_add(amount);
                    let until_ms = now_ms + RETRY_MEMORY_MS;
                    self.store.insert(
                        Record::name_only(lease, slot, Purpose::Debt, Fate::Voided, amount),
                        until_ms,
                    );
                }
            }
        }
    }

    fn hold(&mut self, chain: &Chain, lease: u128, slot: u32, purpose: Purpose, hold: Hold, now_ms: u64) {
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

    fn void(&mut self, lease: u128, slot: u32, purpose: Purpose, now_ms: u64) {
        let at = self.store.find(lease, slot, purpose).expect("what was tried must be there");
        // A name is remembered where there is room for it.
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

/// Nobody names it again, so it needs no record of its own. Nobody can leave in the middle of what never waits either.
fn is_anonymous(chain: &Chain) -> bool {
    matches!(chain.keep, Keep::Nothing | Keep::ForUndo)
}

#[cfg(test)]
mod tests;
