//! Names that both ledgers may have: the local one reserved them, and so did the real one before or after that.
//!
//! Bounded: the oldest is forgotten first, and then what the real ledger holds under that name ends by itself.

use std::collections::VecDeque;

use ahash::AHashMap;

use crate::limit::{LeaseBits, LeaseId};

/// Names remembered at most, some 50 bytes each. A thousand a second for four minutes, which is about as long as a
/// lease usually lasts.
const NAMES_MAX: usize = 1 << 18;

/// What the real ledger has of a name that the local one reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AtReal {
    /// It did not answer in time. If it has reserved the name, it gives that back by itself, unless somebody else may have sent the
    /// name too.
    MayHold,
    /// It reserved the name, for one who sent it again.
    Holds,
}

#[derive(Debug, Default)]
pub(super) struct NamesInBoth {
    names: AHashMap<LeaseBits, AtReal>,
    oldest_first: VecDeque<LeaseBits>,
}

impl NamesInBoth {
    pub(super) fn note(&mut self, lease: &LeaseId, at_real: AtReal) {
        if let Some(there) = self.names.get_mut(&lease.bits()) {
            // A ledger that holds the name still holds it if it doesn't answer the next time.
            if at_real == AtReal::Holds {
                *there = at_real;
            }
            return;
        }
        self.names.insert(lease.bits(), at_real);
        self.oldest_first.push_back(lease.bits());
        if self.oldest_first.len() > NAMES_MAX {
            let oldest = self.oldest_first.pop_front();
            oldest.map(|oldest| self.names.remove(&oldest));
        }
    }

    pub(super) fn get(&self, lease: &LeaseId) -> Option<AtReal> {
        self.names.get(&lease.bits()).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_is_forgotten_first() {
        let mut names = NamesInBoth::default();
        let name = |n: usize| LeaseId::parse(&n.to_string());
        (0..=NAMES_MAX).for_each(|n| names.note(&name(n), AtReal::MayHold));
        names.note(&name(1), AtReal::Holds);
        names.note(&name(1), AtReal::MayHold);
        assert_eq!(names.get(&name(0)), None);
        assert_eq!(names.get(&name(1)), Some(AtReal::Holds));
        assert_eq!(names.get(&name(NAMES_MAX)), Some(AtReal::MayHold));
        assert_eq!((names.names.len(), names.oldest_first.len()), (NAMES_MAX, NAMES_MAX));
    }
}
