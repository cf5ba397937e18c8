//! One slab: units of a limit that the ledger holds for this instance, and what became of them so far. Pure.
//!
//! A unit is left, set aside for a request that is not decided yet, or handed out. It counts as handed out from the
//! moment at which it was set aside, so `last_ms` is never earlier than the admission of any unit.

use super::times::Times;
use crate::ledger::Lender;
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
    /// A hub has lent it, and gives it back to the ledger.
    pub lender: Option<Lender>,
    pub taken: u64,
    pub left: u64,
    pub aside: u64,
    /// T and its life: from then on nothing is handed out of it.
    pub ends_at_ms: u64,
    /// It ends before its time, so that what is left goes back.
    pub is_closed: bool,
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
    pub loan: Option<EndedLoan>,
}

/// What the hub that has lent a slab is told of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedLoan {
    pub lender: Lender,
    /// When the last unit was set aside.
    pub last_ms: u64,
    pub tell_within_ms: u64,
}

impl Slab {
    pub fn is_over(&self, now_ms: u64) -> bool {
        now_ms >= self.ends_at_ms
    }

    /// From now on nothing is handed out of it.
    pub fn close(&mut self, now_ms: u64) {
        self.ends_at_ms = self.ends_at_ms.min(now_ms);
        self.is_closed = true;
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

    /// `is_wanted`: others wait for what is left of it.
    pub fn end(self, is_wanted: bool) -> Ended {
        let spent = self.handed_out();
        let free_at_ms = self.times.free_at_ms(self.last_ms);
        let tell_within_ms = if is_wanted { 0 } else { self.times.tell_within_ms() };
        let loan = self.lender.map(|lender| EndedLoan { lender, last_ms: self.last_ms, tell_within_ms });
        Ended { name: self.name, up_to: self.up_to, taken: self.taken, spent, free_at_ms, loan }
    }
}
