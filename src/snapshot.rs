//! One version of everything that can change while the server runs: what the sources say, and what the admin API put beside
//! it. Taken once per request and replaced whole.

use std::sync::Arc;

use ahash::AHashMap;
use arc_swap::ArcSwap;

use crate::config::{Hot, Problem};
use crate::registry::Registry;
use crate::retry::RetryBudget;
use crate::retry::budget::Counted;
use crate::retry::policy::RetryPolicy;
use crate::telemetry::{DomainCounters, Metrics, UNKNOWN};

#[derive(Debug)]
pub struct Snapshot {
    /// Counts up from 1 with every change that went live.
    pub version: u64,
    /// When the files were last found to say something else.
    pub loaded_at_unix_ms: u64,
    pub files: Vec<String>,
    pub warnings: Vec<Problem>,
    /// Of what the sources say; equal at instances whose files are equal.
    pub hash: String,
    pub registry: Registry,
    /// The policy that holds.
    pub retry: RetryPolicy,
    /// The policy of the file, which holds when there is no override.
    pub file_retry: RetryPolicy,
    pub retry_override: Option<PolicyOverride>,
    domains: AHashMap<Box<str>, Domain>,
    unknown_domain: Domain,
}

/// What is kept of a domain beside its limits. A reload keeps it.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub(crate) name: Arc<str>,
    pub(crate) counters: Arc<DomainCounters>,
    /// The budget of its retries. `None` for a domain that no file has: whatever is sent there is let through, and spends nothing.
    pub(crate) budget: Option<Arc<RetryBudget>>,
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
    pub(crate) fn new(
        version: u64,
        loaded_at_unix_ms: u64,
        hot: Hot,
        retry_override: Option<PolicyOverride>,
        metrics: &Metrics,
        before: Option<&Snapshot>,
    ) -> Self {
        let Hot { registry, retry_policy: file_retry, files, warnings, hash } = hot;
        let retry = retry_override.as_ref().map_or_else(|| file_retry.clone(), |over| over.policy.clone());
        let domain = |name: &str| {
            let known = before.and_then(|before| before.domains.get(name));
            let counters = known.map_or_else(|| metrics.domain(name), |known| Arc::clone(&known.counters));
            let budget = known.and_then(|known| known.budget.clone());
            let budget = budget.filter(|budget| budget.is_long_enough(&retry.budget));
            let new = || Arc::new(RetryBudget::new(retry.budget.window_seconds));
            let name = known.map_or_else(|| Arc::from(name), |known| Arc::clone(&known.name));
            Domain { name, counters, budget: Some(budget.unwrap_or_else(new)) }
        };
        let domains = registry.domain_names().map(|name| (name.into(), domain(name))).collect();
        let unknown_domain =
            Domain { name: Arc::from(UNKNOWN), counters: metrics.domain(UNKNOWN), budget: None };
        Self {
            version,
            loaded_at_unix_ms,
            files,
            warnings,
            hash,
            registry,
            retry,
            file_retry,
            retry_override,
            domains,
            unknown_domain,
        }
    }

    /// The retry budgets hash tenants with these keys. Only for simulations: a server makes up keys that nobody can guess.
    pub(crate) fn with_hash(mut self, hash: &ahash::RandomState) -> Self {
        let window_seconds = self.retry.budget.window_seconds;
        for domain in self.domains.values_mut() {
            domain.budget = Some(Arc::new(RetryBudget::with_hash(window_seconds, hash.clone())));
        }
        self
    }

    /// What it was made of.
    pub(crate) fn hot(&self) -> Hot {
        Hot {
            registry: self.registry.clone(),
            retry_policy: self.file_retry.clone(),
            files: self.files.clone(),
            warnings: self.warnings.clone(),
            hash: self.hash.clone(),
        }
    }

    /// What is kept of a domain; those that no file names share one, so that requests can't grow the metrics.
    pub(crate) fn domain(&self, name: &str) -> &Domain {
        self.domains.get(name).unwrap_or(&self.unknown_domain)
    }

    /// The counters of every domain.
    pub(crate) fn counters(&self) -> impl Iterator<Item = &Arc<DomainCounters>> {
        self.domains.values().chain([&self.unknown_domain]).map(|domain| &domain.counters)
    }

    /// Admitted retries per original, over all domains: the metric.
    pub(crate) fn retry_budget_ratio(&self, now_ms: u64) -> f64 {
        let budgets = self.domains.values().filter_map(|domain| domain.budget.as_ref());
        budgets.map(|budget| budget.counted(now_ms, &self.retry.budget)).sum::<Counted>().ratio()
    }
}

/// The snapshot that is live now.
pub(crate) type Live = Arc<ArcSwap<Snapshot>>;
