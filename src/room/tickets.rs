//! Everybody who has a ticket: joining, being served, leaving, and what the clock brings. The words are in [`super`].

mod promise;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ahash::AHashMap;

use super::lines::{JobId, LimitId, Lines, Needs};
use super::watch::Watch;
use super::{Arrival, Due, Full, Reserved, State, Ticket};
use crate::lease::Lease;
use crate::ledger::{Account, Schedule};
use crate::limit::{LeaseId, LimitSpec};
use crate::retry::policy::Queue;

/// Tickets kept after their end, or while their lease is used: under a kilobyte each, so 10 MB.
const KEPT_MAX: usize = 10_000;

/// A job that was sent from limit to limit so often will not find all of them free by chance.
const BOUNCES_MAX: u32 = 3;

/// The least that one insists.
const INSIST_MS_MIN: u64 = 1000;

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
    /// Until when those insist who do.
    insisting: BTreeSet<(u64, JobId)>,
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
        let Arrival { id, job_id, wants, limits, refused_by } = arrival;
        let bits = id.bits();
        self.check_room(&limits, policy, &line_part, now_ms)?;
        let needs: Needs = limits.iter().map(|(account, _, amount)| (account.id, *amount)).collect();
        for (account, spec, _) in limits {
            self.limits.add(account, spec);
        }
        let is_placed = self.lines.join(bits, needs, refused_by);
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
            attempts: u32::from(refused_by.is_some()),
            callers: 0,
            is_heard: false,
            bounces: 0,
            refused_by,
            insists: None,
            changed: Arc::default(),
            timer_ms: None,
        };
        self.tickets.insert(bits, ticket);
        self.set_timer(bits, Some(deadline_ms));
        Ok(())
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
        self.count_bounce(id, limit, now_ms);
    }

    /// Sent from limit to limit, it insists for as long as it has waited so far, and then lets go for as long.
    fn count_bounce(&mut self, id: JobId, limit: LimitId, now_ms: u64) {
        let Some(ticket) = self.tickets.get_mut(&id) else { return };
        let before = ticket.refused_by.replace(limit);
        ticket.bounces += u32::from(before.is_some_and(|before| before != limit));
        let rests =
            ticket.insists.is_some_and(|(since_ms, until_ms)| now_ms < until_ms + (until_ms - since_ms));
        if ticket.bounces < BOUNCES_MAX || rests {
            return;
        }
        let until_ms = now_ms + now_ms.saturating_sub(ticket.joined_ms).max(INSIST_MS_MIN);
        ticket.bounces = 0;
        ticket.insists = Some((now_ms, until_ms));
        self.insisting.insert((until_ms, id));
        self.lines.insist(id);
    }

    /// Where a job waits.
    pub fn spots(&self, id: JobId) -> Vec<LimitId> {
        self.lines.spots(id).collect()
    }

    /// Somebody waits at one of these limits.
    pub fn has_line(&self, mut limits: impl Iterator<Item = LimitId>) -> bool {
        limits.any(|limit| self.lines.waiting_at(limit) > 0)
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
        schedule: Option<Schedule>,
        now_ms: u64,
        rand: impl FnOnce(u64) -> u64,
    ) {
        if let Some((_, amount)) = self.lines.first_at(limit) {
            self.limits.looked(limit, schedule, amount, now_ms, rand);
        }
        let here: Vec<JobId> = self.lines.at(limit).collect();
        for id in here {
            if let Some(ticket) = self.tickets.get_mut(&id)
                && !std::mem::replace(&mut ticket.is_placed, true)
            {
                ticket.changed.notify_waiters();
            }
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

    /// The holder of a ticket was told.
    pub fn picked_up(&mut self, id: JobId) {
        let Some(Ticket { state: State::Reserved(reserved), .. }) = self.tickets.get_mut(&id) else { return };
        if std::mem::replace(&mut reserved.is_picked_up, true) {
            return;
        }
        reserved.unclaimed = None;
        self.unclaimed -= 1;
        self.set_timer(id, None);
        self.keep(id);
    }

    /// A call waits for the first word on a ticket.
    pub fn call(&mut self, id: JobId) {
        if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.callers += 1;
        }
    }

    /// It had it, or has left. A ticket that nobody has heard of is forgotten: true, and what it holds.
    pub fn end_call(&mut self, id: JobId, heard: bool, now_ms: u64) -> (bool, Option<Box<Lease>>) {
        let Some(ticket) = self.tickets.get_mut(&id) else { return (false, None) };
        ticket.callers -= 1;
        ticket.is_heard |= heard;
        if ticket.is_heard || ticket.callers > 0 {
            return (false, None);
        }
        let (_, held) = self.end(id, State::Cancelled, now_ms);
        self.tickets.remove(&id);
        (true, held)
    }

    /// Other times hold for those who are inside.
    pub fn policy_changed(&mut self, policy: &Queue) {
        let until = |ticket: &Ticket| match &ticket.state {
            State::Reserved(reserved) if !reserved.is_picked_up => {
                Some(ticket.since_ms.saturating_add(policy.pickup_seconds * 1000))
            }
            state if state.is_waiting() => {
                Some(ticket.joined_ms.saturating_add(policy.deadline_seconds * 1000))
            }
            _ => None,
        };
        let timers: Vec<_> = self.tickets.iter().map(|(id, ticket)| (*id, until(ticket))).collect();
        timers.into_iter().for_each(|(id, until_ms)| self.set_timer(id, until_ms));
    }

    /// The end of a ticket's way. False if it had ended before, or never was. And what it holds that nobody was told of.
    pub fn end(&mut self, id: JobId, state: State, now_ms: u64) -> (bool, Option<Box<Lease>>) {
        let mut held = None;
        match self.tickets.get_mut(&id).map(|ticket| &mut ticket.state) {
            None => return (false, None),
            Some(state) if state.is_last() => return (false, None),
            Some(State::Reserved(reserved)) => {
                self.by_lease.remove(&reserved.lease.bits());
                held = reserved.unclaimed.take();
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
        (true, held)
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
        while let Some(&(until_ms, id)) = self.insisting.first()
            && until_ms <= now_ms
        {
            self.insisting.pop_first();
            self.lines.relent(id);
        }
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
        let insisting = self.insisting.first().map(|(until_ms, _)| *until_ms);
        [first, insisting, self.limits.next_due_ms()].into_iter().flatten().min()
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
        if let Some(Ticket { insists: Some((_, until_ms)), .. }) = self.tickets.get(&id) {
            self.insisting.remove(&(*until_ms, id));
        }
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
        if self.kept.len() <= KEPT_MAX {
            return;
        }
        // One that was forgotten may be back under the same name, and on its way.
        if let Some(oldest) = self.kept.pop_front()
            && self.tickets.get(&oldest).is_some_and(Ticket::is_over)
            && let Some(Ticket { state: State::Reserved(reserved), .. }) = self.tickets.remove(&oldest)
        {
            self.by_lease.remove(&reserved.lease.bits());
        }
    }
}
