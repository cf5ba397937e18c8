//! What every way in shares: the live snapshot and the decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::admission::Admission;
use crate::snapshot::Live;
use crate::telemetry::Metrics;

#[derive(Debug)]
pub struct Service {
    pub live: Live,
    pub admission: Admission,
    pub metrics: Arc<Metrics>,
    /// Falls before anything stops, so that whoever routes to us goes elsewhere first.
    draining: AtomicBool,
}

impl Service {
    pub fn new(live: Live, admission: Admission, metrics: Arc<Metrics>) -> Self {
        Self { live, admission, metrics, draining: AtomicBool::new(false) }
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
