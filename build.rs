//! Compiles proto/ in Rust: descriptors for reflection and JSON, code for the lease API, for hubs, for limits from xDS and for
//! traces. Nobody needs protoc.

use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const ENVOY: &str = "proto/envoy/service/ratelimit/v3/rls.proto";
const LEASES: &str = "proto/sluice/v1/lease.proto";
const LEDGER: &str = "proto/sluice/v1/ledger.proto";
const CODEC: &str = "crate::codec::ProtoCodec";
const XDS: &str = "proto/ratelimit/config/ratelimit/v3/rls_conf.proto";
const TRACES: &str = "proto/opentelemetry/proto/collector/trace/v1/trace_service.proto";

/// The messages of the lease API are its JSON too. A misspelt field is a mistake, what is left out is empty.
const JSON_IN: &str = "#[derive(serde::Deserialize)] #[serde(default, deny_unknown_fields)]";
const JSON_OUT: &str = "#[derive(serde::Serialize)]";
const EMPTY_IS_NULL: &str = "#[serde(serialize_with = \"crate::api::pb::empty_is_null\")]";
const NULL_IS_EMPTY: &str = "#[serde(deserialize_with = \"crate::api::pb::null_is_empty\")]";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile([ENVOY, LEASES], ["proto"])?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(out.join("descriptors.bin"), descriptors.encode_to_vec())?;
    lease_api()?;
    // In a directory of its own: both files have the same package, which is the name of what is written.
    let ledger = out.join("ledger");
    fs::create_dir_all(&ledger)?;
    let builder = tonic_prost_build::configure().emit_rerun_if_changed(false).codec_path(CODEC);
    // Far larger than the other answers, and far rarer.
    let builder = builder.boxed(".sluice.v1.Answer.what.line");
    builder.out_dir(ledger).compile_fds(protox::compile([LEDGER], ["proto"])?)?;
    limits_from_xds()?;
    let traces = tonic_prost_build::configure().emit_rerun_if_changed(false).build_server(false);
    Ok(traces.codec_path(CODEC).compile_fds(protox::compile([TRACES], ["proto"])?)?)
}

fn limits_from_xds() -> Result<(), Box<dyn std::error::Error>> {
    let builder = tonic_prost_build::configure()
        .emit_rerun_if_changed(false)
        .build_server(false)
        .build_client(false)
        .extern_path(".google.protobuf.Struct", "::envoy_types::pb::google::protobuf::Struct");
    Ok(builder.compile_fds(protox::compile([XDS], ["proto"])?)?)
}

fn lease_api() -> Result<(), Box<dyn std::error::Error>> {
    let mut builder = tonic_prost_build::configure().emit_rerun_if_changed(false).codec_path(CODEC);
    for message in ["Requirement", "Actual", "ReserveRequest", "CompleteRequest"] {
        builder = builder.message_attribute(format!("sluice.v1.{message}"), JSON_IN);
    }
    for message in ["ReserveBatchRequest", "CompleteBatchRequest"] {
        builder = builder.message_attribute(format!("sluice.v1.{message}"), JSON_IN);
    }
    for message in ["ReserveResponse", "CompleteResponse", "ReserveBatchResponse", "CompleteBatchResponse"] {
        builder = builder.message_attribute(format!("sluice.v1.{message}"), JSON_OUT);
    }
    for field in ["ReserveRequest.lease_id", "ReserveRequest.job_id"] {
        builder = builder.field_attribute(format!("sluice.v1.{field}"), NULL_IS_EMPTY);
    }
    for field in ["CompleteRequest.lease_id", "CompleteRequest.lease_token", "CompleteRequest.actuals"] {
        builder = builder.field_attribute(format!("sluice.v1.{field}"), NULL_IS_EMPTY);
    }
    for field in ["lease_id", "lease_token", "reserved_at_unix_ms", "error", "detail", "limit", "reason"] {
        builder = builder.field_attribute(format!("sluice.v1.ReserveResponse.{field}"), EMPTY_IS_NULL);
    }
    builder = builder.message_attribute("sluice.v1.LeaseStatus", JSON_OUT);
    builder = builder.message_attribute("sluice.v1.Requirement", JSON_OUT);
    let texts =
        ["status", "state", "job_id", "lease_id", "lease_token", "error", "detail", "limit", "reason"];
    for field in texts.into_iter().chain(["reserved_at_unix_ms", "requirements"]) {
        builder = builder.field_attribute(format!("sluice.v1.LeaseStatus.{field}"), EMPTY_IS_NULL);
    }
    for field in ["error", "detail"] {
        builder = builder.field_attribute(format!("sluice.v1.CompleteResponse.{field}"), EMPTY_IS_NULL);
    }
    Ok(builder.compile_fds(protox::compile([LEASES], ["proto"])?)?)
}
