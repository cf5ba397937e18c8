//! Reserves of the lease API: limits by their keys, all together or not at all, and a lease to complete them with.
//!
//! The same decision as Envoy's, without descriptors. Refuses to know the wire.

use std::sync::Arc;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::Service;
use super::unsent::UnsentLease;
use crate::admission::{Asked, DecideError, Decision, Denial, Name, is_used};
use crate::clock;
use crate::lease::Lease;
use crate::lease::leases::KnownLease;
use crate::ledger::{Account, Chain, LedgerError};
use crate::limit::{Cost, LeaseId, LimitSpec};
use crate::queue::Need;
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
pub struct Grant {
    pub id: LeaseId,
    /// `None` if it can be completed by its id only.
    pub token: Option<String>,
    pub reserved_at_unix_ms: u64,
    /// Goes with the answer; `None` if nothing is held.
    pub unsent: Option<UnsentLease>,
}

/// What a reserve came to.
#[derive(Debug)]
pub enum ReserveOutcome {
    Granted(Grant),
    Denied(Denial),
}

#[derive(Debug, thiserror::Error)]
pub enum ReserveError {
    /// What is asked for can't be read as a reserve.
    #[error("{0}")]
    Invalid(String),
    #[error("no file defines it, and no rule derives it")]
    UnknownLimit(String),
    #[error(
        "this lease_id was used for something else, or for a lease that has ended; another one is needed"
    )]
    LeaseIdUsed,
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// No file defines this limit, and no rule derives it.
#[derive(Debug)]
pub(super) struct UnknownLimit(pub(super) String);

impl From<UnknownLimit> for ReserveError {
    fn from(UnknownLimit(key): UnknownLimit) -> Self {
        Self::UnknownLimit(key)
    }
}

/// What a caller needs of limits, whoever defines them.
pub(super) fn plan_of(needs: &[Need]) -> Plan {
    let each = needs.iter().map(|need| requirement(&need.account, &need.spec, need.amount));
    Plan { requirements: each.collect(), descriptors: SmallVec::new() }
}

fn requirement(account: &Arc<Account>, spec: &Arc<LimitSpec>, amount: u64) -> Requirement {
    Requirement {
        account: Arc::clone(account),
        spec: Arc::clone(spec),
        name: Arc::from(account.key.as_str()),
        amount,
        late: 0,
        enforcement: Enforcement::Enforced,
        // Every lease of this API can be completed, with actuals for any of its rolling limits.
        reconcile: true,
        cost: Cost::Hits,
        metric_per_value: false,
    }
}

impl Service {
    pub async fn reserve(self: &Arc<Self>, ask: &Ask<'_>) -> Result<ReserveOutcome, ReserveError> {
        let _call = self.call();
        let snapshot = self.live.load_full();
        let plan = self.plan(&snapshot, ask.wants.iter().copied())?;
        if let Some(grant) = self.granted_before(ask, &plan)? {
            return Ok(ReserveOutcome::Granted(grant));
        }
        let name = match &ask.name {
            AskName::Fresh => Name::Fresh,
            AskName::Request(id) => Name::Request(id),
            AskName::Lease(id) => Name::Lease(id),
        };
        let (domain, now_ms) = (&self.lease_api_name, clock::monotonic_ms());
        let asked = Asked { snapshot: &snapshot, plan: &plan, name, domain, is_retry: false, now_ms };
        let decided = self.admission.admit(&asked).await;
        self.admission.trace(domain, &decided);
        let decision = decided.map_err(|error| match error {
            DecideError::Ledger(error) => ReserveError::Ledger(error),
            DecideError::Invalid(error) => ReserveError::Ledger(LedgerError::Unavailable(error.to_string())),
        })?;
        if decision.refused.is_some_and(is_used) {
            return Err(ReserveError::LeaseIdUsed);
        }
        self.count(&decision);
        match decision.denial {
            Some(denial) => Ok(ReserveOutcome::Denied(denial)),
            None => self.grant(ask, decision.lease, decision.undo).map(ReserveOutcome::Granted),
        }
    }

    /// What a name that its caller chose stands for here: nothing, the same lease, or something else.
    pub(super) fn granted_before(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        plan: &Plan,
    ) -> Result<Option<Grant>, ReserveError> {
        let AskName::Lease(id) = &ask.name else { return Ok(None) };
        let lease = match self.leases.known(id, &ask.wants) {
            KnownLease::Nothing => return Ok(None),
            KnownLease::Used => return Err(ReserveError::LeaseIdUsed),
            KnownLease::Same(lease) => lease,
        };
        let (token, reserved_at_unix_ms) = (self.leases.token(&lease), lease.reserved_at_unix_ms);
        // A job that waited in the queue has a lease of another name, and was told of that.
        let unsent = (lease.id == *id).then(|| {
            let undo = self.admission.undo(plan, Name::Lease(id), id);
            UnsentLease::lease(self, lease.id.clone(), Box::new(undo))
        });
        Ok(Some(Grant { id: lease.id, token, reserved_at_unix_ms, unsent }))
    }

    /// All at once, answered in order. What could not be read is answered with what is wrong with it.
    pub(crate) async fn reserve_batch(
        self: &Arc<Self>,
        asks: Vec<Result<Ask<'_>, ReserveError>>,
    ) -> Vec<Result<ReserveOutcome, ReserveError>> {
        join_all(asks.into_iter().map(|ask| async { self.reserve(&ask?).await })).await
    }

    pub(super) fn plan<'a>(
        &self,
        snapshot: &Snapshot,
        wants: impl Iterator<Item = (&'a str, u64)>,
    ) -> Result<Plan, UnknownLimit> {
        let mut requirements = SmallVec::new();
        for (key, amount) in wants {
            let limit = snapshot.registry.resolve(key, &self.admission.accounts);
            let limit = limit.ok_or_else(|| UnknownLimit(key.to_owned()))?;
            requirements.push(requirement(&limit.account, &limit.spec, amount));
        }
        Ok(Plan { requirements, descriptors: SmallVec::new() })
    }

    pub(super) fn grant(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        lease: Option<Box<Lease>>,
        undo: Option<Box<Chain>>,
    ) -> Result<Grant, ReserveError> {
        let (Some(lease), Some(undo)) = (lease, undo) else {
            // Allowed because the ledger could not be asked: nothing is held.
            let reserved_at_unix_ms = clock::unix_ms();
            let id = match &ask.name {
                AskName::Lease(id) => id.clone(),
                AskName::Fresh | AskName::Request(_) => {
                    LeaseId::fresh(reserved_at_unix_ms, fastrand::u128(..))
                }
            };
            return Ok(Grant { id, token: None, reserved_at_unix_ms, unsent: None });
        };
        let Some(issued) = self.leases.issue(&lease, ask.job_id) else {
            self.give_back(*undo);
            return Err(ReserveError::LeaseIdUsed);
        };
        let (token, reserved_at_unix_ms) = (issued.token, issued.reserved_at_unix_ms);
        let unsent = Some(UnsentLease::lease(self, lease.id.clone(), undo));
        Ok(Grant { id: lease.id, token, reserved_at_unix_ms, unsent })
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
