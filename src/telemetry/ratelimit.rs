//! What envoyproxy/ratelimit measures, under its names, for dashboards that were drawn for it.
//!
//! None of them ends in `_total`, because there they come through a StatsD exporter: so each is of the type "unknown", not a
//! counter. Limits are labelled by the descriptors that lead to them; with `detailed_metric` by their values, which clients
//! choose, so that the table is bounded. Refuses to know how a limit decides.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::AtomicI64;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::Metrics;
use super::bounded::Bounded;
use super::histogram::Histogram;
use super::label::ResultLabel;

/// Limits with labels of their own: 10,000 rows of at most 1 KiB are 10 MB.
const LIMITS_MAX: usize = 10_000;

/// Of a label; the rest is cut.
const LABEL_BYTES_MAX: usize = 256;

/// The labels of those that had to make room.
const OTHER: &str = "other";

const METHOD: &str = "ShouldRateLimit";

/// What envoyproxy/ratelimit's metrics call a limit: by the descriptors that lead to it, each as `key_value`, or as `key` where
/// it stands for any value. What lies deeper than the second is part of the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MetricName {
    pub domain: String,
    pub key1: String,
    /// Empty if there is one descriptor.
    pub key2: String,
}

/// What metrics call the limits that one rule of a descriptor makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetricNames {
    /// As their LimitKeys, without the values that clients choose: `llm:tenant:model=gpt-4o:tpm`.
    pub limit: String,
    pub ratelimit: Arc<MetricName>,
}

impl MetricName {
    pub(crate) fn new(domain: &str, mut descriptors: impl Iterator<Item = String>) -> Self {
        let key1 = descriptors.next().unwrap_or_default();
        let key2 = descriptors.collect::<Vec<_>>().join(".");
        Self { domain: domain.to_owned(), key1, key2 }
    }
}

/// One request at one limit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hit {
    pub(crate) amount: u64,
    pub(crate) capacity: u64,
    /// What was free before it.
    pub(crate) left: u64,
    /// What it took.
    pub(crate) taken: u64,
    /// It did not fit.
    pub(crate) is_over: bool,
    pub(crate) is_shadow: bool,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    total_hits: u64,
    within_limit: u64,
    near_limit: u64,
    over_limit: u64,
    shadow_mode: u64,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.total_hits += other.total_hits;
        self.within_limit += other.within_limit;
        self.near_limit += other.near_limit;
        self.over_limit += other.over_limit;
        self.shadow_mode += other.shadow_mode;
    }
}

impl Counts {
    fn of(hit: Hit, near_ratio: f64) -> Self {
        // Whole, as there: the floor of it.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of a capacity")]
        let threshold = (hit.capacity as f64 * near_ratio) as u64;
        let used = hit.capacity.saturating_sub(hit.left);
        let near_limit = (used + hit.taken).saturating_sub(threshold).min(hit.taken);
        // A limit that owes or is being lowered refuses what would have fitted. A look asks for nothing, so nothing is over.
        let over = if hit.is_over { hit.amount.saturating_sub(hit.left).max(1).min(hit.amount) } else { 0 };
        Self {
            total_hits: hit.amount,
            within_limit: if hit.is_over { 0 } else { hit.amount },
            near_limit,
            over_limit: over,
            shadow_mode: if hit.is_shadow && hit.is_over { hit.amount } else { 0 },
        }
    }
}

type Pick = fn(&Counts) -> u64;
type Table = Arc<Mutex<Bounded<Arc<MetricName>, Counts>>>;

/// All of them.
#[derive(Debug)]
pub(crate) struct RatelimitMetrics {
    near_ratio: f64,
    limits: Table,
    requests: Counter,
    backend_errors: Counter,
    service_errors: Counter,
    resident_bytes: Gauge<i64, AtomicI64>,
    virtual_bytes: Gauge<i64, AtomicI64>,
}

impl RatelimitMetrics {
    /// `seconds` is how long answers take, `loads` the loads that were good and bad.
    pub(super) fn register(
        registry: &mut Registry,
        near_ratio: f64,
        seconds: &Histogram,
        loads: [Counter; 2],
    ) -> Self {
        let all = Self {
            near_ratio,
            limits: Arc::new(Mutex::new(Bounded::new(LIMITS_MAX))),
            requests: Counter::default(),
            backend_errors: Counter::default(),
            service_errors: Counter::default(),
            resident_bytes: Gauge::default(),
            virtual_bytes: Gauge::default(),
        };
        let picks: [(&str, &str, Pick); 5] = [
            ("total_hits", "Hits asked of a limit", |counts| counts.total_hits),
            ("within_limit", "Hits that fitted", |counts| counts.within_limit),
            ("near_limit", "Hits taken near the limit", |counts| counts.near_limit),
            ("over_limit", "Hits that did not fit", |counts| counts.over_limit),
            ("shadow_mode", "Hits that a limit in shadow mode let pass", |counts| counts.shadow_mode),
        ];
        for (name, help, pick) in picks {
            let metric = OfLimits { table: Arc::clone(&all.limits), pick };
            registry.register(format!("ratelimit_service_rate_limit_{name}"), help, metric);
        }
        let errors =
            vec![("redis_error", all.backend_errors.clone()), ("service_error", all.service_errors.clone())];
        let mut plain = |name: &str, help: &str, label, counters| {
            registry.register(format!("ratelimit_service_{name}"), help, Plain { label, counters });
        };
        plain("should_rate_limit_error", "Calls without an answer", Some("err_type"), errors);
        let requests = vec![(METHOD, all.requests.clone())];
        plain("total_requests", "Calls", Some("grpc_method"), requests);
        let [good, bad] = loads;
        plain("config_load_success", "Configurations that went live", None, vec![("", good)]);
        plain("config_load_error", "Configurations that were refused", None, vec![("", bad)]);
        let label = ("grpc_method".into(), METHOD.into());
        let name = "ratelimit_service_response_time_seconds";
        registry.sub_registry_with_label(label).register(
            name,
            "Time from request to answer",
            seconds.clone(),
        );
        let (resident, reserved) = (all.resident_bytes.clone(), all.virtual_bytes.clone());
        registry.register("process_resident_memory_bytes", "Memory that this process holds", resident);
        registry.register("process_virtual_memory_bytes", "Memory that this process may use", reserved);
        all
    }

    pub(crate) fn answered(&self) {
        self.requests.inc();
    }

    /// A call without an answer, because of the ledger or because of the call.
    pub(crate) fn failed(&self, is_backend: bool) {
        self.requests.inc();
        if is_backend { &self.backend_errors } else { &self.service_errors }.inc();
    }

    pub(crate) fn count(&self, name: &Arc<MetricName>, hit: Hit) {
        let name = cut(name);
        *self.limits.lock().of(&name, || Arc::clone(&name)) += Counts::of(hit, self.near_ratio);
    }

    /// What is a reading, and not a count.
    pub(crate) fn read_memory(&self) {
        let Ok(status) = std::fs::read_to_string("/proc/self/status") else { return };
        for (name, gauge) in [("VmRSS:", &self.resident_bytes), ("VmSize:", &self.virtual_bytes)] {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<i64>().ok());
            kib.and_then(|kib| kib.checked_mul(1024)).map(|bytes| gauge.set(bytes));
        }
    }
}

impl Metrics {
    /// Also under the names of envoyproxy/ratelimit. What is used beyond `near_ratio` of a limit is near it.
    pub(crate) fn with_ratelimit_names(mut self, near_ratio: f64) -> Self {
        let loads = ["ok", "error"].map(|result| self.reloads.get_or_create_owned(&ResultLabel { result }));
        let seconds = &self.decision_seconds;
        self.ratelimit = Some(RatelimitMetrics::register(&mut self.registry, near_ratio, seconds, loads));
        self
    }
}

/// Names from clients may be long.
fn cut(name: &Arc<MetricName>) -> Arc<MetricName> {
    let MetricName { domain, key1, key2 } = &**name;
    if [domain, key1, key2].iter().all(|label| label.len() <= LABEL_BYTES_MAX) {
        return Arc::clone(name);
    }
    let cut = |label: &String| label[..label.floor_char_boundary(LABEL_BYTES_MAX)].to_owned();
    Arc::new(MetricName { domain: cut(domain), key1: cut(key1), key2: cut(key2) })
}

fn gauge(count: u64) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

/// One of the counts of every limit.
#[derive(Debug)]
struct OfLimits {
    table: Table,
    pick: Pick,
}

impl EncodeMetric for OfLimits {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (name, counts) in self.table.lock().iter() {
            let count = gauge((self.pick)(counts));
            match name.map(|name| &**name) {
                None if counts.total_hits == 0 => {}
                None => encoder.encode_family(&[("domain", OTHER), ("key1", OTHER)])?.encode_gauge(&count)?,
                Some(MetricName { domain, key1, key2 }) if key2.is_empty() => {
                    encoder.encode_family(&[("domain", domain), ("key1", key1)])?.encode_gauge(&count)?;
                }
                Some(MetricName { domain, key1, key2 }) => {
                    let labels = [("domain", domain), ("key1", key1), ("key2", key2)];
                    encoder.encode_family(&labels)?.encode_gauge(&count)?;
                }
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Unknown
    }

    fn is_empty(&self) -> bool {
        self.table.lock().is_empty()
    }
}

/// Counters that are printed without an ending.
#[derive(Debug)]
struct Plain {
    label: Option<&'static str>,
    counters: Vec<(&'static str, Counter)>,
}

impl EncodeMetric for Plain {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (value, counter) in &self.counters {
            let count = gauge(counter.get());
            match self.label {
                None => encoder.encode_gauge(&count)?,
                Some(label) => encoder.encode_family(&[(label, *value)])?.encode_gauge(&count)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hit_counts_where_it_belongs() {
        let counts = |amount, left, taken, is_over| {
            let hit = Hit { amount, capacity: 10, left, taken, is_over, is_shadow: false };
            let counts = Counts::of(hit, 0.8);
            (counts.total_hits, counts.within_limit, counts.near_limit, counts.over_limit)
        };
        assert_eq!(counts(1, 10, 1, false), (1, 1, 0, 0));
        assert_eq!(counts(8, 10, 8, false), (8, 8, 0, 0), "at the threshold");
        assert_eq!(counts(9, 10, 9, false), (9, 9, 1, 0), "the part beyond it");
        assert_eq!(counts(1, 1, 1, false), (1, 1, 1, 0), "the last one");
        assert_eq!(counts(1, 0, 0, true), (1, 0, 0, 1));
        assert_eq!(counts(5, 3, 0, true), (5, 0, 0, 2), "only what did not fit is over");
        assert_eq!(counts(5, 3, 3, true), (5, 0, 2, 2), "charged always, what fitted was taken");
        assert_eq!(counts(5, 9, 0, false), (5, 5, 0, 0), "another limit refused it");
        assert_eq!(counts(5, 9, 0, true), (5, 0, 0, 1), "a limit that owes refuses what would have fitted");
        assert_eq!(counts(0, 0, 0, true), (0, 0, 0, 0), "a look that is refused asked for nothing");
    }
}
