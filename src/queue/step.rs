//! One step of serving the queue: what has to be done now, and what follows from how it went. Pure.
//!
//! [`super::runner`] carries the work out; a simulation can do that as well, on a clock of its own.

use std::sync::Arc;

use super::place::{Failure, JobId, LimitId, Need, Place, PlaceState, Reserved, TimedOut, Wants};
use super::places::{Due, Ended, Places};
use super::share::{Demand, Share};
use crate::lease::Lease;
use crate::ledger::Account;
use crate::ledger::Schedule;
use crate::limit::{LeaseId, LimitSpec};
use crate::retry::policy::Queue as Policy;
use crate::telemetry::{Metrics, QueueEvent};

/// What has to be done.
#[derive(Debug)]
pub enum Work {
    /// Reserve all that a job wants, and tell [`QueueStep::attempted`].
    Attempt(Attempt),
    /// Ask the ledger when a limit gets back what, and tell [`QueueStep::scheduled`].
    Schedule(Arc<Account>, Arc<LimitSpec>),
    /// Give back a lease that nobody was told of.
    Release(Lease),
}

/// One attempt to serve a job.
#[derive(Debug)]
pub struct Attempt {
    pub id: JobId,
    /// What the caller knows the job by.
    pub name: LeaseId,
    /// It was never attempted before. A name that was refused stays refused, so that later attempts need new ones.
    pub is_first: bool,
    pub wants: Wants,
    /// Of a job that another instance sent here: its limits as they were last asked for.
    pub needs: Option<Vec<Need>>,
}

/// How an attempt went.
#[derive(Debug)]
pub enum Attempted {
    /// `None`: allowed because the ledger could not be asked, and nothing is held.
    Served(Option<Box<Lease>>),
    /// This limit, which is now as `spec` says, had too little left.
    Refused {
        limit: LimitId,
        spec: Arc<LimitSpec>,
    },
    /// The ledger did not answer, so nobody knows of any limit.
    NotAnswered,
    Failed(Failure),
}

/// The queue at one moment.
#[derive(Debug)]
pub struct QueueStep<'q> {
    pub places: &'q mut Places,
    pub share: &'q Share,
    pub policy: &'q Policy,
    pub metrics: &'q Metrics,
    pub now_ms: u64,
}

impl QueueStep<'_> {
    /// Everything that has to be done now. `sample` is what was last seen free of a limit.
    pub fn work(&mut self, sample: impl Fn(&Arc<Account>, &LimitSpec) -> Option<u64>) -> Vec<Work> {
        let mut work: Vec<Work> = self.places.take_releases().into_iter().map(Work::Release).collect();
        for due in self.places.due(self.now_ms) {
            let ended = match due {
                Due::Check(limit) => {
                    self.check(limit, &sample);
                    None
                }
                Due::Deadline(id) => self.time_out(id, TimedOut::Deadline, QueueEvent::TimedOut),
                Due::NotPickedUp(id) => self.time_out(id, TimedOut::NotPickedUp, QueueEvent::Abandoned),
            };
            work.extend(ended.map(|lease| Work::Release(*lease)));
        }
        while let Some(place) = self.places.next_turn(self.now_ms) {
            let (name, is_first, wants) = (place.id.clone(), place.attempts == 1, Arc::clone(&place.wants));
            let (id, is_of_another) = (JobId::of(&name), place.terms.is_some());
            let needs = is_of_another.then(|| self.places.needs(id));
            work.push(Work::Attempt(Attempt { id, name, is_first, wants, needs }));
        }
        for limit in self.places.order.take_changed() {
            self.update_share(limit);
        }
        work
    }

    /// An attempt has ended. `hand_out` is called if the job is still there to be served.
    pub fn attempted(
        &mut self,
        id: JobId,
        attempted: Attempted,
        hand_out: impl FnOnce(&Place, Option<Box<Lease>>) -> Reserved,
        rand: impl FnOnce(u64) -> u64,
    ) -> Option<Work> {
        match attempted {
            Attempted::Served(lease) => self.served(id, lease, hand_out),
            Attempted::Refused { limit, spec } => self.refused(id, limit, &spec),
            Attempted::NotAnswered => {
                let (limit, spec) = self.places.any_limit(id)?;
                self.places.refused(id, limit, &spec, self.now_ms);
                self.places.scheduled(limit, None, self.now_ms, rand);
                None
            }
            Attempted::Failed(failure) => {
                let unclaimed = self.end(id, PlaceState::Failed(failure), QueueEvent::Failed);
                unclaimed.map(|lease| Work::Release(*lease))
            }
        }
    }

    /// The ledger said when a limit gets back what, or nothing.
    pub fn scheduled(&mut self, limit: LimitId, schedule: Option<Schedule>, rand: impl FnOnce(u64) -> u64) {
        self.places.scheduled(limit, schedule, self.now_ms, rand);
        self.update_share(limit);
    }

    /// Ends a place; what it held that nobody was told of.
    pub(super) fn end(&mut self, id: JobId, state: PlaceState, event: QueueEvent) -> Option<Box<Lease>> {
        let Ended { is_news, unclaimed } = self.places.end(id, state, self.now_ms);
        if is_news {
            self.metrics.queue_event(event);
        }
        unclaimed
    }

    /// Newcomers may take what the jobs that wait at a limit now leave them.
    fn update_share(&self, limit: LimitId) {
        let order = &self.places.order;
        if order.is_idle(limit) {
            return self.share.remove(limit);
        }
        // While a job is being attempted, it is not known yet who is first.
        if order.is_attempting(limit) {
            return;
        }
        let (Some((first, needs)), Some(known)) = (order.first_at(limit), self.places.limits.get(limit))
        else {
            return;
        };
        let demand = Demand {
            first,
            needs,
            all_need: order.demand_at(limit),
            capacity: known.spec.capacity,
            comes_back_ms: known.comes_back_ms(needs, self.now_ms),
        };
        self.share.set(limit, self.policy.reserved_share, demand, self.now_ms);
    }

    fn time_out(&mut self, id: JobId, why: TimedOut, event: QueueEvent) -> Option<Box<Lease>> {
        self.end(id, PlaceState::TimedOut(why), event)
    }

    fn check(&mut self, limit: LimitId, sample: impl Fn(&Arc<Account>, &LimitSpec) -> Option<u64>) {
        let Some((_, account, spec)) = self.places.first_at(limit) else { return };
        let sample = sample(account, spec);
        self.places.check(limit, sample, self.now_ms);
    }

    fn served(
        &mut self,
        id: JobId,
        lease: Option<Box<Lease>>,
        hand_out: impl FnOnce(&Place, Option<Box<Lease>>) -> Reserved,
    ) -> Option<Work> {
        // The job may have left during the attempt.
        let is_there = |place: &&Place| place.state == PlaceState::Processing;
        let Some(place) = self.places.get(id).filter(is_there) else {
            return lease.map(|lease| Work::Release(*lease));
        };
        let waited_ms = self.now_ms.saturating_sub(place.joined_ms);
        let promised_seconds = place.promised_seconds;
        let reserved = hand_out(place, lease);
        for (limit, amount) in self.places.order.needs(id) {
            self.share.served(limit, amount);
        }
        self.places.served(id, reserved, self.policy, self.now_ms);
        self.metrics.queue_served(waited_ms as f64 / 1000.0, promised_seconds);
        None
    }

    fn refused(&mut self, id: JobId, limit: LimitId, spec: &Arc<LimitSpec>) -> Option<Work> {
        if !self.places.refused(id, limit, spec, self.now_ms) {
            return None;
        }
        let (_, account, spec) = self.places.first_at(limit)?;
        Some(Work::Schedule(Arc::clone(account), Arc::clone(spec)))
    }
}
