//! The queue on the wire, for both ports: a place as `sluice.v1.LeaseStatus`.

use std::sync::Arc;

use http::StatusCode;

use super::delivery::Unsent;
use super::error::{BACKEND, LEASE_ID_USED, UNKNOWN_LIMIT, WireError};
use super::lease::denied;
use super::pb::lease as pb;
use crate::admission::Denial;
use crate::queue::{Failure, PlaceState, PlaceStatus, TimedOut};
use crate::service::queue::QueueReserve;
use crate::service::reserve::ReserveError;
use crate::telemetry::Reason;

/// What those hear whose lease nobody knows here.
pub(crate) const UNKNOWN_LEASE: &str = "unknown_lease";
pub(crate) const UNKNOWN_LEASE_DETAIL: &str = "it was reserved by another instance, has ended, or made room for others; \
     a place in line ends with the instance or the hub that keeps it: ask again";
pub(crate) const NOT_IN_LINE: &str = "it is not in line: what is reserved is completed instead";

/// The answer to a reserve that may wait, or about a place.
#[derive(Debug)]
pub(crate) struct PlaceAnswer {
    pub(crate) message: pb::LeaseStatus,
    pub(crate) http: StatusCode,
    /// What a denied caller is told in headers.
    pub(crate) denial: Option<Denial>,
    /// Goes with the message.
    pub(crate) unsent: Unsent,
}

pub(crate) fn reserve_answer(outcome: Result<QueueReserve, ReserveError>) -> PlaceAnswer {
    match outcome {
        Ok(QueueReserve::Placed(place, unsent)) => place_answer(&place, unsent.into_iter().collect()),
        Ok(QueueReserve::Denied(denial)) => {
            let is_full = denial.reason == Reason::QueueFull;
            let http = if is_full { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
            PlaceAnswer { message: refused(&denial), http, denial: Some(denial), unsent: Unsent::new() }
        }
        Err(error) => {
            let error = WireError::from(error);
            let http = error.http();
            let WireError { error, detail, .. } = error;
            let message = pb::LeaseStatus { error, detail, ..Default::default() };
            PlaceAnswer { message, http, denial: None, unsent: Unsent::new() }
        }
    }
}

/// A job that waits is 202.
pub(crate) fn place_answer(place: &PlaceStatus, unsent: Unsent) -> PlaceAnswer {
    let http = if place.state.is_waiting() { StatusCode::ACCEPTED } else { StatusCode::OK };
    PlaceAnswer { message: status(place), http, denial: None, unsent }
}

fn refused(denial: &Denial) -> pb::LeaseStatus {
    let pb::ReserveResponse { retry_after_ms, mut error, limit, reason, .. } = denied(denial);
    if denial.reason == Reason::QueueFull {
        error = reason.clone();
    }
    let eta_seconds = retry_after_ms.unwrap_or_default().div_ceil(1000);
    pb::LeaseStatus { retry_after_ms, eta_seconds, error, limit, reason, ..Default::default() }
}

pub(crate) fn status(place: &PlaceStatus) -> pb::LeaseStatus {
    let state = &place.state;
    let waits = state.is_waiting();
    let requirement =
        |(key, amount): &(Arc<str>, u64)| pb::Requirement { key: key.to_string(), amount: *amount };
    let mut status = pb::LeaseStatus {
        allowed: matches!(state, PlaceState::Reserved(_)),
        status: if waits { "queued" } else { state.name() }.to_owned(),
        state: state.name().to_owned(),
        job_id: place.job_id.clone(),
        lease_id: place.id.to_string(),
        position: place.position.filter(|_| waits),
        eta_seconds: place.eta_seconds,
        elapsed_seconds: place.elapsed_seconds,
        requirements: place.wants.iter().map(requirement).collect(),
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
        Failure::NameUsed => (LEASE_ID_USED.to_owned(), ReserveError::LeaseIdUsed.to_string()),
        Failure::Stopping => (BACKEND.to_owned(), "this instance stops; ask again".to_owned()),
    }
}
