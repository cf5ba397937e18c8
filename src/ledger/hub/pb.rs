//! Generated from proto/sluice/v1/ledger.proto.

#![allow(clippy::all, missing_debug_implementations, unreachable_pub, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/ledger/sluice.v1.rs"));
