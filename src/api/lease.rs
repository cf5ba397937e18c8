//! The messages of the lease API, for both ports.
//!
//! Denials and mistakes are part of an answer, so that each item of a batch has its own. Only a batch that is itself wrong
//! is an error.

use http::StatusCode;

use super::delivery::Unsent;
use super::error::{BACKEND, DECREASING, WireError};
use super::pb::lease as pb;
use crate::admission::Denial;
use crate::lease::token;
use crate::limit::{LeaseId, REQUIREMENTS_MAX};
use crate::service::complete::{Actual, CompleteError, Completion, Named};
use crate::service::reserve::{Ask, AskName, Grant, ReserveError, ReserveOutcome};
use crate::telemetry::Reason;

const BATCH_MAX: usize = 256;

/// Names that callers choose: they are part of every transfer's label, and of the token.
const LEASE_ID_BYTES_MAX: usize = 128;
const JOB_ID_BYTES_MAX: usize = 256;

/// A LimitKey that a caller writes. It is remembered with the lease, and with a place in the queue.
const KEY_BYTES_MAX: usize = 4096;

/// The answer to a reserve.
#[derive(Debug)]
pub(crate) struct ReserveAnswer {
    pub(crate) message: pb::ReserveResponse,
    /// Every decision is 200, also "no": a client library that repeats a 429 by itself would repeat a lease_id that stays
    /// denied.
    pub(crate) http: StatusCode,
    /// What a denied caller is told in headers.
    pub(crate) denial: Option<Denial>,
    /// Goes with the message.
    pub(crate) unsent: Unsent,
}

/// A batch of reserves. One name for the batch is a name for each of its items.
#[derive(Debug)]
pub(crate) struct ReserveBatch<'a> {
    requests: &'a [pb::ReserveRequest],
    names: Vec<String>,
}

impl<'a> ReserveBatch<'a> {
    pub(crate) fn parse(
        batch: &'a pb::ReserveBatchRequest,
        request_id: Option<&str>,
    ) -> Result<Self, WireError> {
        let requests = &batch.requests[..];
        check_batch(requests.len())?;
        let name = |id: &str| (0..requests.len()).map(|index| format!("{id}/{index}")).collect();
        Ok(Self { requests, names: request_id.map(name).unwrap_or_default() })
    }

    pub(crate) fn asks(&self) -> Vec<Result<Ask<'_>, ReserveError>> {
        let each = self.requests.iter().enumerate();
        each.map(|(index, request)| parse_reserve(request, self.names.get(index).map(String::as_str)))
            .collect()
    }
}

fn check_batch(count: usize) -> Result<(), WireError> {
    match count {
        1..=BATCH_MAX => Ok(()),
        _ => Err(WireError::invalid(format!("requests: {count} given, 1 to {BATCH_MAX} are answered"))),
    }
}

pub(crate) fn parse_reserve<'a>(
    request: &'a pb::ReserveRequest,
    request_id: Option<&'a str>,
) -> Result<Ask<'a>, ReserveError> {
    parse_ask(request, request_id).map_err(ReserveError::Invalid)
}

fn parse_ask<'a>(request: &'a pb::ReserveRequest, request_id: Option<&'a str>) -> Result<Ask<'a>, String> {
    let count = request.requirements.len();
    if !(1..=REQUIREMENTS_MAX).contains(&count) {
        return Err(format!("requirements: {count} given, 1 to {REQUIREMENTS_MAX} are reserved together"));
    }
    let mut wants: Vec<(&str, u64)> = Vec::with_capacity(count);
    for (index, pb::Requirement { key, amount }) in request.requirements.iter().enumerate() {
        if key.is_empty() {
            return Err(format!("requirements[{index}].key: must not be empty"));
        }
        if key.len() > KEY_BYTES_MAX {
            return Err(format!("requirements[{index}].key: must have at most {KEY_BYTES_MAX} bytes"));
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

pub(crate) fn reserve_answer(outcome: Result<ReserveOutcome, ReserveError>) -> ReserveAnswer {
    match outcome {
        Ok(ReserveOutcome::Granted(grant)) => {
            let (message, unsent) = (granted(&grant), grant.unsent.into_iter().collect());
            ReserveAnswer { message, http: StatusCode::OK, denial: None, unsent }
        }
        Ok(ReserveOutcome::Denied(denial)) => {
            let (message, http) = (denied(&denial), denial_status(&denial));
            ReserveAnswer { message, http, denial: Some(denial), unsent: Unsent::new() }
        }
        Err(error) => {
            let error = WireError::from(error);
            let http = error.http();
            let WireError { error, detail, .. } = error;
            let message = pb::ReserveResponse { error, detail, ..Default::default() };
            ReserveAnswer { message, http, denial: None, unsent: Unsent::new() }
        }
    }
}

fn granted(grant: &Grant) -> pb::ReserveResponse {
    pb::ReserveResponse {
        allowed: true,
        lease_id: grant.id.to_string(),
        lease_token: grant.token.clone().unwrap_or_default(),
        reserved_at_unix_ms: grant.reserved_at_unix_ms,
        ..Default::default()
    }
}

/// The ledger could not be asked, and the settings say that this means "no".
fn is_failure(denial: &Denial) -> bool {
    matches!(denial.reason, Reason::BackendError | Reason::QueueFull)
}

fn denial_status(denial: &Denial) -> StatusCode {
    if is_failure(denial) { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK }
}

pub(crate) fn denied(denial: &Denial) -> pb::ReserveResponse {
    let limit = denial.limit.as_ref().map(ToString::to_string).unwrap_or_default();
    let error = match denial.reason {
        Reason::LimitDecreasing => format!("{DECREASING}{limit}"),
        _ if is_failure(denial) => BACKEND.to_owned(),
        // A limit that is used up is no error.
        _ => String::new(),
    };
    pb::ReserveResponse {
        retry_after_ms: denial.retry_after_ms,
        error,
        limit,
        reason: denial.reason.name().to_owned(),
        ..Default::default()
    }
}

/// The answer to a batch, and the leases that it tells of.
pub(crate) fn reserve_batch_response(
    outcomes: Vec<Result<ReserveOutcome, ReserveError>>,
) -> (pb::ReserveBatchResponse, Unsent) {
    let mut unsent = Unsent::new();
    let each = outcomes.into_iter().map(|outcome| {
        let answer = reserve_answer(outcome);
        unsent.extend(answer.unsent);
        answer.message
    });
    (pb::ReserveBatchResponse { results: each.collect() }, unsent)
}

pub(crate) fn parse_complete(request: &pb::CompleteRequest) -> Result<Completion<'_>, CompleteError> {
    parse_completion(request).map_err(CompleteError::Invalid)
}

fn parse_completion(request: &pb::CompleteRequest) -> Result<Completion<'_>, String> {
    let lease = match (request.lease_id.as_str(), request.lease_token.as_str()) {
        ("", "") => return Err("lease_id or lease_token: one of them is needed".to_owned()),
        (id, "") => Named::Id(id),
        // With both, the token counts: it works at any instance.
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
    Ok(Completion { lease, actuals })
}

pub(crate) fn parse_complete_batch(
    batch: &pb::CompleteBatchRequest,
) -> Result<Vec<Result<Completion<'_>, CompleteError>>, WireError> {
    check_batch(batch.requests.len())?;
    Ok(batch.requests.iter().map(parse_complete).collect())
}

/// The answer to a completion, and its HTTP status.
pub(crate) fn complete_answer(outcome: Result<(), CompleteError>) -> (pb::CompleteResponse, StatusCode) {
    match outcome.map_err(WireError::from) {
        Ok(()) => (pb::CompleteResponse { ok: true, ..Default::default() }, StatusCode::OK),
        Err(error) => {
            let http = error.http();
            (pb::CompleteResponse { ok: false, error: error.error, detail: error.detail }, http)
        }
    }
}

pub(crate) fn complete_batch_response(outcomes: Vec<Result<(), CompleteError>>) -> pb::CompleteBatchResponse {
    let results = outcomes.into_iter().map(|outcome| complete_answer(outcome).0).collect();
    pb::CompleteBatchResponse { results }
}
