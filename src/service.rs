//! The use cases, one file each, and what they share: the live snapshot, the decision and the leases.
//!
//! Ports call one of these for each call that comes in. Nothing above decides, and nothing here knows the wire.

pub(crate) mod check;
pub(crate) mod complete;
pub(crate) mod explain;
pub(crate) mod forgive;
pub(crate) mod inspect;
pub(crate) mod ledgers;
mod line;
pub mod queue;
pub(crate) mod record;
pub mod reserve;
pub mod unsent;
pub(crate) mod watch;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use http::HeaderMap;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use self::check::Tells;
use crate::admission::Admission;
use crate::lease::Leases;
use crate::ledger::Ledger;
use crate::ledger::hub::FleetLine;
use crate::queue::Queue;
use crate::record::Recorders;
use crate::snapshot::Live;
use crate::telemetry::{DomainCounters, LEASE_API, Metrics};
use crate::trace::{Call, Span};
use ledgers::Ledgers;

#[derive(Debug)]
pub struct Service {
    pub live: Live,
    pub admission: Admission,
    pub(crate) leases: Leases,
    pub queue: Queue,
    /// Where places in line are kept, if that is not in `queue`.
    line: Option<Arc<FleetLine>>,
    ledgers: Ledgers,
    pub metrics: Arc<Metrics>,
    lease_api: Arc<DomainCounters>,
    /// Stands for the lease API wherever other calls have a domain.
    lease_api_name: Arc<str>,
    pub(crate) tells: Tells,
    recorders: Arc<Recorders>,
    /// Held by whoever lists limits.
    listing: Arc<Mutex<()>>,
    /// Falls before anything stops, so that whoever routes to us goes elsewhere first.
    draining: AtomicBool,
    /// The xDS server has not sent any limits yet, and nobody may be admitted without them.
    unconfigured: AtomicBool,
    calls: TaskTracker,
    /// The open connections of the gRPC port.
    connections: TaskTracker,
    /// Cancelled when those who watch should go.
    watching: CancellationToken,
}

impl Service {
    pub(crate) fn new(
        live: Live,
        admission: Admission,
        leases: Leases,
        ledgers: Ledgers,
        line: Option<FleetLine>,
        metrics: Arc<Metrics>,
        tells: Tells,
    ) -> Self {
        let (lease_api, lease_api_name) = (metrics.domain(LEASE_API), Arc::from(LEASE_API));
        let (draining, unconfigured) = (AtomicBool::new(false), AtomicBool::new(false));
        let (calls, connections) = (TaskTracker::new(), TaskTracker::new());
        let is_shared = admission.ledger.is_shared();
        let queue = Queue::new(is_shared, Arc::clone(&admission.share), Arc::clone(&metrics));
        Self {
            live,
            admission,
            leases,
            queue,
            line: line.map(Arc::new),
            ledgers,
            metrics,
            lease_api,
            lease_api_name,
            tells,
            recorders: Arc::default(),
            listing: Arc::default(),
            draining,
            unconfigured,
            calls,
            connections,
            watching: CancellationToken::new(),
        }
    }

    /// Held by whoever works on a call, so that stopping can wait for it.
    pub fn call(&self) -> TaskTrackerToken {
        self.calls.token()
    }

    /// Returns when no call is being worked on.
    pub(crate) async fn finish_calls(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    /// Held by a connection of the gRPC port for as long as it is open.
    pub(crate) fn connection(&self) -> TaskTrackerToken {
        self.connections.token()
    }

    /// How many connections are open.
    pub(crate) fn connected(&self) -> usize {
        self.connections.len()
    }

    /// The span of a call with these headers, if it has one.
    pub(crate) fn span(&self, call: &'static Call, headers: &HeaderMap) -> Option<Box<Span>> {
        self.admission.tracer.as_ref()?.call(call, headers)
    }

    pub(crate) fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Not ready until [`configured`](Self::configured).
    pub(crate) fn wait_for_configuration(&self) {
        self.unconfigured.store(true, Ordering::Release);
    }

    /// The source of the limits has said what they are, even if there are none.
    pub(crate) fn configured(&self) {
        self.unconfigured.store(false, Ordering::Release);
    }

    /// Whether the start is done and the end has not begun; the reason if not. Whether the ledger answers makes no difference.
    pub(crate) fn started(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Acquire) {
            return Err("draining".to_owned());
        }
        match self.unconfigured.load(Ordering::Acquire) {
            true => Err("the xDS server has not sent the limits yet".to_owned()),
            false => Ok(()),
        }
    }

    /// Ready to be sent requests; the reason if not.
    pub(crate) fn ready(&self) -> Result<(), String> {
        self.started()?;
        self.admission.ledger.ready()
    }
}
