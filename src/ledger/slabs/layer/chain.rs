//! Which transfers of a chain may come from slabs, and the chain of what has to be asked of the ledger. Pure.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::ledger::slabs::core::Need;
use crate::ledger::slabs::limit::Rules;
use crate::ledger::slabs::times::Times;
use crate::ledger::{Account, Action, Chain, Hold, Keep, RefusalCode, Transfer, TransferSet, Verdict};
use crate::limit::{BitSet, LeaseBits, LeaseId, LimitSpec};

/// The low bits of a lease that was named by a request are the digest of its id and of what it asks for; those above say
/// when it came.
const REQUEST_BITS: u32 = 80;

/// A chain of which something may come from slabs.
#[derive(Debug)]
pub(super) struct Split {
    /// What may.
    pub needs: SmallVec<[Need<Arc<Account>>; 4]>,
    /// Where each of them is in the chain.
    pub places: SmallVec<[usize; 4]>,
    /// Where the others are.
    exact: SmallVec<[usize; 4]>,
}

impl Split {
    /// `None` if nothing may, or the chain does something else than to reserve.
    pub(super) fn of(chain: &Chain) -> Option<Self> {
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

    pub(super) fn has_exact(&self) -> bool {
        !self.exact.is_empty()
    }

    /// The chain of what is left to ask, and where each of its transfers is in the whole one. What slabs may not answer
    /// comes first and keeps its name, so that another instance finds it under that name whatever its own slabs hold. A
    /// chain of which nothing comes from a slab keeps its name too: it is what it would be without slabs, and can be given
    /// back. Any other gets a name of its own, and nobody names it again.
    pub(super) fn rest(
        &self,
        chain: &Chain,
        rests: impl Iterator<Item = u64>,
        fresh_name: impl FnOnce() -> LeaseId,
    ) -> (Chain, SmallVec<[usize; 4]>) {
        let mut places = self.exact.clone();
        let mut transfers: SmallVec<[Transfer; 4]> =
            self.exact.iter().map(|place| chain.transfers[*place].clone()).collect();
        let mut is_whole = true;
        for (place, rest) in self.places.iter().zip(rests) {
            let mut transfer = chain.transfers[*place].clone();
            if let Action::Reserve(hold) = &mut transfer.action {
                is_whole &= hold.amount == rest;
                hold.amount = rest;
            }
            if rest == 0 {
                continue;
            }
            places.push(*place);
            transfers.push(transfer);
        }
        let (lease, keep) = if self.has_exact() || is_whole {
            (chain.lease.clone(), chain.keep)
        } else {
            (fresh_name(), Keep::Nothing)
        };
        (Chain { lease, keep, transfers }, places)
    }

    /// Which needs the failed transfers of the rest are.
    pub(super) fn needs_of(&self, places: &[usize], failed: TransferSet) -> BitSet {
        let need = |at: usize| self.places.iter().position(|place| *place == places[at]);
        failed.iter().filter_map(need).collect()
    }
}

/// What the slabs of a limit are, if it may have some.
pub(super) fn rules_of_spec(spec: &LimitSpec) -> Option<Rules> {
    rules(spec.is_never_in_slabs(), spec.kind.lifetime_seconds(), spec.capacity)
}

fn rules_of(hold: Hold) -> Option<Rules> {
    rules(hold.is_exact, hold.lifetime_seconds, hold.capacity)
}

fn rules(is_exact: bool, window_seconds: NonZeroU32, capacity: u64) -> Option<Rules> {
    let times = if is_exact { None } else { Times::of(window_seconds) };
    times.map(|times| Rules { capacity, times })
}

/// The part of a chain that is given back. What came from a slab is not in the ledger under the chain's name. A chain that nobody else
/// names is given back limit by limit, so the missing ones don't matter. A chain that has a name is given back as a whole, and claimed
/// at its first limit. So of such a chain only the limits that never come from slabs are given back, if there are any; the rest stays
/// charged for its window.
pub(super) fn to_give_back(mut chain: Chain) -> Chain {
    let is_exact = |transfer: &Transfer| match transfer.action {
        Action::Reserve(hold) => rules_of(hold).is_none(),
        _ => true,
    };
    if chain.keep.is_named() && chain.transfers.iter().any(is_exact) {
        chain.transfers.retain(|transfer| is_exact(transfer));
    }
    chain
}

/// What tells a request from others, whenever it came.
pub(super) fn request_bits(lease: &LeaseId) -> LeaseBits {
    LeaseBits::new(lease.bits().get() & ((1 << REQUEST_BITS) - 1))
}

/// Whether the same request gets this answer again. The answer of a limit that is being lowered, or that owes, soon changes.
pub(super) fn is_final(verdict: &Verdict) -> bool {
    match verdict {
        Verdict::Done => true,
        Verdict::Refused(refusal) => {
            matches!(refusal.code, RefusalCode::ExceedsCredits | RefusalCode::IdAlreadyFailed)
        }
        Verdict::NotAsked => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{LimitKey, Overage};

    fn chain(amounts: &[(u64, bool)]) -> Chain {
        let transfer = |(n, (amount, is_exact)): (usize, &(u64, bool))| {
            let account = Arc::new(Account::new(LimitKey::new(&n.to_string())));
            let lifetime_seconds = NonZeroU32::new(60).unwrap();
            let hold = Hold {
                amount: *amount,
                lifetime_seconds,
                capacity: 100,
                overage: Overage::Deny,
                is_exact: *is_exact,
            };
            Transfer { account, action: Action::Reserve(hold) }
        };
        let transfers = amounts.iter().enumerate().map(transfer).collect();
        Chain { lease: LeaseId::of_request("x", 1 << 20), keep: Keep::Name, transfers }
    }

    fn fresh() -> LeaseId {
        LeaseId::fresh(7, 7)
    }

    fn asked(chain: &Chain) -> Vec<(&str, u64)> {
        let amount = |transfer: &Transfer| match transfer.action {
            Action::Reserve(hold) => hold.amount,
            _ => 0,
        };
        chain.transfers.iter().map(|it| (it.account.key.as_str(), amount(it))).collect()
    }

    #[test]
    fn what_may_not_come_from_a_slab_passes_through() {
        assert!(Split::of(&chain(&[(1, true), (2, true)])).is_none());
        let mut voids = chain(&[(1, false)]);
        voids.transfers[0].action = Action::Void;
        assert!(Split::of(&voids).is_none());
    }

    #[test]
    fn exact_limits_come_first_and_keep_their_name() {
        let whole = chain(&[(5, false), (1, true), (7, false), (2, true)]);
        let split = Split::of(&whole).unwrap();
        let (rest, places) = split.rest(&whole, [0, 4].into_iter(), fresh);
        assert_eq!(asked(&rest), [("1", 1), ("3", 2), ("2", 4)]);
        assert_eq!((rest.lease, rest.keep), (whole.lease.clone(), Keep::Name));
        assert_eq!(places[..], [1, 3, 2]);
        assert_eq!(
            split.needs_of(&places, BitSet::one(2)),
            BitSet::one(1),
            "the second that may come from a slab"
        );
        assert_eq!(split.needs_of(&places, BitSet::one(0)), BitSet::EMPTY);
        assert_eq!(asked(&to_give_back(whole.clone())), [("1", 1), ("3", 2)]);
        let unnamed = Chain { keep: Keep::ForCompletion, ..whole };
        assert_eq!(asked(&to_give_back(unnamed)).len(), 4, "each limit on its own");
    }

    #[test]
    fn without_exact_limits_nobody_names_the_rest() {
        let whole = chain(&[(5, false), (3, false)]);
        let (rest, places) = Split::of(&whole).unwrap().rest(&whole, [2, 0].into_iter(), fresh);
        assert_eq!((asked(&rest), places[..].to_vec()), (vec![("0", 2)], vec![0]));
        assert_eq!((rest.lease, rest.keep), (fresh(), Keep::Nothing));
        let (all, _) = Split::of(&whole).unwrap().rest(&whole, [5, 3].into_iter(), fresh);
        assert_eq!(
            (asked(&all), all.lease.clone()),
            (vec![("0", 5), ("1", 3)], whole.lease),
            "as without slabs"
        );
    }

    #[test]
    fn a_request_is_the_same_in_the_next_minute() {
        let bits = |ms| request_bits(&LeaseId::of_request("x", ms));
        assert_eq!(bits(0), bits(10_000_000));
        assert_ne!(bits(0), request_bits(&LeaseId::of_request("y", 0)));
    }
}
