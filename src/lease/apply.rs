//! Carries out what [`super::settle`] asks for: the limits of a lease side by side, each to its end.
//!
//! Nobody can be asked again later, so a ledger that is away for a moment is waited for. A chain that the ledger took and
//! did not answer is left to its fate.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::Lease;
use super::settle::Settlement;
use crate::clock;
use crate::ledger::{Chain, Ledger, LedgerError, Verdict};
use crate::limit::Accounts;
use crate::registry::Registry;
use crate::retry::backoff::Backoff;

/// A restart of the ledger takes some seconds. Stopping waits as long for completions.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Settles leases on a ledger, by the limits that the files have now.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settler<'a> {
    pub(crate) ledger: &'a Ledger,
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

    async fn one(self, lease: &Lease, settlement: Settlement) -> Result<(), LedgerError> {
        let Settlement { index, adjustment } = settlement;
        let held = &lease.held[index];
        let limit = self.registry.resolve(held.key.as_str(), self.accounts);
        let (account, capacity) = match &limit {
            Some(limit) => (Arc::clone(&limit.account), Some(limit.spec.capacity)),
            None => (self.accounts.of(held.key.as_str()), None),
        };
        let Some(chain) = adjustment.chain(&lease.id, &account, capacity) else { return Ok(()) };
        let Verdict::Refused(refusal) = self.patiently(chain).await? else { return Ok(()) };
        tracing::debug!(lease = %lease.id, limit = %held.key, ?adjustment, ?refusal, "the ledger refused");
        match adjustment.after_refusal(refusal, held.overage, &lease.id, &account, capacity) {
            Some(next) => self.patiently(next).await.map(|_| ()),
            None => Ok(()),
        }
    }

    async fn patiently(self, chain: Chain) -> Result<Verdict, LedgerError> {
        let started = clock::instant();
        let mut backoff = Backoff::default();
        loop {
            match self.ledger.complete(chain.clone()).await {
                Ok(outcome) => return Ok(outcome.verdict),
                Err(LedgerError::Unavailable(_) | LedgerError::QueueFull { .. })
                    if started.elapsed() < PATIENCE =>
                {
                    tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
}
