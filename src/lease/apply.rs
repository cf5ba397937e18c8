//! Carries out what [`super::settle`] asks for: the limits of a lease side by side, each to its end.
//!
//! Nobody can be asked again later. So if the ledger is away, we wait for it until what was held has ended by itself. What may
//! become a debt counts after that too, so there we wait at least as long as a restart takes. Every transfer is named by its
//! lease, so that however often it is sent, it happens once.

use std::num::NonZeroU32;
use std::sync::Arc;

use futures_util::future::join_all;

use super::Lease;
use super::settle::Settlement;
use crate::clock;
use crate::ledger::{Account, Accounts, Action, Chain, LedgerError, LiveLedger, Verdict, complete_patiently};
use crate::registry::Registry;

/// A restart of the ledger takes some seconds.
const RESTART_MS: u64 = 10_000;

/// Settles leases on a ledger, by the limits that the files have now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settler<'a> {
    pub(crate) ledger: &'a LiveLedger,
    pub(crate) registry: &'a Registry,
    pub(crate) accounts: &'a Accounts,
}

impl Settler<'_> {
    /// Carries out all settlements. An error of one keeps no other from its end.
    pub(crate) async fn apply(self, lease: &Lease, settlements: &[Settlement]) -> Result<(), LedgerError> {
        join_all(settlements.iter().map(|settlement| self.one(lease, *settlement)))
            .await
            .into_iter()
            .collect()
    }

    /// Remembers how long the limits that were given back were held.
    pub(crate) fn note_holds(self, lease: &Lease, settlements: &[Settlement], now_unix_ms: u64) {
        let held_ms = now_unix_ms.saturating_sub(lease.reserved_at_unix_ms);
        let released = settlements.iter().filter(|each| lease.held[each.index].kind.is_concurrency());
        released.for_each(|settlement| self.account(lease, settlement).hints.saw_hold(held_ms));
    }

    /// The account of the limit that a settlement is about.
    pub(crate) fn account(self, lease: &Lease, settlement: &Settlement) -> Arc<Account> {
        let key = lease.held[settlement.index].key.as_str();
        let limit = self.registry.resolve(key, self.accounts);
        limit.map_or_else(|| self.accounts.of(key), |limit| Arc::clone(&limit.account))
    }

    async fn one(self, lease: &Lease, settlement: Settlement) -> Result<(), LedgerError> {
        let Settlement { index, adjustment } = settlement;
        let held = &lease.held[index];
        let ends_at_unix_ms = lease.reserved_at_unix_ms.saturating_add(held.lifetime_ms());
        let until_unix_ms = if adjustment.takes_more() && held.has_debts() {
            ends_at_unix_ms.max(clock::unix_ms().saturating_add(RESTART_MS))
        } else {
            ends_at_unix_ms
        };
        let limit = self.registry.resolve(held.key.as_str(), self.accounts);
        let (account, capacity) = match &limit {
            Some(limit) => (Arc::clone(&limit.account), Some(limit.spec.capacity)),
            None => (self.accounts.of(held.key.as_str()), None),
        };
        let Some(chain) = adjustment.chain(held, &lease.id, &account, capacity) else { return Ok(()) };
        let Verdict::Refused(refusal) = self.patiently(chain, until_unix_ms).await? else { return Ok(()) };
        tracing::debug!(lease = %lease.id, limit = %held.key, ?adjustment, ?refusal, "the ledger refused");
        match adjustment.after_refusal(refusal, held, &lease.id, &account, capacity) {
            Some(next) => self.patiently(next, until_unix_ms).await.map(|_| ()),
            None => Ok(()),
        }
    }

    async fn patiently(self, chain: Chain, until_unix_ms: u64) -> Result<Verdict, LedgerError> {
        let started = clock::instant();
        let rest_of_it = || shortened(chain.clone(), started.elapsed().as_secs());
        let is_too_late = || clock::unix_ms() >= until_unix_ms;
        complete_patiently(self.ledger, rest_of_it, is_too_late).await.map(|outcome| outcome.verdict)
    }
}

/// The same chain when it is sent so much later: what it takes for the rest of a window it takes for a shorter time.
fn shortened(mut chain: Chain, by_seconds: u64) -> Chain {
    for transfer in &mut chain.transfers {
        if let Action::Rereserve(hold) | Action::TakeUpTo(hold) = &mut transfer.action {
            let left = u64::from(hold.lifetime_seconds.get()).saturating_sub(by_seconds);
            let left = u32::try_from(left).ok().and_then(NonZeroU32::new);
            hold.lifetime_seconds = left.unwrap_or(NonZeroU32::MIN);
        }
    }
    chain
}
