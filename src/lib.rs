//! Sluice: Envoy's rate-limit service over a ledger.
//!
//! The modules in reading order; each may use only those below it.

pub mod registry;

pub mod retry;

pub mod limit;

pub mod client;
