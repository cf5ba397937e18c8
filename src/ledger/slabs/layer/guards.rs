//! What a request holds while it is under way, and gives back by itself if its caller leaves; and what a task of the layer owes
//! the core, which hears it also if the task panics.

use std::sync::Arc;

use super::{Aside, Asks, Live, Settled, Shared};
use crate::ledger::slabs::limit::Took;
use crate::ledger::slabs::returns::{Landed, Number};
use crate::ledger::{Ledger, Verdict};
use crate::limit::{LeaseBits, LimitId};

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
    pub(super) id: LeaseBits,
    pub(super) verdict: Option<Verdict>,
}

impl<L: Ledger + 'static> Drop for EndId<'_, L> {
    fn drop(&mut self) {
        self.shared.ids.lock().end(self.id, self.verdict);
        self.shared.id_answered.notify_waiters();
    }
}

/// A slab that is asked for. Its limit asks for no other, and some requests wait, until the core has heard what came of it.
pub(super) struct Taking<L: Ledger + 'static> {
    pub(super) shared: Arc<Shared<L>>,
    pub(super) limit: LimitId,
    pub(super) took: Took,
}

impl<L: Ledger + 'static> Drop for Taking<L> {
    fn drop(&mut self) {
        self.shared.notice_panic();
        let mut asks = Asks::new();
        self.shared.core.took(self.limit, self.took, &mut Live, &mut asks);
        self.shared.follow_up(asks);
    }
}

/// Something that is being given back. It is sent again until it has landed.
pub(super) struct Returning<L: Ledger + 'static> {
    pub(super) shared: Arc<Shared<L>>,
    pub(super) number: Number,
    pub(super) landed: Landed,
}

impl<L: Ledger + 'static> Drop for Returning<L> {
    fn drop(&mut self) {
        self.shared.notice_panic();
        self.shared.core.returned(self.number, self.landed, &mut Live, |n| fastrand::u64(0..=n));
        self.shared.news.notify_one();
    }
}

impl<L> Shared<L> {
    /// To be called by what a panic drops.
    fn notice_panic(&self) {
        if std::thread::panicking() {
            self.panicked();
        }
    }

    pub(super) fn panicked(&self) {
        self.metrics.slab_panics.inc();
        tracing::error!("a task that takes slabs or gives them back failed by a panic, and is done again");
    }
}
