//! The calls of the gRPC port that have spans, and what their statuses mean there.

use tonic::{Code, Status};

use crate::trace::{self, Call};

/// A method, as OpenTelemetry describes one.
macro_rules! method {
    ($service:literal, $method:literal) => {
        Call {
            name: concat!($service, "/", $method),
            attributes: &[("rpc.system", "grpc"), ("rpc.service", $service), ("rpc.method", $method)],
            status: ("rpc.grpc.status_code", 0),
        }
    };
}

pub(super) static SHOULD_RATE_LIMIT: Call =
    method!("envoy.service.ratelimit.v3.RateLimitService", "ShouldRateLimit");
pub(super) static RESERVE: Call = method!("sluice.v1.LeaseService", "Reserve");
pub(super) static QUEUE_RESERVE: Call = method!("sluice.v1.LeaseService", "QueueReserve");
pub(super) static RESERVE_BATCH: Call = method!("sluice.v1.LeaseService", "ReserveBatch");

/// Notes that a call ends with this status and has no other answer. A mistake of its caller is no failure of ours.
pub(super) fn note_failure(status: &Status) {
    trace::note(|span| {
        span.status(status.code() as i64);
        if !matches!(
            status.code(),
            Code::InvalidArgument | Code::FailedPrecondition | Code::ResourceExhausted
        ) {
            span.fail(status.message());
        }
    });
}
