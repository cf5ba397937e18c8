//! The line that this hub keeps for its sidecars: their jobs wait in the queue of this instance, with limits that they bring.
//!
//! An answer that tells of a place goes with an [`UnsentLease`], as on the other ports: a stream that ends before it was sent
//! leaves no place that nobody has heard of, and no lease that nobody picked up.

use super::Hub;
use crate::ledger::hub::pb;
use crate::ledger::hub::pb::answer::What as Answer;
use crate::ledger::hub::wire;
use crate::ledger::{Action, Chain};
use crate::limit::LeaseId;
use crate::queue::{JobId, PlaceState, PlaceStatus, fleet};
use crate::service::queue::{Joined, Left};
use crate::service::reserve::ReserveError;
use crate::service::unsent::UnsentLease;

/// An answer, and what its sending decides about.
pub(super) type Answered = (Answer, Option<UnsentLease>);

pub(super) async fn join(hub: &Hub, join: pb::JoinLine) -> Result<Answered, String> {
    let service = &hub.service;
    let new = fleet::read_join(join, |key| service.admission.accounts.of(key))?;
    Ok(match service.join_for_another(new).await {
        Ok(Joined::AtOnce(lease)) => plain(fleet::at_once(lease.as_deref())),
        Ok(Joined::Placed(status, unsent)) => told(&status, unsent),
        Ok(Joined::Full(full)) => plain(fleet::full(&full)),
        Err(ReserveError::LeaseIdUsed) => plain(fleet::only(pb::LineResult::NameUsed)),
        Err(ReserveError::Ledger(error)) => (wire::failure(&error), None),
        Err(error) => return Err(error.to_string()),
    })
}

pub(super) fn find(hub: &Hub, find: &pb::FindPlace) -> Result<Answered, String> {
    let id = job(&find.lease)?;
    let found = hub.service.queue.has_of_another(id).then(|| hub.service.follow_here(id)).flatten();
    Ok(match found {
        None => plain(fleet::only(pb::LineResult::Unknown)),
        Some((status, unsent)) if find.pick_up => told(&status, unsent),
        Some((status, _)) => plain(fleet::place(&status, false)),
    })
}

pub(super) async fn leave(hub: &Hub, leave: &pb::LeaveLine) -> Result<Answered, String> {
    let (id, queue) = (job(&leave.lease)?, &hub.service.queue);
    let known = if queue.has_of_another(id) { pb::LineResult::Holds } else { pb::LineResult::Unknown };
    match leave.reason() {
        pb::LeaveReason::Left if known == pb::LineResult::Holds => {
            return Ok(match hub.service.leave_here(&leave.lease).await {
                Left::Out(status) => plain(fleet::place(&status, false)),
                Left::Holds => plain(fleet::only(pb::LineResult::Holds)),
                Left::Unknown => plain(fleet::only(pb::LineResult::Unknown)),
            });
        }
        pb::LeaveReason::Left => {}
        pb::LeaveReason::Unheard => queue.unheard(id),
        pb::LeaveReason::NotPickedUp => queue.not_picked_up_elsewhere(id),
        pb::LeaveReason::Completed => queue.completed(&LeaseId::parse(&leave.lease)),
        pb::LeaveReason::Unspecified => {
            return Err(format!("leave.reason: {} is none of those that this hub knows", leave.reason));
        }
    }
    Ok(plain(fleet::only(known)))
}

/// A chain of a sidecar was done that may have given something back, or ended a lease.
pub(super) fn freed(hub: &Hub, chain: &Chain) {
    let gives_back =
        |action: Action| matches!(action, Action::Void | Action::VoidTaken | Action::VoidRereserved);
    let freed = chain.transfers.iter().filter(|transfer| gives_back(transfer.action));
    hub.service.queue.freed(freed.map(|transfer| transfer.account.id));
    hub.service.queue.completed(&chain.lease);
}

/// Whoever is told that it was served has picked it up, unless the answer can't be sent.
fn told(status: &PlaceStatus, mut unsent: UnsentLease) -> Answered {
    let is_served = matches!(status.state, PlaceState::Reserved(_));
    let picked_up_now = is_served && unsent.taken();
    (Answer::Line(Box::new(fleet::place(status, picked_up_now))), Some(unsent))
}

fn plain(answer: pb::LineAnswer) -> Answered {
    (Answer::Line(Box::new(answer)), None)
}

fn job(lease: &str) -> Result<JobId, String> {
    wire::read_lease(lease).map(|id| JobId::of(&id))
}
