//! Completions: what was held comes back. Every one runs to its end, even if its caller has gone.
//!
//! Refuses to know the wire, and what settling consists of.

use std::sync::Arc;

use futures_util::future::join_all;

use super::Service;
use crate::admission::LateCharge;
use crate::clock;
use crate::lease::apply::Settler;
use crate::lease::leases::Found;
use crate::lease::settle::{Settlement, settle, used_by_reports};
use crate::lease::token::Refused;
use crate::lease::{Lease, Report};
use crate::ledger::LedgerError;

/// One completion of an application.
#[derive(Debug)]
pub(crate) struct Completion<'a> {
    pub(crate) lease: Named<'a>,
    pub(crate) actuals: Vec<Actual<'a>>,
}

/// A lease as its caller names it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Named<'a> {
    /// An id; a token will do.
    Id(&'a str),
    Token(&'a str),
}

/// What was really used of a limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Actual<'a> {
    pub(crate) key: &'a str,
    pub(crate) amount: u64,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum CompleteError {
    /// What is asked for can't be read as a completion.
    #[error("{0}")]
    Invalid(String),
    #[error("the lease token {0}")]
    Refused(#[from] Refused),
    #[error("actuals[{index}].key: the lease holds nothing of `{key}`")]
    NotHeld { index: usize, key: String },
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Service {
    /// Completes a lease for an application. What is not known, or was completed, has nothing left to do.
    pub(crate) async fn complete(self: &Arc<Self>, completion: &Completion<'_>) -> Result<(), CompleteError> {
        let _call = self.call();
        // A job that is done before its turn came needs no place in the queue.
        if let Named::Id(id) = completion.lease
            && self.is_queued(id)
        {
            self.leave_here(id).await;
            return Ok(());
        }
        let found = match completion.lease {
            Named::Id(text) => self.leases.find(text)?,
            Named::Token(text) => self.leases.find_token(text)?,
        };
        let found = match (found, completion.lease, &self.line) {
            (Found::Unknown, Named::Id(id), Some(line)) => self.find_in_line(line, id).await?,
            (found, ..) => found,
        };
        let Found::Open(lease) = found else { return Ok(()) };
        if completion.actuals.is_empty() && lease.needs_report() {
            self.lease_api.unreported();
        }
        let mut used = vec![None; lease.held.len()];
        for (index, Actual { key, amount }) in completion.actuals.iter().enumerate() {
            let held = lease.held.iter().position(|held| held.key.as_str() == *key);
            let held = held.ok_or_else(|| CompleteError::NotHeld { index, key: (*key).to_owned() })?;
            used[held] = Some(*amount);
        }
        Ok(self.settle(lease, used, Why::Completed).await?)
    }

    /// All at once, answered in order. What could not be read is answered with what is wrong with it.
    pub(crate) async fn complete_batch(
        self: &Arc<Self>,
        completions: Vec<Result<Completion<'_>, CompleteError>>,
    ) -> Vec<Result<(), CompleteError>> {
        let each = completions.into_iter().map(|completion| async { self.complete(&completion?).await });
        join_all(each).await
    }

    /// Completes what the completion descriptors of one call name, each lease once. Envoy ignores the answer, so there
    /// is none.
    pub(super) async fn complete_reports<'a>(
        self: &Arc<Self>,
        domain: &str,
        reports: impl Iterator<Item = Report<'a>>,
    ) {
        let mut named: Vec<(Lease, Vec<Report<'_>>)> = Vec::new();
        for report in reports {
            if let Some((_, same)) = named.iter_mut().find(|(_, same)| same[0].lease == report.lease) {
                same.push(report);
            } else if let Ok(Found::Open(lease)) = self.leases.find(report.lease) {
                match named.iter_mut().find(|(there, _)| there.id == lease.id) {
                    Some((_, same)) => same.push(report),
                    None => named.push((lease, vec![report])),
                }
            }
        }
        let unreported = named
            .iter()
            .filter(|(lease, same)| lease.needs_report() && same.iter().all(|report| report.used.is_none()));
        let snapshot = self.live.load();
        unreported.for_each(|_| snapshot.domain(domain).counters.unreported());
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
        self.leases
            .run(async move {
                let snapshot = service.live.load_full();
                let settlements = settle(&lease, &used, clock::unix_ms());
                let settler = Settler {
                    ledger: &service.admission.ledger,
                    registry: &snapshot.registry,
                    accounts: &service.admission.accounts,
                };
                let settled = settler.apply(&lease, &settlements).await;
                service.leases.settled(&lease, &settlements, settled.as_ref().err());
                if settled.is_ok() {
                    let now_unix_ms = clock::unix_ms();
                    if service.recorders.is_anybody_there() {
                        let held_ms = now_unix_ms.saturating_sub(lease.reserved_at_unix_ms);
                        service.recorders.tell_done(&lease.id.to_string(), held_ms);
                    }
                    if why == Why::Completed {
                        settler.note_holds(&lease, &settlements, now_unix_ms);
                        service.queue.completed(&lease.id);
                        if settlements.is_empty() {
                            service.tell_completed(&lease).await;
                        }
                    }
                    service.tell_those_who_wait(settler, &lease, &settlements);
                }
                settled
            })
            .await
    }

    /// Charges a refused request for what was used already, even if its caller has gone.
    pub(super) async fn charge_late(self: &Arc<Self>, late: Box<LateCharge>) {
        let service = Arc::clone(self);
        let charging = async move {
            let charged = service.admission.charge_late(&late).await;
            charged.inspect_err(|error| {
                service.leases.lost("what a refused request had used was not charged", error);
            })
        };
        // Nobody is told: the request is refused in any case.
        drop(self.leases.run(charging).await);
    }

    /// Gives back all of a lease that nobody was told of: nobody else will complete it.
    pub(super) async fn release(self: &Arc<Self>, lease: Lease) {
        let nothing = vec![Some(0); lease.held.len()];
        // What can't be given back now is tried until the lease ends.
        drop(self.settle(lease, nothing, Why::GivenBack).await);
    }

    fn tell_those_who_wait(&self, settler: Settler<'_>, lease: &Lease, settlements: &[Settlement]) {
        let freed = settlements.iter().filter(|each| !each.adjustment.takes_more());
        self.queue.freed(freed.map(|settlement| settler.account(lease, settlement).id));
    }
}

/// Why a lease ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    Completed,
    /// Nobody used it, so it does not count for how long leases are held.
    GivenBack,
}
