//! Generated from proto/opentelemetry.

#![allow(clippy::all, missing_debug_implementations, unreachable_pub, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/opentelemetry.proto.collector.trace.v1.rs"));
