//! One version of everything that can change while the server runs: what the sources say, and what the admin API put beside
//! it. Taken once per request and replaced whole.

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
    /// When the files were last found to say something else.
    pub loaded_at_unix_ms: u64,
    pub files: Vec<String>,
    pub warnings: Vec<Problem>,
    pub registry: Registry,
    /// The policy that holds.
    pub retry: RetryPolicy,
    /// The policy of the file, which holds when there is no override.
    pub file_retry: RetryPolicy,
    pub retry_override: Option<PolicyOverride>,
    counters: AHashMap<Box<str>, Arc<DomainCounters>>,
    unknown_domain: Arc<DomainCounters>,
}

/// A retry policy that was put over the file's.
#[derive(Debug, Clone, PartialEq)]
pub struct PolicyOverride {
    /// What was put, in part or whole.
    pub patch: serde_json::Value,
    /// The file's policy with that over it.
    pub policy: RetryPolicy,
}

impl Snapshot {
    /// `before` is the one that this replaces, if any.
    pub fn new(
        version: u64,
        loaded_at_unix_ms: u64,
        hot: Hot,
        retry_override: Option<PolicyOverride>,
        metrics: &Metrics,
        before: Option<&Snapshot>,
    ) -> Self {
        let Hot { registry, retry_policy: file_retry, files, warnings } = hot;
        let known = |name: &str| before.and_then(|before| before.counters.get(name)).cloned();
        let counters = |name: &str| known(name).unwrap_or_else(|| metrics.domain(name));
        let counters = registry.domain_names().map(|name| (name.into(), counters(name))).collect();
        let retry = retry_override.as_ref().map_or_else(|| file_retry.clone(), |over| over.policy.clone());
        let unknown_domain = metrics.domain("unknown");
        Self {
            version,
            loaded_at_unix_ms,
            files,
            warnings,
            registry,
            retry,
            file_retry,
            retry_override,
            counters,
            unknown_domain,
        }
    }

    /// What it was made of.
    pub fn hot(&self) -> Hot {
        Hot {
            registry: self.registry.clone(),
            retry_policy: self.file_retry.clone(),
            files: self.files.clone(),
            warnings: self.warnings.clone(),
        }
    }

    /// The counters of a domain; those that no file names share one set, so that requests can't grow the metrics.
    pub fn counters(&self, domain: &str) -> &DomainCounters {
        self.counters.get(domain).unwrap_or(&self.unknown_domain)
    }
}

/// The snapshot that is live now.
pub type Live = Arc<ArcSwap<Snapshot>>;
