//! One version of everything that the hot files say, taken once per request and replaced whole.

use std::sync::Arc;

use ahash::AHashMap;
use arc_swap::ArcSwap;

use crate::config::{Hot, Problem};
use crate::registry::Registry;
use crate::retry::policy::RetryPolicy;
use crate::telemetry::{DomainCounters, Metrics};

#[derive(Debug)]
pub struct Snapshot {
    /// Counts up from 1 with every change that went live.
    pub version: u64,
    pub loaded_at_unix_ms: u64,
    pub files: Vec<String>,
    pub warnings: Vec<Problem>,
    pub registry: Registry,
    pub retry: RetryPolicy,
    counters: AHashMap<Box<str>, Arc<DomainCounters>>,
    unknown_domain: Arc<DomainCounters>,
}

impl Snapshot {
    pub fn new(version: u64, loaded_at_unix_ms: u64, hot: Hot, metrics: &Metrics) -> Self {
        let Hot { registry, retry_policy: retry, files, warnings } = hot;
        let counters = registry.domain_names().map(|name| (name.into(), metrics.domain(name))).collect();
        let unknown_domain = metrics.domain("unknown");
        Self { version, loaded_at_unix_ms, files, warnings, registry, retry, counters, unknown_domain }
    }

    /// The counters of a domain; those that no file names share one set, so that requests can't grow the metrics.
    pub fn counters(&self, domain: &str) -> &DomainCounters {
        self.counters.get(domain).unwrap_or(&self.unknown_domain)
    }
}

/// The snapshot that is live now.
pub type Live = Arc<ArcSwap<Snapshot>>;
