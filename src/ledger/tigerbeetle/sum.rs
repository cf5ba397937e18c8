//! Several reserves as one: the chain that holds for all of them, and how one gets its part out of it. Pure.
//!
//! Only reserves that nobody names again are summed. The sum has a name of its own, so nothing that knows a member's name
//! can touch it by mistake.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ledger::{Action, Chain, Hold, Keep, Transfer};
use crate::limit::LeaseId;

/// One reservation that several callers hold together.
#[derive(Debug)]
pub(super) struct Sum {
    /// What is left of it, under the name that it has now. Only the worker changes it.
    held: Mutex<Chain>,
    /// The latest time at which it can have been reserved: when its batch was answered, once it was.
    reserved_at_ms: AtomicU64,
}

impl Sum {
    /// Of `members`, which are alike but for their amounts.
    pub(super) fn of<'c>(
        members: impl Iterator<Item = &'c Chain>,
        lease: LeaseId,
        now_ms: u64,
    ) -> Option<Arc<Self>> {
        let mut held: Option<Chain> = None;
        for member in members {
            match &mut held {
                None => held = Some(Chain { lease: lease.clone(), ..member.clone() }),
                Some(held) => add(held, member, 1),
            }
        }
        held.map(|held| Arc::new(Self { held: Mutex::new(held), reserved_at_ms: AtomicU64::new(now_ms) }))
    }

    /// Of `count` members that ask for exactly the same.
    pub(super) fn of_equals(member: &Chain, count: usize, lease: LeaseId, now_ms: u64) -> Arc<Self> {
        let mut held = Chain { lease, ..member.clone() };
        add(&mut held, member, count as u64 - 1);
        Arc::new(Self { held: Mutex::new(held), reserved_at_ms: AtomicU64::new(now_ms) })
    }

    /// Its batch was answered. The ledger's clock for it started before that, but maybe long after it was written.
    pub(super) fn landed(&self, now_ms: u64) {
        self.reserved_at_ms.store(now_ms, Ordering::Relaxed);
    }

    pub(super) fn chain(&self) -> Chain {
        self.held.lock().clone()
    }

    /// Whether every limit could hold it if nothing else did.
    pub(super) fn may_fit(&self) -> bool {
        holds(&self.held.lock()).all(|hold| hold.amount <= hold.capacity)
    }

    /// Takes `part` out: what to void, and what to reserve instead, under the name `lease`, in the same chain. The rest
    /// lasts as long as it would have, rounded up to a second.
    pub(super) fn take_out(&self, part: &Chain, lease: LeaseId, now_ms: u64) -> (Chain, Option<Chain>) {
        let mut held = self.held.lock();
        let mut void = held.clone();
        void.transfers.iter_mut().for_each(|transfer| transfer.action = Action::Void);
        held.lease = lease;
        for (there, gone) in held.transfers.iter_mut().zip(&part.transfers) {
            if let (Action::Reserve(there), Action::Reserve(gone)) = (&mut there.action, gone.action) {
                there.amount = there.amount.saturating_sub(gone.amount);
            }
        }
        if holds(&held).all(|hold| hold.amount == 0) {
            return (void, None);
        }
        let mut rest = held.clone();
        let age_seconds = now_ms.saturating_sub(self.reserved_at_ms.load(Ordering::Relaxed)) / 1000;
        for transfer in &mut rest.transfers {
            if let Action::Reserve(hold) = &mut transfer.action {
                let left = u64::from(hold.lifetime_seconds.get()).saturating_sub(age_seconds);
                let left = u32::try_from(left).ok().and_then(std::num::NonZeroU32::new);
                hold.lifetime_seconds = left.unwrap_or(std::num::NonZeroU32::MIN);
            }
        }
        (void, Some(rest))
    }
}

fn holds(chain: &Chain) -> impl Iterator<Item = Hold> {
    chain.transfers.iter().filter_map(|transfer| match transfer.action {
        Action::Reserve(hold) => Some(hold),
        _ => None,
    })
}

/// Adds a member `times`. More than 64 bits hold is more than any capacity: the ledger refuses it.
pub(super) fn add(held: &mut Chain, member: &Chain, times: u64) {
    for (there, more) in held.transfers.iter_mut().zip(&member.transfers) {
        if let (Action::Reserve(there), Action::Reserve(more)) = (&mut there.action, more.action) {
            there.amount = there.amount.saturating_add(more.amount.saturating_mul(times));
        }
    }
}

/// Whether it is one that may be summed: a reserve that nobody will name again.
pub(super) fn may_be_summed(chain: &Chain) -> bool {
    chain.keep == Keep::Nothing
        && chain.transfers.iter().all(|transfer| matches!(transfer.action, Action::Reserve(_)))
}

/// The same limits for the same time; the amounts may differ.
pub(super) fn alike(one: &Chain, other: &Chain) -> bool {
    same(one, other, |one, other| Hold { amount: 0, ..one } == Hold { amount: 0, ..other })
}

/// Alike, and for the same amounts.
pub(super) fn equal(one: &Chain, other: &Chain) -> bool {
    same(one, other, |one, other| one == other)
}

fn same(one: &Chain, other: &Chain, holds: impl Fn(Hold, Hold) -> bool) -> bool {
    let same = |(one, other): (&Transfer, &Transfer)| match (one.action, other.action) {
        (Action::Reserve(hold), Action::Reserve(with)) => {
            one.account.id == other.account.id && holds(hold, with)
        }
        _ => false,
    };
    one.transfers.len() == other.transfers.len() && one.transfers.iter().zip(&other.transfers).all(same)
}

/// The sizes of the pieces that `count` equal reserves are sent in, so that exactly as many are admitted as if they had been sent one by
/// one, whatever is free. Each piece is half of what is left, rounded up. If a piece is refused, fewer reserves fit than it holds, and the
/// pieces after it hold at least that many. The last piece that is refused meets the same limit as the first request that would have been
/// refused alone: the pieces after it were all admitted, and they hold one fewer than it does.
pub(super) fn halves(count: usize) -> impl Iterator<Item = usize> {
    let mut left = count;
    std::iter::from_fn(move || {
        let size = left.div_ceil(2);
        left -= size;
        (size > 0).then_some(size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_admit_exactly_what_is_free_and_end_with_the_right_refusal() {
        for count in 0..200 {
            assert_eq!(halves(count).sum::<usize>(), count);
            assert!(halves(count).count() <= 9);
            for free in 0..count {
                let (mut admitted, mut refused_at) = (0, None);
                for size in halves(count) {
                    if admitted + size <= free {
                        admitted += size;
                    } else {
                        refused_at = Some(admitted + size);
                    }
                }
                assert_eq!(admitted, free, "{count} for {free}");
                // What the last refused piece lacked room for is one request more than there was room for.
                assert_eq!(refused_at, Some(free + 1), "{count} for {free}");
            }
        }
    }
}
