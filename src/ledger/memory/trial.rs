//! Accounts as a chain sees them while it is being tried: what can be taken from them, and what that leaves. Pure.

use smallvec::SmallVec;

use crate::ledger::{Hold, RefusalCode};
use crate::limit::LimitId;

/// An account as a chain sees it while it is being tried.
pub struct Tried {
    pub id: LimitId,
    /// In the store, or `NONE` if the account holds nothing.
    pub slot: u32,
    pub capacity: u64,
    pub pending: u64,
    pub pending_before: u64,
}

pub type Trial = SmallVec<[Tried; 4]>;

/// What each `TakeUpTo` took.
pub type Taken = SmallVec<[u64; 1]>;

/// The capacity an account has once `wanted` was asked for: raised at once, lowered only when that much is free.
pub fn settled(capacity: u64, pending: u64, wanted: u64) -> u64 {
    if wanted > capacity || pending <= wanted { wanted } else { capacity }
}

/// As much as there is.
pub fn take_up_to(tried: &mut Tried, hold: Hold) -> Result<u64, RefusalCode> {
    let capacity = settled(tried.capacity, tried.pending, hold.capacity);
    let amount = hold.amount.min(capacity.saturating_sub(tried.pending));
    take(tried, Hold { amount, ..hold }).map(|()| amount)
}

pub fn take(tried: &mut Tried, hold: Hold) -> Result<(), RefusalCode> {
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
