//! Sluice: Envoy's rate-limit service over a ledger.
//!
//! The modules in reading order; each may use only those below it.

pub mod app;
pub mod cli;

pub mod admin;
pub mod grpc;

pub mod service;

pub mod admission;
pub mod config;
pub mod snapshot;

pub mod lease;

pub mod ledger;
pub mod registry;
pub mod retry;

pub mod clock;
pub mod limit;
pub mod listen;
pub mod telemetry;
