//! How a limit pays what it owes: as much as is free is reserved for a window and taken off the debt.
//!
//! It happens whenever something becomes free, at the very time at which it does, so that nothing is ever free while
//! something is owed.

use super::trial::Trial;
use super::{Core, settled};
use crate::ledger::memory::store::NONE;
use crate::ledger::{Account, Action, Chain};
use crate::limit::LimitId;

impl Core {
    /// What a limit owes that pays its debts first.
    pub fn owed(&mut self, account: &Account, now_ms: u64) -> u64 {
        if !self.debts.is_repaying(account.id) {
            return 0;
        }
        self.expire(now_ms, usize::MAX);
        let debt = self.debts.get(account.id).filter(|debt| debt.window_ms().is_some());
        debt.map_or(0, |debt| debt.owed)
    }

    /// In how long all is paid and an amount fits; `None` if that never happens.
    pub fn repaid_in_ms(&mut self, account: &Account, amount: u64, now_ms: u64) -> Option<u64> {
        self.expire(now_ms, usize::MAX);
        let debt = self.debts.get(account.id);
        let Some((debt, window_ms)) = debt.and_then(|debt| Some((debt, debt.window_ms()?))) else {
            return Some(0);
        };
        // Where there are many records, the rate of the limit must do.
        let releases = match self.store.account(account.id) {
            NONE => Some(Vec::new()),
            slot => self.store.walk(slot),
        };
        let mut schedule = self.schedule_of(account, releases, now_ms);
        schedule.releases.sort_unstable();
        if !schedule.is_whole {
            return crate::retry::schedule::paid_in_ms(debt.owed, debt.capacity, window_ms);
        }
        Some(schedule.fits_at_ms(amount, debt.capacity, now_ms)?.saturating_sub(now_ms))
    }

    /// Nothing is owed any more.
    pub fn forgive(&mut self, account: &Account) {
        self.debts.forgive(account.id);
    }

    /// Limits that owe something are told the terms that a chain has for them, and pay if those give them room.
    pub(super) fn meet_terms(&mut self, chain: &Chain, now_ms: u64) {
        if self.debts.is_empty() {
            return;
        }
        for transfer in &chain.transfers {
            if let Action::Reserve(hold) = transfer.action
                && self.debts.get(transfer.account.id).is_some()
            {
                self.debts.meet(transfer.account.id, hold);
                self.meet_capacity(transfer.account.id, hold.capacity, now_ms);
            }
        }
    }

    /// The same where only the capacity is known.
    pub(super) fn meet_capacity(&mut self, limit: LimitId, capacity: u64, now_ms: u64) {
        if self.debts.get(limit).is_none() {
            return;
        }
        self.debts.meet_capacity(limit, capacity);
        let slot = self.store.account(limit);
        if slot != NONE {
            let there = self.store.slot_mut(slot);
            there.capacity = settled(there.capacity, there.pending, capacity);
        }
        self.pay(limit, now_ms);
    }

    /// Pays from what a chain has left free.
    pub(super) fn pay_with_what_is_free(&mut self, chain: &Chain, trial: &mut Trial, now_ms: u64) {
        if self.debts.is_empty() {
            return;
        }
        for transfer in &chain.transfers {
            let id = transfer.account.id;
            let paid = self.pay(id, now_ms);
            trial.account(id).spend(paid);
        }
    }

    /// Pays what can be paid at a time; how much that was.
    pub(super) fn pay(&mut self, limit: LimitId, at_ms: u64) -> u64 {
        if self.debts.is_empty() {
            return 0;
        }
        let Some(debt) = self.debts.get(limit) else { return 0 };
        let Some(window_ms) = debt.window_ms() else { return 0 };
        let slot = self.store.account(limit);
        let (capacity, pending) = match slot {
            NONE => (debt.capacity, 0),
            slot => (self.store.slot(slot).capacity.min(debt.capacity), self.store.slot(slot).pending),
        };
        let amount = debt.owed.min(capacity.saturating_sub(pending));
        if amount > 0 {
            let slot = self.store.account_or_new(limit, capacity);
            self.store.count_until(slot, amount, at_ms + window_ms);
            self.debts.pay(limit, amount);
        }
        amount
    }
}
