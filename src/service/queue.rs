//! The ways into the waiting room: take a place, follow it, leave. What happens in between is [`super::waiter`]'s.
//!
//! Refuses to know the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::Service;
use super::reserve::{Ask, AskName, ReserveError};
use crate::admission::{Denial, Name};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::LedgerError;
use crate::limit::LeaseId;
use crate::retry::eta;
use crate::room::lines::{JobId, LimitId};
use crate::room::{Arrival, Full, Reserved, Room, State};
use crate::telemetry::{QueueEvent, Reason};

/// How long a caller waits for the first word on its place before it hears that it is in line. An attempt ends within
/// `ledger.timeout_ms`, so that is for a line that moves fast and is long.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// The waiting room as the server shares it. A plain mutex: sections walk one line at most and never wait.
#[derive(Debug)]
pub struct Queue {
    pub(super) room: Mutex<Room>,
    /// How many are in line, read without the lock.
    pub(super) depth: AtomicUsize,
    /// Something happened that the waiter has to look at.
    pub(super) wake: Notify,
    pub(super) closing: CancellationToken,
    pub(super) closed: CancellationToken,
}

/// Where somebody stands.
#[derive(Debug, Clone)]
pub struct Standing {
    pub id: LeaseId,
    pub job_id: String,
    pub state: State,
    pub wants: Arc<[(Arc<str>, u64)]>,
    /// How many are before it; `None` when it is not in line.
    pub position: Option<u64>,
    pub eta_seconds: u64,
    pub elapsed_seconds: u64,
}

/// What somebody who left hears.
#[derive(Debug)]
pub enum Left {
    /// It is out of the line, or was already.
    Out(Standing),
    /// It has what it waited for, or never waited: that is completed, not left.
    Holds,
    Unknown,
}

impl Queue {
    /// `is_shared`: others than this process use the ledger.
    pub fn new(is_shared: bool) -> Self {
        Self {
            room: Mutex::new(Room::new(is_shared)),
            depth: AtomicUsize::new(0),
            wake: Notify::new(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// No more places; those who have one are told. Returns when nothing is under way any more.
    pub async fn close(&self, limit: Duration) {
        self.closing.cancel();
        if tokio::time::timeout(limit, self.closed.cancelled()).await.is_err() {
            tracing::warn!("the waiting room did not empty in time");
        }
    }

    /// Something of these limits came back.
    pub(super) fn freed(&self, limits: impl Iterator<Item = LimitId>) {
        if self.depth.load(Ordering::Acquire) > 0 {
            let mut room = self.room.lock();
            limits.for_each(|limit| room.freed(limit));
            drop(room);
            self.wake.notify_one();
        }
    }

    /// A lease was completed; if somebody waited for it, that was all.
    pub(super) fn completed(&self, lease: &LeaseId) {
        let mut room = self.room.lock();
        if let Some(id) = room.of_lease(lease) {
            room.end(id, State::Completed, clock::monotonic_ms());
        }
    }

    /// The limits are others now.
    pub fn limits_changed(&self) {
        if self.depth.load(Ordering::Acquire) > 0 {
            self.room.lock().freed_all();
            self.wake.notify_one();
        }
    }
}

impl Service {
    /// Allowed at once if it fits, else a place in line. A denial says why there is none.
    pub async fn queue_reserve(
        self: &Arc<Self>,
        ask: &Ask<'_>,
    ) -> Result<Result<Standing, Denial>, ReserveError> {
        if self.queue.closing.is_cancelled() {
            return Err(LedgerError::Unavailable("shutting down".to_owned()).into());
        }
        let (id, is_new) = match self.take_place(ask)? {
            Ok(place) => place,
            // No place, but nobody in the way either: it may fit.
            Err(denial) if denial.reason == Reason::QueueFull && denial.limit.is_none() => {
                return self.without_a_place(ask, denial).await;
            }
            Err(denial) => return Ok(Err(self.no_place(denial))),
        };
        // A place that was there before is another call's to lose.
        let unheard = Unheard { service: self, id: is_new.then_some(id) };
        // Late is in line as well.
        drop(tokio::time::timeout(FIRST_WORD, self.first_word(id)).await);
        let standing = self.standing(id);
        unheard.heard();
        // What was given up at this very moment has to be asked for again.
        let lost = || LedgerError::Unavailable("the place in line was lost".to_owned());
        standing.ok_or_else(|| lost().into()).map(Ok)
    }

    fn no_place(&self, denial: Denial) -> Denial {
        self.lease_api.denied(denial.reason);
        if denial.reason == Reason::QueueFull {
            self.metrics.queue_event(QueueEvent::Full);
        }
        denial
    }

    async fn without_a_place(
        &self,
        ask: &Ask<'_>,
        full: Denial,
    ) -> Result<Result<Standing, Denial>, ReserveError> {
        let Ok(mut grant) = self.reserve(ask).await? else { return Ok(Err(self.no_place(full))) };
        grant.told();
        let reserved = Reserved {
            lease: grant.id.clone(),
            token: grant.token.clone(),
            reserved_at_unix_ms: grant.reserved_at_unix_ms,
            ends_at_unix_ms: u64::MAX,
            is_picked_up: true,
        };
        Ok(Ok(Standing {
            id: grant.id.clone(),
            job_id: job_id(ask, &grant.id),
            state: State::Reserved(Box::new(reserved)),
            wants: wants(ask),
            position: None,
            eta_seconds: eta::elapsed_or_default(&self.live.load().retry.queue, 0),
            elapsed_seconds: 0,
        }))
    }

    /// Its place, and whether it is new.
    fn take_place(&self, ask: &Ask<'_>) -> Result<Result<(JobId, bool), Denial>, ReserveError> {
        let snapshot = self.live.load_full();
        let plan = self.plan(&snapshot, ask.wants.iter().copied())?;
        if let Some(denial) = self.admission.never(&plan) {
            return Ok(Err(denial));
        }
        let id = match &ask.name {
            AskName::Fresh => self.admission.name(&plan, Name::Fresh),
            AskName::Request(id) => self.admission.name(&plan, Name::Request(id)),
            AskName::Lease(id) => id.clone(),
        };
        let (policy, now_ms) = (&snapshot.retry.queue, clock::monotonic_ms());
        let bits = id.bits();
        let wants = wants(ask);
        let mut room = self.queue.room.lock();
        match room.ticket(bits) {
            Some(there) if there.wants == wants => return Ok(Ok((bits, false))),
            Some(_) => return Err(ReserveError::UsedForAnother),
            None => {}
        }
        let job_id = job_id(ask, &id);
        let limits = plan.requirements.into_iter().map(|r| (r.account, r.spec, r.amount)).collect();
        let arrival = Arrival { id, job_id, wants, limits };
        let joined = room.join(arrival, policy, |limit| self.admission.turnstile.line_part(limit), now_ms);
        self.queue.depth.store(room.depth(), Ordering::Release);
        drop(room);
        self.queue.wake.notify_one();
        match joined {
            Ok(()) => {
                self.metrics.queue_event(QueueEvent::Joined);
                Ok(Ok((bits, true)))
            }
            Err(Full { limit, eta_seconds }) => {
                let limit = limit.map(|account| account.key.clone());
                let retry_after_ms = Some(eta_seconds * 1000);
                Ok(Err(Denial { limit, reason: Reason::QueueFull, retry_after_ms }))
            }
        }
    }

    /// Returns when a ticket was served, or knows its place.
    async fn first_word(&self, id: JobId) {
        loop {
            let changed = match self.queue.room.lock().ticket(id) {
                Some(ticket) if ticket.state.is_waiting() && !ticket.is_placed => Arc::clone(&ticket.changed),
                Some(ticket) if ticket.state == State::Processing => Arc::clone(&ticket.changed),
                _ => return,
            };
            // What changes between the look above and this is not missed: changes are told under the same lock.
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            let still = self.queue.room.lock().ticket(id).is_some_and(|ticket| {
                ticket.state == State::Processing || (ticket.state.is_waiting() && !ticket.is_placed)
            });
            if !still {
                return;
            }
            notified.await;
        }
    }

    /// Where a ticket stands. Whoever hears that it was served has picked it up.
    pub fn standing(&self, id: JobId) -> Option<Standing> {
        let snapshot = self.live.load();
        let now_ms = clock::monotonic_ms();
        let part = |limit| self.admission.turnstile.line_part(limit);
        let mut room = self.queue.room.lock();
        let status = room.status(id, &snapshot.retry.queue, part, now_ms)?;
        room.picked_up(id);
        let ticket = room.ticket(id)?;
        let mut standing = Standing {
            id: ticket.id.clone(),
            job_id: ticket.job_id.clone(),
            state: ticket.state.clone(),
            wants: Arc::clone(&ticket.wants),
            position: status.place.map(|place| place.position),
            eta_seconds: status.eta_seconds,
            elapsed_seconds: status.elapsed_seconds,
        };
        let ran_out =
            matches!(&standing.state, State::Reserved(held) if held.ends_at_unix_ms <= clock::unix_ms());
        if ran_out {
            standing.state = State::TimedOut("the lease ran out before it was completed");
            standing.eta_seconds = 0;
        }
        Some(standing)
    }

    /// Tells when a ticket changes; `None` if there is none.
    pub fn changes(&self, id: JobId) -> Option<Arc<Notify>> {
        self.queue.room.lock().ticket(id).map(|ticket| Arc::clone(&ticket.changed))
    }

    /// Leaves the line. What was reserved and not picked up goes to the next.
    pub async fn leave(self: &Arc<Self>, id: &str) -> Left {
        let bits = LeaseId::parse(id).bits();
        let state = self.queue.room.lock().ticket(bits).map(|ticket| ticket.state.clone());
        match state {
            None if self.desk.view(id).is_some() => Left::Holds,
            None => Left::Unknown,
            Some(State::Reserved(held)) if held.is_picked_up => Left::Holds,
            Some(_) => {
                self.cancel(bits).await;
                self.standing(bits).map_or(Left::Unknown, Left::Out)
            }
        }
    }

    async fn cancel(self: &Arc<Self>, id: JobId) {
        let held = self.end(id, State::Cancelled, QueueEvent::Cancelled);
        if let Some(lease) = held {
            self.release(lease).await;
        }
    }

    /// Ends a ticket; what it holds that nobody was told of.
    pub(super) fn end(&self, id: JobId, state: State, event: QueueEvent) -> Option<Lease> {
        let mut room = self.queue.room.lock();
        let held = match room.ticket(id).map(|ticket| &ticket.state) {
            Some(State::Reserved(held)) if !held.is_picked_up => self.desk.view(&held.lease.to_string()),
            _ => None,
        };
        if !room.end(id, state, clock::monotonic_ms()) {
            return None;
        }
        self.queue.depth.store(room.depth(), Ordering::Release);
        drop(room);
        self.metrics.queue_event(event);
        self.queue.wake.notify_one();
        held.map(|view| view.lease)
    }
}

fn wants(ask: &Ask<'_>) -> Arc<[(Arc<str>, u64)]> {
    ask.wants.iter().map(|(key, amount)| (Arc::from(*key), *amount)).collect()
}

/// Who gives its work no name has the lease's.
fn job_id(ask: &Ask<'_>, id: &LeaseId) -> String {
    if ask.job_id.is_empty() { id.to_string() } else { ask.job_id.to_owned() }
}

/// A caller that has not heard yet that it is in line. If it leaves before, so does its job.
struct Unheard<'s> {
    service: &'s Arc<Service>,
    id: Option<JobId>,
}

impl Unheard<'_> {
    fn heard(mut self) {
        self.id = None;
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let held = self.service.end(id, State::Cancelled, QueueEvent::Abandoned);
            if let Some(lease) = held {
                let service = Arc::clone(self.service);
                // The desk runs it to its end.
                tokio::spawn(async move { service.release(lease).await });
            }
        }
    }
}
