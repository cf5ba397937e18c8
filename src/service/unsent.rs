//! A lease belongs to the answer that tells of it: an answer that is never sent gives the lease back.
//!
//! An [`UnsentLease`] travels with its answer, through the handler and the port, down to the connection, which says
//! [`UnsentLease::sent`] when it has taken the last byte. Dropped before that, whatever the cause, it gives back all that
//! was reserved. Refuses to know how answers are written.

use std::sync::Arc;

use tokio_util::task::task_tracker::TaskTrackerToken;

use super::Service;
use crate::lease::Lease;
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
    Lease { id: LeaseId, undo: Box<Chain> },
    /// An answer about a place. The first one makes it known: a place that nobody has heard of is forgotten. One that says
    /// that it was served picks it up.
    Place { id: JobId, is_first: bool, is_served: bool },
    /// An answer about a place at a hub, which counts it as heard of, and what was reserved for it if the answer picks that up.
    InLine { id: LeaseId, is_first: bool, picked_up: Option<Box<Lease>> },
    /// A place that was picked up by an answer that the connection has taken, and what was reserved for it.
    PickedUp { id: JobId, lease: Box<Lease> },
}

impl UnsentLease {
    pub(super) fn lease(service: &Arc<Service>, id: LeaseId, undo: Box<Chain>) -> Self {
        Self::new(service, What::Lease { id, undo })
    }

    pub(super) fn place(service: &Arc<Service>, id: JobId, is_first: bool) -> Self {
        Self::new(service, What::Place { id, is_first, is_served: false })
    }

    pub(super) fn in_line(
        service: &Arc<Service>,
        id: LeaseId,
        is_first: bool,
        picked_up: Option<Box<Lease>>,
    ) -> Self {
        Self::new(service, What::InLine { id, is_first, picked_up })
    }

    /// Its answer says that the place was served.
    pub(super) fn says_served(&mut self) {
        if let Some(What::Place { is_served, .. }) = self.news.as_mut().map(|news| &mut news.what) {
            *is_served = true;
        }
    }

    fn new(service: &Arc<Service>, what: What) -> Self {
        let (service, call) = (Arc::clone(service), Some(service.call()));
        Self { news: Some(Box::new(News { service, what, call })) }
    }

    /// The connection has written its answer, and may find out later that nobody has read it. False if nothing would be given back then.
    /// Stopping does not wait for that. A place counts as known to its caller at once, because whoever has the answer may ask about it.
    pub(crate) fn taken(&mut self) -> bool {
        let Some(mut news) = self.news.take() else { return false };
        news.call = None;
        if let What::Place { id, is_first, is_served } = news.what {
            match news.service.place_was_heard_of(id, is_first, is_served) {
                Some(lease) => news.what = What::PickedUp { id, lease },
                None => return false,
            }
        }
        // The place is known at its hub already.
        if let What::InLine { picked_up: None, .. } = news.what {
            return false;
        }
        self.news = Some(news);
        true
    }

    /// The caller has its answer, as far as this side can know.
    pub fn sent(mut self) {
        let Some(news) = self.news.take() else { return };
        match news.what {
            What::Lease { id, .. } => news.service.leases.sent(&id),
            What::Place { id, is_first, is_served } => {
                drop(news.service.place_was_heard_of(id, is_first, is_served));
            }
            What::PickedUp { .. } | What::InLine { .. } => {}
        }
    }
}

impl Drop for UnsentLease {
    fn drop(&mut self) {
        let Some(news) = self.news.take() else { return };
        let News { service, what, call } = *news;
        match what {
            // Whoever chose the name may have sent it twice, and may have heard the other answer.
            What::Lease { id, undo } => {
                if service.leases.unsent(&id, undo.keep.is_named()) {
                    service.give_back(*undo);
                }
            }
            What::Place { id, is_first: true, .. } => service.queue.end_call(id, false),
            What::Place { .. } => {}
            What::PickedUp { id, lease } => service.queue.not_picked_up(id, lease),
            What::InLine { is_first: false, picked_up: None, .. } => {}
            What::InLine { id, picked_up, .. } => service.take_back_later(id, picked_up, call),
        }
    }
}

impl Service {
    /// What was reserved for a place, if it was picked up now.
    fn place_was_heard_of(&self, id: JobId, is_first: bool, is_served: bool) -> Option<Box<Lease>> {
        let lease = if is_served { self.queue.picked_up(id) } else { None };
        if is_first {
            self.queue.end_call(id, true);
        }
        lease
    }

    /// Tells a hub that nobody has heard of a place. Whoever drops an answer can't wait for that.
    fn take_back_later(
        self: Arc<Self>,
        id: LeaseId,
        picked_up: Option<Box<Lease>>,
        call: Option<TaskTrackerToken>,
    ) {
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let _call = call;
                self.take_back(id, picked_up).await;
            });
        }
    }

    /// Gives back what was reserved for a caller that left before it was told.
    pub(super) fn give_back(&self, undo: Chain) {
        let limits: Vec<_> = undo.transfers.iter().map(|transfer| transfer.account.id).collect();
        self.admission.ledger.give_back(undo);
        // A shared ledger counts it by itself, when the void has landed.
        if !self.admission.ledger.is_shared() {
            self.metrics.lease_event(LeaseEvent::VoidedOnCancel);
        }
        self.queue.freed(limits.into_iter());
    }
}
