//! The waiting room on the wire: places in line as `sluice.v1.LeaseStatus`, for both ports.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use crate::admission::Denial;
use crate::api::error::WireError;
use crate::api::lease::{denied, parse_reserve};
use crate::api::pb::lease as pb;
use crate::limit::LeaseId;
use crate::room::State;
use crate::service::Service;
use crate::service::queue::{Left, Standing};
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
    let outcome = match parse_reserve(request, request_id) {
        Ok(ask) => service.queue_reserve(&ask).await,
        Err(error) => Err(error),
    };
    match outcome.map_err(WireError::from) {
        Ok(Ok(standing)) => (status(&standing), None),
        Ok(Err(denial)) => (refused(&denial), Some(denial)),
        Err(WireError { error, detail, .. }) => {
            (pb::LeaseStatus { error, detail, ..Default::default() }, None)
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

pub fn status(standing: &Standing) -> pb::LeaseStatus {
    let state = &standing.state;
    let waits = state.is_waiting();
    let mut status = pb::LeaseStatus {
        allowed: matches!(state, State::Reserved(_)),
        status: if waits { "queued" } else { state.name() }.to_owned(),
        state: state.name().to_owned(),
        job_id: standing.job_id.clone(),
        lease_id: standing.id.to_string(),
        position: standing.position.filter(|_| waits),
        eta_seconds: standing.eta_seconds,
        elapsed_seconds: standing.elapsed_seconds,
        requirements: standing
            .wants
            .iter()
            .map(|(key, amount)| pb::Requirement { key: key.to_string(), amount: *amount })
            .collect(),
        ..Default::default()
    };
    match state {
        State::Reserved(reserved) => {
            status.lease_token = reserved.token.clone().unwrap_or_default();
            status.reserved_at_unix_ms = reserved.reserved_at_unix_ms;
        }
        State::TimedOut(why) => status.detail = (*why).to_owned(),
        State::Failed(why) => {
            let (error, detail) = why.split_once(": ").unwrap_or((why, ""));
            (status.error, status.detail) = (error.to_owned(), detail.to_owned());
        }
        State::Queued | State::Processing | State::Completed | State::Cancelled => {}
    }
    status
}

pub async fn leave(service: &Arc<Service>, id: &str) -> Result<pb::LeaseStatus, Status> {
    match service.leave(id).await {
        Left::Out(standing) => Ok(status(&standing)),
        Left::Holds => Err(Status::failed_precondition(NOT_IN_LINE)),
        Left::Unknown => Err(unknown()),
    }
}

fn unknown() -> Status {
    Status::not_found(format!("{UNKNOWN_LEASE}: {UNKNOWN_LEASE_DETAIL}"))
}

/// The states of a place in line as they come.
pub fn watch(
    service: &Arc<Service>,
    id: &str,
) -> Result<ReceiverStream<Result<pb::LeaseStatus, Status>>, Status> {
    let id = LeaseId::parse(id).bits();
    let changes = service.changes(id).ok_or_else(unknown)?;
    let (sender, receiver) = mpsc::channel(WATCH_BUFFER);
    let service = Arc::clone(service);
    tokio::spawn(async move {
        let mut told = None;
        loop {
            let mut changed = std::pin::pin!(changes.notified());
            changed.as_mut().enable();
            // A place before it is told: whoever hears `reserved` has picked it up.
            let Ok(place) = sender.reserve().await else { return };
            let Some(standing) = service.standing(id, true) else { return place.send(Err(unknown())) };
            let is_last = standing.state.is_last();
            let news = Some((standing.state.name(), standing.position));
            if told != news {
                place.send(Ok(status(&standing)));
                told = news;
            } else {
                drop(place);
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
