//! Everybody who has a ticket: joining, being served, leaving, and what the clock brings. The words are in [`super`].

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ahash::AHashMap;

use super::forecast::Known;
use super::lines::{JobId, LimitId, Lines, Needs};
use super::watch::Watch;
use super::{Arrival, Due, Full, Reserved, State, Status, Ticket};
use crate::ledger::Outlook;
use crate::limit::{Account, LeaseId, LimitSpec};
use crate::retry::eta::{self, Stage};
use crate::retry::policy::Queue;

/// Tickets kept after their end, or while their lease is used: under a kilobyte each, so 10 MB.
const KEPT_MAX: usize = 10_000;

/// Everybody who has a ticket.
#[derive(Debug, Default)]
pub struct Room {
    lines: Lines,
    tickets: AHashMap<JobId, Ticket>,
    /// The tickets of those who were served, by what the ledger calls their leases.
    by_lease: AHashMap<u128, JobId>,
    limits: Watch,
    /// Deadlines, and times to pick something up.
    timers: BTreeSet<(u64, JobId)>,
    /// How many were served and did not come yet.
    unclaimed: usize,
    /// Those who came, and those whose way has ended, the oldest first.
    kept: VecDeque<JobId>,
}

impl Room {
    /// `is_shared`: others than this process take from the ledger's accounts and give back.
    pub fn new(is_shared: bool) -> Self {
        Self { limits: Watch::new(is_shared), ..Self::default() }
    }

    /// How many are in line.
    pub fn depth(&self) -> usize {
        self.lines.len()
    }

    pub fn ticket(&self, id: JobId) -> Option<&Ticket> {
        self.tickets.get(&id)
    }

    /// Takes a place. It is tried at once if nobody is before it.
    pub fn join(
        &mut self,
        arrival: Arrival,
        policy: &Queue,
        line_part: impl Fn(LimitId) -> f64,
        now_ms: u64,
    ) -> Result<(), Full> {
        let Arrival { id, job_id, wants, limits } = arrival;
        let bits = id.bits();
        self.check_room(&limits, policy, &line_part, now_ms)?;
        let needs: Needs = limits.iter().map(|(account, _, amount)| (account.id, *amount)).collect();
        for (account, spec, _) in limits {
            self.limits.add(account, spec);
        }
        let is_placed = self.lines.join(bits, needs);
        let deadline_ms = now_ms.saturating_add(policy.deadline_seconds * 1000);
        let ticket = Ticket {
            id,
            job_id,
            wants,
            state: State::Queued,
            joined_ms: now_ms,
            since_ms: now_ms,
            promised_seconds: None,
            is_placed,
            attempts: 0,
            changed: Arc::default(),
            timer_ms: None,
        };
        self.tickets.insert(bits, ticket);
        self.set_timer(bits, Some(deadline_ms));
        Ok(())
    }

    fn check_room(
        &self,
        limits: &[(Arc<Account>, Arc<LimitSpec>, u64)],
        policy: &Queue,
        line_part: &impl Fn(LimitId) -> f64,
        now_ms: u64,
    ) -> Result<(), Full> {
        let per_key_max = usize::try_from(policy.places_per_key_max).unwrap_or(usize::MAX);
        let crowded = limits.iter().find(|(account, ..)| self.lines.waiting_at(account.id) >= per_key_max);
        let all_taken = (self.lines.len() + self.unclaimed) as u64 >= policy.places_max;
        if crowded.is_none() && !all_taken {
            return Ok(());
        }
        // Where nobody is in the way it may fit without a place.
        let crowded = crowded.or_else(|| limits.iter().find(|(account, ..)| !self.lines.is_idle(account.id)));
        let (account, spec, own) = crowded.unwrap_or(&limits[0]);
        let ahead = self.lines.ahead_at(account.id);
        let known = self.known(account.id, spec, account, line_part(account.id));
        let eta_seconds =
            known.wait_ms(ahead, *own, now_ms).map_or(policy.max_seconds, |ms| eta::after_ms(ms, policy));
        Err(Full { limit: crowded.map(|(account, ..)| Arc::clone(account)), eta_seconds })
    }

    /// Whom to try now.
    pub fn next_turn(&mut self, now_ms: u64) -> Option<JobId> {
        let id = self.lines.next_turn()?;
        let ticket = self.tickets.get_mut(&id).expect("who is in line must have a ticket");
        ticket.attempts += 1;
        self.enter(id, State::Processing, now_ms);
        Some(id)
    }

    /// Something of a limit came back; everything may have.
    pub fn freed(&mut self, limit: LimitId) {
        self.lines.freed(limit);
    }

    pub fn freed_all(&mut self) {
        self.lines.freed_all();
    }

    /// One who was tried did not get this limit, which is now as `spec` says: back to its place.
    pub fn refused(&mut self, id: JobId, limit: LimitId, spec: &Arc<LimitSpec>, now_ms: u64) {
        self.lines.refused(id, limit);
        self.limits.refused(limit, spec);
        if self.tickets.get(&id).is_some_and(|ticket| ticket.state == State::Processing) {
            self.enter(id, State::Queued, now_ms);
        }
        let behind: Vec<JobId> = self.lines.at(limit).collect();
        for id in behind {
            if let Some(ticket) = self.tickets.get_mut(&id)
                && !std::mem::replace(&mut ticket.is_placed, true)
            {
                ticket.changed.notify_waiters();
            }
        }
    }

    pub fn needs(&self, id: JobId) -> Needs {
        self.lines.needs(id)
    }

    pub fn is_idle(&self, limit: LimitId) -> bool {
        self.lines.is_idle(limit)
    }

    /// One of the limits that a job needs.
    pub fn any_limit(&self, id: JobId) -> Option<(LimitId, Arc<LimitSpec>)> {
        let (limit, _) = *self.lines.needs(id).first()?;
        Some((limit, Arc::clone(&self.limits.get(limit)?.spec)))
    }

    /// The first at a limit, what it needs of it, and the limit.
    pub fn first_at(&self, limit: LimitId) -> Option<(u64, &Arc<Account>, &Arc<LimitSpec>)> {
        let (_, amount) = self.lines.first_at(limit)?;
        let watched = self.limits.get(limit)?;
        Some((amount, &watched.account, &watched.spec))
    }

    /// What the ledger says of a limit that refused somebody, if it says anything.
    pub fn looked(
        &mut self,
        limit: LimitId,
        outlook: Option<Outlook>,
        now_ms: u64,
        rand: impl FnOnce(u64) -> u64,
    ) {
        if let Some((_, amount)) = self.lines.first_at(limit) {
            self.limits.looked(limit, outlook, amount, now_ms, rand);
        }
    }

    /// A limit whose time has come is tried, if it is worth it. `sample` is what was last seen free of it.
    pub fn look(&mut self, limit: LimitId, sample: Option<u64>, now_ms: u64) {
        if let Some((_, amount)) = self.lines.first_at(limit)
            && self.limits.is_worth_a_try(limit, amount, sample, now_ms)
        {
            self.lines.freed(limit);
        }
    }

    /// One who was tried is served. It holds that until it is picked up, or not.
    pub fn served(&mut self, id: JobId, reserved: Reserved, policy: &Queue, now_ms: u64) {
        self.lines.needs(id).iter().for_each(|(limit, _)| self.limits.served(*limit));
        self.out_of_line(id);
        self.by_lease.insert(reserved.lease.bits(), id);
        self.unclaimed += 1;
        self.enter(id, State::Reserved(Box::new(reserved)), now_ms);
        self.set_timer(id, Some(now_ms.saturating_add(policy.pickup_seconds * 1000)));
    }

    /// The holder of a ticket was told. True if that is news.
    pub fn picked_up(&mut self, id: JobId) -> bool {
        let Some(Ticket { state: State::Reserved(reserved), .. }) = self.tickets.get_mut(&id) else {
            return false;
        };
        if std::mem::replace(&mut reserved.is_picked_up, true) {
            return false;
        }
        self.unclaimed -= 1;
        self.set_timer(id, None);
        self.keep(id);
        true
    }

    /// The end of a ticket's way. False if it had ended before, or never was.
    pub fn end(&mut self, id: JobId, state: State, now_ms: u64) -> bool {
        match self.tickets.get(&id).map(|ticket| &ticket.state) {
            None => return false,
            Some(state) if state.is_last() => return false,
            Some(State::Reserved(reserved)) => {
                self.by_lease.remove(&reserved.lease.bits());
                if !reserved.is_picked_up {
                    self.unclaimed -= 1;
                    self.keep(id);
                }
            }
            Some(_) => self.keep(id),
        }
        self.out_of_line(id);
        self.set_timer(id, None);
        self.enter(id, state, now_ms);
        true
    }

    /// The ticket that a lease was reserved for.
    pub fn of_lease(&self, lease: &LeaseId) -> Option<JobId> {
        self.by_lease.get(&lease.bits()).copied()
    }

    pub fn tickets(&self) -> impl Iterator<Item = (JobId, &Ticket)> {
        self.tickets.iter().map(|(id, ticket)| (*id, ticket))
    }

    /// What the clock brought.
    pub fn due(&mut self, now_ms: u64) -> Vec<Due> {
        let mut due: Vec<Due> = self.limits.due(now_ms).into_iter().map(Due::Look).collect();
        while let Some(&(at_ms, id)) = self.timers.first()
            && at_ms <= now_ms
        {
            self.set_timer(id, None);
            due.push(match self.tickets.get(&id).map(|ticket| &ticket.state) {
                Some(State::Reserved(_)) => Due::NotPickedUp(id),
                _ => Due::Deadline(id),
            });
        }
        due
    }

    /// When to call [`Room::due`] next.
    pub fn next_due_ms(&self) -> Option<u64> {
        let first = self.timers.first().map(|(at_ms, _)| *at_ms);
        [first, self.limits.next_due_ms()].into_iter().flatten().min()
    }

    /// Where a ticket stands. The first time that a promise is made it is remembered, to be compared with what comes.
    pub fn status(
        &mut self,
        id: JobId,
        policy: &Queue,
        line_part: impl Fn(LimitId) -> f64,
        now_ms: u64,
    ) -> Option<Status> {
        let ticket = self.tickets.get(&id)?;
        let elapsed_ms = now_ms.saturating_sub(ticket.since_ms);
        let place = self.lines.place(id);
        let promise = match (&ticket.state, &place) {
            (State::Queued, Some(place)) => {
                let limit = self.limits.get(place.limit)?;
                let known = self.known(place.limit, &limit.spec, &limit.account, line_part(place.limit));
                let wait_ms = known.wait_ms(place.ahead, place.own, now_ms);
                wait_ms.filter(|_| !limit.account.is_decreasing()).map(|ms| eta::after_ms(ms, policy))
            }
            (State::Processing, _) => Some(eta::eta_seconds(Stage::InFlight, None, policy)),
            _ => None,
        };
        let eta_seconds = match &ticket.state {
            state if state.is_last() => 0,
            _ => promise.unwrap_or_else(|| eta::elapsed_or_default(policy, elapsed_ms)),
        };
        let elapsed_seconds = elapsed_ms / 1000;
        if ticket.state == State::Queued && ticket.promised_seconds.is_none() && ticket.is_placed {
            self.tickets.get_mut(&id)?.promised_seconds = promise;
        }
        Some(Status { place, eta_seconds, elapsed_seconds })
    }

    fn known<'a>(&'a self, limit: LimitId, spec: &LimitSpec, account: &Account, line_part: f64) -> Known<'a> {
        let outlook = self.limits.get(limit).and_then(|limit| limit.outlook.as_ref());
        let (kind, capacity) = (spec.kind, spec.capacity);
        Known { kind, capacity, outlook, mean_hold_ms: account.mean_hold_ms(), line_part }
    }

    fn enter(&mut self, id: JobId, state: State, now_ms: u64) {
        if let Some(ticket) = self.tickets.get_mut(&id) {
            // Tried and refused, it has been in line all the time.
            if !(ticket.state.is_waiting() && state.is_waiting()) {
                ticket.since_ms = now_ms;
            }
            ticket.state = state;
            ticket.changed.notify_waiters();
        }
    }

    fn out_of_line(&mut self, id: JobId) {
        let needs = self.lines.remove(id);
        needs.into_iter().flatten().for_each(|(limit, _)| self.limits.drop_one(limit));
    }

    fn set_timer(&mut self, id: JobId, at_ms: Option<u64>) {
        let Some(ticket) = self.tickets.get_mut(&id) else { return };
        if let Some(old_ms) = std::mem::replace(&mut ticket.timer_ms, at_ms) {
            self.timers.remove(&(old_ms, id));
        }
        if let Some(at_ms) = at_ms {
            self.timers.insert((at_ms, id));
        }
    }

    fn keep(&mut self, id: JobId) {
        self.kept.push_back(id);
        if self.kept.len() > KEPT_MAX
            && let Some(oldest) = self.kept.pop_front()
        {
            let ticket = self.tickets.remove(&oldest);
            if let Some(Ticket { state: State::Reserved(reserved), .. }) = ticket {
                self.by_lease.remove(&reserved.lease.bits());
            }
        }
    }
}
