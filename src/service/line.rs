//! Places that hubs keep: what an instance whose ledger is hubs does for its callers.
//!
//! Nothing is remembered here. The hub that keeps a place serves it; whoever is told of the lease at this instance gets a token
//! that this instance signs. A place counts as heard of, and as picked up, when the hub has answered, so that its time can't run out
//! between that and our own answer. If ours is never sent, [`super::unsent`] says so to the hub. That is why asking runs in a
//! task: a caller may leave while the hub answers. Refuses to know the wire of the ports.

use std::sync::Arc;

use super::Service;
use super::queue::{Left, QueueReserve, new_place, queue_full};
use super::reserve::{Ask, AskName, ReserveError};
use super::unsent::UnsentLease;
use crate::admission::{Attempt, Name};
use crate::lease::Lease;
use crate::lease::leases::Found;
use crate::ledger::LedgerError;
use crate::ledger::hub::line::{At, NotJoined};
use crate::ledger::hub::{FleetLine, pb};
use crate::limit::LeaseId;
use crate::queue::fleet::{self, PlaceNews};
use crate::queue::{PlaceState, PlaceStatus, Wants};
use crate::registry::Plan;
use crate::snapshot::Snapshot;

/// A place, and what goes with the answer that tells its holder of it.
type Followed = (PlaceStatus, Option<UnsentLease>);

/// A job on its way to a hub.
struct Joining {
    service: Arc<Service>,
    line: Arc<FleetLine>,
    /// The hub that has the place already.
    at: Option<At>,
    message: pb::JoinLine,
    snapshot: Arc<Snapshot>,
    plan: Plan,
    id: LeaseId,
    /// Somebody else may know the name.
    is_named: bool,
    job_id: String,
    wants: Wants,
}

impl Service {
    /// Allowed at once if it fits, else a place at a hub.
    pub(super) async fn join_line(
        self: &Arc<Self>,
        line: &Arc<FleetLine>,
        ask: &Ask<'_>,
        snapshot: Arc<Snapshot>,
        plan: Plan,
        id: LeaseId,
    ) -> Result<QueueReserve, ReserveError> {
        let is_named = !matches!(ask.name, AskName::Fresh);
        let mut at = None;
        if is_named {
            // It may be at a hub that is not the home any more. If that can't be told, the name still charges once.
            at = line.find(id.to_string(), false).await.ok().flatten().map(|(at, _)| at);
            if at.is_none()
                && let Some(grant) = self.granted_before(ask, &plan)?
            {
                return Ok(self.granted(ask, grant));
            }
        }
        let new = new_place(ask, id.clone(), &plan);
        let joining = Joining {
            service: Arc::clone(self),
            line: Arc::clone(line),
            at,
            message: fleet::join(&new, &snapshot.retry.queue),
            snapshot,
            plan,
            id,
            is_named,
            job_id: ask.job_id.to_owned(),
            wants: new.wants,
        };
        match self.in_task(joining.run()).await? {
            QueueReserve::Denied(denial) => Ok(self.no_place(denial)),
            placed @ QueueReserve::Placed(..) => {
                if let QueueReserve::Placed(PlaceStatus { state: PlaceState::Reserved(_), .. }, _) = &placed {
                    self.admission.trace_queued(&self.lease_api_name, None);
                }
                Ok(placed)
            }
        }
    }

    /// What the holder of a place is told, and whoever only looks.
    pub(super) async fn follow_line(
        self: &Arc<Self>,
        line: &Arc<FleetLine>,
        id: &str,
        is_holder: bool,
    ) -> Result<Option<Followed>, LedgerError> {
        let Some(name) = name_of(id) else { return Ok(None) };
        let (service, line) = (Arc::clone(self), Arc::clone(line));
        let followed = self.in_task(async move {
            let found = line.find(name, is_holder).await?;
            found.map(|(_, answer)| service.told(answer, is_holder)).transpose()
        });
        match followed.await {
            // What is in the table here can be shown all the same.
            Err(_) if self.leases.view(id).is_some() => Ok(None),
            followed => followed.inspect_err(|error| self.admission.ledger.failed(error)),
        }
    }

    pub(super) async fn leave_line(&self, line: &FleetLine, id: &str) -> Result<Left, LedgerError> {
        let answer = match name_of(id) {
            Some(name) => line.leave(name, pb::LeaveReason::Left).await?,
            None => None,
        };
        match answer {
            Some(answer) if answer.result() == pb::LineResult::Holds => Ok(Left::Holds),
            Some(answer) => Ok(Left::Out(read_place(answer)?.status)),
            None if self.leases.view(id).is_some() => Ok(Left::Holds),
            None => Ok(Left::Unknown),
        }
    }

    /// The lease of a place that another instance may have been told of. A place that still waits has ended after this.
    pub(super) async fn find_in_line(
        self: &Arc<Self>,
        line: &FleetLine,
        id: &str,
    ) -> Result<Found, LedgerError> {
        let Some(name) = name_of(id) else { return Ok(Found::Unknown) };
        // Its completion ends it, so that it need not be picked up.
        let Some((_, answer)) = line.find(name.clone(), false).await? else { return Ok(Found::Unknown) };
        let PlaceNews { status, lease, .. } = read_place(answer)?;
        match (&status.state, lease) {
            (state, _) if state.is_waiting() => {
                line.leave(name, pb::LeaveReason::Left).await?;
                Ok(Found::Unknown)
            }
            (PlaceState::Reserved(_), Some(lease)) => {
                self.leases.issue_as(&status.id, &lease, &status.job_id);
                Ok(Found::Open(lease))
            }
            _ => Ok(Found::Unknown),
        }
    }

    /// The lease was completed, and no chain says so to the hub that may have kept its place.
    pub(super) async fn tell_completed(&self, lease: &Lease) {
        if let Some(line) = self.line.as_ref().filter(|_| lease.is_of_lease_api()) {
            // The place is only shown longer if nobody hears it.
            drop(line.leave(lease.id.to_string(), pb::LeaveReason::Completed).await);
        }
    }

    /// An answer about a place was never sent.
    pub(super) async fn take_back(self: &Arc<Self>, id: LeaseId, picked_up: Option<Box<Lease>>) {
        let Some(line) = &self.line else { return };
        let reason = match picked_up {
            Some(_) => pb::LeaveReason::NotPickedUp,
            None => pb::LeaveReason::Unheard,
        };
        // A hub that doesn't hear it keeps the place until its time is over.
        drop(line.leave(id.to_string(), reason).await);
        if let Some(lease) = picked_up {
            self.release(*lease).await;
        }
    }

    /// What the caller is told of a place that a hub has, and what goes with that answer.
    fn told(self: &Arc<Self>, answer: pb::LineAnswer, is_holder: bool) -> Result<Followed, LedgerError> {
        let news = read_place(answer)?;
        if is_holder {
            let (status, unsent) = self.told_holder(news, false);
            return Ok((status, Some(unsent)));
        }
        Ok((news.status, None))
    }

    fn told_holder(self: &Arc<Self>, news: PlaceNews, is_first: bool) -> (PlaceStatus, UnsentLease) {
        let PlaceNews { mut status, lease, picked_up_now } = news;
        if let (PlaceState::Reserved(reserved), Some(lease)) = (&mut status.state, &lease) {
            self.leases.issue_as(&status.id, lease, &status.job_id);
            reserved.token = self.leases.token(lease);
        }
        let picked_up = lease.filter(|_| picked_up_now).map(Box::new);
        let unsent = UnsentLease::in_line(self, status.id.clone(), is_first, picked_up);
        (status, unsent)
    }

    /// Runs to its end, also if its caller leaves: then what it comes to is dropped, and so taken back.
    async fn in_task<T, E>(&self, asking: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<LedgerError> + Send + 'static,
    {
        let interrupted = |_| LedgerError::Unavailable("asking the hubs was interrupted".to_owned());
        self.calls.spawn(asking).await.map_err(interrupted)?
    }
}

impl Joining {
    async fn run(self) -> Result<QueueReserve, ReserveError> {
        let Self { service, line, at, message, snapshot, plan, id, is_named, job_id, wants } = self;
        let wants = wants.iter().map(|(key, amount)| (&**key, *amount)).collect();
        let ask = Ask { name: AskName::Lease(id.clone()), job_id: &job_id, wants };
        let about = plan.requirements[0].account.id;
        let NotJoined { error, may_be_done } = match line.join(at, about, &message).await {
            Ok(answer) => return service.joined(&ask, plan, answer),
            Err(not_joined) => not_joined,
        };
        service.admission.ledger.failed(&error);
        if may_be_done {
            service.take_back(id.clone(), None).await;
            if !is_named {
                service.give_back(service.admission.undo(&plan, Name::Lease(&id), &id));
            }
        }
        if !service.admission.ledger.answers_in_its_place() || matches!(error, LedgerError::QueueFull { .. })
        {
            return Err(error.into());
        }
        // The settings say what happens without a ledger. Nobody can wait for that.
        let (policy, domain) = (&snapshot.retry, &service.lease_api_name);
        match service.admission.attempt(&plan, Name::Lease(&id), policy, domain).await {
            Ok(Attempt::Taken(lease)) => service.served_at_once(&ask, plan, lease),
            Ok(Attempt::NameIsUsed) => Err(ReserveError::LeaseIdUsed),
            Ok(_) | Err(_) => Err(error.into()),
        }
    }
}

impl Service {
    fn joined(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        plan: Plan,
        answer: pb::LineAnswer,
    ) -> Result<QueueReserve, ReserveError> {
        match answer.result() {
            pb::LineResult::AtOnce => {
                let lease = answer.held.as_ref().map(fleet::read_held_lease).transpose();
                self.served_at_once(ask, plan, lease.map_err(LedgerError::Unavailable)?.map(Box::new))
            }
            pb::LineResult::Full => {
                let full = fleet::read_full(&answer, |key| self.admission.accounts.of(key));
                Ok(QueueReserve::Denied(queue_full(full)))
            }
            pb::LineResult::NameUsed => Err(ReserveError::LeaseIdUsed),
            _ => {
                let (status, unsent) = self.told_holder(read_place(answer)?, true);
                Ok(QueueReserve::Placed(status, Some(unsent)))
            }
        }
    }
}

/// A place can only have a name that hubs take.
fn name_of(id: &str) -> Option<String> {
    fleet::is_name(id).then(|| LeaseId::parse(id).to_string())
}

fn read_place(answer: pb::LineAnswer) -> Result<PlaceNews, LedgerError> {
    let place = answer.place.ok_or_else(|| "the hub answered without a place".to_owned());
    place.and_then(fleet::read_place).map_err(LedgerError::Unavailable)
}
