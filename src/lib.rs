//! Sluice: Envoy's rate-limit service over a ledger.
//!
//! The modules in reading order; each may use only those below it.

// Only what is used is public, so that the compiler finds what nobody uses.
#![warn(unreachable_pub)]

pub mod cli;
pub mod simulate;
pub mod app;

pub mod admin;
pub mod hub;
pub mod grpc;

pub mod api;

pub mod control;
pub mod service;
pub mod admission;
pub mod queue;
pub mod lease;
pub mod snapshot;

pub mod listen;
pub mod state;
pub mod config;

pub mod registry;
pub mod ledger;
pub mod retry;
pub(crate) mod activity;
pub(crate) mod record;

pub mod limit;
pub mod trace;
pub mod protos;
pub mod codec;
pub mod tls;
pub mod telemetry;
pub mod clock;
pub mod tasks;

/// For programs that call what Sluice protects; the server doesn't use it.
pub mod client;
