//! What to do about an account that holds one capacity and should hold another. Pure.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::wire::CapacityChange;
use crate::ledger::{Account, Want};
use crate::limit::{LimitId, Overage};

/// What an account should be.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub account: Arc<Account>,
    /// `None`: whatever it is.
    pub capacity: Option<u64>,
    pub has_debt_account: bool,
    /// The window of a limit that repays what it owes: whether it does must be known.
    pub repays: Option<NonZeroU32>,
}

impl From<Want> for Wanted {
    fn from(want: Want) -> Self {
        let Want { account, capacity, overage, lifetime_seconds } = want;
        Self::new(account, Some(capacity), overage, lifetime_seconds)
    }
}

impl Wanted {
    pub(super) fn new(
        account: Arc<Account>,
        capacity: Option<u64>,
        overage: Overage,
        lifetime_seconds: NonZeroU32,
    ) -> Self {
        let repays = (overage == Overage::Repay).then_some(lifetime_seconds);
        Self { account, capacity, has_debt_account: overage != Overage::Deny, repays }
    }

    /// Of several who want something of the same account, the first says which capacity.
    pub(super) fn merge(all: impl Iterator<Item = Wanted>) -> Vec<Wanted> {
        let mut merged: ahash::AHashMap<LimitId, Wanted> = ahash::AHashMap::new();
        for wanted in all {
            let there = merged.entry(wanted.account.id).or_insert_with(|| wanted.clone());
            there.capacity = there.capacity.or(wanted.capacity);
            there.has_debt_account |= wanted.has_debt_account;
            there.repays = there.repays.or(wanted.repays);
        }
        merged.into_values().collect()
    }
}

/// One account on its way to a capacity, as it was last read.
#[derive(Debug, Clone)]
pub(super) struct Item {
    pub account: Arc<Account>,
    pub capacity: u64,
    pub credits_posted: u128,
    pub debits_posted: u128,
    pub debits_pending: u128,
}

/// What to do about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum CapacityPlan {
    Ready,
    Change(CapacityChange),
    /// Lowering must wait for this much to come back.
    NoRoom,
}

impl Item {
    /// An account that was just made.
    pub(super) fn new(account: Arc<Account>, capacity: u64) -> Self {
        Self { account, capacity, credits_posted: 0, debits_posted: 0, debits_pending: 0 }
    }

    pub(super) fn plan(&self) -> CapacityPlan {
        let balance = self.credits_posted.saturating_sub(self.debits_posted);
        let wanted = u128::from(self.capacity);
        let amount = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        if balance == wanted {
            CapacityPlan::Ready
        } else if balance < wanted {
            CapacityPlan::Change(CapacityChange::Raise(amount(wanted - balance)))
        } else if balance.saturating_sub(self.debits_pending) >= balance - wanted {
            CapacityPlan::Change(CapacityChange::Lower(amount(balance - wanted)))
        } else {
            CapacityPlan::NoRoom
        }
    }

    /// What the account holds now.
    pub(super) fn capacity_now(&self) -> u64 {
        u64::try_from(self.credits_posted.saturating_sub(self.debits_posted)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitKey;

    #[test]
    fn plans() {
        let account = Arc::new(Account::new(LimitKey::new("k")));
        for (capacity, credits_posted, debits_posted, debits_pending, expected) in [
            (10, 0, 0, 0, CapacityPlan::Change(CapacityChange::Raise(10))),
            (10, 10, 0, 7, CapacityPlan::Ready),
            (10, 15, 5, 0, CapacityPlan::Ready),
            (12, 10, 0, 10, CapacityPlan::Change(CapacityChange::Raise(2))),
            (5, 10, 0, 5, CapacityPlan::Change(CapacityChange::Lower(5))),
            (5, 10, 0, 6, CapacityPlan::NoRoom),
            (0, 0, 0, 0, CapacityPlan::Ready),
            (0, 3, 0, 0, CapacityPlan::Change(CapacityChange::Lower(3))),
        ] {
            let row = (capacity, credits_posted, debits_posted, debits_pending);
            let account = Arc::clone(&account);
            let item = Item { account, capacity, credits_posted, debits_posted, debits_pending };
            assert_eq!(item.plan(), expected, "{row:?}");
        }
    }

    #[test]
    fn who_wants_only_a_debt_account_says_nothing_of_the_capacity() {
        let account = Arc::new(Account::new(LimitKey::new("k")));
        let wanted = |capacity, has_debt_account| {
            let account = Arc::clone(&account);
            Wanted { account, capacity, has_debt_account, repays: None }
        };
        let all = [wanted(None, true), wanted(Some(7), false), wanted(Some(9), false)];
        let merged = Wanted::merge(all.into_iter());
        assert_eq!(merged.len(), 1);
        assert_eq!((merged[0].capacity, merged[0].has_debt_account), (Some(7), true));
    }
}
