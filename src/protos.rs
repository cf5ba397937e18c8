//! The messages and services of others that Sluice speaks: Envoy's rate-limit service, the stream of an xDS server, and what
//! envoyproxy/ratelimit is sent over it.
//!
//! Made from proto/, which has the fields that are used here; others are skipped when they come.

#![allow(clippy::all, missing_debug_implementations, unreachable_pub, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/protos/tree.rs"));
