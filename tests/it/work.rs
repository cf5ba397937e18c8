//! Chains for tests that talk to a ledger directly.

use std::num::NonZeroU32;
use std::sync::Arc;

use sluice::ledger::{Account, Action, Chain, Hold, Keep, Transfer};
use sluice::limit::{LeaseId, LimitKey, Overage};

pub fn account(key: &str) -> Arc<Account> {
    Arc::new(Account::new(LimitKey::new(key)))
}

pub fn reserve(account: &Arc<Account>, amount: u64, capacity: u64, seconds: u32) -> Transfer {
    let lifetime_seconds = NonZeroU32::new(seconds).unwrap();
    let hold = Hold { amount, lifetime_seconds, capacity, overage: Overage::Deny, is_exact: true };
    Transfer { account: Arc::clone(account), action: Action::Reserve(hold) }
}

pub fn fresh() -> LeaseId {
    LeaseId::fresh(sluice::clock::unix_ms(), fastrand::u128(..))
}

pub fn chain(lease: LeaseId, keep: Keep, transfers: Vec<Transfer>) -> Chain {
    Chain { lease, keep, transfers: transfers.into() }
}
