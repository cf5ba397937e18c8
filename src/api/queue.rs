//! The queue on the wire: a place as `sluice.v1.LeaseStatus`, for both ports.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::admission::Denial;
use crate::grpc::lease::{BACKEND, INVALID, UNKNOWN_LIMIT, denied, parse_reserve};
use crate::grpc::pb::lease as pb;
use crate::limit::LeaseId;
use crate::queue::{Failure, JobId, PlaceState, PlaceStatus, TimedOut};
use crate::service::Service;
use crate::service::queue::{Left, QueueReserve};
use crate::service::reserve::ReserveError;
use crate::telemetry::Reason;

/// How often those who watch are told that they have moved up.
const POSITION_INTERVAL: Duration = Duration::from_secs(1);

/// States that a watcher may be behind; one that is slower gets the newest.
const WATCH_BUFFER: usize = 4;

/// What those hear whose lease nobody knows here.
pub const UNKNOWN_LEASE: &str = "unknown_lease";
pub const UNKNOWN_LEASE_DETAIL: &str = "it was reserved by another instance, has ended, or made room for others; \
     a place in line ends with the instance that gave it: ask again";
pub const NOT_IN_LINE: &str = "it is not in line: what is reserved is completed instead";

/// One reserve that may wait, and the denial if it was one.
pub async fn reserve(
    service: &Arc<Service>,
    request: &pb::ReserveRequest,
    request_id: Option<&str>,
) -> (pb::LeaseStatus, Option<Denial>) {
    let _call = service.call();
    let mistake =
        |error: String, detail: String| (pb::LeaseStatus { error, detail, ..Default::default() }, None);
    let ask = match parse_reserve(request, request_id) {
        Ok(ask) => ask,
        Err(detail) => return mistake(INVALID.to_owned(), detail),
    };
    match service.queue_reserve(&ask).await {
        Ok(QueueReserve::Placed(place)) => (status(&place), None),
        Ok(QueueReserve::Denied(denial)) => (refused(&denial), Some(denial)),
        Err(error @ ReserveError::UsedForAnother) => mistake(INVALID.to_owned(), error.to_string()),
        Err(ReserveError::Ledger(error)) => mistake(BACKEND.to_owned(), error.to_string()),
        Err(ReserveError::UnknownLimit(key)) => {
            let detail = ReserveError::UnknownLimit(String::new()).to_string();
            mistake(format!("{UNKNOWN_LIMIT}{key}"), detail)
        }
    }
}

fn refused(denial: &Denial) -> pb::LeaseStatus {
    let pb::ReserveResponse { retry_after_ms, mut error, limit, reason, .. } = denied(denial);
    if denial.reason == Reason::QueueFull {
        error = reason.clone();
    }
    let eta_seconds = retry_after_ms.unwrap_or_default().div_ceil(1000);
    pb::LeaseStatus { retry_after_ms, eta_seconds, error, limit, reason, ..Default::default() }
}

pub fn status(place: &PlaceStatus) -> pb::LeaseStatus {
    let state = &place.state;
    let waits = state.is_waiting();
    let mut status = pb::LeaseStatus {
        allowed: matches!(state, PlaceState::Reserved(_)),
        status: if waits { "queued" } else { state.name() }.to_owned(),
        state: state.name().to_owned(),
        job_id: place.job_id.clone(),
        lease_id: place.id.to_string(),
        position: place.position.filter(|_| waits),
        eta_seconds: place.eta_seconds,
        elapsed_seconds: place.elapsed_seconds,
        requirements: place
            .wants
            .iter()
            .map(|(key, amount)| pb::Requirement { key: key.to_string(), amount: *amount })
            .collect(),
        ..Default::default()
    };
    match state {
        PlaceState::Reserved(reserved) => {
            status.lease_token = reserved.token.clone().unwrap_or_default();
            status.reserved_at_unix_ms = reserved.reserved_at_unix_ms;
        }
        PlaceState::TimedOut(why) => timed_out(*why).clone_into(&mut status.detail),
        PlaceState::Failed(failure) => (status.error, status.detail) = failed(failure),
        PlaceState::Queued | PlaceState::Processing | PlaceState::Completed | PlaceState::Cancelled => {}
    }
    status
}

fn timed_out(why: TimedOut) -> &'static str {
    match why {
        TimedOut::Deadline => "waited as long as a job may (retry_policy.queue.deadline_seconds)",
        TimedOut::NotPickedUp => "was not picked up in time (retry_policy.queue.pickup_seconds)",
        TimedOut::LeaseEnded => "the lease ran out before it was completed",
    }
}

/// The error and the detail of a job that can't be served any more.
fn failed(failure: &Failure) -> (String, String) {
    match failure {
        Failure::UnknownLimit(key) => (format!("{UNKNOWN_LIMIT}{key}"), String::new()),
        Failure::NeverFits(key) => {
            (Reason::NeverFits.name().to_owned(), format!("it needs more of {key} than there ever is"))
        }
        Failure::NameUsed => (INVALID.to_owned(), ReserveError::UsedForAnother.to_string()),
        Failure::Stopping => (BACKEND.to_owned(), "this instance stops; ask again".to_owned()),
    }
}

pub async fn leave(service: &Arc<Service>, id: &str) -> Result<pb::LeaseStatus, Status> {
    match service.leave(id).await {
        Left::Out(place) => Ok(status(&place)),
        Left::Holds => Err(Status::failed_precondition(NOT_IN_LINE)),
        Left::Unknown => Err(unknown()),
    }
}

fn unknown() -> Status {
    Status::not_found(format!("{UNKNOWN_LEASE}: {UNKNOWN_LEASE_DETAIL}"))
}

/// The states of a place as they come.
pub fn watch(
    service: &Arc<Service>,
    id: &str,
) -> Result<ReceiverStream<Result<pb::LeaseStatus, Status>>, Status> {
    let id = JobId::of(&LeaseId::parse(id));
    let changes = service.place_changes(id).ok_or_else(unknown)?;
    let (sender, receiver) = mpsc::channel(WATCH_BUFFER);
    let service = Arc::clone(service);
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let mut changed = std::pin::pin!(changes.notified());
            changed.as_mut().enable();
            // Sending must be possible before the queue is asked: whoever hears `reserved` has picked it up.
            let Ok(permit) = sender.reserve().await else { return };
            let Some(place) = service.place(id, true) else { return permit.send(Err(unknown())) };
            let is_last = place.state.is_last();
            let news = Some((place.state.name(), place.position));
            if told != news {
                permit.send(Ok(status(&place)));
                told = news;
            } else {
                drop(permit);
            }
            if is_last {
                return;
            }
            tokio::select! {
                () = changed => {}
                () = tokio::time::sleep(POSITION_INTERVAL) => {}
                () = sender.closed() => return,
            }
        }
    });
    Ok(ReceiverStream::new(receiver))
}
