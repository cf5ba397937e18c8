//! Logs and metrics: how they are set up, and the counters that more than one module touches.

mod bounded;
mod domain;
mod histogram;
mod info;
mod label;
mod log;
mod per_limit;
mod port;
mod ratelimit;
mod slabs;
mod tls;
mod traces;

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::exponential_buckets;
use prometheus_client::registry::Registry;

pub use self::domain::DomainCounters;
pub(crate) use self::domain::{Decided, LEASE_API, UNKNOWN};
pub(crate) use self::histogram::Histogram;
use self::info::{BuildInfo, ConfigInfo};
pub use self::label::Reason;
use self::label::{DecisionLabels, DomainLabel, EventLabel, KindLabel, ResultLabel};
pub(crate) use self::label::{LeaseEvent, LedgerFailure, LimitLabel, QueueEvent};
pub(crate) use self::log::init_logs;
use self::per_limit::{PerLimit, ShadowDenials};
use self::port::Ports;
pub(crate) use self::port::{Closed, PortMetrics, Refused};
pub(crate) use self::ratelimit::{Hit, RatelimitMetrics};
pub use self::ratelimit::{MetricName, MetricNames};
pub use self::slabs::{SlabAnswers, SlabUnits};
use self::tls::TlsMetrics;
pub(crate) use self::traces::TraceMetrics;

/// Every metric, and the registry that prints them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    unmatched: Family<DomainLabel, Counter>,
    unreported: Family<DomainLabel, Counter>,
    pub(crate) decision_seconds: Histogram,
    pub(crate) retry_after_ms: Histogram,
    pub(crate) hint_error_seconds: Histogram,
    pub(crate) ledger_up: Gauge,
    pub(crate) ledgers: Gauge,
    pub(crate) ledger_safe_after: Gauge<f64, std::sync::atomic::AtomicU64>,
    /// Sessions that the cluster has no connection left for.
    pub(crate) ledger_no_connection: Gauge,
    pub(crate) ledger_batch_events: Histogram,
    pub(crate) ledger_batch_seconds: Histogram,
    pub(crate) ledger_queue_depth: Gauge,
    /// Leases whose completion has not reached the ledger yet.
    pub(crate) completions_waiting: Gauge,
    /// In the order of [`LedgerFailure::ALL`].
    ledger_errors: [Counter; LedgerFailure::COUNT],
    pub(crate) memory_records: Gauge,
    pub(crate) memory_records_max: Gauge,
    /// In the order of [`LeaseEvent::ALL`]: there from the start, so that a rate can be taken of each.
    leases: [Counter; LeaseEvent::COUNT],
    pub(crate) queue_depth: Gauge,
    queue_wait_seconds: Histogram,
    queue_eta_ratio: Histogram,
    /// In the order of [`QueueEvent::ALL`].
    queue: [Counter; QueueEvent::COUNT],
    pub(crate) slabs: Gauge,
    pub(crate) hub_streams: Gauge,
    pub(crate) hub_chains: Counter,
    pub slab_answers: SlabAnswers,
    pub slab_units: SlabUnits,
    pub(crate) hub_slab_answers: SlabAnswers,
    pub(crate) hub_slab_units: SlabUnits,
    pub(crate) hub_loans: Gauge,
    pub(crate) slab_panics: Counter,
    pub(crate) retry_budget_ratio: Gauge<f64, std::sync::atomic::AtomicU64>,
    reloads: Family<ResultLabel, Counter>,
    pub(crate) config_problems: Gauge,
    pub(crate) tls: TlsMetrics,
    pub(crate) traces: TraceMetrics,
    pub(crate) limit_used: Family<LimitLabel, Gauge>,
    pub(crate) limit_capacity: Family<LimitLabel, Gauge>,
    pub(crate) limit_debt: Family<LimitLabel, Gauge>,
    limit_decisions: PerLimit,
    shadow_denials: ShadowDenials,
    config_info: ConfigInfo,
    ports: Ports,
    /// Under the names of envoyproxy/ratelimit, if that is wanted.
    pub(crate) ratelimit: Option<RatelimitMetrics>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            decisions: Family::default(),
            unmatched: Family::default(),
            unreported: Family::default(),
            // 1 µs to 0.5 s: a memory answer takes microseconds, a TigerBeetle one milliseconds.
            decision_seconds: Histogram::new(exponential_buckets(1e-6, 2.0, 20)),
            retry_after_ms: Histogram::new(exponential_buckets(1.0, 2.0, 20)),
            hint_error_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 14)),
            ledger_up: Gauge::default(),
            ledgers: Gauge::default(),
            ledger_safe_after: Gauge::default(),
            ledger_no_connection: Gauge::default(),
            ledger_batch_events: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            ledger_batch_seconds: Histogram::new(exponential_buckets(1e-4, 2.0, 16)),
            ledger_queue_depth: Gauge::default(),
            completions_waiting: Gauge::default(),
            ledger_errors: Default::default(),
            memory_records: Gauge::default(),
            memory_records_max: Gauge::default(),
            leases: Default::default(),
            queue_depth: Gauge::default(),
            // 10 ms to 22 minutes.
            queue_wait_seconds: Histogram::new(exponential_buckets(0.01, 2.0, 18)),
            // The real wait over the promised one: 1 is as promised, 2 took twice as long.
            queue_eta_ratio: Histogram::new([0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0]),
            queue: Default::default(),
            slabs: Gauge::default(),
            hub_streams: Gauge::default(),
            hub_chains: Counter::default(),
            slab_answers: SlabAnswers::default(),
            slab_units: SlabUnits::default(),
            hub_slab_answers: SlabAnswers::default(),
            hub_slab_units: SlabUnits::default(),
            hub_loans: Gauge::default(),
            slab_panics: Counter::default(),
            retry_budget_ratio: Gauge::default(),
            reloads: Family::default(),
            config_problems: Gauge::default(),
            tls: TlsMetrics::default(),
            traces: TraceMetrics::default(),
            limit_used: Family::default(),
            limit_capacity: Family::default(),
            limit_debt: Family::default(),
            limit_decisions: PerLimit::default(),
            shadow_denials: ShadowDenials::default(),
            config_info: ConfigInfo::default(),
            ports: Ports::default(),
            ratelimit: None,
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("sluice_decisions", "Answers to ShouldRateLimit", self.decisions.clone());
        r.register("sluice_unmatched", "Requests that no limit applies to", self.unmatched.clone());
        r.register(
            "sluice_unreported_usage",
            "Leases completed without a word on what was used: the estimate stands",
            self.unreported.clone(),
        );
        r.register("sluice_decision_seconds", "Time from request to answer", self.decision_seconds.clone());
        r.register("sluice_retry_after_ms", "Retry hints given with denials", self.retry_after_ms.clone());
        r.register(
            "sluice_hint_error_seconds",
            "Between the time that a caller was told and the one at which it would have been admitted, where hints are informed",
            self.hint_error_seconds.clone(),
        );
        r.register("sluice_ledger_up", "1 when the ledger answers", self.ledger_up.clone());
        r.register("sluice_ledgers", "Ledgers in use: 2 while one replaces the other", self.ledgers.clone());
        r.register(
            "sluice_ledger_safe_after_seconds",
            "From when on the last ledger of the settings alone knows enough, in Unix seconds",
            self.ledger_safe_after.clone(),
        );
        r.register(
            "sluice_ledger_no_connection",
            "Sessions of this instance, of two, that the cluster has no connection left for",
            self.ledger_no_connection.clone(),
        );
        r.register(
            "sluice_ledger_batch_events",
            "Events per request to the ledger",
            self.ledger_batch_events.clone(),
        );
        r.register(
            "sluice_ledger_batch_seconds",
            "Time of a request to the ledger",
            self.ledger_batch_seconds.clone(),
        );
        r.register(
            "sluice_ledger_queue_depth",
            "Chains waiting for the ledger",
            self.ledger_queue_depth.clone(),
        );
        r.register(
            "sluice_completions_waiting",
            "Completions that have not reached the ledger yet",
            self.completions_waiting.clone(),
        );
        let errors = Family::<KindLabel, Counter>::default();
        r.register("sluice_ledger_errors", "Calls that the ledger did not answer", errors.clone());
        self.ledger_errors =
            LedgerFailure::ALL.map(|kind| errors.get_or_create_owned(&KindLabel { kind: kind.name() }));
        r.register(
            "sluice_memory_records",
            "Reservations and names that the memory ledger holds",
            self.memory_records.clone(),
        );
        r.register("sluice_memory_records_max", "How many it can hold", self.memory_records_max.clone());
        let leases = Family::<EventLabel, Counter>::default();
        r.register("sluice_leases", "What became of leases", leases.clone());
        self.leases =
            LeaseEvent::ALL.map(|event| leases.get_or_create_owned(&EventLabel { event: event.name() }));
        r.register("sluice_queue_depth", "Jobs waiting in line", self.queue_depth.clone());
        r.register(
            "sluice_queue_wait_seconds",
            "Time in line of jobs served",
            self.queue_wait_seconds.clone(),
        );
        r.register(
            "sluice_queue_eta_ratio",
            "Real wait over the first promise, of jobs that were promised a time",
            self.queue_eta_ratio.clone(),
        );
        let queue = Family::<EventLabel, Counter>::default();
        r.register("sluice_queue_jobs", "What became of jobs that queue", queue.clone());
        self.queue =
            QueueEvent::ALL.map(|event| queue.get_or_create_owned(&EventLabel { event: event.name() }));
        r.register("sluice_slabs", "Slabs that are handed out of now", self.slabs.clone());
        let help = "Who answered for limits that may have slabs";
        self.slab_answers = SlabAnswers::register(r, "sluice_slab_answers", help);
        let help = "What became of the units of slabs";
        self.slab_units = SlabUnits::register(r, "sluice_slab_units", help);
        let help = "Who answered sidecars that asked this hub for a slab";
        self.hub_slab_answers = SlabAnswers::register(r, "sluice_hub_slab_answers", help);
        let help = "What became of the units of the slabs that this hub lends";
        self.hub_slab_units = SlabUnits::register(r, "sluice_hub_slab_units", help);
        r.register("sluice_hub_loans", "Slabs that sidecars have been lent now", self.hub_loans.clone());
        r.register("sluice_hub_streams", "Sidecars that use this hub", self.hub_streams.clone());
        r.register(
            "sluice_hub_chains",
            "Chains that sidecars have sent to this hub",
            self.hub_chains.clone(),
        );
        r.register("sluice_slab_panics", "Panics in taking or giving back slabs", self.slab_panics.clone());
        r.register(
            "sluice_retry_budget_ratio",
            "Admitted retries per original",
            self.retry_budget_ratio.clone(),
        );
        r.register("sluice_build_info", "Which Sluice this is", BuildInfo);
        r.register("sluice_config_info", "Which configuration is live", self.config_info.clone());
        r.register("sluice_config_reloads", "Loads of the hot files", self.reloads.clone());
        let problems = "What is wrong with the configuration now, so that it is not live";
        r.register("sluice_config_problems", problems, self.config_problems.clone());
        self.tls.register(r);
        self.traces.register(r);
        // There before the first mistake, or an alert on its increase would miss that one.
        for result in ["ok", "error"] {
            drop(self.reloads.get_or_create(&ResultLabel { result }));
        }
        r.register("sluice_limit_used", "Reserved now, of named limits", self.limit_used.clone());
        r.register("sluice_limit_capacity", "Capacity of named limits", self.limit_capacity.clone());
        r.register("sluice_limit_debt", "Debt of named limits", self.limit_debt.clone());
        r.register(
            "sluice_limit_decisions",
            "Answers per limit, for descriptors with detailed_metric",
            self.limit_decisions.clone(),
        );
        r.register(
            "sluice_shadow_denials",
            "Times a limit in shadow mode would have denied",
            self.shadow_denials.clone(),
        );
        self.ports.register(r);
    }

    pub(crate) fn port(&self, port: &'static str) -> PortMetrics {
        self.ports.of(port)
    }

    pub(crate) fn domain(&self, domain: &str) -> Arc<DomainCounters> {
        let counter = |code, reason| {
            let labels = DecisionLabels { domain: domain.to_owned(), code, reason };
            self.decisions.get_or_create(&labels).clone()
        };
        let label = DomainLabel { domain: domain.to_owned() };
        Arc::new(DomainCounters {
            unmatched: self.unmatched.get_or_create(&label).clone(),
            unreported: self.unreported.get_or_create(&label).clone(),
            allowed: counter("OK", Reason::Allowed),
            allowed_unasked: counter("OK", Reason::BackendError),
            denied: std::array::from_fn(|n| counter("OVER_LIMIT", Reason::ALL[n + 1])),
        })
    }

    /// No file has the domain any more: what was counted of it would stay for ever.
    pub(crate) fn forget_domain(&self, domain: &str) {
        if [UNKNOWN, LEASE_API].contains(&domain) {
            return;
        }
        let codes = [("OK", Reason::Allowed), ("OK", Reason::BackendError)];
        let denials = Reason::ALL.into_iter().skip(1).map(|reason| ("OVER_LIMIT", reason));
        for (code, reason) in codes.into_iter().chain(denials) {
            self.decisions.remove(&DecisionLabels { domain: domain.to_owned(), code, reason });
        }
        let label = DomainLabel { domain: domain.to_owned() };
        self.unmatched.remove(&label);
        self.unreported.remove(&label);
    }

    pub(crate) fn ledger_failed(&self, failure: LedgerFailure) {
        self.ledger_errors[failure as usize].inc();
    }

    /// Counts it; how many of its kind there have been.
    pub(crate) fn lease_event(&self, event: LeaseEvent) -> u64 {
        self.leases[event as usize].inc() + 1
    }

    pub(crate) fn queue_event(&self, event: QueueEvent) {
        self.queue[event as usize].inc();
    }

    /// A job was served after so long, and what it had been promised first.
    pub(crate) fn queue_served(&self, waited_seconds: f64, promised_seconds: Option<u64>) {
        self.queue_event(QueueEvent::Served);
        self.queue_wait_seconds.observe(waited_seconds);
        if let Some(promised) = promised_seconds.filter(|seconds| *seconds > 0) {
            self.queue_eta_ratio.observe(waited_seconds / promised as f64);
        }
    }

    pub(crate) fn reloaded(&self, ok: bool) {
        self.reloads.get_or_create(&ResultLabel::of(ok)).inc();
    }

    /// The configuration with this hash is live, and no other.
    pub(crate) fn config_live(&self, hash: &str) {
        self.config_info.set(hash);
    }

    /// A named limit is none any more: its gauges would stand still.
    pub(crate) fn forget_limit(&self, limit: &str) {
        let label = LimitLabel { limit: limit.to_owned() };
        for family in [&self.limit_used, &self.limit_capacity, &self.limit_debt] {
            family.remove(&label);
        }
    }

    /// A limit in shadow mode would have denied.
    pub(crate) fn shadow_denied(&self, limit: &str) {
        self.shadow_denials.count(limit);
    }

    /// Counts an answer of a limit that opted into a label of its own.
    pub(crate) fn limit_decided(&self, limit: &str, allowed: bool) {
        self.limit_decisions.count(limit, allowed);
    }

    /// The Prometheus text of everything.
    pub(crate) fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}
