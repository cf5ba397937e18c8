//! A lease belongs to the answer that tells of it: an answer that is never sent gives the lease back.
//!
//! An [`UnsentLease`] travels with its answer, through the handler and the port, down to the connection, which says
//! [`UnsentLease::sent`] when it has taken the last byte. Dropped before that, whatever the cause, it gives back all that
//! was reserved. Refuses to know how answers are written.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Service;
use crate::ledger::{Chain, Ledger};
use crate::limit::LeaseId;
use crate::telemetry::LeaseEvent;

/// A lease that its caller has not heard of yet.
#[derive(Debug)]
pub struct UnsentLease {
    /// Taken when there is nothing to give back any more.
    held: Option<Box<HeldForAnswer>>,
}

#[derive(Debug)]
struct HeldForAnswer {
    service: Arc<Service>,
    lease: LeaseId,
    undo: Chain,
    /// Stopping waits for it, so that the ledger is still there to give it back to.
    _call: TaskTrackerToken,
}

impl UnsentLease {
    /// `undo` is the chain that reserved it.
    pub(super) fn new(service: &Arc<Service>, lease: LeaseId, undo: Chain) -> Self {
        let (service, _call) = (Arc::clone(service), service.call());
        Self { held: Some(Box::new(HeldForAnswer { service, lease, undo, _call })) }
    }

    /// The caller has its answer, as far as this side can know.
    pub fn sent(mut self) {
        if let Some(held) = self.held.take() {
            held.service.leases.sent(&held.lease);
        }
    }
}

impl Drop for UnsentLease {
    fn drop(&mut self) {
        let Some(held) = self.held.take() else { return };
        let HeldForAnswer { service, lease, undo, .. } = *held;
        // Whoever chose the name may have sent it twice, and may have heard the other answer.
        if service.leases.unsent(&lease, undo.keep.is_named()) {
            service.give_back(undo);
        }
    }
}

impl Service {
    /// Gives back what was reserved for a caller that left before it was told.
    pub(super) fn give_back(&self, undo: Chain) {
        let limits: Vec<_> = undo.transfers.iter().map(|transfer| transfer.account.id).collect();
        self.admission.ledger.give_back(undo);
        // A ledger that others share counts by itself, when it has landed.
        if !self.admission.ledger.is_shared() {
            self.metrics.lease_event(LeaseEvent::VoidedOnCancel);
        }
        self.queue.freed(limits.into_iter());
    }
}
