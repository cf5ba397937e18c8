//! What each of two ledgers is sent of a chain, and what their answers come to. Pure.

use smallvec::SmallVec;

use crate::ledger::{Action, Balance, Chain, Hold, Keep, Outcome, Refusal, RefusalCode, Transfer, Want};
use crate::limit::LeaseId;

/// The chain for the old ledger. It may have to be given back, so it needs a name of its own. Only the memory ledger can't give back a
/// [`Keep::Name`], and counts it for its window. The memory ledger is the old one in tests only, because it ends with the process.
pub(super) fn for_old(chain: &Chain) -> Chain {
    let keep = match chain.keep {
        Keep::Nothing | Keep::ForUndo => Keep::ForCompletion,
        keep => keep,
    };
    Chain { keep, ..chain.clone() }
}

/// The chain for the new ledger, on accounts of its own. When the new ledger has applied it nothing can fail any more, so a chain that
/// nobody names again needs no name here.
pub(super) fn for_new(chain: &Chain) -> Chain {
    let keep = if chain.keep == Keep::ForUndo { Keep::ForCompletion } else { chain.keep };
    let twin = |it: &Transfer| Transfer { account: it.account.twin(), action: it.action };
    Chain { lease: chain.lease.clone(), keep, transfers: chain.transfers.iter().map(twin).collect() }
}

/// The same limits in the new ledger.
pub(super) fn twins(wants: &[Want]) -> Vec<Want> {
    wants.iter().map(|want| Want { account: want.account.twin(), ..want.clone() }).collect()
}

/// What takes as much as there is takes no more than this; `taken` is in the order of the chain, or empty.
pub(super) fn lowered(mut chain: Chain, taken: &[u64]) -> Chain {
    let mut taken = taken.iter();
    for transfer in &mut chain.transfers {
        if let Action::TakeUpTo(hold) = &mut transfer.action {
            hold.amount = taken.next().map_or(hold.amount, |taken| hold.amount.min(*taken));
        }
    }
    chain
}

/// A reserve of nothing from one limit of a chain, which tells a ledger what capacity it has.
pub(super) fn nothing_of(chain: &Chain, index: usize, name: LeaseId) -> Option<Chain> {
    let transfer = chain.transfers.get(index)?;
    let (Action::Reserve(hold) | Action::TakeUpTo(hold)) = transfer.action else { return None };
    let action = Action::Reserve(Hold { amount: 0, ..hold });
    let transfers = SmallVec::from_iter([Transfer { action, ..transfer.clone() }]);
    Some(Chain { lease: name, keep: Keep::Nothing, transfers })
}

pub(super) fn only_reserves(chain: &Chain) -> bool {
    chain.transfers.iter().all(|it| matches!(it.action, Action::Reserve(_) | Action::TakeUpTo(_)))
}

/// It only takes what there is, and there was nothing.
pub(super) fn takes_nothing(chain: &Chain) -> bool {
    let nothing = |it: &Transfer| matches!(it.action, Action::TakeUpTo(Hold { amount: 0, .. }));
    chain.transfers.iter().all(nothing)
}

/// The refusal only says that there is nothing under this name to give back.
pub(super) fn gives_nothing_back(chain: &Chain, refusal: Refusal) -> bool {
    let is_gone = matches!(
        refusal.code,
        RefusalCode::PendingTransferNotFound
            | RefusalCode::PendingTransferExpired
            | RefusalCode::PendingTransferAlreadyVoided
    );
    is_gone && chain.transfers.get(refusal.index).is_some_and(|it| it.action.is_void())
}

/// What makes the old ledger hold as much of a take as the new one; nothing if it does.
pub(super) fn trimmed(chain: &Chain, at_old: &[u64], at_new: &[u64]) -> Option<Chain> {
    let takes = chain.transfers.iter().filter_map(|it| match it.action {
        Action::TakeUpTo(hold) => Some((&it.account, hold)),
        _ => None,
    });
    let mut transfers = SmallVec::new();
    for ((account, hold), (old, new)) in takes.zip(at_old.iter().zip(at_new)) {
        if new < old {
            let one = |action| Transfer { account: account.clone(), action };
            transfers.push(one(Action::VoidTaken));
            // Whatever the capacity is now: it is taken from what the account has.
            let again = Hold { amount: *new, capacity: 0, ..hold };
            transfers.extend((*new > 0).then(|| one(Action::Rereserve(again))));
        }
    }
    (!transfers.is_empty()).then(|| Chain {
        lease: chain.lease.clone(),
        keep: Keep::ForCompletion,
        transfers,
    })
}

/// What voids the trimmed part of a take, for a chain that voids the take.
pub(super) fn kept_part(chain: &Chain) -> Option<Chain> {
    let [transfer] = &chain.transfers[..] else { return None };
    (transfer.action == Action::VoidTaken).then(|| {
        let kept = Transfer { action: Action::VoidRereserved, ..transfer.clone() };
        Chain { transfers: SmallVec::from_iter([kept]), ..chain.clone() }
    })
}

/// What gives back what a completion took. Nothing if it voided something too: that can't be undone, and what it took is less.
pub(super) fn undo(chain: &Chain) -> Option<Chain> {
    let undone = |it: &Transfer| {
        let action = match it.action {
            Action::Rereserve(_) => Action::VoidRereserved,
            Action::TakeUpTo(_) => Action::VoidTaken,
            Action::Reserve(_) => Action::Void,
            Action::Void | Action::VoidTaken | Action::VoidRereserved | Action::Debt(_) => return None,
        };
        Some(Transfer { account: it.account.clone(), action })
    };
    let transfers = chain.transfers.iter().map(undone).collect::<Option<SmallVec<_>>>()?;
    let keep = if chain.keep.is_named() { chain.keep } else { Keep::ForCompletion };
    Some(Chain { lease: chain.lease.clone(), keep, transfers })
}

/// A chain that takes something and owes the rest, as one that owes all of it, which always can be; `None` for others.
pub(super) fn all_owed(chain: &Chain) -> Option<Chain> {
    let [Transfer { account, action: Action::Debt(debt) }, rest @ ..] = &chain.transfers[..] else {
        return None;
    };
    let mut all = *debt;
    for transfer in rest {
        let Action::Rereserve(hold) = transfer.action else { return None };
        if transfer.account.id != account.id {
            return None;
        }
        all.amount = all.amount.saturating_add(hold.amount);
    }
    let transfer = Transfer { account: account.clone(), action: Action::Debt(all) };
    Some(Chain { transfers: SmallVec::from_iter([transfer]), ..chain.clone() })
}

/// What a chain came to that both have done.
pub(super) fn merged(at_old: Outcome, at_new: Outcome) -> Outcome {
    let says_both = !at_old.available.is_empty() && !at_new.available.is_empty();
    let available = at_old.available.iter().zip(&at_new.available).filter(|_| says_both);
    Outcome {
        verdict: at_new.verdict,
        available: available.map(|(old, new)| *old.min(new)).collect(),
        is_repeat: at_old.is_repeat || at_new.is_repeat,
        taken: at_new.taken,
        decided_at_ns: at_new.decided_at_ns,
    }
}

/// The lesser of what is known.
pub(super) fn least(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// The one that has less left; what is owed on either is owed.
pub(super) fn fuller(old: Balance, new: Balance) -> Balance {
    let debt = old.debt.max(new.debt);
    let fuller = if old.available() < new.available() { old } else { new };
    Balance { debt, ..fuller }
}
