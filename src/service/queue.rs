//! The use case of a reserve that may wait: take a place in the queue, follow it, leave it.
//!
//! Whoever fits at once needs no place. Everything of waiting in line is [`crate::queue`]'s; this file makes the attempts
//! that its runner asks for. Refuses to know the wire.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::Service;
use super::reserve::{Ask, AskName, Grant, ReserveError, UnknownLimit};
use super::unsent::UnsentLease;
use crate::admission::{self, Denial, Name};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::{Account, Ledger, LedgerError, Schedule};
use crate::limit::{LeaseId, LimitSpec};
use crate::queue::runner::Attempts;
use crate::queue::step::{Attempt, Attempted};
use crate::queue::{
    Failure, JobId, Leaving, LimitId, Need, NewPlace, NoPlace, Place, PlaceState, PlaceStatus, Queue,
    QueueFull, Reserved, Wants,
};
use crate::registry::Plan;
use crate::retry::eta;
use crate::retry::policy::Queue as Policy;
use crate::telemetry::Reason;

/// How long a caller waits for the first answer about its place before it hears that it is queued. An attempt ends within
/// `ledger.timeout_ms`, so this is for a queue that is long and moves fast.
const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// What became of a reserve that may wait.
#[derive(Debug)]
pub enum QueueReserve {
    /// It has a place, or was served at once.
    Placed(PlaceStatus, Option<UnsentLease>),
    /// It can never be served, or there is no place left.
    Denied(Denial),
}

/// What one who left is told.
#[derive(Debug)]
pub enum Left {
    /// Its place has ended now, or had before.
    Out(PlaceStatus),
    /// It has what it waited for, or never waited: that is completed, not left.
    Holds,
    Unknown,
}

impl Service {
    /// Allowed at once if it fits, else a place in the queue. A denial says why there is none.
    pub async fn queue_reserve(self: &Arc<Self>, ask: &Ask<'_>) -> Result<QueueReserve, ReserveError> {
        let _call = self.call();
        let snapshot = self.live.load_full();
        let plan = self.plan(&snapshot, ask.wants.iter().copied())?;
        self.admission.trace_limits(&plan);
        if let Some(denial) = self.admission.never(&plan) {
            return Ok(self.no_place(denial));
        }
        let id = match &ask.name {
            AskName::Fresh => self.admission.name(&plan, Name::Fresh),
            AskName::Request(id) => self.admission.name(&plan, Name::Request(id)),
            AskName::Lease(id) => id.clone(),
        };
        if !self.queue.has(JobId::of(&id))
            && let Some(grant) = self.granted_before(ask, &plan)?
        {
            return Ok(self.granted(ask, grant));
        }
        let mut refused_by = None;
        let limits = plan.requirements.iter().map(|requirement| requirement.account.id);
        if self.queue.may_skip(JobId::of(&id), limits) {
            match self.admission.attempt(&plan, Name::Lease(&id), &snapshot.retry, &self.lease_api_name).await
            {
                Ok(admission::Attempt::Taken(lease)) => return self.served_at_once(ask, plan, lease),
                Ok(admission::Attempt::NameIsUsed) => return Err(ReserveError::LeaseIdUsed),
                Ok(admission::Attempt::Refused { limit, .. }) => refused_by = Some(limit),
                // A ledger that doesn't answer is waited for in the queue.
                Ok(admission::Attempt::NameIsSpent | admission::Attempt::Never(_)) | Err(_) => {}
            }
        }
        match self.queue.take_place(new_place(ask, id, plan, refused_by), &snapshot.retry.queue) {
            Ok(id) => self.first_status(id).await,
            Err(NoPlace::Full(full)) => Ok(self.no_place(queue_full(full))),
            Err(NoPlace::NameUsed) => Err(ReserveError::LeaseIdUsed),
            Err(NoPlace::Closing) => Err(LedgerError::Unavailable("shutting down".to_owned()).into()),
        }
    }

    fn no_place(&self, denial: Denial) -> QueueReserve {
        self.lease_api.denied(denial.reason);
        self.admission.trace_queued(&self.lease_api_name, Some(&denial));
        QueueReserve::Denied(denial)
    }

    fn served_at_once(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        plan: Plan,
        lease: Option<Box<Lease>>,
    ) -> Result<QueueReserve, ReserveError> {
        let undo = lease.as_ref().map(|lease| {
            let id = &lease.id;
            Box::new(self.admission.undo(&plan, Name::Lease(id), id))
        });
        let grant = self.grant(ask, lease, undo)?;
        self.lease_api.allowed(Reason::Allowed);
        self.admission.trace_queued(&self.lease_api_name, None);
        Ok(self.granted(ask, grant))
    }

    fn granted(&self, ask: &Ask<'_>, grant: Grant) -> QueueReserve {
        let reserved = Reserved {
            lease: grant.id.clone(),
            token: grant.token.clone(),
            reserved_at_unix_ms: grant.reserved_at_unix_ms,
            ends_at_unix_ms: u64::MAX,
            unclaimed: None,
            is_picked_up: true,
        };
        let status = PlaceStatus {
            id: grant.id.clone(),
            job_id: job_id(ask, &grant.id),
            state: PlaceState::Reserved(Box::new(reserved)),
            wants: wants(ask),
            position: None,
            eta_seconds: eta::elapsed_or_default(&self.live.load().retry.queue, 0),
            elapsed_seconds: 0,
        };
        QueueReserve::Placed(status, grant.unsent)
    }

    /// What the caller that took a place hears first. If it has gone before that, it has no place.
    async fn first_status(self: &Arc<Self>, id: JobId) -> Result<QueueReserve, ReserveError> {
        let mut unsent = UnsentLease::place(self, id, true);
        // Whoever has no answer by then is queued as well.
        drop(tokio::time::timeout(FIRST_ANSWER_WITHIN, self.queue.first_answer(id)).await);
        match self.place(id, false) {
            Some(status) => {
                says(&status, &mut unsent);
                Ok(QueueReserve::Placed(status, Some(unsent)))
            }
            // So many jobs have come since that the place was forgotten.
            None => Err(LedgerError::Unavailable("the place in line was lost".to_owned()).into()),
        }
    }

    /// What the holder of a place is told. It has picked up what was reserved for it when it has heard that.
    pub(crate) fn follow(self: &Arc<Self>, id: JobId) -> Option<(PlaceStatus, UnsentLease)> {
        let (status, mut unsent) = (self.place(id, false)?, UnsentLease::place(self, id, false));
        says(&status, &mut unsent);
        Some((status, unsent))
    }

    /// What the holder of a place is told. A holder that hears that it was served has picked its lease up.
    pub fn place(&self, id: JobId, is_holder: bool) -> Option<PlaceStatus> {
        self.queue.status(id, is_holder, &self.live.load().retry.queue)
    }

    /// Tells when a place changes; `None` if there is none.
    pub fn place_changes(&self, id: JobId) -> Option<Arc<Notify>> {
        self.queue.changes(id)
    }

    pub(super) fn is_queued(&self, id: &str) -> bool {
        self.queue.is_waiting(JobId::of(&LeaseId::parse(id)))
    }

    /// Leaves the queue. What was reserved and not picked up goes to the next.
    pub async fn leave(self: &Arc<Self>, id: &str) -> Left {
        let job = JobId::of(&LeaseId::parse(id));
        match self.queue.leave(job) {
            Leaving::Out(unclaimed) => {
                if let Some(lease) = unclaimed {
                    self.release(*lease).await;
                }
                self.place(job, true).map_or(Left::Unknown, Left::Out)
            }
            Leaving::Holds => Left::Holds,
            Leaving::Unknown if self.leases.view(id).is_some() => Left::Holds,
            Leaving::Unknown => Left::Unknown,
        }
    }
}

impl Attempts for Service {
    fn queue(&self) -> &Queue {
        &self.queue
    }

    fn policy(&self) -> Policy {
        self.live.load().retry.queue.clone()
    }

    fn now_ms(&self) -> u64 {
        clock::monotonic_ms()
    }

    async fn attempt(&self, attempt: Attempt) -> Attempted {
        let snapshot = self.live.load_full();
        let plan = match self.plan(&snapshot, attempt.wants.iter().map(|(key, amount)| (&**key, *amount))) {
            Ok(plan) => plan,
            Err(UnknownLimit(key)) => return Attempted::Failed(Failure::UnknownLimit(key)),
        };
        // The first attempt has the name of the place, so that whoever asked for a name gets it and is charged once.
        let mut tried = Ok(admission::Attempt::NameIsSpent);
        if attempt.is_first {
            tried = self
                .admission
                .attempt(&plan, Name::Lease(&attempt.name), &snapshot.retry, &self.lease_api_name)
                .await;
        }
        if matches!(tried, Ok(admission::Attempt::NameIsSpent)) {
            tried = self.admission.attempt(&plan, Name::Fresh, &snapshot.retry, &self.lease_api_name).await;
        }
        match tried {
            Ok(admission::Attempt::Taken(lease)) => Attempted::Served(lease),
            Ok(admission::Attempt::Refused { limit, spec }) => Attempted::Refused { limit, spec },
            Ok(admission::Attempt::Never(key)) => Attempted::Failed(Failure::NeverFits(key.to_string())),
            Ok(admission::Attempt::NameIsUsed | admission::Attempt::NameIsSpent) => {
                Attempted::Failed(Failure::NameUsed)
            }
            Err(error) => not_answered(&error),
        }
    }

    async fn schedule(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        self.admission.ledger.schedule(account, spec.kind.lifetime_seconds()).await.ok()
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        let ledger = &self.admission.ledger;
        if ledger.is_shared() { ledger.sample(account, spec) } else { None }
    }

    fn hand_out(&self, place: &Place, lease: Option<Box<Lease>>) -> Reserved {
        self.lease_api.allowed(Reason::Allowed);
        let Some(lease) = lease else {
            // Allowed because the ledger could not be asked: nothing is held.
            return Reserved {
                lease: place.id.clone(),
                token: None,
                reserved_at_unix_ms: clock::unix_ms(),
                ends_at_unix_ms: u64::MAX,
                unclaimed: None,
                is_picked_up: false,
            };
        };
        self.leases.issue_as(&place.id, &lease, &place.job_id);
        Reserved {
            lease: lease.id.clone(),
            token: self.leases.token(&lease),
            reserved_at_unix_ms: lease.reserved_at_unix_ms,
            ends_at_unix_ms: lease.ends_at_unix_ms(),
            unclaimed: Some(lease),
            is_picked_up: false,
        }
    }

    async fn release(self: &Arc<Self>, lease: Lease) {
        Service::release(self, lease).await;
    }

    fn is_ready(&self) -> bool {
        self.admission.ledger.ready().is_ok()
    }
}

/// The ledger did not answer: the job waits a little and is attempted again.
fn not_answered(error: &LedgerError) -> Attempted {
    tracing::debug!(%error, "a job in the queue could not be attempted");
    Attempted::NotAnswered
}

fn says(status: &PlaceStatus, unsent: &mut UnsentLease) {
    if matches!(status.state, PlaceState::Reserved(_)) {
        unsent.says_served();
    }
}

fn new_place(ask: &Ask<'_>, id: LeaseId, plan: Plan, refused_by: Option<LimitId>) -> NewPlace {
    let needs =
        plan.requirements.into_iter().map(|r| Need { account: r.account, spec: r.spec, amount: r.amount });
    NewPlace { job_id: job_id(ask, &id), id, wants: wants(ask), needs: needs.collect(), refused_by }
}

fn queue_full(QueueFull { limit, eta_seconds }: QueueFull) -> Denial {
    let limit = limit.map(|account| account.key.clone());
    Denial { limit, reason: Reason::QueueFull, retry_after_ms: Some(eta_seconds * 1000) }
}

fn wants(ask: &Ask<'_>) -> Wants {
    ask.wants.iter().map(|(key, amount)| (Arc::from(*key), *amount)).collect()
}

/// A job that its caller gave no name has the name of its lease.
fn job_id(ask: &Ask<'_>, id: &LeaseId) -> String {
    if ask.job_id.is_empty() { id.to_string() } else { ask.job_id.to_owned() }
}
