//! A chain is tried on copies of its accounts: what it would come to, without changing anything.

use smallvec::SmallVec;

use super::{Core, is_anonymous};
use crate::ledger::memory::record::{Fate, Purpose, Record};
use crate::ledger::memory::store::NONE;
use crate::ledger::{Action, Chain, Hold, Outcome, Refusal, RefusalCode, Transfer, TransferSet, Verdict};
use crate::limit::{LimitId, Overage};

/// The accounts of a chain while it is being tried.
#[derive(Default)]
pub(super) struct Trial {
    accounts: SmallVec<[Tried; 4]>,
    /// What each `TakeUpTo` takes, in the order of the chain.
    pub(super) taken: SmallVec<[u64; 1]>,
}

/// An account as a chain sees it.
pub(super) struct Tried {
    id: LimitId,
    /// In the store, or `NONE` if the account holds nothing.
    pub(super) slot: u32,
    pub(super) capacity: u64,
    pending: u64,
    pending_before: u64,
}

/// How a trial ended short of "it can be done".
pub(super) enum Stop {
    /// This very chain was done before.
    DoneBefore,
    Refused(Refusal),
}

impl Trial {
    /// An account that has been tried.
    pub(super) fn account(&mut self, id: LimitId) -> &mut Tried {
        let found = self.accounts.iter_mut().find(|tried| tried.id == id);
        found.expect("every account must have been tried")
    }
}

impl Tried {
    /// Notes that this much more of it is in use.
    pub(super) fn spend(&mut self, amount: u64) {
        self.pending = self.pending.saturating_add(amount);
    }
}

impl Core {
    /// Tries the transfers in order. Changes nothing.
    pub(super) fn attempt(&self, chain: &Chain) -> (Trial, Result<(), Stop>) {
        let mut trial = Trial::default();
        for (index, transfer) in chain.transfers.iter().enumerate() {
            if let Err(code) = self.step(chain, index, transfer, &mut trial) {
                let stop = match code {
                    None => match self.is_still_held(chain) {
                        Ok(()) => Stop::DoneBefore,
                        Err((index, code)) => Stop::Refused(Refusal::one(index, code)),
                    },
                    Some(code) => Stop::Refused(self.refusal(chain, &mut trial, index, code)),
                };
                return (trial, Err(stop));
            }
        }
        (trial, Ok(()))
    }

    /// One transfer. `Err(None)`: the chain was done before.
    fn step(
        &self,
        chain: &Chain,
        index: usize,
        transfer: &Transfer,
        trial: &mut Trial,
    ) -> Result<(), Option<RefusalCode>> {
        let place = self.enter(trial, transfer);
        let tried = &mut trial.accounts[place];
        match transfer.action {
            Action::Reserve(hold) => {
                self.known(chain, index, tried.slot, Purpose::Reserve, hold.amount)?;
                self.reserve(tried, hold).map_err(Some)
            }
            Action::Rereserve(hold) => {
                self.known(chain, index, tried.slot, Purpose::Rereserve, hold.amount)?;
                // From what the account has, also while that is being lowered.
                take(tried, Hold { capacity: hold.capacity.max(tried.capacity), ..hold }).map_err(Some)
            }
            Action::TakeUpTo(hold) => {
                let known = self.find(chain, tried.slot, Purpose::Take).map(|record| record.amount);
                self.known(chain, index, tried.slot, Purpose::Take, known.unwrap_or_default())?;
                let taken = take_up_to(tried, hold).map_err(Some)?;
                trial.taken.push(taken);
                Ok(())
            }
            Action::Debt(hold) => self.known(chain, index, tried.slot, Purpose::Debt, hold.amount),
            Action::Void => self.void_step(chain, index, tried, Purpose::Reserve),
            Action::VoidTaken => self.void_step(chain, index, tried, Purpose::Take),
            Action::VoidRereserved => self.void_step(chain, index, tried, Purpose::Rereserve),
        }
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

    fn reserve(&self, tried: &mut Tried, hold: Hold) -> Result<(), RefusalCode> {
        let owes = hold.overage == Overage::Repay && self.debts.is_repaying(tried.id);
        match take(tried, hold) {
            Err(RefusalCode::LimitDecreasing) => Err(RefusalCode::LimitDecreasing),
            _ if owes => Err(RefusalCode::InDebt),
            taken => taken,
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

    pub(super) fn find(&self, chain: &Chain, slot: u32, purpose: Purpose) -> Option<&Record> {
        self.place(chain, slot, purpose).map(|at| self.store.record(at))
    }

    pub(super) fn place(&self, chain: &Chain, slot: u32, purpose: Purpose) -> Option<u32> {
        if is_anonymous(chain) || slot == NONE {
            return None;
        }
        self.store.find(chain.lease.bits(), slot, purpose)
    }

    /// The place of the transfer's account in the trial.
    fn enter(&self, trial: &mut Trial, transfer: &Transfer) -> usize {
        let id = transfer.account.id;
        if let Some(place) = trial.accounts.iter().position(|tried| tried.id == id) {
            return place;
        }
        let slot = self.store.account(id);
        let (capacity, pending) = match slot {
            NONE => match transfer.action {
                Action::Reserve(hold)
                | Action::Rereserve(hold)
                | Action::TakeUpTo(hold)
                | Action::Debt(hold) => (hold.capacity, 0),
                Action::Void | Action::VoidTaken | Action::VoidRereserved => (0, 0),
            },
            slot => (self.store.slot(slot).capacity, self.store.slot(slot).pending),
        };
        trial.accounts.push(Tried { id, slot, capacity, pending, pending_before: pending });
        trial.accounts.len() - 1
    }

    /// What the caller hears.
    pub(super) fn outcome(&self, chain: &Chain, trial: &mut Trial, verdict: Verdict) -> Outcome {
        // Also on accounts that the trial did not come to.
        let available = |transfer: &Transfer| {
            let place = self.enter(trial, transfer);
            let tried = &trial.accounts[place];
            let pending = if verdict == Verdict::Done { tried.pending } else { tried.pending_before };
            tried.capacity.saturating_sub(pending)
        };
        let available = chain.transfers.iter().map(available).collect();
        let taken = if verdict == Verdict::Done { std::mem::take(&mut trial.taken) } else { SmallVec::new() };
        Outcome { verdict, available, is_repeat: false, taken, decided_at_ns: None }
    }

    /// What each `TakeUpTo` of a chain that was done before took.
    pub(super) fn taken_before(&self, chain: &Chain) -> SmallVec<[u64; 1]> {
        let takes = chain.transfers.iter().filter(|it| matches!(it.action, Action::TakeUpTo(_)));
        let slots = takes.map(|transfer| self.store.account(transfer.account.id));
        slots.map(|slot| self.find(chain, slot, Purpose::Take).map_or(0, |record| record.amount)).collect()
    }

    /// Names the others of the chain that don't fit either.
    fn refusal(&self, chain: &Chain, trial: &mut Trial, index: usize, code: RefusalCode) -> Refusal {
        let lacks_room = |code| matches!(code, RefusalCode::ExceedsCredits | RefusalCode::InDebt);
        let mut failed = TransferSet::one(index);
        if lacks_room(code) {
            for (later, transfer) in chain.transfers.iter().enumerate().skip(index + 1) {
                if matches!(self.step(chain, later, transfer, trial), Err(Some(code)) if lacks_room(code)) {
                    failed.insert(later);
                }
            }
        }
        Refusal { index, code, failed }
    }
}

/// The capacity an account has once `wanted` was asked for: raised at once, lowered only when that much is free.
pub(super) fn settled(capacity: u64, pending: u64, wanted: u64) -> u64 {
    if wanted > capacity || pending <= wanted { wanted } else { capacity }
}

/// As much as there is.
fn take_up_to(tried: &mut Tried, hold: Hold) -> Result<u64, RefusalCode> {
    let capacity = settled(tried.capacity, tried.pending, hold.capacity);
    let amount = hold.amount.min(capacity.saturating_sub(tried.pending));
    take(tried, Hold { amount, ..hold }).map(|()| amount)
}

fn take(tried: &mut Tried, hold: Hold) -> Result<(), RefusalCode> {
    tried.capacity = settled(tried.capacity, tried.pending, hold.capacity);
    if tried.capacity > hold.capacity {
        return Err(RefusalCode::LimitDecreasing);
    }
    match tried.pending.checked_add(hold.amount) {
        Some(pending) if pending <= tried.capacity => {
            tried.pending = pending;
            Ok(())
        }
        _ => Err(RefusalCode::ExceedsCredits),
    }
}
