//! The lease API as JSON: the messages of `sluice.v1.LeaseService`.
//!
//! 200 for every decision, also "no": a client library that repeats a 429 by itself would repeat a lease_id that stays
//! denied. A reserve with `"queue": true` that has to wait is 202, and 429 if there is no place left. 400 for a request that can't succeed, 503 when the ledger can't be asked. Batches are 200, each item has its own
//! error.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::PathRejection;
use axum::extract::{Extension, Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use super::gate::Access;
use crate::admission::Denial;
use crate::clock;
use crate::grpc::lease::{self, BACKEND, INVALID, UNKNOWN_LIMIT};
use crate::grpc::pb::lease as pb;
use crate::grpc::queue::{self, NOT_IN_LINE, UNKNOWN_LEASE, UNKNOWN_LEASE_DETAIL};
use crate::grpc::rls::REQUEST_ID;
use crate::lease::book::State as LeaseState;
use crate::limit::LeaseId;
use crate::retry::eta;
use crate::service::Service;
use crate::service::queue::Left;
use crate::telemetry::Reason;

pub async fn reserve(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    let (request, may_wait) = match parse_reserve(&body) {
        Ok(parsed) => parsed,
        Err(detail) => {
            let error = INVALID.to_owned();
            let answer = pb::ReserveResponse { error, detail, ..Default::default() };
            return (StatusCode::BAD_REQUEST, Json(answer)).into_response();
        }
    };
    if may_wait {
        return queue_reserve(&service, &request, request_id(&headers)).await;
    }
    let (answer, denial) = lease::reserve(&service, &request, request_id(&headers)).await;
    (status_of(&answer.error), denial.as_ref().map(denial_headers), Json(answer)).into_response()
}

/// The body of a reserve, and whether it has `"queue": true`.
fn parse_reserve(body: &[u8]) -> Result<(pb::ReserveRequest, bool), String> {
    let mut json: serde_json::Value = parse(body)?;
    let may_wait = match json.as_object_mut().and_then(|fields| fields.remove("queue")) {
        None | Some(serde_json::Value::Null) => false,
        Some(serde_json::Value::Bool(queue)) => queue,
        Some(other) => return Err(format!("queue: is {other}, must be true or false")),
    };
    Ok((serde_json::from_value(json).map_err(|error| error.to_string())?, may_wait))
}

async fn queue_reserve(service: &Arc<Service>, request: &pb::ReserveRequest, name: Option<&str>) -> Response {
    let (answer, denial) = queue::reserve(service, request, name).await;
    if let Some(denial) = denial {
        let code =
            if denial.reason == Reason::QueueFull { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        return (code, denial_headers(&denial), Json(answer)).into_response();
    }
    if !answer.error.is_empty() && answer.state.is_empty() {
        return (status_of(&answer.error), Json(answer)).into_response();
    }
    followed(answer)
}

/// Where somebody stands: 202 while it waits, with when to ask again.
fn followed(answer: pb::LeaseStatus) -> Response {
    let code = if answer.status == "queued" { StatusCode::ACCEPTED } else { StatusCode::OK };
    (code, [(header::RETRY_AFTER, answer.eta_seconds.to_string())], Json(answer)).into_response()
}

/// Leaves the line.
pub async fn leave(
    State(service): State<Arc<Service>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    match service.leave(&id).await {
        Left::Out(standing) => Ok(followed(queue::status(&standing))),
        Left::Holds => Err(ApiError::new(StatusCode::CONFLICT, "not_in_line", NOT_IN_LINE)),
        Left::Unknown => Err(unknown(&id)),
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(UNKNOWN_LEASE, format!("{id}: {UNKNOWN_LEASE_DETAIL}"))
}

pub async fn complete(State(service): State<Arc<Service>>, body: Bytes) -> Response {
    let answer = match parse(&body) {
        Ok(request) => lease::complete(&service, &request).await,
        Err(detail) => pb::CompleteResponse { ok: false, error: INVALID.to_owned(), detail },
    };
    (status_of(&answer.error), Json(answer)).into_response()
}

pub async fn reserve_batch(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, ApiError> {
    let batch = parse(&body).map_err(invalid)?;
    let answer = lease::reserve_batch(&service, &batch, request_id(&headers)).await.map_err(invalid)?;
    Ok(Json(answer).into_response())
}

pub async fn complete_batch(State(service): State<Arc<Service>>, body: Bytes) -> Result<Response, ApiError> {
    let batch = parse(&body).map_err(invalid)?;
    let answer = lease::complete_batch(&service, &batch).await.map_err(invalid)?;
    Ok(Json(answer).into_response())
}

/// A lease as this instance has it in its book.
#[derive(Serialize)]
struct LeaseView {
    lease_id: String,
    /// While it is reserved.
    lease_token: Option<String>,
    state: &'static str,
    job_id: Option<String>,
    reserved_at_unix_ms: u64,
    age_ms: u64,
    elapsed_seconds: u64,
    requirements: Vec<RequirementView>,
}

#[derive(Serialize)]
struct RequirementView {
    key: String,
    kind: &'static str,
    amount: u64,
    /// When it comes back by itself.
    expires_in_ms: u64,
}

pub async fn one(
    State(service): State<Arc<Service>>,
    Extension(access): Extension<Access>,
    method: Method,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    // Who only asks for the headers does not get the token, and neither does who may only look.
    let is_holder = method == Method::GET && access == Access::Full;
    if let Some(standing) = service.standing(LeaseId::parse(&id).bits(), is_holder) {
        let mut status = queue::status(&standing);
        if !is_holder {
            status.lease_token.clear();
        }
        return Ok(followed(status));
    }
    let view = service.desk.view(&id).ok_or_else(|| unknown(&id))?;
    let lease = view.lease;
    let age_ms = clock::unix_ms().saturating_sub(lease.reserved_at_unix_ms);
    let (state, retry_after) = match view.state {
        LeaseState::Open => ("reserved", eta::elapsed_or_default(&service.live.load().retry.queue, age_ms)),
        LeaseState::Completed => ("completed", 0),
    };
    let requirement = |held: &crate::lease::Held| RequirementView {
        key: held.key.to_string(),
        kind: held.kind.name(),
        amount: held.amount,
        expires_in_ms: held.lifetime_ms().saturating_sub(age_ms),
    };
    let view = LeaseView {
        lease_id: id,
        lease_token: if is_holder && state == "reserved" { service.desk.token(&lease) } else { None },
        state,
        job_id: Some(view.job_id).filter(|id| !id.is_empty()),
        reserved_at_unix_ms: lease.reserved_at_unix_ms,
        age_ms,
        elapsed_seconds: age_ms / 1000,
        requirements: lease.held.iter().map(requirement).collect(),
    };
    Ok(([(header::RETRY_AFTER, retry_after.to_string())], Json(view)).into_response())
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn invalid(detail: String) -> ApiError {
    ApiError::bad_request(INVALID, detail)
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(REQUEST_ID)?.to_str().ok().filter(|id| !id.is_empty())
}

fn status_of(error: &str) -> StatusCode {
    match error {
        INVALID => StatusCode::BAD_REQUEST,
        BACKEND => StatusCode::SERVICE_UNAVAILABLE,
        other if other.starts_with(UNKNOWN_LIMIT) => StatusCode::BAD_REQUEST,
        _ => StatusCode::OK,
    }
}

fn denial_headers(denial: &Denial) -> HeaderMap {
    let header = |(name, value): (&'static str, String)| {
        Some((HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).ok()?))
    };
    denial.headers().filter_map(header).collect()
}
