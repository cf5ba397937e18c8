//! What happens when the ledger below fails: all of `ledger.on_failure`, and the one place where failures are counted.
//!
//! A policy answers only for callers who wait. If a completion fails, whoever sent it has to try again. With `on_failure: local`
//! a local ledger gives out a share of each capacity. What it reserved is completed and given back on it, also after the real
//! ledger is back; everything else goes to the real one. A name that both may have ([`names_in_both`]) is settled on both.

mod names_in_both;

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;

use self::names_in_both::{AtReal, NamesInBoth};
use super::memory::{Memory, RESERVATIONS_MAX};
use super::{
    Account, Action, Balance, Chain, Keep, Ledger, LedgerError, Outcome, Refusal, RefusalCode, Schedule,
    SlabView, TransferSet, Verdict, Want,
};
use crate::limit::{LeaseId, LimitSpec};
use crate::telemetry::{LedgerFailure, Metrics};

/// What is answered when the ledger fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// An error, so that Envoy's failure mode decides.
    #[default]
    Error,
    Allow,
    Deny,
    /// An in-memory ledger with a share of each capacity until the ledger is back.
    Local,
}

/// A ledger, and what to do when it fails.
#[derive(Debug)]
pub struct Failover<L> {
    ledger: L,
    on_failure: OnFailure,
    local: Memory,
    /// A plain mutex: a section is one look-up.
    names_in_both: Mutex<NamesInBoth>,
    /// Of each capacity, above 0 and at most 1.
    local_share: f64,
    metrics: Arc<Metrics>,
}

impl<L: Ledger> Failover<L> {
    pub fn new(ledger: L, on_failure: OnFailure, local_share: f64, metrics: Arc<Metrics>) -> Self {
        metrics.memory_records_max.set(gauge(RESERVATIONS_MAX));
        let (local, names_in_both) = (Memory::default(), Mutex::default());
        Self { ledger, on_failure, local, names_in_both, local_share, metrics }
    }

    /// Something else than a chain could not be asked of the ledger.
    pub(crate) fn failed(&self, error: &LedgerError) {
        self.metrics.ledger_failed(failure(error));
    }

    /// Whether callers get an answer in the place of a ledger that is away.
    pub(crate) fn answers_in_its_place(&self) -> bool {
        self.on_failure != OnFailure::Error
    }

    /// The policy's answer in the place of `error`.
    async fn instead(&self, chain: &Chain, error: LedgerError) -> Result<Outcome, LedgerError> {
        let is_away = matches!(error, LedgerError::Unavailable(_) | LedgerError::TimedOut(_));
        match (self.on_failure, &error) {
            // A full queue is no failure of the ledger: the caller is told when to come back.
            (OnFailure::Error, _) | (_, LedgerError::QueueFull { .. }) => Err(error),
            (OnFailure::Allow, _) => Ok(Outcome::bare(Verdict::NotAsked)),
            (OnFailure::Deny, _) => {
                let failed = TransferSet::first(chain.transfers.len());
                let refusal = Refusal { index: 0, code: RefusalCode::NotAsked, failed };
                Ok(Outcome::bare(Verdict::Refused(refusal)))
            }
            (OnFailure::Local, _) if is_away => {
                let outcome = self.counted(self.local.apply(&self.local_part(chain)).await)?;
                // A name that only this instance knows is given back by the real ledger whenever it lands there.
                let may_land = matches!(error, LedgerError::TimedOut(_)) && chain.keep.is_named();
                if may_land && outcome.verdict == Verdict::Done {
                    self.names_in_both.lock().note(&chain.lease, AtReal::MayHold);
                }
                Ok(outcome)
            }
            (OnFailure::Local, _) => Err(error),
        }
    }

    /// Whether the local ledger reserved this lease.
    fn is_local(&self, lease: &LeaseId) -> bool {
        self.on_failure == OnFailure::Local && self.local.has_reserved(lease)
    }

    /// The real ledger has reserved something. A name that was sent before, when it was away, may be held locally too.
    fn note_reserved(&self, chain: &Chain, outcome: &Outcome) {
        if chain.keep.is_named() && outcome.verdict == Verdict::Done && self.is_local(&chain.lease) {
            self.names_in_both.lock().note(&chain.lease, AtReal::Holds);
        }
    }

    /// What the real ledger may have of a name that the local one reserved.
    fn at_real(&self, lease: &LeaseId) -> Option<AtReal> {
        self.names_in_both.lock().get(lease)
    }

    fn counted(&self, answer: Result<Outcome, LedgerError>) -> Result<Outcome, LedgerError> {
        answer.inspect_err(|error| self.metrics.ledger_failed(failure(error)))
    }

    /// The same chain on accounts that have only a share of their capacity. It may have to be given back when its caller leaves, so
    /// it needs a name there.
    fn local_part(&self, chain: &Chain) -> Chain {
        let mut part = chain.clone();
        if part.keep == Keep::ForUndo {
            part.keep = Keep::ForCompletion;
        }
        for transfer in &mut part.transfers {
            match &mut transfer.action {
                Action::Reserve(hold)
                | Action::Rereserve(hold)
                | Action::TakeUpTo(hold)
                | Action::Debt(hold) => hold.capacity = shared(hold.capacity, self.local_share),
                Action::Void | Action::VoidTaken | Action::VoidRereserved => {}
            }
        }
        part
    }
}

impl<L: Ledger> Ledger for Failover<L> {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        match self.counted(self.ledger.apply(chain).await) {
            Ok(outcome) => {
                self.note_reserved(chain, &outcome);
                Ok(outcome)
            }
            // On the heap: it is seldom needed, and every decision would carry the space for it.
            Err(error) => Box::pin(self.instead(chain, error)).await,
        }
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        if !self.is_local(&chain.lease) {
            return self.counted(self.ledger.complete(chain).await);
        }
        let here = self.counted(self.local.complete(&self.local_part(chain)).await)?;
        if self.at_real(&chain.lease).is_none() {
            return Ok(here);
        }
        // If this fails it is sent again. What was done here is then found done.
        let there = self.counted(self.ledger.complete(chain).await)?;
        Ok(if holds_nothing(there.verdict) { here } else { there })
    }

    fn give_back(&self, chain: Chain) {
        if !self.is_local(&chain.lease) {
            return self.ledger.give_back(chain);
        }
        self.local.give_back(self.local_part(&chain));
        // If the real ledger only may have it, that ledger gives it back by itself: it knows whether somebody else has it.
        if self.at_real(&chain.lease) == Some(AtReal::Holds) {
            self.ledger.give_back(chain);
        }
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        self.ledger.peek(account, spec)
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.ledger.sample(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        self.ledger.is_decreasing(account, spec)
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        self.ledger.provision(wants).await
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        self.ledger.balances(wants).await
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        self.ledger.schedule(account, lifetime_seconds).await
    }

    fn comes_back(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        self.ledger.comes_back(account, spec)
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        self.ledger.is_used_up(account, spec)
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        self.ledger.owed(account, spec)
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        self.ledger.repaid_in_ms(account, spec, amount)
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        self.ledger.forgive(want).await
    }

    fn ready(&self) -> Result<(), String> {
        self.ledger.ready()
    }

    fn is_shared(&self) -> bool {
        self.ledger.is_shared()
    }

    fn limits_changed(&self, spec_of: &dyn Fn(&Account) -> Option<Arc<LimitSpec>>) {
        self.ledger.limits_changed(spec_of);
    }

    fn slab(&self, account: &Account) -> Option<SlabView> {
        self.ledger.slab(account)
    }

    fn longest_lifetime_seconds(&self) -> Option<NonZeroU32> {
        self.ledger.longest_lifetime_seconds()
    }

    fn sweep(&self) -> usize {
        let records = self.local.sweep() + self.ledger.sweep();
        self.metrics.memory_records.set(gauge(records));
        records
    }

    async fn close(&self) {
        self.ledger.close().await;
    }
}

/// A ledger that answers so to a completion had nothing, or has nothing any more.
fn holds_nothing(verdict: Verdict) -> bool {
    let Verdict::Refused(refusal) = verdict else { return false };
    matches!(
        refusal.code,
        RefusalCode::PendingTransferNotFound
            | RefusalCode::PendingTransferExpired
            | RefusalCode::PendingTransferAlreadyVoided
    )
}

fn failure(error: &LedgerError) -> LedgerFailure {
    match error {
        LedgerError::Unavailable(_) => LedgerFailure::Unavailable,
        LedgerError::TimedOut(_) => LedgerFailure::TimedOut,
        LedgerError::QueueFull { .. } => LedgerFailure::QueueFull,
        LedgerError::Full(_) => LedgerFailure::Full,
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// Rounded down, so that the shares of several sidecars add up to no more than the capacity. There is one exception: a limit that
/// is not 0 keeps at least 1. So where `share` × capacity is below 1 they can add up to more.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u64 is one")]
fn shared(capacity: u64, share: f64) -> u64 {
    ((capacity as f64 * share) as u64).max(capacity.min(1))
}

#[cfg(test)]
mod tests;
