//! Completions: what was held comes back. Every one runs to its end, even if its caller has gone.
//!
//! Refuses to know the wire, and what settling consists of.

use std::sync::Arc;

use futures_util::future::join_all;

use super::Service;
use crate::clock;
use crate::lease::apply::Means;
use crate::lease::desk::Found;
use crate::lease::settle::{Change, Step, settle, used_by_reports};
use crate::lease::token::Refused;
use crate::lease::{Lease, Report};
use crate::ledger::LedgerError;
use crate::retry::backoff::Backoff;
use crate::snapshot::Snapshot;

/// A lease as its caller names it.
#[derive(Debug, Clone, Copy)]
pub enum Named<'a> {
    /// An id; a token will do.
    Id(&'a str),
    Token(&'a str),
}

/// What was really used of a limit.
#[derive(Debug, Clone, Copy)]
pub struct Actual<'a> {
    pub key: &'a str,
    pub amount: u64,
}

#[derive(Debug, thiserror::Error)]
pub enum CompleteError {
    #[error("the lease token {0}")]
    Refused(#[from] Refused),
    #[error("actuals[{index}].key: the lease holds nothing of `{key}`")]
    NotHeld { index: usize, key: String },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Service {
    /// Completes a lease for an application. What is not known, or was completed, has nothing left to do.
    pub async fn complete(
        self: &Arc<Self>,
        named: Named<'_>,
        actuals: &[Actual<'_>],
    ) -> Result<(), CompleteError> {
        // Whoever is done before its turn came needs no place.
        if let Named::Id(id) = named
            && self.is_queued(id)
        {
            self.leave(id).await;
            return Ok(());
        }
        let found = match named {
            Named::Id(text) => self.desk.find(text)?,
            Named::Token(text) => self.desk.find_token(text)?,
        };
        let Found::Open(lease) = found else { return Ok(()) };
        let mut used = vec![None; lease.held.len()];
        for (index, Actual { key, amount }) in actuals.iter().enumerate() {
            let held = lease.held.iter().position(|held| held.key.as_str() == *key);
            let held = held.ok_or_else(|| CompleteError::NotHeld { index, key: (*key).to_owned() })?;
            used[held] = Some(*amount);
        }
        Ok(self.settle(lease, used, Why::Completed).await?)
    }

    /// Completes what the completion descriptors of one call name, each lease once. Envoy ignores the answer, so there
    /// is none.
    pub async fn complete_reports(self: &Arc<Self>, reports: &[Report<'_>]) {
        let mut named: Vec<(Lease, Vec<Report<'_>>)> = Vec::new();
        for report in reports {
            if let Some((_, same)) = named.iter_mut().find(|(_, same)| same[0].lease == report.lease) {
                same.push(*report);
            } else if let Ok(Found::Open(lease)) = self.desk.find(report.lease) {
                match named.iter_mut().find(|(there, _)| there.id == lease.id) {
                    Some((_, same)) => same.push(*report),
                    None => named.push((lease, vec![*report])),
                }
            }
        }
        // All are on their way before the first is waited for: the call may be reset at any moment.
        let settling = named.into_iter().map(|(lease, same)| {
            let used = used_by_reports(&lease, &same);
            self.settle(lease, used, Why::Completed)
        });
        join_all(settling).await;
    }

    async fn settle(
        self: &Arc<Self>,
        lease: Lease,
        used: Vec<Option<u64>>,
        why: Why,
    ) -> Result<(), LedgerError> {
        let service = Arc::clone(self);
        self.desk
            .run(async move {
                let snapshot = service.live.load_full();
                let steps = settle(&lease, &used, clock::unix_ms());
                let means = Means {
                    ledger: &service.admission.ledger,
                    registry: &snapshot.registry,
                    accounts: &service.admission.accounts,
                };
                let settled = means.apply(&lease, &steps).await;
                service.desk.settled(&lease, settled.as_ref().err());
                if settled.is_ok() {
                    service.tell_those_who_wait(&snapshot, &lease, &steps, why);
                }
                settled
            })
            .await
    }

    /// Gives all of a lease back, as if it had never been: nobody was told of it, so nobody else will.
    pub(super) async fn release(self: &Arc<Self>, lease: Lease) {
        let mut backoff = Backoff::default();
        // Its transfers are named, so that however often it is asked for, it happens once.
        while lease.ends_at_unix_ms() > clock::unix_ms() {
            let nothing = vec![Some(0); lease.held.len()];
            if self.settle(lease.clone(), nothing, Why::GivenBack).await.is_ok() {
                return;
            }
            if self.queue.is_closing() {
                return;
            }
            tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
        }
    }

    fn tell_those_who_wait(&self, snapshot: &Snapshot, lease: &Lease, steps: &[Step], why: Why) {
        let accounts = &self.admission.accounts;
        let account = |step: &Step| {
            let key = lease.held[step.index].key.as_str();
            let limit = snapshot.registry.resolve(key, accounts);
            limit.map_or_else(|| accounts.of(key), |limit| Arc::clone(&limit.account))
        };
        if why == Why::Completed {
            let held_ms = clock::unix_ms().saturating_sub(lease.reserved_at_unix_ms);
            let released = steps.iter().filter(|step| lease.held[step.index].kind.is_concurrency());
            released.for_each(|step| account(step).saw_hold(held_ms));
            self.queue.completed(&lease.id);
        }
        let freed = steps.iter().filter(|step| !matches!(step.change, Change::Raise { .. }));
        self.queue.freed(freed.map(|step| account(step).id));
    }
}

/// Why a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Completed,
    /// Nobody used it: it says nothing of how long it is held.
    GivenBack,
}
