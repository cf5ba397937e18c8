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
use super::reserve::{Ask, AskName, Grant, ReserveError};
use super::unsent::UnsentLease;
use crate::admission::{Attempt, Denial, Name};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::LedgerError;
use crate::limit::LeaseId;
use crate::registry::Plan;
use crate::retry::eta;
use crate::retry::policy::Queue as Policy;
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

    /// The limits are others now, or the policy is.
    pub fn snapshot_changed(&self, policy: &Policy) {
        if self.depth.load(Ordering::Acquire) > 0 || self.room.lock().next_due_ms().is_some() {
            let mut room = self.room.lock();
            room.policy_changed(policy);
            room.freed_all();
            drop(room);
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
        let snapshot = self.live.load_full();
        let plan = self.plan(&snapshot, ask.wants.iter().copied())?;
        if let Some(denial) = self.admission.never(&plan) {
            self.lease_api.denied(denial.reason);
            return Ok(Err(denial));
        }
        let id = match &ask.name {
            AskName::Fresh => self.admission.name(&plan, Name::Fresh),
            AskName::Request(id) => self.admission.name(&plan, Name::Request(id)),
            AskName::Lease(id) => id.clone(),
        };
        if !self.has_ticket(&id)
            && let Some(grant) = self.granted_before(ask, &plan)?
        {
            return Ok(Ok(self.told_at_once(ask, grant)));
        }
        let mut refused_by = None;
        if self.may_ask_at_once(&id, &plan) {
            match self.admission.attempt(&plan, Name::Lease(&id), &snapshot.retry).await {
                Ok(Attempt::Taken(lease)) => return self.granted(ask, plan, lease).map(Ok),
                Ok(Attempt::NameIsUsed) => return Err(ReserveError::LeaseIdUsed),
                Ok(Attempt::Refused { limit, .. }) => refused_by = Some(limit),
                // A ledger that doesn't answer is waited for in line.
                Ok(Attempt::NameIsSpent | Attempt::Never(_)) | Err(_) => {}
            }
        }
        let call = match self.take_place(ask, id, plan, refused_by, &snapshot.retry.queue)? {
            Ok(call) => call,
            Err(denial) => {
                self.lease_api.denied(denial.reason);
                self.metrics.queue_event(QueueEvent::Full);
                return Ok(Err(denial));
            }
        };
        // Late is in line as well.
        drop(tokio::time::timeout(FIRST_WORD, self.first_word(call.id)).await);
        let standing = self.standing(call.id, true);
        call.heard();
        // So many have come since that it was forgotten again.
        let lost = || LedgerError::Unavailable("the place in line was lost".to_owned());
        standing.ok_or_else(|| lost().into()).map(Ok)
    }

    fn has_ticket(&self, id: &LeaseId) -> bool {
        self.queue.room.lock().ticket(id.bits()).is_some()
    }

    /// Nobody is before it, and it has no place yet.
    fn may_ask_at_once(&self, id: &LeaseId, plan: &Plan) -> bool {
        let room = self.queue.room.lock();
        let mut limits = plan.requirements.iter().map(|requirement| requirement.account.id);
        room.ticket(id.bits()).is_none() && !room.has_line(&mut limits)
    }

    fn granted(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        plan: Plan,
        lease: Option<Box<Lease>>,
    ) -> Result<Standing, ReserveError> {
        let undo = lease.as_ref().map(|lease| {
            let id = &lease.id;
            Box::new(self.admission.undo(&plan, Name::Lease(id), id))
        });
        let grant = self.grant(ask, lease, undo)?;
        self.lease_api.allowed(Reason::Allowed);
        Ok(self.told_at_once(ask, grant))
    }

    fn told_at_once(&self, ask: &Ask<'_>, grant: Grant) -> Standing {
        grant.unsent.into_iter().for_each(UnsentLease::sent);
        let reserved = Reserved {
            lease: grant.id.clone(),
            token: grant.token.clone(),
            reserved_at_unix_ms: grant.reserved_at_unix_ms,
            ends_at_unix_ms: u64::MAX,
            unclaimed: None,
            is_picked_up: true,
        };
        Standing {
            id: grant.id.clone(),
            job_id: job_id(ask, &grant.id),
            state: State::Reserved(Box::new(reserved)),
            wants: wants(ask),
            position: None,
            eta_seconds: eta::elapsed_or_default(&self.live.load().retry.queue, 0),
            elapsed_seconds: 0,
        }
    }

    fn take_place(
        self: &Arc<Self>,
        ask: &Ask<'_>,
        id: LeaseId,
        plan: Plan,
        refused_by: Option<LimitId>,
        policy: &Policy,
    ) -> Result<Result<Call<'_>, Denial>, ReserveError> {
        let (bits, wants) = (id.bits(), wants(ask));
        let mut room = self.queue.room.lock();
        // Under the lock: whoever closes the room sees all who came in before.
        if self.queue.closing.is_cancelled() {
            return Err(LedgerError::Unavailable("shutting down".to_owned()).into());
        }
        match room.ticket(bits) {
            Some(there) if there.wants != wants => return Err(ReserveError::LeaseIdUsed),
            Some(_) => {}
            None => {
                let job_id = job_id(ask, &id);
                let limits = plan.requirements.into_iter().map(|r| (r.account, r.spec, r.amount)).collect();
                let arrival = Arrival { id, job_id, wants, limits, refused_by };
                let part = |limit| self.admission.turnstile.line_part(limit);
                if let Err(Full { limit, eta_seconds }) =
                    room.join(arrival, policy, part, clock::monotonic_ms())
                {
                    let limit = limit.map(|account| account.key.clone());
                    let retry_after_ms = Some(eta_seconds * 1000);
                    return Ok(Err(Denial { limit, reason: Reason::QueueFull, retry_after_ms }));
                }
                self.metrics.queue_event(QueueEvent::Joined);
            }
        }
        room.call(bits);
        self.queue.depth.store(room.depth(), Ordering::Release);
        drop(room);
        self.queue.wake.notify_one();
        Ok(Ok(Call { service: self, id: bits, has_heard: false }))
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

    /// Where a ticket stands. Whoever hears that it was served, and is its holder, has picked it up.
    pub fn standing(&self, id: JobId, is_holder: bool) -> Option<Standing> {
        let snapshot = self.live.load();
        let now_ms = clock::monotonic_ms();
        let part = |limit| self.admission.turnstile.line_part(limit);
        let mut room = self.queue.room.lock();
        let status = room.status(id, &snapshot.retry.queue, part, now_ms)?;
        if is_holder {
            room.picked_up(id);
        }
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

    pub(super) fn is_in_line(&self, id: &str) -> bool {
        let bits = LeaseId::parse(id).bits();
        self.queue.depth.load(Ordering::Acquire) > 0
            && self.queue.room.lock().ticket(bits).is_some_and(|ticket| ticket.state.is_waiting())
    }

    /// Leaves the line. What was reserved and not picked up goes to the next.
    pub async fn leave(self: &Arc<Self>, id: &str) -> Left {
        let bits = LeaseId::parse(id).bits();
        match self.cancel(bits) {
            Some(Ok(held)) => {
                if let Some(lease) = held {
                    self.release(*lease).await;
                }
                self.standing(bits, true).map_or(Left::Unknown, Left::Out)
            }
            Some(Err(PickedUp)) => Left::Holds,
            None if self.leases.view(id).is_some() => Left::Holds,
            None => Left::Unknown,
        }
    }

    /// What a ticket holds that nobody was told of, now that it has ended; `None` if there is none.
    fn cancel(&self, id: JobId) -> Option<Result<Option<Box<Lease>>, PickedUp>> {
        let mut room = self.queue.room.lock();
        match &room.ticket(id)?.state {
            State::Reserved(reserved) if reserved.is_picked_up => Some(Err(PickedUp)),
            _ => Some(Ok(self.end_in(&mut room, id, State::Cancelled, QueueEvent::Cancelled))),
        }
    }

    /// Ends a ticket; what it holds that nobody was told of.
    pub(super) fn end(&self, id: JobId, state: State, event: QueueEvent) -> Option<Box<Lease>> {
        self.end_in(&mut self.queue.room.lock(), id, state, event)
    }

    fn end_in(&self, room: &mut Room, id: JobId, state: State, event: QueueEvent) -> Option<Box<Lease>> {
        let (is_news, held) = room.end(id, state, clock::monotonic_ms());
        self.queue.depth.store(room.depth(), Ordering::Release);
        if is_news {
            self.metrics.queue_event(event);
            self.queue.wake.notify_one();
        }
        held
    }
}

fn wants(ask: &Ask<'_>) -> Arc<[(Arc<str>, u64)]> {
    ask.wants.iter().map(|(key, amount)| (Arc::from(*key), *amount)).collect()
}

/// Who gives its work no name has the lease's.
fn job_id(ask: &Ask<'_>, id: &LeaseId) -> String {
    if ask.job_id.is_empty() { id.to_string() } else { ask.job_id.to_owned() }
}

/// It has what it waited for.
struct PickedUp;

/// A call that has not heard yet that its job is in line. If nobody has when it leaves, its job has no place.
struct Call<'s> {
    service: &'s Arc<Service>,
    id: JobId,
    has_heard: bool,
}

impl Call<'_> {
    fn heard(mut self) {
        self.has_heard = true;
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let queue = &self.service.queue;
        let mut room = queue.room.lock();
        let (is_forgotten, held) = room.end_call(self.id, self.has_heard, clock::monotonic_ms());
        queue.depth.store(room.depth(), Ordering::Release);
        drop(room);
        if is_forgotten {
            self.service.metrics.queue_event(QueueEvent::Abandoned);
            queue.wake.notify_one();
        }
        if let Some(lease) = held {
            let service = Arc::clone(self.service);
            tokio::spawn(async move { service.release(*lease).await });
        }
    }
}
