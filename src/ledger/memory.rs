//! The embedded ledger: the rules of [`crate::ledger`] in one process, with `now` as an argument.
//!
//! Exact but not durable. Knows nothing of files, hints or the wire; what it holds is in [`store`].

mod store;

use parking_lot::Mutex;
use smallvec::SmallVec;

use self::store::{Fate, NONE, Purpose, Record, Store};
use super::{
    Action, Balance, Chain, Code, Hold, Keep, LedgerError, Outcome, Outlook, Refusal, Transfer, Verdict,
};
use crate::limit::{Account, LeaseId};

/// Records kept at most: 136 bytes each where every one has an account of its own (tests/it/footprint.rs), so under
/// 2.3 GB in the worst case.
pub const RESERVATIONS_MAX: usize = 1 << 24;

/// How long a name that the caller chose is remembered after its reservation ended. A request id names another lease
/// after this long anyway.
const RETRY_MEMORY_MS: u64 = 1 << 16;

/// Records of one account looked at for an outlook; beyond that it has none. Some milliseconds under the lock.
const FREES_MAX: usize = 1 << 17;

/// Expired records freed by one call at most, unless more are needed to decide.
const EXPIRED_PER_CALL: usize = 256;

/// The embedded ledger as the server shares it. A plain mutex: sections are under a microsecond and never wait.
#[derive(Debug, Default)]
pub struct Memory {
    core: Mutex<Core>,
}

impl Memory {
    pub fn apply(&self, chain: &Chain, now_ms: u64) -> Result<Outcome, LedgerError> {
        self.core.lock().apply(chain, now_ms)
    }

    /// Gives a reserve back whose caller never heard of it; whether it held anything.
    pub fn give_back(&self, chain: &Chain, now_ms: u64) -> bool {
        self.core.lock().give_back(chain, now_ms)
    }

    pub fn balance(&self, account: &Account, capacity: u64, now_ms: u64) -> Balance {
        self.core.lock().balance(account, capacity, now_ms)
    }

    pub fn outlook(&self, account: &Account, now_ms: u64) -> Outlook {
        self.core.lock().outlook(account, now_ms)
    }

    /// Frees what expired, a part per lock so that callers get in between.
    pub fn sweep(&self, now_ms: u64) {
        while self.core.lock().store.expire(now_ms, EXPIRED_PER_CALL) == EXPIRED_PER_CALL {}
    }

    /// Whether anything is remembered of a lease.
    pub fn knows(&self, lease: &LeaseId) -> bool {
        self.core.lock().store.knows(lease.bits())
    }

    /// Reservations and names held now.
    pub fn records(&self) -> usize {
        self.core.lock().store.records()
    }
}

/// The rules, without a lock or a clock.
#[derive(Debug, Default)]
pub struct Core {
    store: Store,
}

/// An account as a chain sees it while it is being tried.
struct Tried {
    id: u128,
    /// In the store, or `NONE` if the account holds nothing.
    slot: u32,
    capacity: u64,
    pending: u64,
    pending_before: u64,
}

type Trial = SmallVec<[Tried; 4]>;

/// How a trial ended short of "it can be done".
enum Stop {
    /// This very chain was done before.
    DoneBefore,
    Refused(Refusal),
}

impl Core {
    pub fn apply(&mut self, chain: &Chain, now_ms: u64) -> Result<Outcome, LedgerError> {
        self.store.expire(now_ms, EXPIRED_PER_CALL);
        let mut trial = Trial::new();
        let mut tried = self.attempt(chain, &mut trial);
        // What is due but not freed yet must not deny anybody.
        if matches!(tried, Err(Stop::Refused(_))) && self.store.is_due(now_ms) {
            self.store.expire(now_ms, usize::MAX);
            trial.clear();
            tried = self.attempt(chain, &mut trial);
        }
        let verdict = match tried {
            Ok(()) if self.store.records() + chain.transfers.len() > RESERVATIONS_MAX => {
                return Err(LedgerError::Full(RESERVATIONS_MAX));
            }
            Ok(()) => {
                self.commit(chain, &mut trial, now_ms);
                Verdict::Done
            }
            Err(Stop::DoneBefore) => Verdict::Done,
            Err(Stop::Refused(refusal)) => {
                self.remember_refusal(chain, refusal, now_ms);
                Verdict::Refused(refusal)
            }
        };
        let available = self.available(chain, &mut trial, verdict);
        Ok(Outcome { verdict, available })
    }

    /// Each account on its own, because one whose window is over must not keep the others.
    pub fn give_back(&mut self, chain: &Chain, now_ms: u64) -> bool {
        let mut gave_back = false;
        for transfer in &chain.transfers {
            let slot = self.store.account(transfer.account.id);
            if is_anonymous(chain) || slot == NONE {
                continue;
            }
            let Some(at) = self.store.find(chain.lease.bits(), slot, Purpose::Reserve) else { continue };
            let Record { fate, for_retries, .. } = *self.store.record(at);
            match (fate, for_retries) {
                (Fate::Counted, true) => self.store.end(at, Fate::GivenBack, now_ms + RETRY_MEMORY_MS),
                (Fate::Counted, false) => self.store.remove(at),
                _ => continue,
            }
            gave_back = true;
        }
        gave_back
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
    pub fn outlook(&mut self, account: &Account, now_ms: u64) -> Outlook {
        self.store.expire(now_ms, usize::MAX);
        let slot = self.store.account(account.id);
        if slot == NONE {
            return Outlook { is_whole: true, ..Outlook::default() };
        }
        let used = self.store.slot(slot).pending;
        let Some(mut frees) = self.store.frees(slot, FREES_MAX) else {
            return Outlook { used, ..Outlook::default() };
        };
        frees.sort_unstable();
        Outlook { used, frees, is_whole: true }
    }

    /// Tries the transfers in order on copies of the accounts. Changes nothing.
    fn attempt(&self, chain: &Chain, trial: &mut Trial) -> Result<(), Stop> {
        for (index, transfer) in chain.transfers.iter().enumerate() {
            let place = self.enter(trial, transfer);
            if let Err(code) = self.step(chain, index, transfer, &mut trial[place]) {
                let Some(code) = code else { return Err(Stop::DoneBefore) };
                return Err(Stop::Refused(self.refusal(chain, trial, index, code)));
            }
        }
        Ok(())
    }

    /// One transfer. `Err(None)`: the chain was done before.
    fn step(
        &self,
        chain: &Chain,
        index: usize,
        transfer: &Transfer,
        tried: &mut Tried,
    ) -> Result<(), Option<Code>> {
        match transfer.action {
            Action::Reserve(hold) => {
                self.known(chain, index, tried.slot, Purpose::Reserve, hold.amount)?;
                take(tried, hold).map_err(Some)
            }
            Action::Rereserve(hold) => {
                self.known(chain, index, tried.slot, Purpose::Rereserve, hold.amount)?;
                // From what the account has, also while that is being lowered.
                take(tried, Hold { capacity: hold.capacity.max(tried.capacity), ..hold }).map_err(Some)
            }
            Action::Debt { amount } => self.known(chain, index, tried.slot, Purpose::Debt, amount),
            Action::Void => match self.find(chain, tried.slot, Purpose::Reserve) {
                None => Err(Some(Code::PendingTransferNotFound)),
                Some(record) => match record.fate {
                    Fate::Counted => {
                        tried.pending -= record.amount;
                        Ok(())
                    }
                    // Only this lease's void could have done it: it is being sent again.
                    Fate::Voided if index == 0 => Err(None),
                    Fate::Voided | Fate::GivenBack => Err(Some(Code::PendingTransferAlreadyVoided)),
                    Fate::Expired => Err(Some(Code::PendingTransferExpired)),
                    Fate::Refused => Err(Some(Code::PendingTransferNotFound)),
                },
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
    ) -> Result<(), Option<Code>> {
        match self.find(chain, slot, purpose) {
            None => Ok(()),
            Some(record) if record.fate == Fate::Refused => Err(Some(Code::IdAlreadyFailed)),
            Some(record) if record.fate == Fate::GivenBack => Err(Some(Code::Abandoned)),
            Some(record) if index == 0 && record.amount == amount => Err(None),
            Some(_) => Err(Some(Code::ExistsWithDifferentFields)),
        }
    }

    fn find(&self, chain: &Chain, slot: u32, purpose: Purpose) -> Option<&Record> {
        if is_anonymous(chain) || slot == NONE {
            return None;
        }
        self.store.find(chain.lease.bits(), slot, purpose).map(|at| self.store.record(at))
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
                Action::Reserve(hold) | Action::Rereserve(hold) => (hold.capacity, 0),
                Action::Void | Action::Debt { .. } => (0, 0),
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
    fn refusal(&self, chain: &Chain, trial: &mut Trial, index: usize, code: Code) -> Refusal {
        let mut failed = 1 << index;
        if code == Code::ExceedsCredits {
            for (later, transfer) in chain.transfers.iter().enumerate().skip(index + 1) {
                let place = self.enter(trial, transfer);
                let code = self.step(chain, later, transfer, &mut trial[place]);
                if code == Err(Some(Code::ExceedsCredits)) {
                    failed |= 1 << later;
                }
            }
        }
        Refusal { index, code, failed }
    }

    /// From here on it succeeds.
    fn commit(&mut self, chain: &Chain, trial: &mut Trial, now_ms: u64) {
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
                Action::Void => {
                    self.void(lease, slot, now_ms);
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

    fn void(&mut self, lease: u128, slot: u32, now_ms: u64) {
        let at = self.store.find(lease, slot, Purpose::Reserve).expect("what was tried must be there");
        if self.store.record(at).for_retries {
            self.store.end(at, Fate::Voided, now_ms + RETRY_MEMORY_MS);
        } else {
            self.store.remove(at);
        }
    }

    /// A name that the caller may send again stays refused.
    fn remember_refusal(&mut self, chain: &Chain, refusal: Refusal, now_ms: u64) {
        let full = self.store.records() >= RESERVATIONS_MAX;
        if !chain.keep.is_named() || refusal.code != Code::ExceedsCredits || full {
            return;
        }
        let transfer = &chain.transfers[refusal.index];
        let (purpose, hold) = match transfer.action {
            Action::Reserve(hold) => (Purpose::Reserve, hold),
            Action::Rereserve(hold) => (Purpose::Rereserve, hold),
            Action::Void | Action::Debt { .. } => return,
        };
        let slot = self.store.account_or_new(transfer.account.id, hold.capacity);
        let record = Record::name_only(chain.lease.bits(), slot, purpose, Fate::Refused, hold.amount);
        self.store.insert(record, now_ms + RETRY_MEMORY_MS);
    }
}

/// Nobody can leave in the middle of what never waits, so nothing is ever undone here.
fn is_anonymous(chain: &Chain) -> bool {
    matches!(chain.keep, Keep::Nothing | Keep::ForUndo)
}

/// The capacity an account has once `wanted` was asked for: raised at once, lowered only when that much is free.
fn settled(capacity: u64, pending: u64, wanted: u64) -> u64 {
    if wanted > capacity || pending <= wanted { wanted } else { capacity }
}

fn take(tried: &mut Tried, hold: Hold) -> Result<(), Code> {
    tried.capacity = settled(tried.capacity, tried.pending, hold.capacity);
    if tried.capacity > hold.capacity {
        return Err(Code::LimitDecreasing);
    }
    match tried.pending.checked_add(hold.amount) {
        Some(pending) if pending <= tried.capacity => {
            tried.pending = pending;
            Ok(())
        }
        _ => Err(Code::ExceedsCredits),
    }
}
