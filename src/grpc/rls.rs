//! ShouldRateLimit: Envoy's words in, Envoy's words out.
//!
//! Converts once in each direction and decides nothing. Every malformed request is INVALID_ARGUMENT that names the field.
//! A descriptor with an entry `lease_id` is a completion: it is carried out first, and its status is always OK.

mod completion;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use smallvec::SmallVec;
use tonic::Status;
use tonic::server::{Grpc, NamedService, UnaryService};

use self::completion::{lease_metadata, lease_of, parse_completion, with_completions};
use super::codec::{MESSAGE_BYTES_MAX, ProtoCodec};
use super::{pb, status};
use crate::admission::{self, Decision, Request};
use crate::lease::Report;
use crate::limit::Unit;
use crate::limit::key::Entry;
use crate::registry::{Ask, OverrideLimit};
use crate::service::Service;

pub const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// Metadata that names a request, so that Envoy's own retry of it charges once.
pub const REQUEST_ID: &str = "x-sluice-request-id";

/// Envoy's configurations have a handful; each costs a look-up.
pub const DESCRIPTORS_MAX: usize = 64;
pub const ENTRIES_MAX: usize = 64;

/// The service on the wire, for requests that [`super::front`] leaves to tonic. Hand-written only because of its codec.
#[derive(Debug, Clone)]
pub struct RateLimitServer {
    service: Arc<Service>,
}

impl RateLimitServer {
    pub fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

impl NamedService for RateLimitServer {
    const NAME: &'static str = SERVICE_NAME;
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower::Service<http::Request<tonic::body::Body>> for RateLimitServer {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let service = Arc::clone(&self.service);
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("the only method is ShouldRateLimit").into_http());
            }
            let codec = ProtoCodec::<pb::RateLimitResponse, pb::RateLimitRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(grpc.unary(ShouldRateLimit { service }, request).await)
        })
    }
}

struct ShouldRateLimit {
    service: Arc<Service>,
}

impl UnaryService<pb::RateLimitRequest> for ShouldRateLimit {
    type Response = pb::RateLimitResponse;
    type Future = BoxFuture<Result<tonic::Response<pb::RateLimitResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<pb::RateLimitRequest>) -> Self::Future {
        let service = Arc::clone(&self.service);
        Box::pin(async move {
            let (metadata, _, message) = request.into_parts();
            let request_id = metadata.get(REQUEST_ID).and_then(|value| value.to_str().ok());
            should_rate_limit(&service, &message, request_id).await.map(tonic::Response::new)
        })
    }
}

/// The whole path of one request, also for `/json`.
pub async fn should_rate_limit(
    service: &Arc<Service>,
    message: &pb::RateLimitRequest,
    request_id: Option<&str>,
) -> Result<pb::RateLimitResponse, Status> {
    let _call = service.call();
    let snapshot = service.live.load_full();
    let Parsed { request, completions } = parse(message, &snapshot.retry.budget.descriptor_key, request_id)?;
    if !completions.is_empty() {
        // First, so that what they give back is there for the rest.
        service.complete_reports(&completions).await;
    }
    if request.asks.is_empty() {
        return Ok(with_completions(message, pb::RateLimitResponse::default()));
    }
    let decided = service.admission.decide(&snapshot, &request).await;
    let mut decision = decided.map_err(|error| status::of_decide(&error))?;
    let mut response = response(&decision);
    if let Some(lease) = decision.lease.take() {
        // A lease that has no token can still be completed here.
        let handle = service.desk.issue(&lease, "").token.unwrap_or_else(|| lease.id.to_string());
        response.dynamic_metadata = Some(lease_metadata(handle));
    }
    Ok(if completions.is_empty() { response } else { with_completions(message, response) })
}

fn invalid(text: impl Into<String>) -> Status {
    Status::invalid_argument(text)
}

/// What a message asks for, and what it completes.
struct Parsed<'a> {
    request: Request<'a>,
    completions: Vec<Report<'a>>,
}

fn parse<'a>(
    message: &'a pb::RateLimitRequest,
    retry_key: &str,
    request_id: Option<&'a str>,
) -> Result<Parsed<'a>, Status> {
    if message.domain.is_empty() {
        return Err(invalid("domain: must not be empty"));
    }
    match message.descriptors.len() {
        0 => return Err(invalid("descriptors: at least one is needed")),
        count if count > DESCRIPTORS_MAX => {
            return Err(invalid(format!("descriptors: {count} given, at most {DESCRIPTORS_MAX} are read")));
        }
        _ => {}
    }
    // A request's 0 is "not set" in proto3 and means 1; a descriptor's 0 is a look.
    let default_hits = u64::from(message.hits_addend).max(1);
    let mut is_retry = false;
    let mut asks = SmallVec::new();
    let mut completions = Vec::new();
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        match lease_of(descriptor) {
            Some(lease) => completions.push(parse_completion(lease, descriptor)),
            None => asks.push(parse_descriptor(index, descriptor, default_hits, retry_key, &mut is_retry)?),
        }
    }
    let request_id = request_id.filter(|id| !id.is_empty());
    Ok(Parsed { request: Request { domain: &message.domain, asks, is_retry, request_id }, completions })
}

fn parse_descriptor<'a>(
    index: usize,
    descriptor: &'a pb::RateLimitDescriptor,
    default_hits: u64,
    retry_key: &str,
    is_retry: &mut bool,
) -> Result<Ask<'a>, Status> {
    match descriptor.entries.len() {
        0 => return Err(invalid(format!("descriptors[{index}].entries: at least one is needed"))),
        count if count > ENTRIES_MAX => {
            let text = format!("descriptors[{index}].entries: {count} given, at most {ENTRIES_MAX} are read");
            return Err(invalid(text));
        }
        _ => {}
    }
    if descriptor.is_negative_hits {
        return Err(invalid(format!(
            "descriptors[{index}].is_negative_hits: only a completion (an entry `lease_id`) can give hits back"
        )));
    }
    let mut entries = SmallVec::new();
    for (place, entry) in descriptor.entries.iter().enumerate() {
        if entry.key.is_empty() {
            return Err(invalid(format!("descriptors[{index}].entries[{place}].key: must not be empty")));
        }
        if entry.key == retry_key {
            *is_retry |= crate::retry::budget::marks_retry(&entry.value);
        } else {
            entries.push(Entry { key: &entry.key, value: &entry.value });
        }
    }
    let hits = descriptor.hits_addend.as_ref().map_or(default_hits, |hits| hits.value);
    let limit = descriptor.limit.as_ref().map(|limit| {
        let unit = unit_of(limit.unit).ok_or_else(|| {
            invalid(format!(
                "descriptors[{index}].limit.unit: must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
            ))
        })?;
        Ok::<_, Status>(OverrideLimit { requests_per_unit: limit.requests_per_unit, unit })
    });
    Ok(Ask { entries, hits, limit: limit.transpose()? })
}

fn unit_of(number: i32) -> Option<Unit> {
    match pb::Unit::try_from(number).ok()? {
        pb::Unit::Unknown => None,
        pb::Unit::Second => Some(Unit::Second),
        pb::Unit::Minute => Some(Unit::Minute),
        pb::Unit::Hour => Some(Unit::Hour),
        pb::Unit::Day => Some(Unit::Day),
        pb::Unit::Week => Some(Unit::Week),
        pb::Unit::Month => Some(Unit::Month),
        pb::Unit::Year => Some(Unit::Year),
    }
}

fn unit_number(unit: Option<Unit>) -> i32 {
    let unit = match unit {
        None => pb::Unit::Unknown,
        Some(Unit::Second) => pb::Unit::Second,
        Some(Unit::Minute) => pb::Unit::Minute,
        Some(Unit::Hour) => pb::Unit::Hour,
        Some(Unit::Day) => pb::Unit::Day,
        Some(Unit::Week) => pb::Unit::Week,
        Some(Unit::Month) => pb::Unit::Month,
        Some(Unit::Year) => pb::Unit::Year,
    };
    unit as i32
}

fn code_number(code: admission::Code) -> i32 {
    let code = match code {
        admission::Code::Ok => pb::Code::Ok,
        admission::Code::OverLimit => pb::Code::OverLimit,
    };
    code as i32
}

fn response(decision: &Decision) -> pb::RateLimitResponse {
    // Always set: Envoy takes an unset overall_code as allowed.
    let overall = if decision.denial.is_none() { admission::Code::Ok } else { admission::Code::OverLimit };
    pb::RateLimitResponse {
        overall_code: code_number(overall),
        statuses: decision.statuses.iter().map(descriptor_status).collect(),
        response_headers_to_add: decision.denial.as_ref().map(headers).unwrap_or_default(),
        ..Default::default()
    }
}

fn descriptor_status(status: &admission::Status) -> pb::DescriptorStatus {
    pb::DescriptorStatus {
        code: code_number(status.code),
        current_limit: status.limit.as_ref().map(|limit| pb::RateLimit {
            name: limit.name.to_string(),
            requests_per_unit: limit.requests_per_unit,
            unit: unit_number(limit.unit),
        }),
        limit_remaining: status.remaining,
        duration_until_reset: status.reset_ms.map(duration),
        ..Default::default()
    }
}

fn duration(ms: u64) -> pb::Duration {
    let seconds = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
    let nanos = i32::try_from(ms % 1000).expect("a remainder of 1000 must fit") * 1_000_000;
    pb::Duration { seconds, nanos }
}

fn headers(denial: &admission::Denial) -> Vec<pb::HeaderValue> {
    let header =
        |(key, value): (&str, String)| pb::HeaderValue { key: key.to_owned(), value, ..Default::default() };
    denial.headers().map(header).collect()
}
