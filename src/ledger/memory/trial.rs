//! What fits: an account while a chain is being tried on it, and the two rules of capacity. Arithmetic only.

use smallvec::SmallVec;

use crate::ledger::{Hold, RefusalCode};
use crate::limit::LimitId;

/// An account as a chain sees it while it is being tried.
pub(super) struct Tried {
    pub(super) id: LimitId,
    /// In the store, or `NONE` if the account holds nothing.
    pub(super) slot: u32,
    pub(super) capacity: u64,
    pub(super) pending: u64,
    pub(super) pending_before: u64,
}

pub(super) type Trial = SmallVec<[Tried; 4]>;

/// What each `TakeUpTo` took.
pub(super) type Taken = SmallVec<[u64; 1]>;

/// The capacity an account has once `wanted` was asked for: raised at once, lowered only when that much is free.
pub(super) fn settled(capacity: u64, pending: u64, wanted: u64) -> u64 {
    if wanted > capacity || pending <= wanted { wanted } else { capacity }
}

/// As much as there is.
pub(super) fn take_up_to(tried: &mut Tried, hold: Hold) -> Result<u64, RefusalCode> {
    let capacity = settled(tried.capacity, tried.pending, hold.capacity);
    let amount = hold.amount.min(capacity.saturating_sub(tried.pending));
    take(tried, Hold { amount, ..hold }).map(|()| amount)
}

pub(super) fn take(tried: &mut Tried, hold: Hold) -> Result<(), RefusalCode> {
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
