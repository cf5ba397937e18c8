//! Completions among the descriptors of ShouldRateLimit: how they are told from the others, and answered.
//!
//! Refuses to know leases: a token is a text here.

use crate::grpc::pb;
use crate::lease::{Report, Used};
use crate::limit::COMPLETION_ENTRY;

/// The entry of a completion that narrows its hits to one limit.
const LIMIT: &str = "limit";

/// The lease that a descriptor completes, if that is what it is.
pub fn lease_of(descriptor: &pb::RateLimitDescriptor) -> Option<&str> {
    descriptor.entries.iter().find(|entry| entry.key == COMPLETION_ENTRY).map(|entry| entry.value.as_str())
}

/// Entries that only tell the phases apart are not looked at. The request's own hits are those of its start.
pub fn parse_completion<'a>(lease: &'a str, descriptor: &'a pb::RateLimitDescriptor) -> Report<'a> {
    let limit = descriptor.entries.iter().find(|entry| entry.key == LIMIT);
    let used = descriptor.hits_addend.as_ref().map(|hits| match descriptor.is_negative_hits {
        true => Used::Refund(hits.value),
        false => Used::Hits(hits.value),
    });
    Report { lease, limit: limit.map(|entry| entry.value.as_str()), used }
}

/// Puts the statuses of completions, always OK, between those of the other descriptors.
pub fn with_completions(
    message: &pb::RateLimitRequest,
    mut response: pb::RateLimitResponse,
) -> pb::RateLimitResponse {
    let ok = pb::Code::Ok as i32;
    let mut others = std::mem::take(&mut response.statuses).into_iter();
    let bare = || pb::DescriptorStatus { code: ok, ..Default::default() };
    let status = |descriptor: &pb::RateLimitDescriptor| match lease_of(descriptor) {
        Some(_) => bare(),
        None => others.next().unwrap_or_else(bare),
    };
    response.statuses = message.descriptors.iter().map(status).collect();
    if response.overall_code == pb::Code::Unknown as i32 {
        response.overall_code = ok;
    }
    response
}

/// Where a completion at the end of the stream finds the lease. A string, or Envoy would take it as absent.
pub fn lease_metadata(handle: String) -> pb::Struct {
    let value = pb::Value { kind: Some(pb::value::Kind::StringValue(handle)) };
    pb::Struct { fields: [(COMPLETION_ENTRY.to_owned(), value)].into() }
}
