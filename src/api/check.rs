//! ShouldRateLimit: Envoy's request as the domain sees it, and a decision as Envoy's response.
//!
//! Every malformed request is refused with the name of the field. A descriptor with an entry `lease_id` is a completion.

use smallvec::SmallVec;

use super::delivery::Unsent;
use super::error::WireError;
use super::{metadata, pb};
use crate::admission::{Denial, DescriptorStatus};
use crate::lease::{Report, Used};
use crate::limit::key::Entry;
use crate::limit::{COMPLETION_ENTRY, Unit};
use crate::registry::{Ask, OverrideLimit};
use crate::service::check::{Check, Checked, Completion, LimitHeaders, Tells};

/// Envoy's configurations have a handful of descriptors, and each costs a look-up.
pub(crate) const DESCRIPTORS_MAX: usize = 64;
pub(crate) const ENTRIES_MAX: usize = 64;

/// The entry of a completion that narrows its hits to one limit.
const LIMIT: &str = "limit";

pub(crate) fn parse<'a>(
    message: &'a pb::RateLimitRequest,
    request_id: Option<&'a str>,
) -> Result<Check<'a>, WireError> {
    if message.domain.is_empty() {
        return Err(WireError::invalid("domain: must not be empty"));
    }
    match message.descriptors.len() {
        0 => return Err(WireError::invalid("descriptors: at least one is needed")),
        count if count > DESCRIPTORS_MAX => {
            let text = format!("descriptors: {count} given, at most {DESCRIPTORS_MAX} are read");
            return Err(WireError::invalid(text));
        }
        _ => {}
    }
    // A request's 0 is "not set" in proto3 and means 1; a descriptor's 0 is a look.
    let default_hits = u64::from(message.hits_addend).max(1);
    let mut asks = SmallVec::new();
    let mut completions = Vec::new();
    for (index, descriptor) in message.descriptors.iter().enumerate() {
        match lease_of(descriptor) {
            Some(lease) => completions.push(Completion { index, report: parse_report(lease, descriptor) }),
            None => asks.push(parse_descriptor(index, descriptor, default_hits)?),
        }
    }
    let request_id = request_id.filter(|id| !id.is_empty());
    Ok(Check { domain: &message.domain, asks, completions, request_id })
}

/// The lease that a descriptor completes, if that is what it is.
fn lease_of(descriptor: &pb::RateLimitDescriptor) -> Option<&str> {
    descriptor.entries.iter().find(|entry| entry.key == COMPLETION_ENTRY).map(|entry| entry.value.as_str())
}

/// Of the entries only `lease_id` and `limit` are read. The hits of the request as a whole are those of its start, and don't count here.
fn parse_report<'a>(lease: &'a str, descriptor: &'a pb::RateLimitDescriptor) -> Report<'a> {
    let limit = descriptor.entries.iter().find(|entry| entry.key == LIMIT);
    let used = descriptor.hits_addend.as_ref().map(|hits| match descriptor.is_negative_hits {
        true => Used::Refund(hits.value),
        false => Used::Hits(hits.value),
    });
    Report { lease, limit: limit.map(|entry| entry.value.as_str()), used }
}

fn parse_descriptor(
    index: usize,
    descriptor: &pb::RateLimitDescriptor,
    default_hits: u64,
) -> Result<Ask<'_>, WireError> {
    match descriptor.entries.len() {
        0 => return Err(WireError::invalid(format!("descriptors[{index}].entries: at least one is needed"))),
        count if count > ENTRIES_MAX => {
            let text = format!("descriptors[{index}].entries: {count} given, at most {ENTRIES_MAX} are read");
            return Err(WireError::invalid(text));
        }
        _ => {}
    }
    if descriptor.is_negative_hits {
        return Err(WireError::invalid(format!(
            "descriptors[{index}].is_negative_hits: only a completion (an entry `lease_id`) can give hits back"
        )));
    }
    let mut entries = SmallVec::new();
    for (place, entry) in descriptor.entries.iter().enumerate() {
        if entry.key.is_empty() {
            let text = format!("descriptors[{index}].entries[{place}].key: must not be empty");
            return Err(WireError::invalid(text));
        }
        entries.push(Entry { key: &entry.key, value: &entry.value });
    }
    let hits = descriptor.hits_addend.as_ref().map_or(default_hits, |hits| hits.value);
    let limit = descriptor.limit.as_ref().map(|limit| {
        let unit = unit_of(limit.unit).ok_or_else(|| {
            WireError::invalid(format!(
                "descriptors[{index}].limit.unit: must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR"
            ))
        })?;
        Ok::<_, WireError>(OverrideLimit { requests_per_unit: limit.requests_per_unit, unit })
    });
    Ok(Ask { entries, hits, limit: limit.transpose()? })
}

/// Envoy's units, each beside ours.
const UNITS: [(pb::Unit, Unit); 7] = [
    (pb::Unit::Second, Unit::Second),
    (pb::Unit::Minute, Unit::Minute),
    (pb::Unit::Hour, Unit::Hour),
    (pb::Unit::Day, Unit::Day),
    (pb::Unit::Week, Unit::Week),
    (pb::Unit::Month, Unit::Month),
    (pb::Unit::Year, Unit::Year),
];

fn unit_of(number: i32) -> Option<Unit> {
    UNITS.iter().find(|(theirs, _)| *theirs as i32 == number).map(|(_, ours)| *ours)
}

fn unit_number(unit: Option<Unit>) -> i32 {
    let found = UNITS.iter().find(|(_, ours)| Some(*ours) == unit);
    found.map_or(pb::Unit::Unknown, |(theirs, _)| *theirs) as i32
}

fn code_number(is_over: bool) -> i32 {
    let code = if is_over { pb::Code::OverLimit } else { pb::Code::Ok };
    code as i32
}

/// The answer to `message`, and the lease that it tells of.
pub(crate) fn response(
    checked: Checked,
    message: &pb::RateLimitRequest,
    tells: &Tells,
) -> (pb::RateLimitResponse, Unsent) {
    let (handle, unsent) = match checked.lease {
        Some(lease) => (Some(lease.handle), lease.unsent.into_iter().collect()),
        None => (None, Unsent::new()),
    };
    let mut headers = checked.denial.as_ref().map(headers).unwrap_or_default();
    if let Some(names) = &tells.limit_headers {
        headers.extend(limit_headers(names, &checked.statuses));
    }
    // Always set: Envoy takes an unset overall_code as allowed.
    let response = pb::RateLimitResponse {
        overall_code: code_number(checked.denial.is_some()),
        statuses: checked.statuses.iter().map(descriptor_status).collect(),
        response_headers_to_add: headers,
        dynamic_metadata: metadata::of(handle, checked.told.as_deref(), message),
        ..Default::default()
    };
    (response, unsent)
}

/// The headers for the limit that has the least left; a limit that is over comes before all others.
fn limit_headers(names: &LimitHeaders, statuses: &[DescriptorStatus]) -> Vec<pb::HeaderValue> {
    let limited = statuses.iter().filter_map(|status| Some((status, status.limit.as_ref()?)));
    let nearest = limited.min_by_key(|(status, _)| (!status.is_over, status.remaining));
    let Some((status, limit)) = nearest else { return Vec::new() };
    let seconds = status.reset_ms.unwrap_or(0).div_ceil(1000);
    let header =
        |key: &str, value: String| pb::HeaderValue { key: key.to_owned(), value, ..Default::default() };
    vec![
        header(&names.limit, limit.requests_per_unit.to_string()),
        header(&names.remaining, status.remaining.to_string()),
        header(&names.reset, seconds.to_string()),
    ]
}

fn descriptor_status(status: &DescriptorStatus) -> pb::DescriptorStatus {
    pb::DescriptorStatus {
        code: code_number(status.is_over),
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

fn headers(denial: &Denial) -> Vec<pb::HeaderValue> {
    let header =
        |(key, value): (&str, String)| pb::HeaderValue { key: key.to_owned(), value, ..Default::default() };
    denial.headers().map(header).collect()
}
