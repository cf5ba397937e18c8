//! A real Envoy asks the real binary, as in production. `SLUICE_TEST_ENVOY` names the Envoy; without it these tests fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on says so by panicking")]

#[path = "../support/ads.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod ads;
#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/collector.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod collector;
#[path = "../support/http.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod http;
#[path = "../support/process.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod process;
#[path = "../support/sluice.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod sluice;
#[path = "../support/stall.rs"]
#[allow(dead_code, reason = "shared with another binary")]
mod stall;
#[path = "../support/wait.rs"]
mod wait;

#[cfg(feature = "tigerbeetle")]
#[path = "../it/tigerbeetle.rs"]
#[allow(dead_code, reason = "shared with the other test binary")]
mod tigerbeetle;

mod envoy;
mod silent;
mod upstream;

mod bootstraps;
mod dashboard;
mod failing;
#[cfg(feature = "tigerbeetle")]
mod fleet;
mod gateway;
mod gateway_manifests;
mod leases;
mod leaving;
mod limited;
mod live;
mod llm;
mod manifests;
mod options;
mod retries;
mod tls;
mod traced;
#[cfg(feature = "tigerbeetle")]
mod tour;
