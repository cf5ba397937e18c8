//! Tests that use the library as its users do: real sockets, real files, real ledgers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that can't go on says so by panicking")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::type_complexity,
    reason = "numbers and types of tests are small"
)]

#[path = "../support/ads.rs"]
#[allow(dead_code, reason = "shared with another binary")]
mod ads;
#[path = "../support/authority.rs"]
mod authority;
#[path = "../support/collector.rs"]
mod collector;
#[path = "../support/fleet.rs"]
#[allow(dead_code, reason = "shared with another binary")]
mod fleet;
#[path = "../support/http.rs"]
mod http;
#[path = "../support/process.rs"]
mod process;
#[path = "../support/sluice.rs"]
#[allow(dead_code, reason = "shared with another binary")]
mod sluice;
#[path = "../support/stall.rs"]
mod stall;
#[path = "../support/wait.rs"]
mod wait;

mod ask;
mod testapp;
mod wire;
mod work;

mod app;
mod browser;
mod budget;
mod cli;
mod cli_ask;
mod footprint;
mod malformed;
mod observed;
mod overage;
mod ports;
mod hints;
mod informed;
#[cfg(feature = "tigerbeetle")]
mod informed_app;
mod matching;
mod record;
mod simulation_docs;
mod tls;
mod tls_cli;
mod tls_files;
mod top;
mod traces;
mod watching;

mod live;
mod live_api;
mod live_files;
mod live_load;
mod live_plan;
mod live_sources;
mod live_state;
#[cfg(feature = "tigerbeetle")]
mod live_tigerbeetle;
mod live_token;

mod image;
mod ratelimit;
mod ratelimit_tls;
mod xds;
mod xds_go;
mod xds_hostile;

mod lease_rows;
mod lease_scenario;
mod leases;
mod unsent;

mod queue;
mod queue_rows;
mod queue_share;
mod queue_simulation;
mod queue_world;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_queue;

mod hub;
mod hub_cut;
mod hub_faults;
#[cfg(feature = "tigerbeetle")]
mod hub_fleet;
mod hub_hostile;
#[cfg(feature = "tigerbeetle")]
mod hub_lending;
mod hub_line;
mod hub_peers;
#[cfg(feature = "tigerbeetle")]
mod hub_process;
mod hub_rows;
mod hub_tls;
mod hub_versions;

mod chart;
mod demo;
mod proto;
mod release;
mod repo;

mod ledger_model;
mod ledger_rows;
mod rotation;
mod rotation_app;
#[cfg(feature = "tigerbeetle")]
mod slab_fleet;
mod slab_simulation;
mod scenario;
mod simulate;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_app;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_capacity;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_faults;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_leases;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_load;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_overage;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_rotation;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_rows;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_slabs;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_sessions;
#[cfg(feature = "tigerbeetle")]
mod tigerbeetle_sums;
