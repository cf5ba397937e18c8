//! The lease API: `sluice.v1.LeaseService`, and what its messages mean, for the admin port too.
//!
//! Converts once in each direction. Denials and mistakes are part of the answer, so that each item of a batch has its
//! own; only a batch that is itself wrong is INVALID_ARGUMENT.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::codec::MESSAGE_BYTES_MAX;
use super::pb::lease as pb;
use super::queue;
use super::rls::REQUEST_ID;
use crate::admission::Denial;
use crate::lease::token;
use crate::limit::{LeaseId, REQUIREMENTS_MAX};
use crate::service::Service;
use crate::service::complete::{Actual, CompleteError, Named};
use crate::service::reserve::{Ask, AskName, Grant, ReserveError};
use crate::telemetry::Reason;

pub const SERVICE_NAME: &str = pb::lease_service_server::SERVICE_NAME;

pub const BATCH_MAX: usize = 256;

/// Names that callers choose: they are part of every transfer's label, and of the token.
const LEASE_ID_BYTES_MAX: usize = 128;
const JOB_ID_BYTES_MAX: usize = 256;

pub const INVALID: &str = "invalid_request";
pub const UNKNOWN_LIMIT: &str = "unknown_limit_key:";
const DECREASING: &str = "limit_decreasing:";
pub const BACKEND: &str = "backend_error";

#[derive(Debug)]
pub struct Leases(Arc<Service>);

pub fn server(service: Arc<Service>) -> pb::lease_service_server::LeaseServiceServer<Leases> {
    let server = pb::lease_service_server::LeaseServiceServer::new(Leases(service));
    server.max_decoding_message_size(MESSAGE_BYTES_MAX)
}

#[tonic::async_trait]
impl pb::lease_service_server::LeaseService for Leases {
    async fn reserve(
        &self,
        request: Request<pb::ReserveRequest>,
    ) -> Result<Response<pb::ReserveResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (answer, denial) = reserve(&self.0, &message, request_id(&metadata)).await;
        Ok(with_metadata(answer, denial.as_ref()))
    }

    async fn queue_reserve(
        &self,
        request: Request<pb::ReserveRequest>,
    ) -> Result<Response<pb::LeaseStatus>, Status> {
        let (metadata, _, message) = request.into_parts();
        let (answer, denial) = queue::reserve(&self.0, &message, request_id(&metadata)).await;
        Ok(with_metadata(answer, denial.as_ref()))
    }

    type WatchLeaseStream = ReceiverStream<Result<pb::LeaseStatus, Status>>;

    async fn watch_lease(
        &self,
        request: Request<pb::WatchLeaseRequest>,
    ) -> Result<Response<Self::WatchLeaseStream>, Status> {
        queue::watch(&self.0, &request.get_ref().lease_id).map(Response::new)
    }

    async fn leave_queue(
        &self,
        request: Request<pb::LeaveQueueRequest>,
    ) -> Result<Response<pb::LeaseStatus>, Status> {
        queue::leave(&self.0, &request.get_ref().lease_id).await.map(Response::new)
    }

    async fn complete(
        &self,
        request: Request<pb::CompleteRequest>,
    ) -> Result<Response<pb::CompleteResponse>, Status> {
        Ok(Response::new(complete(&self.0, request.get_ref()).await))
    }

    async fn reserve_batch(
        &self,
        request: Request<pb::ReserveBatchRequest>,
    ) -> Result<Response<pb::ReserveBatchResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let results = reserve_batch(&self.0, &message, request_id(&metadata)).await;
        results.map(Response::new).map_err(Status::invalid_argument)
    }

    async fn complete_batch(
        &self,
        request: Request<pb::CompleteBatchRequest>,
    ) -> Result<Response<pb::CompleteBatchResponse>, Status> {
        let results = complete_batch(&self.0, request.get_ref()).await;
        results.map(Response::new).map_err(Status::invalid_argument)
    }
}

/// An answer with what a denied client is told in headers.
fn with_metadata<T>(answer: T, denial: Option<&Denial>) -> Response<T> {
    let mut response = Response::new(answer);
    for (name, value) in denial.into_iter().flat_map(Denial::headers) {
        // A LimitKey may have letters that metadata can't carry; it is in the answer too.
        if let Ok(value) = value.parse() {
            response.metadata_mut().insert(name, value);
        }
    }
    response
}

fn request_id(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(REQUEST_ID)?.to_str().ok().filter(|id| !id.is_empty())
}

/// One reserve, and the denial if it was one.
pub async fn reserve(
    service: &Service,
    request: &pb::ReserveRequest,
    request_id: Option<&str>,
) -> (pb::ReserveResponse, Option<Denial>) {
    let _call = service.call();
    let Answer { message, denial, grant } = one(service, request, request_id).await;
    grant.into_iter().for_each(|mut grant| grant.told());
    (message, denial)
}

/// All at once, answered in order. `Err` says what is wrong with the batch itself.
pub async fn reserve_batch(
    service: &Service,
    batch: &pb::ReserveBatchRequest,
    request_id: Option<&str>,
) -> Result<pb::ReserveBatchResponse, String> {
    let _call = service.call();
    check_batch(batch.requests.len())?;
    let items = batch.requests.iter().enumerate().map(|(index, request)| async move {
        // One name for the batch is a name for each of its items.
        let request_id = request_id.map(|id| format!("{id}/{index}"));
        one(service, request, request_id.as_deref()).await
    });
    let answers = join_all(items).await;
    let tell = |mut answer: Answer<'_>| {
        answer.grant.iter_mut().for_each(Grant::told);
        answer.message
    };
    Ok(pb::ReserveBatchResponse { results: answers.into_iter().map(tell).collect() })
}

pub async fn complete(service: &Arc<Service>, request: &pb::CompleteRequest) -> pb::CompleteResponse {
    let _call = service.call();
    let failed =
        |error: &str, detail: String| pb::CompleteResponse { ok: false, error: error.to_owned(), detail };
    let (named, actuals) = match parse_complete(request) {
        Ok(parsed) => parsed,
        Err(detail) => return failed(INVALID, detail),
    };
    match service.complete(named, &actuals).await {
        Ok(()) => pb::CompleteResponse { ok: true, ..Default::default() },
        Err(error @ CompleteError::Ledger(_)) => failed(BACKEND, error.to_string()),
        Err(error) => failed(INVALID, error.to_string()),
    }
}

/// All at once, answered in order. `Err` says what is wrong with the batch itself.
pub async fn complete_batch(
    service: &Arc<Service>,
    batch: &pb::CompleteBatchRequest,
) -> Result<pb::CompleteBatchResponse, String> {
    check_batch(batch.requests.len())?;
    let results = join_all(batch.requests.iter().map(|request| complete(service, request))).await;
    Ok(pb::CompleteBatchResponse { results })
}

fn check_batch(count: usize) -> Result<(), String> {
    match count {
        1..=BATCH_MAX => Ok(()),
        _ => Err(format!("requests: {count} given, 1 to {BATCH_MAX} are answered")),
    }
}

struct Answer<'s> {
    message: pb::ReserveResponse,
    denial: Option<Denial>,
    grant: Option<Grant<'s>>,
}

async fn one<'s>(service: &'s Service, request: &pb::ReserveRequest, request_id: Option<&str>) -> Answer<'s> {
    let ask = match parse_reserve(request, request_id) {
        Ok(ask) => ask,
        Err(detail) => return mistake(INVALID.to_owned(), detail),
    };
    match service.reserve(&ask).await {
        Ok(Ok(grant)) => {
            let message = pb::ReserveResponse {
                allowed: true,
                lease_id: grant.id.to_string(),
                lease_token: grant.token.clone().unwrap_or_default(),
                reserved_at_unix_ms: grant.reserved_at_unix_ms,
                ..Default::default()
            };
            Answer { message, denial: None, grant: Some(grant) }
        }
        Ok(Err(denial)) => Answer { message: denied(&denial), denial: Some(denial), grant: None },
        Err(error @ ReserveError::UsedForAnother) => mistake(INVALID.to_owned(), error.to_string()),
        Err(ReserveError::Ledger(error)) => mistake(BACKEND.to_owned(), error.to_string()),
        Err(ReserveError::UnknownLimit(key)) => {
            let detail = ReserveError::UnknownLimit(String::new()).to_string();
            mistake(format!("{UNKNOWN_LIMIT}{key}"), detail)
        }
    }
}

fn mistake<'s>(error: String, detail: String) -> Answer<'s> {
    let message = pb::ReserveResponse { error, detail, ..Default::default() };
    Answer { message, denial: None, grant: None }
}

pub(super) fn denied(denial: &Denial) -> pb::ReserveResponse {
    let limit = denial.limit.as_ref().map(ToString::to_string).unwrap_or_default();
    let error = match denial.reason {
        Reason::LimitDecreasing => format!("{DECREASING}{limit}"),
        Reason::BackendError | Reason::QueueFull => BACKEND.to_owned(),
        // A limit that is used up is no error.
        Reason::Allowed | Reason::OverLimit | Reason::RetryBudget | Reason::NeverFits => String::new(),
    };
    pb::ReserveResponse {
        retry_after_ms: denial.retry_after_ms,
        error,
        limit,
        reason: denial.reason.name().to_owned(),
        ..Default::default()
    }
}

pub(super) fn parse_reserve<'a>(
    request: &'a pb::ReserveRequest,
    request_id: Option<&'a str>,
) -> Result<Ask<'a>, String> {
    let count = request.requirements.len();
    if !(1..=REQUIREMENTS_MAX).contains(&count) {
        return Err(format!("requirements: {count} given, 1 to {REQUIREMENTS_MAX} are reserved together"));
    }
    let mut wants: Vec<(&str, u64)> = Vec::with_capacity(count);
    for (index, pb::Requirement { key, amount }) in request.requirements.iter().enumerate() {
        if key.is_empty() {
            return Err(format!("requirements[{index}].key: must not be empty"));
        }
        if *amount == 0 {
            return Err(format!("requirements[{index}].amount: must be at least 1"));
        }
        match wants.iter_mut().find(|(there, _)| there == key) {
            None => wants.push((key, *amount)),
            Some((_, there)) => {
                let sum = there.checked_add(*amount);
                *there =
                    sum.ok_or_else(|| format!("requirements[{index}].amount: the sum is beyond 64 bits"))?;
            }
        }
    }
    if request.job_id.len() > JOB_ID_BYTES_MAX {
        return Err(format!("job_id: must have at most {JOB_ID_BYTES_MAX} bytes"));
    }
    let name = match (request.lease_id.as_str(), request_id) {
        ("", None) => AskName::Fresh,
        ("", Some(id)) => AskName::Request(id),
        (id, _) => AskName::Lease(parse_lease_id(id)?),
    };
    Ok(Ask { name, job_id: &request.job_id, wants })
}

fn parse_lease_id(id: &str) -> Result<LeaseId, String> {
    if id.len() > LEASE_ID_BYTES_MAX || id.chars().any(char::is_control) {
        return Err(format!(
            "lease_id: must have at most {LEASE_ID_BYTES_MAX} bytes and no control characters"
        ));
    }
    if token::is_meant(id) {
        return Err("lease_id: looks like a lease token; a ULID is a good id".to_owned());
    }
    Ok(LeaseId::parse(id))
}

fn parse_complete(request: &pb::CompleteRequest) -> Result<(Named<'_>, Vec<Actual<'_>>), String> {
    let named = match (request.lease_id.as_str(), request.lease_token.as_str()) {
        ("", "") => return Err("lease_id or lease_token: one of them is needed".to_owned()),
        (id, "") => Named::Id(id),
        // It says more than the id does.
        (_, token) => Named::Token(token),
    };
    let count = request.actuals.len();
    if count > REQUIREMENTS_MAX {
        return Err(format!("actuals: {count} given, a lease holds at most {REQUIREMENTS_MAX} limits"));
    }
    let mut actuals: Vec<Actual<'_>> = Vec::with_capacity(count);
    for (index, pb::Actual { key, actual_amount }) in request.actuals.iter().enumerate() {
        let Some(amount) = *actual_amount else {
            return Err(format!("actuals[{index}].actual_amount: is needed; 0 if nothing was used"));
        };
        if actuals.iter().any(|there| there.key == key) {
            return Err(format!("actuals[{index}].key: `{key}` is there twice"));
        }
        actuals.push(Actual { key, amount });
    }
    Ok((named, actuals))
}
