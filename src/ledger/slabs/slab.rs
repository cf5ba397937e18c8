//! One slab: units of a limit that the ledger holds for this instance, and what became of them so far. Pure.
//!
//! A unit is left, set aside for a request that is not decided yet, or handed out. It counts as handed out from the
//! moment at which it was set aside, so `last_ms` is never earlier than the admission of any unit.

use super::times::Times;
use crate::limit::LeaseId;

/// A slab that units can be taken from, or that waits for those who have set some aside.
#[derive(Debug, Clone)]
pub struct Slab {
    /// Tells the slabs of one limit apart at this instance.
    pub serial: u64,
    /// What the ledger calls it.
    pub name: LeaseId,
    /// Those of the limit when it was asked for: a change of the window is for later ones.
    pub times: Times,
    /// It was asked for as much as there is, which has another name in the ledger.
    pub up_to: bool,
    pub taken: u64,
    pub left: u64,
    pub aside: u64,
    /// T + L: from then on nothing is handed out of it.
    pub ends_at_ms: u64,
    /// When the last unit was set aside.
    pub last_ms: u64,
}

/// Units of one slab that were set aside for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    pub serial: u64,
    pub units: u64,
}

/// A slab that nobody takes from any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ended {
    pub name: LeaseId,
    pub up_to: bool,
    pub taken: u64,
    pub spent: u64,
    /// When what was spent may come back.
    pub free_at_ms: u64,
}

impl Slab {
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.ends_at_ms
    }

    /// As many of `units` as are left. The caller reads the clock afterwards and calls [`Self::stamp`], or puts them
    /// back if the slab is over by then.
    pub fn set_aside(&mut self, units: u64) -> Part {
        let units = units.min(self.left);
        self.left -= units;
        self.aside += units;
        Part { serial: self.serial, units }
    }

    pub fn stamp(&mut self, now_ms: u64) {
        self.last_ms = self.last_ms.max(now_ms);
    }

    pub fn put_back(&mut self, units: u64) {
        self.aside -= units;
        self.left += units;
    }

    pub fn hand_out(&mut self, units: u64) {
        self.aside -= units;
    }

    /// Units that somebody was given for good.
    pub fn handed_out(&self) -> u64 {
        self.taken - self.left - self.aside
    }

    /// Whether nobody will take from it or put back into it any more.
    pub fn has_ended(&self, now_ms: u64) -> bool {
        self.aside == 0 && (self.left == 0 || self.is_over(now_ms))
    }

    pub fn end(self) -> Ended {
        let spent = self.handed_out();
        let free_at_ms = self.times.free_at_ms(self.last_ms);
        Ended { name: self.name, up_to: self.up_to, taken: self.taken, spent, free_at_ms }
    }
}
