//! The messages and services of others that Sluice speaks: Envoy's, from the crate that has all of them, and what
//! envoyproxy/ratelimit is sent over xDS, from proto/ratelimit.

pub use envoy_types::pb::{envoy, google};

#[allow(clippy::all, missing_debug_implementations, unreachable_pub, reason = "generated")]
pub mod ratelimit {
    tonic::include_proto!("ratelimit.config.ratelimit.v3");
}
