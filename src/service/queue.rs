//! The use case of a reserve that may wait: take a place in the queue, follow it, leave it.
//!
//! Whoever fits at once needs no place. Everything of waiting in line is [`crate::queue`]'s; this file makes the attempts
//! that its runner asks for. Where hubs keep the places, [`super::line`] asks them instead. Refuses to know the wire.

use std::sync::Arc;

use tokio::sync::Notify;

use super::Service;
use super::reserve::{Ask, AskName, Grant, ReserveError, UnknownLimit, plan_of};
use super::unsent::UnsentLease;
use crate::admission::{self, Denial, Name};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::hub::line::FIRST_ANSWER_WITHIN;
use crate::ledger::{Account, Ledger, LedgerError, Schedule};
use crate::limit::{LeaseId, LimitSpec};
use crate::queue::runner::Attempts;
use crate::queue::step::{Attempt, Attempted};
use crate::queue::{
    Failure, JobId, Leaving, Need, NewPlace, NoPlace, Place, PlaceState, PlaceStatus, Queue, QueueFull,
    Reserved, Wants,
};
use crate::registry::{Plan, Requirement};
use crate::retry::eta;
use crate::retry::policy::{Queue as Policy, RetryPolicy};
use crate::telemetry::Reason;

/// What became of a reserve that may wait.
#[derive(Debug)]
pub enum QueueReserve {
    /// It has a place, or was served at once.
    Placed(PlaceStatus, Option<UnsentLease>),
    /// It can never be served, or there is no place left.
    Denied(Denial),
}

/// What became of a job that asked for a place here.
#[derive(Debug)]
pub(crate) enum Joined {
    /// It fits, and nobody was before it. `None`: nothing is held, because the ledger could not be asked.
    AtOnce(Option<Box<Lease>>),
    Placed(Box<PlaceStatus>, UnsentLease),
    Full(QueueFull),
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
        if let Some(line) = &self.line {
            return Box::pin(self.join_line(line, ask, snapshot, plan, id)).await;
        }
        if !self.queue.has(JobId::of(&id))
            && let Some(grant) = self.granted_before(ask, &plan)?
        {
            return Ok(self.granted(ask, grant));
        }
        match self.join(new_place(ask, id, &plan), &plan, &snapshot.retry).await? {
            Joined::AtOnce(lease) => {
                let served = self.served_at_once(ask, plan, lease);
                self.admission.trace_queued(&self.lease_api_name, None);
                served
            }
            Joined::Placed(status, unsent) => Ok(QueueReserve::Placed(*status, Some(unsent))),
            Joined::Full(full) => Ok(self.no_place(queue_full(full))),
        }
    }

    /// The same for a job that another instance sent here, with the limits that it brings.
    pub(crate) async fn join_for_another(self: &Arc<Self>, new: NewPlace) -> Result<Joined, ReserveError> {
        let _call = self.call();
        let (plan, snapshot) = (plan_of(&new.needs), self.live.load_full());
        self.join(new, &plan, &snapshot.retry).await
    }

    /// Serves a job at once if nobody waits before it and it fits, else gives it a place here.
    async fn join(
        self: &Arc<Self>,
        mut new: NewPlace,
        plan: &Plan,
        policy: &RetryPolicy,
    ) -> Result<Joined, ReserveError> {
        let limits = plan.requirements.iter().map(|requirement| requirement.account.id);
        if self.queue.may_skip(JobId::of(&new.id), limits) {
            match self.admission.attempt(plan, Name::Lease(&new.id), policy, &self.lease_api_name).await {
                Ok(admission::Attempt::Taken(lease)) => return Ok(Joined::AtOnce(lease)),
                Ok(admission::Attempt::NameIsUsed) => return Err(ReserveError::LeaseIdUsed),
                Ok(admission::Attempt::Refused { limit, .. }) => new.refused_by = Some(limit),
                // A ledger that doesn't answer is waited for in the queue.
                Ok(admission::Attempt::NameIsSpent | admission::Attempt::Never(_)) | Err(_) => {}
            }
        }
        match self.queue.take_place(new, &policy.queue) {
            Ok(id) => self.first_status(id).await,
            Err(NoPlace::Full(full)) => Ok(Joined::Full(full)),
            Err(NoPlace::NameUsed) => Err(ReserveError::LeaseIdUsed),
            Err(NoPlace::Closing) => Err(LedgerError::Unavailable("shutting down".to_owned()).into()),
        }
    }

    pub(super) fn no_place(&self, denial: Denial) -> QueueReserve {
        self.lease_api.denied(denial.reason);
        self.admission.trace_queued(&self.lease_api_name, Some(&denial));
        QueueReserve::Denied(denial)
    }

    pub(super) fn served_at_once(
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
        Ok(self.granted(ask, grant))
    }

    pub(super) fn granted(&self, ask: &Ask<'_>, grant: Grant) -> QueueReserve {
        let reserved = Reserved {
            lease: grant.id.clone(),
            token: grant.token.clone(),
            reserved_at_unix_ms: grant.reserved_at_unix_ms,
            ends_at_unix_ms: u64::MAX,
            unclaimed: None,
            is_picked_up: true,
            for_another: None,
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
    async fn first_status(self: &Arc<Self>, id: JobId) -> Result<Joined, ReserveError> {
        let mut unsent = UnsentLease::place(self, id, true);
        // Whoever has no answer by then is queued as well.
        drop(tokio::time::timeout(FIRST_ANSWER_WITHIN, self.queue.first_answer(id)).await);
        match self.place(id, false) {
            Some(status) => {
                says(&status, &mut unsent);
                Ok(Joined::Placed(Box::new(status), unsent))
            }
            // So many jobs have come since that the place was forgotten.
            None => Err(LedgerError::Unavailable("the place in line was lost".to_owned()).into()),
        }
    }

    /// What the holder of a place is told. It has picked up what was reserved for it when it has heard that; whoever is no
    /// `is_holder` only looks.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        id: &str,
        is_holder: bool,
    ) -> Result<Option<(PlaceStatus, Option<UnsentLease>)>, LedgerError> {
        if let Some(line) = &self.line {
            return self.follow_line(line, id, is_holder).await;
        }
        let followed = self.follow_here(JobId::of(&LeaseId::parse(id)));
        Ok(followed.map(|(status, unsent)| (status, is_holder.then_some(unsent))))
    }

    /// The same of a place that is kept here.
    pub(crate) fn follow_here(self: &Arc<Self>, id: JobId) -> Option<(PlaceStatus, UnsentLease)> {
        let (status, mut unsent) = (self.place(id, false)?, UnsentLease::place(self, id, false));
        says(&status, &mut unsent);
        Some((status, unsent))
    }

    /// What the holder of a place is told. A holder that hears that it was served has picked its lease up.
    fn place(&self, id: JobId, is_holder: bool) -> Option<PlaceStatus> {
        self.queue.status(id, is_holder, &self.live.load().retry.queue)
    }

    /// Tells when a place changes that is kept here.
    pub(crate) fn place_changes(&self, id: &str) -> Option<Arc<Notify>> {
        self.queue.changes(JobId::of(&LeaseId::parse(id)))
    }

    /// Whether hubs keep the places, so that nobody tells when one changes.
    pub(crate) fn is_line_elsewhere(&self) -> bool {
        self.line.is_some()
    }

    pub(super) fn is_queued(&self, id: &str) -> bool {
        self.queue.is_waiting(JobId::of(&LeaseId::parse(id)))
    }

    /// Leaves the queue. What was reserved and not picked up goes to the next.
    pub(crate) async fn leave(self: &Arc<Self>, id: &str) -> Result<Left, LedgerError> {
        match &self.line {
            Some(line) => self.leave_line(line, id).await,
            None => Ok(self.leave_here(id).await),
        }
    }

    pub(crate) async fn leave_here(self: &Arc<Self>, id: &str) -> Left {
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
        let wants = attempt.wants.iter().map(|(key, amount)| (&**key, *amount));
        let plan = match &attempt.needs {
            Some(needs) => plan_of(needs),
            None => match self.plan(&snapshot, wants) {
                Ok(plan) => plan,
                Err(UnknownLimit(key)) => return Attempted::Failed(Failure::UnknownLimit(key)),
            },
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
                for_another: None,
            };
        };
        let for_another = place.terms.map(|_| Arc::new((*lease).clone()));
        if for_another.is_none() {
            self.leases.issue_as(&place.id, &lease, &place.job_id);
        }
        Reserved {
            lease: lease.id.clone(),
            token: if for_another.is_none() { self.leases.token(&lease) } else { None },
            reserved_at_unix_ms: lease.reserved_at_unix_ms,
            ends_at_unix_ms: lease.ends_at_unix_ms(),
            unclaimed: Some(lease),
            is_picked_up: false,
            for_another,
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

pub(super) fn new_place(ask: &Ask<'_>, id: LeaseId, plan: &Plan) -> NewPlace {
    let need = |r: &Requirement| Need {
        account: Arc::clone(&r.account),
        spec: Arc::clone(&r.spec),
        amount: r.amount,
    };
    let needs = plan.requirements.iter().map(need).collect();
    let (job_id, wants) = (job_id(ask, &id), wants(ask));
    NewPlace { job_id, id, wants, needs, refused_by: None, terms: None }
}

pub(super) fn queue_full(QueueFull { limit, eta_seconds }: QueueFull) -> Denial {
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
