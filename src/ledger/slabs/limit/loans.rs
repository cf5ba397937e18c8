//! What a hub lends of the slabs of one limit, and what becomes of it. Pure.
//!
//! A loan is units of slabs that are set aside until the sidecar tells how many of them it has spent, and when the last one. One that
//! never tells has spent all of them, in the last moment at which it could. [`super::super`] has the proof.

use ahash::AHashMap;

use super::{Limit, Outside, Parts, Reply, Times, Todo};
use crate::ledger::slabs::demand::Demand;
use crate::ledger::slabs::slab::Slab;
use crate::limit::LeaseBits;

/// What was lent of one limit.
#[derive(Debug)]
pub(super) struct Loans {
    /// By the name of the slab that the sidecar asked for.
    open: AHashMap<LeaseBits, OpenLoan>,
    /// How often slabs were asked for.
    asks: Demand,
    /// When it is looked for overdue ones, if that is to be.
    looks_at_ms: Option<u64>,
}

#[derive(Debug)]
struct OpenLoan {
    parts: Parts,
    /// From then on the sidecar hands out nothing of it.
    ends_at_ms: u64,
}

impl OpenLoan {
    fn units(&self) -> u64 {
        self.parts.iter().map(|part| part.units).sum()
    }
}

/// What a sidecar that asks for a slab gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lend {
    Lent {
        units: u64,
        for_ms: u64,
    },
    /// The ledger is to be asked for this sidecar alone. What it said must be told to [`Limit::admitted`] or [`Limit::not_admitted`].
    Ledger,
    /// The same, but nobody needs to hear of it: nothing is lent of this limit.
    NotLent,
    /// Somebody else's answer is about to come: ask again then.
    Wait,
    /// The ledger refused as much a moment ago; fewer may still fit.
    Refused,
    /// It refused even one unit, and is asked again in so long.
    Full {
        for_ms: u64,
    },
}

impl Loans {
    pub(super) fn new(times: Times) -> Self {
        Self { open: AHashMap::new(), asks: Demand::new(times.demand_ms), looks_at_ms: None }
    }

    /// Whether nothing would be lost by forgetting it.
    pub(super) fn is_idle(&mut self, now_ms: u64) -> bool {
        self.open.is_empty() && self.asks.during_last_life(now_ms) == 0
    }
}

impl Limit {
    /// Lends a slab to the sidecar that calls it `name`. `up_to`: as much as there is. `waits` is how often it has waited already.
    pub fn lend(
        &mut self,
        name: LeaseBits,
        units: u64,
        up_to: bool,
        waits: u32,
        outside: &mut impl Outside,
    ) -> (Lend, Todo) {
        // The sidecar has read its own clock before it asked, so it hands out nothing later than a loan's time after this.
        let now_ms = outside.now_ms();
        let Some(loans) = &mut self.loans else { return (Lend::NotLent, Todo::default()) };
        let for_ms = self.rules.times.loan_ms();
        if let Some(loan) = loans.open.get_mut(&name) {
            loan.ends_at_ms = loan.ends_at_ms.max(now_ms + for_ms + 1);
            return (Lend::Lent { units: loan.units(), for_ms }, Todo::default());
        }
        loans.asks.add(u64::from(waits == 0), now_ms);
        if self.open.is_empty() && self.asking.is_none() && !self.pays_to_lend(now_ms) {
            return (Lend::NotLent, Todo::default());
        }
        let (reply, mut todo) = if up_to {
            self.request_up_to(units, waits, outside)
        } else {
            self.request(units, waits, outside)
        };
        let lend = match reply {
            Reply::Aside(parts) => {
                // The clock shows whole milliseconds.
                let loan = OpenLoan { parts, ends_at_ms: now_ms + for_ms + 1 };
                let units = loan.units();
                self.demand.add(units, now_ms);
                self.loans.as_mut().expect("a limit that lends must have loans").open.insert(name, loan);
                Lend::Lent { units, for_ms }
            }
            Reply::Ledger { parts, .. } => {
                self.put_back(&parts, now_ms, &mut todo);
                Lend::Ledger
            }
            Reply::Wait => Lend::Wait,
            Reply::Full if self.is_full(now_ms) => Lend::Full { for_ms: self.full.until_ms - now_ms },
            Reply::Full => Lend::Refused,
        };
        (lend, todo)
    }

    /// As many units as the slabs have, if they have any.
    fn request_up_to(&mut self, units: u64, waits: u32, outside: &mut impl Outside) -> (Reply, Todo) {
        let mut todo = Todo::default();
        let (parts, _, now_ms) = self.draw(units, outside, &mut todo);
        todo.ask = self.next_ask(now_ms, outside);
        if !parts.is_empty() {
            return (Reply::Aside(parts), todo);
        }
        if self.is_full(now_ms) {
            return (Reply::Full, todo);
        }
        if self.should_wait(1, waits, now_ms) {
            return (Reply::Wait, todo);
        }
        self.asking_alone += 1;
        self.count_requests(1, now_ms);
        (Reply::Ledger { parts, rest: units }, todo)
    }

    /// A sidecar tells what became of a loan: it has spent so many units, and handed out the last of them so long ago, by its own
    /// clock. That clock shows whole milliseconds as this one does, so it may have been up to two later than it looks.
    pub fn end_loan(&mut self, name: LeaseBits, spent: u64, last_ago_ms: u64, now_ms: u64) -> Todo {
        let mut todo = Todo::default();
        let Some(loan) = self.loans.as_mut().and_then(|loans| loans.open.remove(&name)) else { return todo };
        self.settle_loan(&loan, spent, (now_ms + 2).saturating_sub(last_ago_ms));
        self.end_slabs(now_ms, &mut todo);
        todo
    }

    fn settle_loan(&mut self, loan: &OpenLoan, spent: u64, last_ms: u64) {
        let mut spent = spent;
        for part in &loan.parts {
            let of_part = part.units.min(spent);
            spent -= of_part;
            self.counts.handed_out = self.counts.handed_out.wrapping_add(of_part);
            let slab = self.slab(part.serial);
            slab.hand_out(of_part);
            slab.put_back(part.units - of_part);
            if of_part > 0 {
                slab.stamp(last_ms);
            }
        }
    }

    /// Those who should have told by now have spent everything: not after the end of the loan, but a sidecar whose clock stood
    /// still for a moment with its machine is forgiven if that costs nothing more.
    pub(super) fn end_overdue_loans(&mut self, now_ms: u64) {
        let Some(loans) = &mut self.loans else { return };
        let overdue_ms = self.rules.times.overdue_ms();
        let is_late = |slab: &Slab| slab.aside > 0 && now_ms >= slab.ends_at_ms + overdue_ms;
        if !self.open.iter().any(is_late) {
            return;
        }
        let is_overdue = |serial: u64| self.open.iter().any(|slab| slab.serial == serial && is_late(slab));
        let overdue = |loan: &mut OpenLoan| loan.parts.iter().any(|part| is_overdue(part.serial));
        let gone: Vec<OpenLoan> =
            loans.open.extract_if(|_, loan| overdue(loan)).map(|(_, loan)| loan).collect();
        for loan in &gone {
            self.settle_loan(loan, loan.units(), loan.ends_at_ms.max(now_ms));
        }
    }

    /// When overdue loans are to be looked for, unless that is known already.
    pub(super) fn next_look_ms(&mut self, now_ms: u64) -> Option<u64> {
        let loans = self.loans.as_mut()?;
        if loans.looks_at_ms.is_some_and(|at_ms| at_ms > now_ms) {
            return None;
        }
        let overdue_ms = self.rules.times.overdue_ms();
        let lent = self.open.iter().filter(|slab| slab.aside > 0);
        loans.looks_at_ms = lent.map(|slab| slab.ends_at_ms + overdue_ms).min();
        loans.looks_at_ms
    }

    /// Whether enough sidecars ask. A limit that is handed out here has no such bound.
    pub(super) fn pays_to_lend(&mut self, now_ms: u64) -> bool {
        let Some((loans, lends_from)) = self.loans.as_mut().zip(self.rules.times.lends_from) else {
            return true;
        };
        loans.asks.during_last_life(now_ms) >= u64::from(lends_from.get())
    }

    /// The window is another one; what was lent stays so.
    pub(super) fn loans_follow(&mut self, times: Times) {
        if let Some(loans) = &mut self.loans {
            loans.asks = Demand::new(times.demand_ms);
        }
    }

    /// Loans that are not over.
    pub fn loans(&self) -> usize {
        self.loans.as_ref().map_or(0, |loans| loans.open.len())
    }
}

#[cfg(test)]
mod tests;
