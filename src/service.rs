//! What every way in shares: the live snapshot and the decision.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

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
    calls: AtomicUsize,
}

/// A call that has not been answered yet.
#[derive(Debug)]
pub struct Call<'s>(&'s Service);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Service {
    pub fn new(live: Live, admission: Admission, metrics: Arc<Metrics>) -> Self {
        Self { live, admission, metrics, draining: AtomicBool::new(false), calls: AtomicUsize::new(0) }
    }

    /// Held by whoever works on a call, so that stopping can wait for it.
    pub fn call(&self) -> Call<'_> {
        self.calls.fetch_add(1, Ordering::AcqRel);
        Call(self)
    }

    pub fn calls_in_flight(&self) -> usize {
        self.calls.load(Ordering::Acquire)
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
