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
use crate::queue::JobId;
use crate::telemetry::LeaseEvent;

/// A lease, or a place in the queue, that its caller has not heard of yet.
#[derive(Debug)]
pub struct UnsentLease {
    /// Taken when there is nothing to give back any more.
    news: Option<Box<News>>,
}

#[derive(Debug)]
struct News {
    service: Arc<Service>,
    what: What,
    /// Stopping waits for it, so that the ledger is still there to give it back to.
    call: Option<TaskTrackerToken>,
}

#[derive(Debug)]
enum What {
    /// `undo` is the chain that reserved it.
    Lease { id: LeaseId, undo: Chain },
    /// The first answer about a place. A place that nobody has heard of is forgotten.
    NewPlace(JobId),
    /// A later one. What was reserved for a place is picked up by whoever hears of it.
    Place(JobId),
}

impl UnsentLease {
    pub(super) fn lease(service: &Arc<Service>, id: LeaseId, undo: Chain) -> Self {
        Self::new(service, What::Lease { id, undo })
    }

    pub(super) fn new_place(service: &Arc<Service>, id: JobId) -> Self {
        Self::new(service, What::NewPlace(id))
    }

    pub(super) fn place(service: &Arc<Service>, id: JobId) -> Self {
        Self::new(service, What::Place(id))
    }

    fn new(service: &Arc<Service>, what: What) -> Self {
        let (service, call) = (Arc::clone(service), Some(service.call()));
        Self { news: Some(Box::new(News { service, what, call })) }
    }

    /// Stopping need not wait for it any more: its answer was written, and whether that is read may never be known.
    pub(crate) fn ends_its_call(&mut self) {
        if let Some(news) = &mut self.news {
            news.call = None;
        }
    }

    /// The caller has its answer, as far as this side can know.
    pub fn sent(mut self) {
        let Some(news) = self.news.take() else { return };
        match news.what {
            What::Lease { id, .. } => news.service.leases.sent(&id),
            What::Place(id) => news.service.queue.picked_up(id),
            What::NewPlace(id) => {
                news.service.queue.picked_up(id);
                news.service.queue.end_call(id, true);
            }
        }
    }
}

impl Drop for UnsentLease {
    fn drop(&mut self) {
        let Some(news) = self.news.take() else { return };
        let News { service, what, .. } = *news;
        match what {
            // Whoever chose the name may have sent it twice, and may have heard the other answer.
            What::Lease { id, undo } => {
                if service.leases.unsent(&id, undo.keep.is_named()) {
                    service.give_back(undo);
                }
            }
            What::NewPlace(id) => service.queue.end_call(id, false),
            What::Place(_) => {}
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
