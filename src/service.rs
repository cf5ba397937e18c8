//! What every way in shares: the live snapshot, the decision and the leases.

pub mod complete;
pub mod queue;
pub mod reserve;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::admission::Admission;
use crate::lease::Desk;
use crate::queue::Queue;
use crate::snapshot::Live;
use crate::telemetry::{DomainCounters, Metrics};

/// What the lease API is called in metrics, where ShouldRateLimit has the name of a domain.
const LEASE_API: &str = "lease_api";

#[derive(Debug)]
pub struct Service {
    pub live: Live,
    pub admission: Admission,
    pub desk: Desk,
    pub queue: Queue,
    pub metrics: Arc<Metrics>,
    lease_api: Arc<DomainCounters>,
    /// Falls before anything stops, so that whoever routes to us goes elsewhere first.
    draining: AtomicBool,
    calls: TaskTracker,
}

impl Service {
    pub fn new(live: Live, admission: Admission, desk: Desk, metrics: Arc<Metrics>) -> Self {
        let lease_api = metrics.domain(LEASE_API);
        let (draining, calls) = (AtomicBool::new(false), TaskTracker::new());
        let queue =
            Queue::new(admission.ledger.is_shared(), Arc::clone(&admission.share), Arc::clone(&metrics));
        Self { live, admission, desk, queue, metrics, lease_api, draining, calls }
    }

    /// Held by whoever works on a call, so that stopping can wait for it.
    pub fn call(&self) -> TaskTrackerToken {
        self.calls.token()
    }

    /// Returns when no call is being worked on.
    pub async fn finish_calls(&self) {
        self.calls.close();
        self.calls.wait().await;
    }

    pub fn start_draining(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Ready to be sent requests; the reason if not.
    pub fn ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Acquire) {
            return Err("draining".to_owned());
        }
        self.admission.ledger.ready()
    }
}
