//! What limits owe, and how they pay: a bounded table of its own, because hardly any limit owes anything.
//!
//! When there are too many the oldest debt is forgotten. Refuses to know balances and clocks.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use ahash::AHashMap;

use crate::ledger::debt_log::DebtChange;
use crate::ledger::{Account, Hold};
use crate::limit::{LimitId, LimitKey, Overage};

/// Some 100 bytes each and the beginning of a key, so about 250 MB at most.
pub(super) const DEBTS_MAX: usize = 1 << 20;

/// What is kept of a key, for the log. Keys come from clients, and the whole of a long one would fill memory.
const KEY_BYTES_MAX: usize = 128;

/// Changes that may wait to be read. Those beyond are not told.
const CHANGES_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Debts {
    by_limit: AHashMap<LimitId, Debt>,
    /// In the order in which they began. Some of them are paid.
    oldest: VecDeque<LimitId>,
    changes: Vec<DebtChange>,
}

/// What one limit owes; never nothing.
#[derive(Debug)]
pub(super) struct Debt {
    /// The key of the limit, or the beginning of one that is long.
    key: LimitKey,
    pub(super) owed: u64,
    /// The life of what is reserved to pay for it; `None` while nobody pays.
    window_seconds: Option<NonZeroU32>,
    /// How much of the limit may be in use after a payment.
    pub(super) capacity: u64,
}

impl Debt {
    /// How long what pays for it is reserved; `None` while nobody pays.
    pub(super) fn window_ms(&self) -> Option<u64> {
        self.window_seconds.map(|seconds| u64::from(seconds.get()) * 1000)
    }
}

impl Debts {
    pub(super) fn is_empty(&self) -> bool {
        self.by_limit.is_empty()
    }

    pub(super) fn get(&self, limit: LimitId) -> Option<&Debt> {
        self.by_limit.get(&limit)
    }

    /// Whether a limit owes what it pays before anything else.
    pub(super) fn is_repaying(&self, limit: LimitId) -> bool {
        !self.is_empty() && self.get(limit).is_some_and(|debt| debt.window_seconds.is_some())
    }

    pub(super) fn add(&mut self, account: &Account, hold: Hold) {
        if hold.amount == 0 {
            return;
        }
        if let Some(debt) = self.by_limit.get_mut(&account.id) {
            debt.owed = debt.owed.saturating_add(hold.amount);
        } else {
            if self.by_limit.len() >= DEBTS_MAX {
                self.forget_the_oldest();
            }
            let (key, owed) = (shortened(&account.key), hold.amount);
            self.note(DebtChange::Owes { key: key.clone(), amount: owed });
            let debt = Debt { key, owed, window_seconds: None, capacity: hold.capacity };
            self.by_limit.insert(account.id, debt);
            self.oldest.push_back(account.id);
        }
        self.meet(account.id, hold);
    }

    /// Notes the terms of a limit as a chain has them now. A reserve and a debt last for a window of it.
    pub(super) fn meet(&mut self, limit: LimitId, hold: Hold) {
        if let Some(debt) = self.by_limit.get_mut(&limit) {
            debt.capacity = hold.capacity;
            debt.window_seconds = (hold.overage == Overage::Repay).then_some(hold.lifetime_seconds);
        }
    }

    /// The same where only the capacity is known.
    pub(super) fn meet_capacity(&mut self, limit: LimitId, capacity: u64) {
        if let Some(debt) = self.by_limit.get_mut(&limit) {
            debt.capacity = capacity;
        }
    }

    /// So much of it was paid.
    pub(super) fn pay(&mut self, limit: LimitId, amount: u64) {
        let Some(debt) = self.by_limit.get_mut(&limit) else { return };
        debt.owed = debt.owed.saturating_sub(amount);
        if debt.owed == 0 {
            self.forgive(limit);
        }
    }

    /// Nothing is owed any more.
    pub(super) fn forgive(&mut self, limit: LimitId) {
        if let Some(debt) = self.by_limit.remove(&limit) {
            self.note(DebtChange::Paid { key: debt.key });
        }
        // Every debt that was paid leaves an entry here. Now and then they are removed.
        if self.oldest.len() > 2 * self.by_limit.len() + CHANGES_MAX {
            self.oldest.retain(|limit| self.by_limit.contains_key(limit));
        }
    }

    /// What has changed since this was last asked.
    pub(super) fn take_changes(&mut self) -> Vec<DebtChange> {
        std::mem::take(&mut self.changes)
    }

    fn note(&mut self, change: DebtChange) {
        if self.changes.len() < CHANGES_MAX {
            self.changes.push(change);
        }
    }

    fn forget_the_oldest(&mut self) {
        while let Some(limit) = self.oldest.pop_front() {
            if self.by_limit.remove(&limit).is_some() {
                return;
            }
        }
    }
}

fn shortened(key: &LimitKey) -> LimitKey {
    let text = key.as_str();
    if text.len() <= KEY_BYTES_MAX {
        return key.clone();
    }
    LimitKey::new(&format!("{}...", &text[..text.floor_char_boundary(KEY_BYTES_MAX)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(n: usize) -> Account {
        Account::new(LimitKey::new(&format!("k{n}")))
    }

    fn hold(amount: u64, overage: Overage) -> Hold {
        Hold { amount, lifetime_seconds: NonZeroU32::MIN, capacity: 9, overage, is_exact: true }
    }

    #[test]
    fn debts_add_up_and_are_paid() {
        let (mut debts, one) = (Debts::default(), account(1));
        debts.add(&one, hold(0, Overage::Repay));
        assert!(debts.is_empty());
        debts.add(&one, hold(5, Overage::Repay));
        debts.add(&one, hold(u64::MAX, Overage::Repay));
        assert_eq!(debts.get(one.id).map(|debt| debt.owed), Some(u64::MAX));
        debts.pay(one.id, u64::MAX - 1);
        assert!(debts.is_repaying(one.id));
        debts.pay(one.id, 1);
        assert!(debts.is_empty() && !debts.is_repaying(one.id));
        let key = one.key.clone();
        assert_eq!(
            debts.take_changes(),
            [DebtChange::Owes { key: key.clone(), amount: 5 }, DebtChange::Paid { key }]
        );
        assert_eq!(debts.take_changes(), []);
    }

    #[test]
    fn whether_a_debt_is_paid_is_what_the_limit_says_now() {
        let (mut debts, one) = (Debts::default(), account(1));
        debts.add(&one, hold(5, Overage::Debt));
        for overage in [Overage::Repay, Overage::Debt, Overage::Repay, Overage::Deny] {
            debts.meet(one.id, hold(1, overage));
            assert_eq!(debts.is_repaying(one.id), overage == Overage::Repay);
        }
    }

    #[test]
    fn paid_debts_leave_nothing_behind() {
        let mut debts = Debts::default();
        for n in 0..10_000 {
            let one = account(n);
            debts.add(&one, hold(5, Overage::Repay));
            debts.forgive(one.id);
            assert!(debts.oldest.len() <= 2 + CHANGES_MAX && debts.changes.len() <= CHANGES_MAX);
        }
    }

    #[test]
    fn of_a_long_key_only_the_beginning_is_kept() {
        let (mut debts, long) = (Debts::default(), Account::new(LimitKey::new(&"é".repeat(1 << 19))));
        debts.add(&long, hold(5, Overage::Debt));
        let kept = format!("{}...", "é".repeat(KEY_BYTES_MAX / 2));
        assert_eq!(debts.get(long.id).map(|debt| debt.key.as_str()), Some(&*kept));
        debts.forgive(long.id);
        let key = LimitKey::new(&kept);
        assert_eq!(
            debts.take_changes(),
            [DebtChange::Owes { key: key.clone(), amount: 5 }, DebtChange::Paid { key }]
        );
    }

    #[test]
    fn the_oldest_is_forgotten_first() {
        let (mut debts, all) = (Debts::default(), [0, 1, 2].map(account));
        all.iter().for_each(|one| debts.add(one, hold(5, Overage::Debt)));
        debts.forgive(all[0].id);
        debts.forget_the_oldest();
        assert!(debts.get(all[1].id).is_none() && debts.get(all[2].id).is_some());
    }
}
