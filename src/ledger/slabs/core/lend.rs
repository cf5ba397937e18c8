//! Lending: what a hub does with the slabs of its own.

use std::sync::atomic::Ordering;

use smallvec::smallvec;

use super::aside::Held;
use super::{Aside, Asks, Core, LimitEntry, Need, Notifier};
use crate::ledger::slabs::limit::{Lend, Outside, Parts, Todo};
use crate::limit::{LeaseBits, LimitId};

/// Loans that are not over, at most: two of each of 16 hot limits at each of 8,192 sidecars, and 64 MB of 256 bytes each.
const LOANS_MAX: usize = 1 << 18;

/// What a sidecar gets that asks for a slab.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for one step of an ask, and a box would be an allocation"
)]
pub enum LendDecision<W> {
    Lent {
        units: u64,
        for_ms: u64,
    },
    /// The ledger refused as much a moment ago; fewer may still fit.
    Refused,
    /// It refused even one unit, and is asked again in so long.
    Full {
        for_ms: u64,
    },
    /// Ask again when this is notified.
    Wait(W),
    /// The ledger must be asked for this sidecar alone. What became of it must be told to [`Core::settle`].
    Ledger(Aside),
    /// The same, but nobody needs to hear of it: nothing is lent of this limit.
    NotLent,
}

impl<A: Clone, B: Notifier> Core<A, B> {
    /// Lends a slab to the sidecar that calls it `name`. `up_to`: as much as there is.
    pub fn lend(
        &self,
        need: &Need<A>,
        name: LeaseBits,
        up_to: bool,
        waits: u32,
        outside: &mut impl Outside,
        asks: &mut Asks<A>,
    ) -> LendDecision<B::Subscription> {
        if self.loans.load(Ordering::Relaxed) >= LOANS_MAX {
            return LendDecision::NotLent;
        }
        let (lend, waiting) = self.with_limit(need, outside, asks, |limit, outside| {
            let (lend, todo) = limit.lend(name, need.units, up_to, waits, outside);
            (lend, lend == Lend::Wait, todo)
        });
        match lend {
            Some(Lend::Lent { units, for_ms }) => LendDecision::Lent { units, for_ms },
            Some(Lend::Refused) => LendDecision::Refused,
            Some(Lend::Full { for_ms }) => LendDecision::Full { for_ms },
            Some(Lend::Wait) => LendDecision::Wait(waiting.expect("who waits must have subscribed")),
            Some(Lend::Ledger) => {
                let held =
                    Held { limit: need.limit, parts: Parts::new(), rest: need.units, is_unknown: false };
                LendDecision::Ledger(Aside { needs: smallvec![held] })
            }
            Some(Lend::NotLent) | None => LendDecision::NotLent,
        }
    }

    /// A sidecar tells what became of a loan. One that is not known is over.
    pub fn end_loan(
        &self,
        limit: LimitId,
        name: LeaseBits,
        spent: u64,
        last_ago_ms: u64,
        outside: &mut impl Outside,
    ) {
        let now_ms = outside.now_ms();
        self.each(limit, outside, |limit| -> Todo { limit.end_loan(name, spent, last_ago_ms, now_ms) });
    }

    /// Loans that are not over.
    pub fn loans(&self) -> usize {
        self.loans.load(Ordering::Relaxed)
    }

    pub(super) fn count_loans(&self, entry: &mut LimitEntry<A, B>) {
        let now = entry.limit.loans();
        let before = std::mem::replace(&mut entry.counted_loans, now);
        if now > before {
            self.loans.fetch_add(now - before, Ordering::Relaxed);
        } else if now < before {
            self.loans.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}
