//! What a request holds while it is under way, and gives back by itself if its caller leaves.

use std::sync::Arc;

use super::{Aside, Asks, Live, Settled, Shared};
use crate::ledger::{Ledger, Verdict};

/// Units set aside, which go back unless the request is decided otherwise: also when its caller leaves.
pub(super) struct PutBack<'s, L: Ledger + 'static> {
    pub(super) shared: &'s Arc<Shared<L>>,
    pub(super) aside: Option<Aside>,
}

impl<L: Ledger + 'static> PutBack<'_, L> {
    pub(super) fn settle(&mut self, settled: Settled) {
        if let Some(aside) = self.aside.take() {
            self.shared.core.settle(aside, settled, &mut Live);
            self.shared.follow_up(Asks::new());
        }
    }
}

impl<L: Ledger + 'static> Drop for PutBack<'_, L> {
    fn drop(&mut self) {
        self.settle(Settled::Failed);
    }
}

/// A request with an id that is under way. One that fails, or whose caller leaves, is forgotten.
pub(super) struct EndId<'s, L: Ledger + 'static> {
    pub(super) shared: &'s Arc<Shared<L>>,
    pub(super) id: u128,
    pub(super) verdict: Option<Verdict>,
}

impl<L: Ledger + 'static> Drop for EndId<'_, L> {
    fn drop(&mut self) {
        self.shared.ids.lock().end(self.id, self.verdict);
        self.shared.id_answered.notify_waiters();
    }
}
