//! Slabs as the layers and the ledgers tell each other of them: what was taken, what a hub has lent, and what became of that.
//! Refuses to know how slabs are handed out: that is [`slabs`](super::slabs).

use std::sync::Arc;

use super::{Account, Outcome};
use crate::limit::LeaseId;

/// What came of asking for a slab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SlabTake {
    /// The chain went to the ledger that holds the balance.
    Applied(Outcome),
    Lent(Loan),
    /// A hub knows that nothing is left, and asks the ledger again in so long.
    Full {
        for_ms: u64,
    },
}

/// Units of a limit that a hub has reserved and lets this instance hand out. The hub gives them back to the ledger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Loan {
    pub units: u64,
    /// They are handed out for so long at most, counted from before they were asked for.
    pub for_ms: u64,
    pub lender: Lender,
}

/// Which of the hubs of this instance has lent something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lender(pub u32);

/// What became of a loan.
#[derive(Debug, Clone)]
pub struct LoanEnd {
    pub account: Arc<Account>,
    pub name: LeaseId,
    pub spent: u64,
    /// When the last unit was handed out, by [`clock::monotonic_ms`](crate::clock).
    pub last_ms: u64,
    /// The hub may be told so much later, together with something else.
    pub tell_within_ms: u64,
}

/// What this instance holds of a limit to hand out by itself.
#[derive(Debug, Clone)]
pub struct SlabHeld {
    pub account: Arc<Account>,
    pub held: u64,
}
