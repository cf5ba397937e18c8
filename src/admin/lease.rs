//! The lease API as JSON: the messages of `sluice.v1.LeaseService`.
//!
//! 200 for every decision, also "no". A reserve with `"queue": true` that has to wait is 202, and 429 if there is no place
//! left. 400 for a request that can't succeed, 503 when the ledger can't be asked. Batches are 200, each item has its own
//! error. What the messages mean is in [`crate::api::lease`].

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
use super::traced::{RESERVE, RESERVE_BATCH, traced};
use crate::admission::Denial;
use crate::api::REQUEST_ID;
use crate::api::delivery;
use crate::api::error::WireError;
use crate::api::lease::{self, ReserveAnswer, ReserveBatch};
use crate::api::pb::lease as pb;
use crate::api::queue::{self, NOT_IN_LINE, PlaceAnswer, UNKNOWN_LEASE, UNKNOWN_LEASE_DETAIL};
use crate::lease::Held;
use crate::lease::table::LeaseState;
use crate::service::Service;
use crate::service::complete::CompleteError;
use crate::service::inspect::LeaseView;
use crate::service::queue::Left;
use crate::service::reserve::ReserveError;

pub(crate) async fn reserve(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    traced(&service, &RESERVE, &headers, answer_reserve(&service, &headers, &body)).await
}

async fn answer_reserve(service: &Arc<Service>, headers: &HeaderMap, body: &[u8]) -> Response {
    let (outcome, request);
    match parse_reserve(body) {
        Err(detail) => outcome = Err(ReserveError::Invalid(detail)),
        Ok((parsed, true)) => {
            let outcome = match lease::parse_reserve(&parsed, request_id(headers)) {
                Ok(ask) => service.queue_reserve(&ask).await,
                Err(error) => Err(error),
            };
            return followed(queue::reserve_answer(outcome));
        }
        Ok((parsed, false)) => {
            request = parsed;
            outcome = match lease::parse_reserve(&request, request_id(headers)) {
                Ok(ask) => service.reserve(&ask).await,
                Err(error) => Err(error),
            };
        }
    }
    let ReserveAnswer { message, http, denial, unsent } = lease::reserve_answer(outcome);
    let mut answer = (http, denial.as_ref().map(denial_headers), Json(message)).into_response();
    delivery::carry(answer.extensions_mut(), unsent);
    answer
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

/// Where a job stands, with when to ask again.
fn followed(answer: PlaceAnswer) -> Response {
    let PlaceAnswer { message, http, denial, unsent } = answer;
    // A denial has a header of its own, and a mistake is not worth asking again.
    let retry_after =
        (!message.state.is_empty()).then(|| [(header::RETRY_AFTER, message.eta_seconds.to_string())]);
    let mut answer = (http, retry_after, denial.as_ref().map(denial_headers), Json(message)).into_response();
    delivery::carry(answer.extensions_mut(), unsent);
    answer
}

/// Leaves the queue.
pub(crate) async fn leave(
    State(service): State<Arc<Service>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    match service.leave(&id).await.map_err(WireError::from)? {
        Left::Out(place) => Ok(followed(queue::place_answer(&place, Vec::new()))),
        Left::Holds => Err(ApiError::new(StatusCode::CONFLICT, "not_in_line", NOT_IN_LINE)),
        Left::Unknown => Err(unknown(&id)),
    }
}

fn unknown(id: &str) -> ApiError {
    ApiError::not_found(UNKNOWN_LEASE, format!("{id}: {UNKNOWN_LEASE_DETAIL}"))
}

pub(crate) async fn complete(State(service): State<Arc<Service>>, body: Bytes) -> Response {
    let request = parse(&body);
    let completion = match &request {
        Ok(request) => lease::parse_complete(request),
        Err(detail) => Err(CompleteError::Invalid(detail.clone())),
    };
    let outcome = match completion {
        Ok(completion) => service.complete(&completion).await,
        Err(error) => Err(error),
    };
    let (message, http) = lease::complete_answer(outcome);
    (http, Json(message)).into_response()
}

pub(crate) async fn reserve_batch(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    traced(&service, &RESERVE_BATCH, &headers, answer_reserve_batch(&service, &headers, &body)).await
}

async fn answer_reserve_batch(
    service: &Arc<Service>,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Response, ApiError> {
    let message = parse(body).map_err(WireError::invalid)?;
    let batch = ReserveBatch::parse(&message, request_id(headers))?;
    let outcomes = service.reserve_batch(batch.asks()).await;
    let (message, unsent) = lease::reserve_batch_response(outcomes);
    let mut answer = Json(message).into_response();
    delivery::carry(answer.extensions_mut(), unsent);
    Ok(answer)
}

pub(crate) async fn complete_batch(
    State(service): State<Arc<Service>>,
    body: Bytes,
) -> Result<Response, ApiError> {
    let message = parse(&body).map_err(WireError::invalid)?;
    let outcomes = service.complete_batch(lease::parse_complete_batch(&message)?).await;
    Ok(Json(lease::complete_batch_response(outcomes)).into_response())
}

/// A lease as this instance has it in its table.
#[derive(Serialize)]
struct LeaseBody {
    lease_id: String,
    /// While it is reserved.
    lease_token: Option<String>,
    state: &'static str,
    job_id: Option<String>,
    reserved_at_unix_ms: u64,
    age_ms: u64,
    elapsed_seconds: u64,
    requirements: Vec<RequirementBody>,
}

#[derive(Serialize)]
struct RequirementBody {
    key: String,
    kind: &'static str,
    amount: u64,
    /// When it comes back by itself.
    expires_in_ms: u64,
}

pub(crate) async fn one(
    State(service): State<Arc<Service>>,
    Extension(access): Extension<Access>,
    method: Method,
    id: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(id) = id?;
    // Who only asks for the headers does not get the token, and neither does who may only look.
    let is_holder = method == Method::GET && access == Access::Full;
    if let Some((place, unsent)) = service.follow(&id, is_holder).await.map_err(WireError::from)? {
        let mut answer = queue::place_answer(&place, unsent.into_iter().collect());
        if !is_holder {
            answer.message.lease_token.clear();
        }
        return Ok(followed(answer));
    }
    let mut view = service.lease(&id).ok_or_else(|| unknown(&id))?;
    view.token.take_if(|_| !is_holder);
    let retry_after = view.look_again_seconds.to_string();
    Ok(([(header::RETRY_AFTER, retry_after)], Json(LeaseBody::new(id, view))).into_response())
}

impl LeaseBody {
    fn new(lease_id: String, view: LeaseView) -> Self {
        let state = match view.state {
            LeaseState::Open => "reserved",
            LeaseState::Completed => "completed",
        };
        let requirement = |held: &Held| RequirementBody {
            key: held.key.to_string(),
            kind: held.kind.name(),
            amount: held.amount,
            expires_in_ms: view.expires_in_ms(held),
        };
        Self {
            lease_id,
            state,
            reserved_at_unix_ms: view.lease.reserved_at_unix_ms,
            age_ms: view.age_ms,
            elapsed_seconds: view.age_ms / 1000,
            requirements: view.lease.held.iter().map(requirement).collect(),
            lease_token: view.token,
            job_id: Some(view.job_id).filter(|id| !id.is_empty()),
        }
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

fn request_id(headers: &HeaderMap) -> Option<&str> {
    headers.get(REQUEST_ID)?.to_str().ok().filter(|id| !id.is_empty())
}

fn denial_headers(denial: &Denial) -> HeaderMap {
    let header = |(name, value): (&'static str, String)| {
        Some((HeaderName::from_static(name), HeaderValue::from_bytes(value.as_bytes()).ok()?))
    };
    denial.headers().filter_map(header).collect()
}
