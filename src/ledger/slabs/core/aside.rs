//! What a request holds of slabs while the ledger is asked for the rest, and what becomes of it.

use smallvec::SmallVec;

use crate::ledger::slabs::limit::Parts;
use crate::limit::{BitSet, LimitId};

/// What was set aside for one request, by need.
#[derive(Debug, Default)]
#[must_use]
pub struct Aside {
    pub(super) needs: SmallVec<[Held; 4]>,
}

#[derive(Debug)]
pub(super) struct Held {
    pub(super) limit: LimitId,
    pub(super) parts: Parts,
    pub(super) rest: u64,
    /// There was no place for the limit, so nothing of it is kept.
    pub(super) is_unknown: bool,
}

impl Aside {
    /// What the ledger must be asked for, by need; 0 if nothing.
    pub fn rests(&self) -> impl Iterator<Item = u64> {
        self.needs.iter().map(|held| held.rest)
    }

    /// The ledger was asked for as much as there is, and gave so much.
    pub fn took_up_to(&mut self, units: u64) {
        // One that gave nothing has refused even a single unit.
        self.needs.iter_mut().for_each(|held| held.rest = units.max(1));
    }
}

/// What became of the chain that was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    Admitted,
    /// The ledger had no room for these needs; none of them if it was something else of the chain.
    Refused {
        needs: BitSet,
    },
    /// No answer, or the caller left: whatever the ledger took is given back by the layer below.
    Failed,
}
