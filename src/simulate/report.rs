//! What a simulation found, as plain values. Written as JSON they are what `--json` prints; the table, the plots and the page are
//! made from them.
//!
//! Refuses to know how any of it was found, or what it looks like.

use serde::Serialize;

use super::series::{Use, Waits};

/// Everything that a run found.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub seed: u64,
    /// Everything that was asked, also what was asked again: each is admitted or denied.
    pub requests: u64,
    pub admitted: u64,
    pub denied: u64,
    /// Of those admitted, the ones that no limit applied to.
    pub unmatched: u64,
    /// Lines that could not be read, and were left out.
    pub broken: u64,
    pub recorded: Recorded,
    /// By their keys.
    pub limits: Vec<LimitReport>,
    /// Limits that there was no room for in `limits`.
    #[serde(skip_serializing_if = "is_zero")]
    pub limits_left_out: u64,
    pub populations: Vec<PopulationReport>,
    /// `None` where one configuration was run.
    pub differences: Option<Differences>,
    /// For the plots.
    #[serde(skip)]
    pub plots: Plots,
}

/// What the log itself says, by its statuses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Recorded {
    /// Requests that were answered 429 then.
    pub denied: u64,
    /// Requests with a status that were denied both then and here, or neither time.
    pub agree: u64,
}

/// One limit.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LimitReport {
    pub key: String,
    /// `rolling` or `concurrency`.
    pub kind: &'static str,
    /// `None` if only the other configuration has this limit.
    pub capacity: Option<u64>,
    /// Of a rolling limit.
    pub window_seconds: Option<u32>,
    /// Of a concurrency limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    /// Requests that took some of it.
    pub admitted: u64,
    /// Requests that this limit said no to.
    pub denied: u64,
    /// The most that was used of it at once.
    pub peak: u64,
    /// What was used of it, by all that could have been: 1 is all of it all the time.
    #[serde(rename = "use")]
    pub used: f64,
    /// The same limit in the other configuration; `None` if that has none of this name, or there is no other.
    pub against: Option<LimitAgainst>,
    /// With `--suggest`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggested: Option<Suggestion>,
}

/// What the other configuration made of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct LimitAgainst {
    pub capacity: u64,
    pub admitted: u64,
    pub denied: u64,
    pub peak: u64,
}

/// How large a limit would have to be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Suggestion {
    /// With this much it would have denied at most the percentage that was asked for.
    pub capacity: u64,
    /// The most that would have been used at once if it had denied nothing.
    pub demand_peak: u64,
}

/// One population of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PopulationReport {
    pub name: String,
    /// What its clients wanted, each counted once.
    pub requests: u64,
    /// How often they tried: each try is admitted or denied.
    pub attempts: u64,
    pub admitted: u64,
    pub denied: u64,
    pub goodput_per_second: f64,
    pub attempts_per_admission: f64,
    /// Tries at a time that the client was told.
    pub returns_per_admission: f64,
    /// From the first try to the one that was admitted.
    pub wait_ms: WaitMs,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct WaitMs {
    pub mean: f64,
    pub p50: u64,
    pub p90: u64,
    pub p99: u64,
    pub max: u64,
}

/// What two configurations decide differently.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Differences {
    pub denied_only_here: u64,
    pub denied_only_against: u64,
    /// Those of them that came first; the numbers above count all.
    pub requests: Vec<Difference>,
}

/// One request that is decided differently.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Difference {
    /// `file:line`, or `population:number`.
    pub at: String,
    /// In seconds, as in the traffic.
    pub time: f64,
    /// `OK` or `OVER_LIMIT`.
    pub code: &'static str,
    pub against: &'static str,
    /// The limit that said no, on whichever side one did.
    pub key: Option<String>,
}

/// What the plots show. Every list is bounded, whatever the traffic.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plots {
    /// When the traffic begins, in milliseconds since 1970 (or since 0, if its times begin there), and how long it lasts.
    pub start_ms: u64,
    pub span_ms: u64,
    /// Of all buckets below: the n-th begins at `start_ms + n * bucket_ms`.
    pub bucket_ms: u64,
    /// The limits that denied most, then those that were used most.
    pub limits: Vec<LimitPlot>,
    /// Who was denied most: the first entry of the request, as `tenant=acme`.
    pub tenants: Vec<TenantDenials>,
    /// How long clients that obey waited, a population each.
    pub waits: Vec<WaitPlot>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct LimitPlot {
    pub key: String,
    pub capacity: u64,
    /// The most that was used at once, in each bucket.
    pub used: Vec<Use>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantDenials {
    pub tenant: String,
    pub denied: u64,
    /// With the other configuration, if there is one.
    pub against: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct WaitPlot {
    pub population: String,
    /// The waits that ended in each bucket.
    pub waits: Vec<Waits>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}
