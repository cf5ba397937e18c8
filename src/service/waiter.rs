//! The loop behind the waiting room: wait for one event, ask the room whose turn it is, carry that out.
//!
//! Decides nothing: whose turn it is, when a limit is worth a try and what is promised is the room's.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahash::AHashSet;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, Either, join_all};
use futures_util::stream::FuturesUnordered;

use super::Service;
use super::reserve::ReserveError;
use crate::admission::{Attempt, Name};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::{Ledger, LedgerError, Schedule};
use crate::limit::{LeaseId, LimitSpec};
use crate::room::lines::{JobId, LimitId};
use crate::room::{Due, Reserved, State};
use crate::telemetry::{QueueEvent, Reason};

/// What was under way and is done.
enum Done {
    Tried(JobId, Result<Attempt, ReserveError>),
    Looked(LimitId, Result<Schedule, LedgerError>),
}

struct Waiter {
    service: Arc<Service>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
    /// Limits that keep a share for their line.
    kept: AHashSet<LimitId>,
}

/// Serves the line until the room closes; then gives back what nobody picked up.
pub async fn run(service: Arc<Service>) {
    let mut waiter =
        Waiter { service: Arc::clone(&service), under_way: FuturesUnordered::new(), kept: AHashSet::new() };
    while !service.queue.closing.is_cancelled() {
        waiter.on_time();
        waiter.try_those_whose_turn_it_is();
        waiter.tidy();
        waiter.wait().await;
    }
    waiter.close().await;
}

impl Waiter {
    async fn wait(&mut self) {
        let queue = &self.service.queue;
        let due_ms = queue.room.lock().next_due_ms();
        let sleep = match due_ms {
            Some(due_ms) => {
                let left_ms = due_ms.saturating_sub(clock::monotonic_ms());
                Either::Left(tokio::time::sleep(Duration::from_millis(left_ms)))
            }
            None => Either::Right(std::future::pending()),
        };
        tokio::select! {
            Some(done) = self.under_way.next() => self.on_done(done),
            () = queue.wake.notified() => {}
            () = sleep => {}
            () = queue.closing.cancelled() => {}
        }
    }

    fn on_time(&self) {
        let due = self.service.queue.room.lock().due(clock::monotonic_ms());
        for due in due {
            match due {
                Due::Look(limit) => self.look(limit),
                Due::Deadline(id) => {
                    let state =
                        State::TimedOut("waited as long as a job may (retry_policy.queue.deadline_seconds)");
                    self.give_back(id, state, QueueEvent::TimedOut);
                }
                Due::NotPickedUp(id) => {
                    let state =
                        State::TimedOut("was not picked up in time (retry_policy.queue.pickup_seconds)");
                    self.give_back(id, state, QueueEvent::Abandoned);
                }
            }
        }
    }

    fn give_back(&self, id: JobId, state: State, event: QueueEvent) {
        if let Some(lease) = self.service.end(id, state, event) {
            let service = Arc::clone(&self.service);
            tokio::spawn(async move { service.release(*lease).await });
        }
    }

    fn try_those_whose_turn_it_is(&self) {
        let now_ms = clock::monotonic_ms();
        loop {
            let mut room = self.service.queue.room.lock();
            let Some(id) = room.next_turn(now_ms) else { return };
            let ticket = room.ticket(id).expect("who is tried must have a ticket");
            let (name, wants) = (ticket.id.clone(), Arc::clone(&ticket.wants));
            let is_first = ticket.attempts == 1;
            drop(room);
            let service = Arc::clone(&self.service);
            let trying = async move { Done::Tried(id, service.try_one(&name, is_first, &wants).await) };
            self.under_way.push(Box::pin(trying));
        }
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Looked(limit, schedule) => {
                let mut room = self.service.queue.room.lock();
                room.looked(limit, schedule.ok(), clock::monotonic_ms(), up_to);
            }
            Done::Tried(id, Ok(Attempt::Taken(lease))) => self.served(id, lease),
            Done::Tried(id, Ok(Attempt::Refused { limit, spec })) => self.refused(id, limit, &spec),
            Done::Tried(id, Ok(Attempt::Never(key))) => {
                self.fail(id, format!("never_fits: it needs more of {key} than there ever is"));
            }
            Done::Tried(id, Ok(Attempt::NameIsUsed | Attempt::NameIsSpent)) => {
                self.fail(id, format!("lease_id_used: {}", ReserveError::LeaseIdUsed));
            }
            Done::Tried(id, Err(ReserveError::Ledger(error))) => self.not_answered(id, &error),
            Done::Tried(id, Err(ReserveError::UnknownLimit(key))) => {
                self.fail(id, format!("unknown_limit_key:{key}"));
            }
            Done::Tried(id, Err(error @ (ReserveError::LeaseIdUsed | ReserveError::Invalid(_)))) => {
                self.fail(id, error.to_string());
            }
        }
    }

    fn fail(&self, id: JobId, why: String) {
        self.give_back(id, State::Failed(why), QueueEvent::Failed);
    }

    fn served(&mut self, id: JobId, lease: Option<Box<Lease>>) {
        let service = &self.service;
        let (now_ms, policy) = (clock::monotonic_ms(), service.live.load().retry.queue.clone());
        let mut room = service.queue.room.lock();
        // It may have left while it was being tried.
        let Some(ticket) = room.ticket(id).filter(|ticket| ticket.state == State::Processing) else {
            drop(room);
            if let Some(lease) = lease {
                let service = Arc::clone(service);
                tokio::spawn(async move { service.release(*lease).await });
            }
            return;
        };
        let (waited_ms, promised_seconds) =
            (now_ms.saturating_sub(ticket.joined_ms), ticket.promised_seconds);
        let reserved = service.hand_out(&ticket.id, &ticket.job_id, lease);
        let needs = room.needs(id);
        room.served(id, reserved, &policy, now_ms);
        service.queue.depth.store(room.depth(), Ordering::Release);
        drop(room);
        for (limit, amount) in needs {
            service.admission.turnstile.served(limit, amount);
        }
        service.lease_api.allowed(Reason::Allowed);
        service.metrics.queue_served(waited_ms as f64 / 1000.0, promised_seconds);
    }

    fn refused(&mut self, id: JobId, limit: LimitId, spec: &Arc<LimitSpec>) {
        let share = self.service.live.load().retry.queue.reserved_share;
        let mut room = self.service.queue.room.lock();
        room.refused(id, limit, spec, clock::monotonic_ms());
        for limit in room.spots(id) {
            if let Some((first, _, spec)) = room.first_at(limit) {
                self.kept.insert(limit);
                self.service.admission.turnstile.set(limit, share, first, spec.capacity);
            }
        }
        if let Some((_, account, spec)) = room.first_at(limit) {
            let (service, account) = (Arc::clone(&self.service), Arc::clone(account));
            let lifetime_seconds = spec.kind.lifetime_seconds();
            let looking = async move {
                Done::Looked(limit, service.admission.ledger.schedule(&account, lifetime_seconds).await)
            };
            self.under_way.push(Box::pin(looking));
        }
    }

    /// The ledger did not answer: nobody knows of any limit, so it waits a little where it is.
    fn not_answered(&mut self, id: JobId, error: &LedgerError) {
        tracing::debug!(%error, "one who waits could not be tried");
        let mut room = self.service.queue.room.lock();
        let Some((limit, spec)) = room.any_limit(id) else { return };
        let now_ms = clock::monotonic_ms();
        room.refused(id, limit, &spec, now_ms);
        room.looked(limit, None, now_ms, up_to);
    }

    /// A limit should have enough by now, or others may have given back to it.
    fn look(&self, limit: LimitId) {
        let ledger = &self.service.admission.ledger;
        let mut room = self.service.queue.room.lock();
        let Some((_, account, spec)) = room.first_at(limit) else { return };
        let sample = if ledger.is_shared() { ledger.sample(account, spec) } else { None };
        room.look(limit, sample, clock::monotonic_ms());
    }

    /// Limits that nobody waits for any more keep no share.
    fn tidy(&mut self) {
        let room = self.service.queue.room.lock();
        let turnstile = &self.service.admission.turnstile;
        self.kept.retain(|limit| {
            let is_idle = room.is_idle(*limit);
            if is_idle {
                turnstile.remove(*limit);
            }
            !is_idle
        });
        let depth = room.depth();
        self.service.metrics.queue_depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Nobody is tried any more; what is under way lands, and what nobody was told of is given back.
    async fn close(mut self) {
        while let Some(done) = self.under_way.next().await {
            self.on_done(done);
        }
        let ids: Vec<JobId> = self.service.queue.room.lock().tickets().map(|(id, _)| id).collect();
        let mut giving_back = Vec::new();
        for id in ids {
            let is_over = self.service.queue.room.lock().ticket(id).is_none_or(|ticket| ticket.is_over());
            if !is_over {
                let state = State::Failed("backend_error: this instance stops; ask again".to_owned());
                giving_back.extend(self.service.end(id, state, QueueEvent::Failed));
            }
        }
        // A ledger that is away now would hold up the end; then it expires.
        if self.service.admission.ledger.ready().is_ok() {
            join_all(giving_back.into_iter().map(|lease: Box<Lease>| self.service.release(*lease))).await;
        }
        self.service.queue.closed.cancel();
    }
}

fn up_to(n: u64) -> u64 {
    fastrand::u64(0..=n)
}

impl Service {
    /// One attempt. The first is called as the ticket, so that whoever asked for a name gets it and is charged once; a
    /// name that was refused stays refused, so the others are called something new.
    async fn try_one(
        &self,
        name: &LeaseId,
        is_first: bool,
        wants: &[(Arc<str>, u64)],
    ) -> Result<Attempt, ReserveError> {
        let snapshot = self.live.load_full();
        let wants = wants.iter().map(|(key, amount)| (&**key, *amount));
        let plan = self.plan(&snapshot, wants)?;
        if is_first {
            match self.admission.attempt(&plan, Name::Lease(name), &snapshot.retry).await? {
                Attempt::NameIsSpent => {}
                attempt => return Ok(attempt),
            }
        }
        Ok(self.admission.attempt(&plan, Name::Fresh, &snapshot.retry).await?)
    }

    fn hand_out(&self, ticket: &LeaseId, job_id: &str, lease: Option<Box<Lease>>) -> Reserved {
        let Some(lease) = lease else {
            // Allowed because the ledger could not be asked: nothing is held.
            return Reserved {
                lease: ticket.clone(),
                token: None,
                reserved_at_unix_ms: clock::unix_ms(),
                ends_at_unix_ms: u64::MAX,
                unclaimed: None,
                is_picked_up: false,
            };
        };
        self.leases.issue_as(ticket, &lease, job_id);
        Reserved {
            lease: lease.id.clone(),
            token: self.leases.token(&lease),
            reserved_at_unix_ms: lease.reserved_at_unix_ms,
            ends_at_unix_ms: lease.ends_at_unix_ms(),
            unclaimed: Some(lease),
            is_picked_up: false,
        }
    }
}
