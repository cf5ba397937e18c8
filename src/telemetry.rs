//! Logs and metrics: how they are set up, and the counters that more than one module touches.

use std::io::IsTerminal;
use std::sync::Arc;

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// Label sets that limits with `detailed_metric` may have together; later ones share `other`.
const DETAILED_LIMITS_MAX: usize = 1000;

/// Of a LimitKey in a label; the rest is cut, because values come from clients.
const DETAILED_LABEL_BYTES_MAX: usize = 256;

/// Why a request was answered as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// It was allowed.
    Allowed,
    OverLimit,
    LimitDecreasing,
    RetryBudget,
    QueueFull,
    NeverFits,
    /// The ledger failed and `on_failure` decided.
    BackendError,
}

impl Reason {
    /// Those of a denial.
    const DENIALS: [Reason; 6] = [
        Reason::OverLimit,
        Reason::LimitDecreasing,
        Reason::RetryBudget,
        Reason::QueueFull,
        Reason::NeverFits,
        Reason::BackendError,
    ];

    /// As in the header `x-sluice-reason`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Allowed => "",
            Reason::OverLimit => "over_limit",
            Reason::LimitDecreasing => "limit_decreasing",
            Reason::RetryBudget => "retry_budget",
            Reason::QueueFull => "queue_full",
            Reason::NeverFits => "never_fits",
            Reason::BackendError => "backend_error",
        }
    }
}

impl EncodeLabelValue for Reason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    domain: String,
    code: &'static str,
    reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct LimitLabel {
    pub limit: String,
}

/// Where the limit is written: as many as there are rules in the files.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabel {
    rule: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitCodeLabels {
    limit: String,
    code: &'static str,
}

/// What became of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LeaseEvent {
    Reserved,
    Completed,
    ExpiredUnseen,
    VoidedOnCancel,
    Forged,
}

impl LeaseEvent {
    pub const ALL: [LeaseEvent; 5] = [
        LeaseEvent::Reserved,
        LeaseEvent::Completed,
        LeaseEvent::ExpiredUnseen,
        LeaseEvent::VoidedOnCancel,
        LeaseEvent::Forged,
    ];

    fn name(self) -> &'static str {
        match self {
            LeaseEvent::Reserved => "reserved",
            LeaseEvent::Completed => "completed",
            LeaseEvent::ExpiredUnseen => "expired_unseen",
            LeaseEvent::VoidedOnCancel => "voided_on_cancel",
            LeaseEvent::Forged => "forged",
        }
    }
}

/// What became of those who wait for a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum QueueEvent {
    Joined,
    /// There was no place.
    Full,
    Served,
    Cancelled,
    /// Waited as long as a job may.
    TimedOut,
    Failed,
    /// Left without a word: did not pick up what was reserved, or went before it heard of its place.
    Abandoned,
}

impl QueueEvent {
    pub const ALL: [QueueEvent; 7] = [
        QueueEvent::Joined,
        QueueEvent::Full,
        QueueEvent::Served,
        QueueEvent::Cancelled,
        QueueEvent::TimedOut,
        QueueEvent::Failed,
        QueueEvent::Abandoned,
    ];

    fn name(self) -> &'static str {
        match self {
            QueueEvent::Joined => "joined",
            QueueEvent::Full => "queue_full",
            QueueEvent::Served => "reserved",
            QueueEvent::Cancelled => "cancelled",
            QueueEvent::TimedOut => "timed_out",
            QueueEvent::Failed => "failed",
            QueueEvent::Abandoned => "abandoned",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EventLabel {
    event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// How the ledger failed to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LedgerFailure {
    Unavailable,
    TimedOut,
    QueueFull,
    Full,
}

impl LedgerFailure {
    const ALL: [LedgerFailure; 4] =
        [LedgerFailure::Unavailable, LedgerFailure::TimedOut, LedgerFailure::QueueFull, LedgerFailure::Full];

    fn name(self) -> &'static str {
        match self {
            LedgerFailure::Unavailable => "unavailable",
            LedgerFailure::TimedOut => "timed_out",
            LedgerFailure::QueueFull => "queue_full",
            LedgerFailure::Full => "full",
        }
    }
}

/// Why a connection was closed from our side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Closed {
    /// All places were taken.
    ForOthers,
    /// Its answers were not taken.
    Unread,
}

impl Closed {
    const ALL: [(Closed, &'static str); 2] = [(Closed::ForOthers, "for_others"), (Closed::Unread, "unread")];
}

/// Why a request was turned away before it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The requests under way held as much as they may.
    Memory,
    /// Its body did not come in time.
    Slow,
}

impl Refused {
    const ALL: [(Refused, &'static str); 2] = [(Refused::Memory, "memory"), (Refused::Slow, "slow")];
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabel {
    port: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortReasonLabels {
    port: &'static str,
    reason: &'static str,
}

/// One port's counters.
#[derive(Debug)]
pub struct PortMetrics {
    pub connections: Gauge,
    /// In the order of [`Closed::ALL`].
    closed: [Counter; Closed::ALL.len()],
    /// In the order of [`Refused::ALL`].
    refused: [Counter; Refused::ALL.len()],
}

impl PortMetrics {
    pub fn closed(&self, why: Closed) {
        self.closed[why as usize].inc();
    }

    pub fn refused(&self, why: Refused) {
        self.refused[why as usize].inc();
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabel {
    kind: &'static str,
}

/// The counters of one domain, looked up once per reload instead of once per request.
#[derive(Debug)]
pub struct DomainCounters {
    allowed: Counter,
    allowed_unasked: Counter,
    /// In the order of [`Reason::DENIALS`].
    denied: [Counter; Reason::DENIALS.len()],
}

impl DomainCounters {
    pub fn allowed(&self, reason: Reason) {
        if reason == Reason::Allowed {
            self.allowed.inc()
        } else {
            self.allowed_unasked.inc()
        };
    }

    pub fn denied(&self, reason: Reason) {
        let place = Reason::DENIALS.iter().position(|it| *it == reason);
        self.denied[place.expect("a denial must have a reason")].inc();
    }
}

/// Every metric, and the registry that prints them.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    decisions: Family<DecisionLabels, Counter>,
    pub decision_seconds: Histogram,
    pub retry_after_ms: Histogram,
    pub ledger_up: Gauge,
    pub ledger_batch_events: Histogram,
    pub ledger_batch_seconds: Histogram,
    pub ledger_queue_depth: Gauge,
    /// In the order of [`LedgerFailure::ALL`].
    ledger_errors: [Counter; LedgerFailure::ALL.len()],
    pub memory_records: Gauge,
    pub memory_records_max: Gauge,
    /// In the order of [`LeaseEvent::ALL`]: there from the start, so that a rate can be taken of each.
    leases: [Counter; LeaseEvent::ALL.len()],
    pub queue_depth: Gauge,
    queue_wait_seconds: Histogram,
    queue_eta_ratio: Histogram,
    /// In the order of [`QueueEvent::ALL`].
    queue: [Counter; QueueEvent::ALL.len()],
    pub retry_budget_ratio: Gauge<f64, std::sync::atomic::AtomicU64>,
    reloads: Family<ResultLabel, Counter>,
    pub limit_used: Family<LimitLabel, Gauge>,
    pub limit_capacity: Family<LimitLabel, Gauge>,
    pub limit_debt: Family<LimitLabel, Gauge>,
    limit_decisions: Family<LimitCodeLabels, Counter>,
    detailed_limits: parking_lot::Mutex<ahash::AHashSet<String>>,
    shadow_denials: Family<RuleLabel, Counter>,
    connections: Family<PortLabel, Gauge>,
    connections_closed: Family<PortReasonLabels, Counter>,
    requests_refused: Family<PortReasonLabels, Counter>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::default(),
            decisions: Family::default(),
            // 1 µs to 0.5 s: a memory answer takes microseconds, a TigerBeetle one milliseconds.
            decision_seconds: Histogram::new(exponential_buckets(1e-6, 2.0, 20)),
            retry_after_ms: Histogram::new(exponential_buckets(1.0, 2.0, 20)),
            ledger_up: Gauge::default(),
            ledger_batch_events: Histogram::new(exponential_buckets(1.0, 2.0, 14)),
            ledger_batch_seconds: Histogram::new(exponential_buckets(1e-4, 2.0, 16)),
            ledger_queue_depth: Gauge::default(),
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
            retry_budget_ratio: Gauge::default(),
            reloads: Family::default(),
            limit_used: Family::default(),
            limit_capacity: Family::default(),
            limit_debt: Family::default(),
            limit_decisions: Family::default(),
            detailed_limits: parking_lot::Mutex::default(),
            shadow_denials: Family::default(),
            connections: Family::default(),
            connections_closed: Family::default(),
            requests_refused: Family::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&mut self) {
        let r = &mut self.registry;
        r.register("sluice_decisions", "Answers to ShouldRateLimit", self.decisions.clone());
        r.register("sluice_decision_seconds", "Time from request to answer", self.decision_seconds.clone());
        r.register("sluice_retry_after_ms", "Retry hints given with denials", self.retry_after_ms.clone());
        r.register("sluice_ledger_up", "1 when the ledger answers", self.ledger_up.clone());
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
        r.register(
            "sluice_retry_budget_ratio",
            "Admitted retries per original",
            self.retry_budget_ratio.clone(),
        );
        r.register("sluice_config_reloads", "Loads of the hot files", self.reloads.clone());
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
        r.register("sluice_connections", "Open connections", self.connections.clone());
        r.register(
            "sluice_connections_closed",
            "Connections closed for others, or because their answers were not taken",
            self.connections_closed.clone(),
        );
        r.register(
            "sluice_requests_refused",
            "Requests that held too much or came too slowly to be read",
            self.requests_refused.clone(),
        );
    }

    /// There from the start, so that a rate can be taken of each.
    pub fn port(&self, port: &'static str) -> PortMetrics {
        let counter = |family: &Family<PortReasonLabels, Counter>, reason| {
            family.get_or_create_owned(&PortReasonLabels { port, reason })
        };
        PortMetrics {
            connections: self.connections.get_or_create_owned(&PortLabel { port }),
            closed: Closed::ALL.map(|(_, reason)| counter(&self.connections_closed, reason)),
            refused: Refused::ALL.map(|(_, reason)| counter(&self.requests_refused, reason)),
        }
    }

    pub fn domain(&self, domain: &str) -> Arc<DomainCounters> {
        let counter = |code, reason| {
            let labels = DecisionLabels { domain: domain.to_owned(), code, reason };
            self.decisions.get_or_create(&labels).clone()
        };
        Arc::new(DomainCounters {
            allowed: counter("OK", Reason::Allowed),
            allowed_unasked: counter("OK", Reason::BackendError),
            denied: Reason::DENIALS.map(|reason| counter("OVER_LIMIT", reason)),
        })
    }

    pub fn ledger_failed(&self, failure: LedgerFailure) {
        self.ledger_errors[failure as usize].inc();
    }

    /// Counts it; how many of its kind there have been.
    pub fn lease_event(&self, event: LeaseEvent) -> u64 {
        self.leases[event as usize].inc() + 1
    }

    pub fn queue_event(&self, event: QueueEvent) {
        self.queue[event as usize].inc();
    }

    /// A job was served after so long, and what it had been promised first.
    pub fn queue_served(&self, waited_seconds: f64, promised_seconds: Option<u64>) {
        self.queue_event(QueueEvent::Served);
        self.queue_wait_seconds.observe(waited_seconds);
        if let Some(promised) = promised_seconds.filter(|seconds| *seconds > 0) {
            self.queue_eta_ratio.observe(waited_seconds / promised as f64);
        }
    }

    pub fn reloaded(&self, ok: bool) {
        let result = if ok { "ok" } else { "error" };
        self.reloads.get_or_create(&ResultLabel { result }).inc();
    }

    /// A named limit is none any more: its gauges would stand still.
    pub fn forget_limit(&self, limit: &str) {
        let label = LimitLabel { limit: limit.to_owned() };
        for family in [&self.limit_used, &self.limit_capacity, &self.limit_debt] {
            family.remove(&label);
        }
    }

    /// A limit in shadow mode would have denied.
    pub fn shadow_denied(&self, rule: &impl std::fmt::Display) {
        self.shadow_denials.get_or_create(&RuleLabel { rule: rule.to_string() }).inc();
    }

    /// Counts an answer of a limit that opted into a label of its own.
    pub fn limit_decided(&self, limit: &str, allowed: bool) {
        let limit = &limit[..limit.floor_char_boundary(DETAILED_LABEL_BYTES_MAX)];
        let code = if allowed { "OK" } else { "OVER_LIMIT" };
        let mut known = self.detailed_limits.lock();
        if !known.contains(limit) && known.len() < DETAILED_LIMITS_MAX {
            known.insert(limit.to_owned());
        }
        let limit = if known.contains(limit) { limit } else { "other" };
        drop(known);
        self.limit_decisions.get_or_create(&LimitCodeLabels { limit: limit.to_owned(), code }).inc();
    }

    /// The Prometheus text of everything.
    pub fn encode(&self) -> Result<String, std::fmt::Error> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// Sends logs to standard error, so that standard output stays the addresses.
pub fn init_logs(json: bool, level: &str) -> Result<(), String> {
    let filter = tracing_subscriber::EnvFilter::try_new(level).map_err(|error| error.to_string())?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if json { builder.json().flatten_event(true).try_init() } else { builder.try_init() }
        .map_err(|error| error.to_string())
}
