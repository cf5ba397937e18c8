//! Which transfers of a chain may come from slabs, and the chain of what has to be asked of the ledger. Pure.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::ledger::slabs::core::Need;
use crate::ledger::slabs::limit::Rules;
use crate::ledger::slabs::times::Times;
use crate::ledger::{Account, Action, Chain, Hold, Keep, Transfer, TransferSet};
use crate::limit::{BitSet, LeaseId};

/// The low bits of a lease that was named by a request are the digest of its id and of what it asks for; those above say
/// when it came.
const REQUEST_BITS: u32 = 80;

/// A chain of which something may come from slabs.
#[derive(Debug)]
pub struct Split {
    /// What may.
    pub needs: SmallVec<[Need<Arc<Account>>; 4]>,
    /// Where each of them is in the chain.
    pub places: SmallVec<[usize; 4]>,
    /// Where the others are.
    exact: SmallVec<[usize; 4]>,
}

impl Split {
    /// `None` if nothing may, or the chain does something else than to reserve.
    pub fn of(chain: &Chain) -> Option<Self> {
        let mut split = Self { needs: SmallVec::new(), places: SmallVec::new(), exact: SmallVec::new() };
        for (place, transfer) in chain.transfers.iter().enumerate() {
            let Action::Reserve(hold) = transfer.action else { return None };
            match rules_of(hold) {
                Some(rules) => {
                    let (limit, account) = (transfer.account.id, Arc::clone(&transfer.account));
                    split.needs.push(Need { limit, account, units: hold.amount, rules });
                    split.places.push(place);
                }
                None => split.exact.push(place),
            }
        }
        (!split.needs.is_empty()).then_some(split)
    }

    pub fn has_exact(&self) -> bool {
        !self.exact.is_empty()
    }

    /// The chain of what is left to ask, and where each of its transfers is in the whole one. What slabs may not answer
    /// comes first and keeps its name, so that another instance finds it under that name whatever its own slabs hold.
    /// Without any of that nobody names the chain again, and it gets a name of its own.
    pub fn rest(
        &self,
        chain: &Chain,
        rests: impl Iterator<Item = u64>,
        fresh_name: impl FnOnce() -> LeaseId,
    ) -> (Chain, SmallVec<[usize; 4]>) {
        let mut places = self.exact.clone();
        let mut transfers: SmallVec<[Transfer; 4]> =
            self.exact.iter().map(|place| chain.transfers[*place].clone()).collect();
        for (place, rest) in self.places.iter().zip(rests).filter(|(_, rest)| *rest > 0) {
            let mut transfer = chain.transfers[*place].clone();
            if let Action::Reserve(hold) = &mut transfer.action {
                hold.amount = rest;
            }
            places.push(*place);
            transfers.push(transfer);
        }
        let (lease, keep) =
            if self.has_exact() { (chain.lease.clone(), chain.keep) } else { (fresh_name(), Keep::Nothing) };
        (Chain { lease, keep, transfers }, places)
    }

    /// Which needs the failed transfers of the rest are.
    pub fn needs_of(&self, places: &[usize], failed: TransferSet) -> BitSet {
        let need = |at: usize| self.places.iter().position(|place| *place == places[at]);
        failed.iter().filter_map(need).collect()
    }
}

fn rules_of(hold: Hold) -> Option<Rules> {
    let times = if hold.is_exact { None } else { Times::of(hold.lifetime_seconds) };
    times.map(|times| Rules { capacity: hold.capacity, times })
}

/// What of a chain only the ledger can have reserved.
pub fn exact_part(mut chain: Chain) -> Chain {
    let is_exact = |transfer: &mut Transfer| match transfer.action {
        Action::Reserve(hold) => rules_of(hold).is_none(),
        _ => true,
    };
    chain.transfers.retain(is_exact);
    chain
}

/// What tells a request from others, whenever it came.
pub fn request_bits(lease: &LeaseId) -> u128 {
    lease.bits() & ((1 << REQUEST_BITS) - 1)
}
