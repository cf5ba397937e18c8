//! Envoy's messages under short names, those of the lease API, and the descriptors of everything on the gRPC port.

pub use crate::protos::envoy::config::core::v3::HeaderValue;
pub use crate::protos::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use crate::protos::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
pub use crate::protos::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
pub use crate::protos::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use crate::protos::google::protobuf::{Duration, ListValue, Struct, UInt64Value, Value, value};

/// What build.rs compiled from proto/.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Generated from proto/sluice/v1/lease.proto.
#[allow(clippy::all, missing_debug_implementations, reason = "generated")]
pub mod lease {
    tonic::include_proto!("sluice.v1");
}

/// In the JSON of the lease API, what does not apply is null.
pub fn empty_is_null<T, S>(value: &T, serializer: S) -> Result<S::Ok, S::Error>
where
    T: Default + PartialEq + serde::Serialize,
    S: serde::Serializer,
{
    if *value == T::default() { serializer.serialize_none() } else { value.serialize(serializer) }
}

/// And null is the same as leaving it out.
pub fn null_is_empty<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: Default + serde::Deserialize<'de>,
    D: serde::Deserializer<'de>,
{
    <Option<T> as serde::Deserialize>::deserialize(deserializer).map(Option::unwrap_or_default)
}
