//! One ledger, or two of which the new one comes to replace the old one while the server runs.
//!
//! With two, every chain is applied to both or to neither. TigerBeetle never frees its disk, so a cluster is replaced now and
//! then: all instances go from the old one to both, stay there until the new one holds all that still counts, and go on to
//! the new one alone. The steps are in `docs/operating.md`. With one ledger this layer only passes calls on.
//!
//! # Why no window sees more than the capacity
//!
//! *Held by both.* What an instance admits is held by each ledger that it uses, from before the answer until its window has
//! ended: it answers when both have taken it, and gives back the same on both.
//!
//! *One that all share.* While some instances use the old ledger and some both, the old one has everything, so it alone
//! keeps the capacity; that the new one refuses something too can only admit less. While some use both and some the new one,
//! the same is true of the new one, if it has all that still counts when the first instance uses it alone. It does if
//! every instance has used both for at least the longest lifetime of any limit: whatever was admitted before has ended. That
//! is `safe_after` of `GET /v1/ledger`. Nobody may use the old one alone and nobody the new one alone at the same time.
//!
//! # The order: the old one first
//!
//! 1. The old one refuses: that is the answer, and the new one is not asked.
//! 2. The old one has taken it, and the new one refuses, fails, or our caller leaves: what the old one took is given back as
//!    [`Ledger::give_back`] does, which claims a name that others may know, so that nobody is admitted on it meanwhile.
//!    Only what this very call took is given back. If the old one had it from an earlier sending, somebody may
//!    have been admitted on it, and it is left to expire: too much is counted for a while, never too little.
//! 3. Both have taken it: it is admitted.
//!
//! *A crash between the two*: nobody was answered, and what the old one took expires. *One of them is away*: the chain fails
//! as if the ledger were away; nothing is admitted on one alone. One deadline holds for both together.
//!
//! Reserves that nobody names are given a record of their own on the old ledger, because they may have to be given back. There
//! they are not summed up, so two ledgers cost more than twice one.
//!
//! # What is taken as far as there is
//!
//! The old one is asked first, and the new one for no more than that gave. If the new one has less, the old one is trimmed to
//! that: void and re-reserve in one chain, under the same name. So both hold the same, and that is what the caller
//! hears. Whoever voids it later voids the trimmed part too. If the trimming fails, the old one counts too much until it expires.
//!
//! # What settles a lease
//!
//! It goes to both, and each does its part. One that was reserved before both were in use is only on one of them: the other
//! finds nothing to give back, takes nothing, and that is no refusal. What a completion takes is taken by both: if the new one
//! refuses it, it is given back on the old one, and the refusal is the answer, so that the limit's overage decides for both.
//! What is taken together with a debt can't be given back, because a debt can't. There the new one owes all of it: it was
//! used, and each ledger has charged it in its way.
//! A completion that fails on one of them is sent again to both by whoever sent it; the names make that safe.
//!
//! What a limit is like now, its capacity above all, is part of every reserve. While the old one refuses because it is being
//! lowered or because it owes something, the new one is asked for nothing at all of the limit, so that it hears of it too.
//!
//! Debts are recorded on both, and each pays its own. A debt from before is on the old one only.
//!
//! # What is shown
//!
//! Balances, samples and schedules are those of the fuller one, because that one decides.

mod chain;
mod settle;
mod successor;
mod undo;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use self::chain::{
    for_new, for_old, fuller, least, lowered, merged, nothing_of, only_reserves, takes_nothing, trimmed,
    twins,
};
use self::settle::Manner;
use self::successor::{Successor, bare};
use self::undo::Undo;
use super::{
    Account, Action, Balance, Chain, Ledger, LedgerError, Lender, LoanEnd, Outcome, Refusal, RefusalCode,
    Schedule, SlabHeld, SlabTake, Verdict, Want,
};
use crate::clock;
use crate::limit::{LeaseId, LimitSpec};

/// A ledger, and perhaps the one that replaces it.
#[derive(Debug)]
pub struct Rotation<L> {
    old: L,
    new: Option<Successor<L>>,
}

impl<L: Ledger> Rotation<L> {
    /// One ledger, as if this layer were not there.
    pub fn one(ledger: L) -> Self {
        Self { old: ledger, new: None }
    }

    /// Two, each with what it is called in messages. `timeout` bounds what a caller waits for both.
    pub fn both(old: (L, String), new: (L, String), timeout: Duration) -> Self {
        let longest_seconds = AtomicU32::new(0);
        let successor = Successor { ledger: new.0, names: [old.1, new.1], timeout, longest_seconds };
        Self { old: old.0, new: Some(successor) }
    }

    /// A chain that only reserves.
    async fn reserve(&self, new: &Successor<L>, chain: &Chain) -> Result<Outcome, LedgerError> {
        let first = for_old(chain);
        let at_old = self.old.apply(&first).await.map_err(|error| new.of_old(error))?;
        match at_old.verdict {
            Verdict::Done => {}
            Verdict::Refused(Refusal { code: RefusalCode::Abandoned, .. }) => {
                return self.was_refused_by_new(new, chain, at_old).await;
            }
            Verdict::Refused(Refusal {
                code: RefusalCode::LimitDecreasing | RefusalCode::InDebt,
                index,
                ..
            }) => {
                let name = LeaseId::fresh(clock::unix_ms(), fastrand::u128(..));
                if let Some(nothing) = nothing_of(chain, index, name) {
                    // The answer doesn't matter: the new ledger now knows the capacity.
                    drop(new.ledger.apply(&for_new(&nothing)).await);
                }
                return Ok(at_old);
            }
            Verdict::Refused(_) | Verdict::NotAsked => return Ok(at_old),
        }
        let mut undo_old = Undo { ledger: &self.old, chain: (!at_old.is_repeat).then_some(first) };
        let second = lowered(for_new(chain), &at_old.taken);
        if takes_nothing(&second) {
            undo_old.chain = None;
            return Ok(at_old);
        }
        let at_new = new.ledger.apply(&second).await.map_err(|error| new.of_new(error))?;
        if at_new.verdict != Verdict::Done {
            return Ok(at_new);
        }
        if let Some(trimming) = trimmed(chain, &at_old.taken, &at_new.taken) {
            // If the caller leaves now, it was not told of the admission: the new one gives it back too.
            let mut undo_new = Undo { ledger: &new.ledger, chain: (!at_new.is_repeat).then_some(second) };
            self.trim(&trimming).await;
            undo_new.chain = None;
        }
        undo_old.chain = None;
        Ok(merged(at_old, at_new))
    }

    /// The old one gave this name back. If that was because the new one refused it, it stays refused.
    async fn was_refused_by_new(
        &self,
        new: &Successor<L>,
        chain: &Chain,
        at_old: Outcome,
    ) -> Result<Outcome, LedgerError> {
        let second = for_new(chain);
        let at_new = new.ledger.apply(&second).await.map_err(|error| new.of_new(error))?;
        if at_new.verdict == Verdict::Done && !at_new.is_repeat {
            new.ledger.give_back(second);
        }
        Ok(if at_new.verdict == Verdict::Done { at_old } else { at_new })
    }

    /// Where the new one had less to take, the old one keeps no more than that.
    async fn trim(&self, trimming: &Chain) {
        if let Err(error) = self.old.complete(trimming).await {
            tracing::debug!(%error, lease = %trimming.lease, "the old ledger keeps more than the new one took");
        }
    }

    fn successor(&self) -> Option<&L> {
        self.new.as_ref().map(|new| &new.ledger)
    }
}

impl<L: Ledger> Ledger for Rotation<L> {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let Some(new) = &self.new else { return self.old.apply(chain).await };
        new.saw(chain.transfers.iter().filter_map(|transfer| match transfer.action {
            Action::Reserve(hold) | Action::TakeUpTo(hold) => Some(hold.lifetime_seconds),
            _ => None,
        }));
        let applying = async {
            if only_reserves(chain) {
                self.reserve(new, chain).await
            } else {
                self.settle(new, chain, Manner::Apply).await
            }
        };
        let late = |_| LedgerError::TimedOut(u64::try_from(new.timeout.as_millis()).unwrap_or(u64::MAX));
        // On the heap: with one ledger a decision carries no space for it.
        Box::pin(tokio::time::timeout(new.timeout, applying)).await.map_err(late)?
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        match &self.new {
            Some(new) => self.settle(new, chain, Manner::Complete).await,
            None => self.old.complete(chain).await,
        }
    }

    fn give_back(&self, chain: Chain) {
        let Some(new) = self.successor() else { return self.old.give_back(chain) };
        new.give_back(for_new(&chain));
        self.old.give_back(for_old(&chain));
    }

    /// With two ledgers nothing is borrowed: what a hub lends is held by one of them only.
    async fn take_slab(&self, chain: &Chain, window_seconds: NonZeroU32) -> Result<SlabTake, LedgerError> {
        match &self.new {
            Some(_) => self.apply(chain).await.map(SlabTake::Applied),
            None => self.old.take_slab(chain, window_seconds).await,
        }
    }

    fn end_loan(&self, lender: Lender, end: LoanEnd) {
        self.old.end_loan(lender, end);
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        let at_old = self.old.peek(account, spec);
        let Some(new) = self.successor() else { return at_old };
        least(at_old, new.peek(&account.twin(), spec))
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        let at_old = self.old.sample(account, spec);
        let Some(new) = self.successor() else { return at_old };
        least(at_old, new.sample(&account.twin(), spec))
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        let at_old = self.old.is_decreasing(account, spec);
        self.successor().is_some_and(|new| new.is_decreasing(&account.twin(), spec)) || at_old
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        let Some(new) = &self.new else { return self.old.provision(wants).await };
        let twins = twins(&wants);
        let (at_old, at_new) = tokio::join!(self.old.provision(wants), new.ledger.provision(twins));
        at_old.map_err(|error| new.of_old(error)).and(at_new.map_err(|error| new.of_new(error)))
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        let Some(new) = &self.new else { return self.old.balances(wants).await };
        let twins = twins(&wants);
        let (at_old, at_new) = tokio::join!(self.old.balances(wants), new.ledger.balances(twins));
        let (at_old, at_new) =
            (at_old.map_err(|error| new.of_old(error))?, at_new.map_err(|error| new.of_new(error))?);
        Ok(at_old.into_iter().zip(at_new).map(|(old, new)| fuller(old, new)).collect())
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        let Some(new) = &self.new else { return self.old.schedule(account, lifetime_seconds).await };
        let twin = account.twin();
        let (at_old, at_new) = tokio::join!(
            self.old.schedule(account, lifetime_seconds),
            new.ledger.schedule(&twin, lifetime_seconds)
        );
        let (at_old, at_new) =
            (at_old.map_err(|error| new.of_old(error))?, at_new.map_err(|error| new.of_new(error))?);
        Ok(if at_old.used > at_new.used { at_old } else { at_new })
    }

    /// Not known with two ledgers: neither of them knows all that comes back.
    fn comes_back(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        if self.successor().is_some() { None } else { self.old.comes_back(account, spec) }
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        let at_old = self.old.is_used_up(account, spec);
        self.successor().is_some_and(|new| new.is_used_up(&account.twin(), spec)) || at_old
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        let at_old = self.old.owed(account, spec);
        self.successor().map_or(at_old, |new| new.owed(&account.twin(), spec).max(at_old))
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        let at_old = self.old.repaid_in_ms(account, spec, amount)?;
        let Some(new) = self.successor() else { return Some(at_old) };
        Some(new.repaid_in_ms(&account.twin(), spec, amount)?.max(at_old))
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        let Some(new) = &self.new else { return self.old.forgive(want).await };
        let twin = Want { account: want.account.twin(), ..want.clone() };
        let (at_old, at_new) = tokio::join!(self.old.forgive(want), new.ledger.forgive(twin));
        at_old.map_err(|error| new.of_old(error)).and(at_new.map_err(|error| new.of_new(error)))
    }

    fn ready(&self) -> Result<(), String> {
        let at_old = self.old.ready();
        let Some(new) = &self.new else { return at_old };
        let whys = [("old", &new.names[0], at_old), ("new", &new.names[1], new.ledger.ready())];
        let say = |(which, name, state): (&str, &String, Result<(), String>)| {
            state.err().map(|why| format!("the {which} one, {name}: {}", bare(&why)))
        };
        let whys: Vec<String> = whys.into_iter().filter_map(say).collect();
        if whys.is_empty() { Ok(()) } else { Err(format!("ledger: {}", whys.join("; "))) }
    }

    fn is_shared(&self) -> bool {
        self.old.is_shared() || self.successor().is_some_and(Ledger::is_shared)
    }

    fn tell_slabs(&self, held: impl FnOnce() -> Vec<SlabHeld>) {
        let Some(new) = self.successor() else { return self.old.tell_slabs(held) };
        let held = held();
        self.old.tell_slabs(|| held.clone());
        new.tell_slabs(|| held);
    }

    fn longest_lifetime_seconds(&self) -> Option<NonZeroU32> {
        NonZeroU32::new(self.new.as_ref()?.longest_seconds.load(Ordering::Relaxed))
    }

    fn sweep(&self) -> usize {
        self.old.sweep() + self.successor().map_or(0, Ledger::sweep)
    }

    async fn close(&self) {
        match self.successor() {
            Some(new) => {
                tokio::join!(self.old.close(), new.close());
            }
            None => self.old.close().await,
        }
    }
}
