//! What is given back when it turns out that only one of two ledgers has taken it.

use crate::ledger::{Chain, Ledger};

/// What was reserved on one ledger, which goes back unless it is held by both: also when the caller leaves.
pub(super) struct Undo<'l, L: Ledger> {
    pub(super) ledger: &'l L,
    pub(super) chain: Option<Chain>,
}

impl<L: Ledger> Drop for Undo<'_, L> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain.take() {
            self.ledger.give_back(chain);
        }
    }
}
