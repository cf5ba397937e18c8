//! The lease API as JSON: the messages of `sluice.v1.LeaseService`.
//!
//! 200 for every decision, also "no": a client library that repeats a 429 by itself would repeat a lease_id that stays
//! denied. 400 for a request that can't succeed, 503 when the ledger can't be asked. Batches are 200, each item has its own
//! error.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::ApiError;
use crate::admission::Denial;
use crate::clock;
use crate::grpc::lease::{self, BACKEND, INVALID, UNKNOWN_LIMIT};
use crate::grpc::pb::lease as pb;
use crate::grpc::rls::REQUEST_ID;
use crate::lease::book::State as LeaseState;
use crate::service::Service;

pub async fn reserve(State(service): State<Arc<Service>>, headers: HeaderMap, body: Bytes) -> Response {
    let request = match parse(&body) {
        Ok(request) => request,
        Err(detail) => {
            let error = INVALID.to_owned();
            let answer = pb::ReserveResponse { error, detail, ..Default::default() };
            return (StatusCode::BAD_REQUEST, Json(answer)).into_response();
        }
    };
    let (answer, denial) = lease::reserve(&service, &request, request_id(&headers)).await;
    (status_of(&answer.error), denial.as_ref().map(denial_headers), Json(answer)).into_response()
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
    state: &'static str,
    job_id: Option<String>,
    reserved_at_unix_ms: u64,
    age_ms: u64,
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

pub async fn one(State(service): State<Arc<Service>>, Path(id): Path<String>) -> Result<Response, ApiError> {
    let view = service.desk.view(&id).ok_or_else(|| {
        let detail = "it was reserved by another instance, has ended, or made room for others";
        ApiError::not_found(format!("unknown_lease:{id}"), detail)
    })?;
    let lease = view.lease;
    let age_ms = clock::unix_ms().saturating_sub(lease.reserved_at_unix_ms);
    let requirement = |held: &crate::lease::Held| RequirementView {
        key: held.key.to_string(),
        kind: held.kind.name(),
        amount: held.amount,
        expires_in_ms: held.lifetime_ms().saturating_sub(age_ms),
    };
    let view = LeaseView {
        lease_id: lease.id.to_string(),
        state: match view.state {
            LeaseState::Open => "open",
            LeaseState::Completed => "completed",
        },
        job_id: Some(view.job_id).filter(|id| !id.is_empty()),
        reserved_at_unix_ms: lease.reserved_at_unix_ms,
        age_ms,
        requirements: lease.held.iter().map(requirement).collect(),
    };
    Ok(Json(view).into_response())
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
