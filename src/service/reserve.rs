//! Reserves of the lease API: limits by their keys, all together or not at all, and a lease to complete them with.
//!
//! The same decision as Envoy's, without descriptors. Refuses to know the wire.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::Service;
use crate::admission::{DecideError, Decision, Denial, Name};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::{Code, LedgerError};
use crate::limit::{Cost, LeaseId};
use crate::registry::{Enforcement, Plan, Requirement};
use crate::snapshot::Snapshot;

/// What an application asks for. Amounts are at least 1, keys are there once.
#[derive(Debug)]
pub struct Ask<'a> {
    pub name: AskName<'a>,
    /// What the application calls its work, for whoever looks at the lease.
    pub job_id: &'a str,
    pub wants: Vec<(&'a str, u64)>,
}

/// How the caller wants the lease to be called.
#[derive(Debug)]
pub enum AskName<'a> {
    Fresh,
    Request(&'a str),
    Lease(LeaseId),
}

/// A lease that was handed out.
#[derive(Debug)]
pub struct Grant<'s> {
    pub id: LeaseId,
    /// `None` if it can be completed by its id only.
    pub token: Option<String>,
    pub reserved_at_unix_ms: u64,
    untold: Untold<'s>,
}

impl Grant<'_> {
    /// The caller hears of it now. A grant that is dropped before that is given back, for example one of a batch whose
    /// caller left while others of it were under way.
    pub fn told(&mut self) {
        self.untold.plan = None;
    }
}

#[derive(Debug)]
struct Untold<'s> {
    service: &'s Service,
    plan: Option<Box<Plan>>,
    id: LeaseId,
    is_named: bool,
}

impl Drop for Untold<'_> {
    fn drop(&mut self) {
        if let Some(plan) = self.plan.take() {
            let name = if self.is_named { Name::Lease(&self.id) } else { Name::Fresh };
            self.service.admission.give_back(&plan, name, &self.id);
        }
    }
}

/// What a reserve came to.
#[derive(Debug)]
pub enum ReserveOutcome<'s> {
    Granted(Grant<'s>),
    Denied(Denial),
}

#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// What is asked for can't be read as a reserve.
    #[error("{0}")]
    Invalid(String),
    #[error("no file defines it, and no rule derives it")]
    UnknownLimit(String),
    #[error("this lease_id was used for other requirements")]
    UsedForAnother,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl Service {
    pub async fn reserve(&self, ask: &Ask<'_>) -> Result<ReserveOutcome<'_>, ReserveError> {
        let _call = self.call();
        let snapshot = self.live.load_full();
        let plan = self.plan(&snapshot, ask.wants.iter().copied())?;
        let name = match &ask.name {
            AskName::Fresh => Name::Fresh,
            AskName::Request(id) => Name::Request(id),
            AskName::Lease(id) => Name::Lease(id),
        };
        let decided = self.admission.admit(&snapshot, &plan, name, clock::monotonic_ms()).await;
        let decision = decided.map_err(|error| match error {
            DecideError::Ledger(error) => ReserveError::Ledger(error),
            DecideError::Invalid(error) => ReserveError::Ledger(LedgerError::Unavailable(error.to_string())),
        })?;
        if decision.refused == Some(Code::ExistsWithDifferentFields) {
            return Err(ReserveError::UsedForAnother);
        }
        self.count(&decision);
        match decision.denial {
            Some(denial) => Ok(ReserveOutcome::Denied(denial)),
            None => self.grant(ask, plan, decision.lease).map(ReserveOutcome::Granted),
        }
    }

    /// All at once, answered in order. What could not be read is answered with what is wrong with it.
    pub(crate) async fn reserve_batch(
        &self,
        asks: Vec<Result<Ask<'_>, ReserveError>>,
    ) -> Vec<Result<ReserveOutcome<'_>, ReserveError>> {
        join_all(asks.into_iter().map(|ask| async { self.reserve(&ask?).await })).await
    }

    pub(super) fn plan<'a>(
        &self,
        snapshot: &Snapshot,
        wants: impl Iterator<Item = (&'a str, u64)>,
    ) -> Result<Plan, ReserveError> {
        let mut requirements = SmallVec::new();
        for (key, amount) in wants {
            let limit = snapshot.registry.resolve(key, &self.admission.accounts);
            let limit = limit.ok_or_else(|| ReserveError::UnknownLimit(key.to_owned()))?;
            requirements.push(Requirement {
                account: Arc::clone(&limit.account),
                spec: Arc::clone(&limit.spec),
                name: Arc::from(key),
                amount,
                enforcement: Enforcement::Enforced,
                // Every lease of this API can be completed, with actuals for any of its rolling limits.
                reconcile: true,
                cost: Cost::Hits,
                metric_per_value: false,
            });
        }
        Ok(Plan { requirements, descriptors: SmallVec::new() })
    }

    pub(super) fn grant(
        &self,
        ask: &Ask<'_>,
        plan: Plan,
        lease: Option<Box<Lease>>,
    ) -> Result<Grant<'_>, ReserveError> {
        let is_named = !matches!(ask.name, AskName::Fresh);
        let untold = |id: &LeaseId, plan| Untold { service: self, plan, id: id.clone(), is_named };
        let Some(lease) = lease else {
            // Allowed because the ledger could not be asked: nothing is held.
            let reserved_at_unix_ms = clock::unix_ms();
            let id = match &ask.name {
                AskName::Lease(id) => id.clone(),
                AskName::Fresh | AskName::Request(_) => {
                    LeaseId::fresh(reserved_at_unix_ms, fastrand::u128(..))
                }
            };
            return Ok(Grant { untold: untold(&id, None), id, token: None, reserved_at_unix_ms });
        };
        let issued = self.leases.issue(&lease, ask.job_id);
        if issued.differs {
            return Err(ReserveError::UsedForAnother);
        }
        let (token, reserved_at_unix_ms) = (issued.token, issued.reserved_at_unix_ms);
        Ok(Grant {
            untold: untold(&lease.id, Some(Box::new(plan))),
            id: lease.id,
            token,
            reserved_at_unix_ms,
        })
    }

    fn count(&self, decision: &Decision) {
        match &decision.denial {
            None => self.lease_api.allowed(decision.reason),
            Some(denial) => {
                self.lease_api.denied(denial.reason);
                if let Some(ms) = denial.retry_after_ms {
                    self.metrics.retry_after_ms.observe(ms as f64);
                }
            }
        }
    }
}
