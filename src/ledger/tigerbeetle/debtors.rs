//! The limits that this instance knows to owe something: when each is to be looked at, and what its callers are told.
//!
//! Bounded: of limits beyond the bound this instance knows that they owe, but leaves it to others to pay. No I/O.

use std::sync::Arc;

use ahash::AHashMap;
use tokio::sync::Notify;

use crate::ledger::debt_log::{DebtChange, DebtLog};
use crate::ledger::{Account, Schedule};
use crate::limit::LimitId;

/// Limits at most: a kilobyte each beside their keys, and a look at each once a second.
const DEBTORS_MAX: usize = 10_000;

/// Keys that are longer than this may hold so much together. A key has what callers send in it; those who send much must not take the
/// place of the others.
const KEY_BYTES: usize = 1 << 10;
const LONG_KEY_BYTES_MAX: usize = 16 << 20;

/// How old may be what is known of a debt.
const LOOK_INTERVAL_MS: u64 = 1_000;

/// Steps of a forecast that are remembered.
const STEPS_MAX: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Debtors {
    all: parking_lot::Mutex<AllDebtors>,
    /// One is due earlier than was known.
    pub hurry: Notify,
    log: DebtLog,
}

#[derive(Debug, Default)]
struct AllDebtors {
    by_id: AHashMap<LimitId, Debtor>,
    long_key_bytes: usize,
}

#[derive(Debug)]
struct Debtor {
    account: Arc<Account>,
    due_ms: u64,
    /// When something of it should come back next, if that is known.
    expected_ms: Option<u64>,
    /// What others get back of it and when, once all is paid.
    forecast: Option<Schedule>,
}

/// One that is to be looked at.
#[derive(Debug)]
pub(super) struct Due {
    pub account: Arc<Account>,
    /// It isn't known when something comes back, or it should have come back by now.
    pub needs_forecast: bool,
}

impl Debtors {
    /// A limit was found to owe something.
    pub(super) fn add(&self, account: &Arc<Account>, owed: u64, now_ms: u64) {
        self.enter(account, owed, now_ms, false);
    }

    /// A limit is to be looked at now, because it owes so much more than was known. 0 if that was known.
    pub(super) fn owes_more(&self, account: &Arc<Account>, owed: u64, now_ms: u64) {
        self.enter(account, owed, now_ms, true);
    }

    fn enter(&self, account: &Arc<Account>, owed: u64, now_ms: u64, is_more: bool) {
        let mut all = self.all.lock();
        let is_known = all.by_id.contains_key(&account.id);
        let long_key_bytes = all.long_key_bytes + long_key_bytes(account);
        if let Some(debtor) = all.by_id.get_mut(&account.id) {
            if !is_more {
                return;
            }
            debtor.due_ms = now_ms;
        } else if all.by_id.len() < DEBTORS_MAX && long_key_bytes <= LONG_KEY_BYTES_MAX {
            let debtor =
                Debtor { account: Arc::clone(account), due_ms: now_ms, expected_ms: None, forecast: None };
            all.by_id.insert(account.id, debtor);
            all.long_key_bytes = long_key_bytes;
        }
        drop(all);
        if owed > 0 && !is_known {
            self.log.write(&DebtChange::Owes { key: account.key.clone(), amount: owed }, now_ms);
        }
        self.hurry.notify_one();
    }

    /// It owes nothing any more, or doesn't repay.
    pub(super) fn remove(&self, account: &Account, now_ms: u64) {
        let mut all = self.all.lock();
        let removed = all.by_id.remove(&account.id);
        if removed.is_some() {
            all.long_key_bytes -= long_key_bytes(account);
        }
        drop(all);
        if removed.is_some() {
            self.log.write(&DebtChange::Paid { key: account.key.clone() }, now_ms);
        }
    }

    /// When the next one is due.
    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.all.lock().by_id.values().map(|debtor| debtor.due_ms).min()
    }

    /// Those that are due. They are due again a second later, or when something should come back.
    pub(super) fn take_due(&self, most: usize, now_ms: u64) -> Vec<Due> {
        let mut all = self.all.lock();
        let due = all.by_id.values_mut().filter(|debtor| debtor.due_ms <= now_ms).take(most);
        due.map(|debtor| {
            debtor.due_ms = now_ms + LOOK_INTERVAL_MS;
            let expected_ms = debtor.expected_ms.filter(|at_ms| *at_ms > now_ms);
            expected_ms.inspect(|at_ms| debtor.due_ms = debtor.due_ms.min(*at_ms));
            Due { account: Arc::clone(&debtor.account), needs_forecast: expected_ms.is_none() }
        })
        .collect()
    }

    /// Something should come back at `expected_ms`. What comes after the debt is unknown where `forecast` isn't whole.
    pub(super) fn foresee(&self, account: &Account, expected_ms: Option<u64>, forecast: Schedule) {
        if let Some(debtor) = self.all.lock().by_id.get_mut(&account.id) {
            debtor.due_ms = expected_ms.map_or(debtor.due_ms, |at_ms| debtor.due_ms.min(at_ms));
            debtor.expected_ms = expected_ms;
            debtor.forecast = forecast.is_whole.then(|| forecast.coarse(STEPS_MAX));
        }
    }

    /// When an amount fits into what is left after the debt; `None` if that isn't known.
    pub(super) fn fits_at_ms(
        &self,
        account: &Account,
        amount: u64,
        capacity: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let all = self.all.lock();
        all.by_id.get(&account.id)?.forecast.as_ref()?.fits_at_ms(amount, capacity, now_ms)
    }
}

/// What it adds to what long keys hold.
fn long_key_bytes(account: &Account) -> usize {
    Some(account.key.as_str().len()).filter(|bytes| *bytes > KEY_BYTES).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitKey;

    fn account(key: &str) -> Arc<Account> {
        Arc::new(Account::new(LimitKey::new(key)))
    }

    #[test]
    fn each_is_looked_at_once_a_second_or_when_it_is_worth_it() {
        let (debtors, one) = (Debtors::default(), account("one"));
        debtors.add(&one, 5, 100);
        assert_eq!(debtors.take_due(9, 100).len(), 1);
        debtors.add(&one, 5, 200);
        assert_eq!((debtors.take_due(9, 1_099).len(), debtors.next_due_ms()), (0, Some(1_100)));
        debtors.foresee(&one, Some(700), Schedule::default());
        assert!(debtors.take_due(9, 699).is_empty());
        assert!(debtors.take_due(9, 700)[0].needs_forecast, "it should be there");
        debtors.foresee(&one, Some(3_000), Schedule::default());
        assert!(!debtors.take_due(9, 1_700)[0].needs_forecast);
        assert_eq!((debtors.take_due(9, 2_700).len(), debtors.next_due_ms()), (1, Some(3_000)));
        debtors.owes_more(&one, 5, 2_800);
        assert_eq!(debtors.take_due(9, 2_800).len(), 1);
        debtors.remove(&one, 2_900);
        assert_eq!(debtors.next_due_ms(), None);
    }

    #[test]
    fn their_number_is_bounded() {
        let debtors = Debtors::default();
        (0..=DEBTORS_MAX).for_each(|n| debtors.add(&account(&n.to_string()), 5, 100));
        assert_eq!(debtors.all.lock().by_id.len(), DEBTORS_MAX);
        assert_eq!(debtors.take_due(7, 100).len(), 7);
    }

    #[test]
    fn long_keys_are_bounded_in_bytes_and_keep_nobody_out() {
        let debtors = Debtors::default();
        let long = |n: usize| account(&format!("{n:03}{}", "x".repeat(59_999)));
        (0..300).for_each(|n| debtors.add(&long(n), 5, 100));
        assert_eq!(debtors.all.lock().by_id.len(), LONG_KEY_BYTES_MAX / 60_002);
        debtors.add(&account("short"), 5, 100);
        assert!(debtors.all.lock().by_id.contains_key(&account("short").id));
        (0..300).for_each(|n| debtors.remove(&long(n), 200));
        assert_eq!(debtors.all.lock().long_key_bytes, 0, "what was refused is not taken off");
    }
}
