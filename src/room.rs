//! The waiting room: a place in line for those who can wait, an honest time, and their lease in order.
//!
//! Tickets and their states here, who is next in [`lines`], how long it takes in [`forecast`], what newcomers may take
//! meanwhile in [`turnstile`]. A core: it is told what happened and when, says whom to try and when to be woken, and
//! reserves nothing itself. Refuses to know the wire, the ledger's calls and the clock.

pub mod forecast;
pub mod lines;
pub mod turnstile;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use ahash::AHashMap;
use tokio::sync::Notify;

use self::forecast::Known;
use self::lines::{JobId, LimitId, Lines, Needs, Place};
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
    /// The tickets of leases that are called otherwise.
    by_lease: AHashMap<u128, JobId>,
    /// What is known of the limits that somebody in line needs.
    limits: AHashMap<LimitId, Limit>,
    timers: BTreeSet<(u64, Timer)>,
    /// Those who are not in line any more, the oldest first.
    kept: VecDeque<JobId>,
}

/// One job's way through the room.
#[derive(Debug)]
pub struct Ticket {
    pub id: LeaseId,
    pub job_id: String,
    pub wants: Arc<[(Arc<str>, u64)]>,
    pub state: State,
    pub joined_ms: u64,
    /// When its state began.
    pub since_ms: u64,
    /// The first promise, if one could be made.
    pub promised_seconds: Option<u64>,
    /// It has been tried, or stands behind somebody who was: its place is one.
    pub is_placed: bool,
    /// How often it was tried.
    pub attempts: u32,
    pub changed: Arc<Notify>,
    timer_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    Queued,
    /// Its chain is being submitted.
    Processing,
    Reserved(Box<Reserved>),
    Completed,
    /// Its deadline came, it was not picked up, or its lease ran out.
    TimedOut(&'static str),
    Failed(String),
    Cancelled,
}

/// What a job that was served holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Reserved {
    /// As the ledger calls it; a later attempt has another name than the ticket.
    pub lease: LeaseId,
    /// `None` if it can be completed by its id only.
    pub token: Option<String>,
    pub reserved_at_unix_ms: u64,
    pub ends_at_unix_ms: u64,
    pub is_picked_up: bool,
}

impl State {
    pub fn name(&self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Processing => "processing",
            State::Reserved(_) => "reserved",
            State::Completed => "completed",
            State::TimedOut(_) => "timed_out",
            State::Failed(_) => "failed",
            State::Cancelled => "cancelled",
        }
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, State::Queued | State::Processing)
    }

    /// Nothing follows it.
    pub fn is_last(&self) -> bool {
        !self.is_waiting() && !matches!(self, State::Reserved(_))
    }
}

#[derive(Debug)]
struct Limit {
    account: Arc<Account>,
    spec: Arc<LimitSpec>,
    outlook: Option<Outlook>,
    /// When it is to be looked at again.
    wake_ms: Option<u64>,
    /// How many in line need it, wherever they wait.
    needed_by: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Timer {
    /// A deadline, or the time to pick something up.
    Job(JobId),
    Limit(LimitId),
}

/// Somebody who wants a place.
#[derive(Debug)]
pub struct Arrival {
    pub id: LeaseId,
    pub job_id: String,
    pub wants: Arc<[(Arc<str>, u64)]>,
    pub limits: Vec<(Arc<Account>, Arc<LimitSpec>, u64)>,
}

/// There is no place left.
#[derive(Debug, Clone)]
pub struct Full {
    /// The limit whose places are all taken; `None` if all places are.
    pub limit: Option<Arc<Account>>,
    /// When one who came now would have been served.
    pub eta_seconds: u64,
}

impl Ticket {
    /// Its holder has heard the end of it, or has what it waited for.
    pub fn is_over(&self) -> bool {
        match &self.state {
            State::Reserved(reserved) => reserved.is_picked_up,
            state => state.is_last(),
        }
    }
}

/// What happened to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Waited as long as a job may; it is out.
    Deadline(JobId),
    /// Was served and did not come; it is out, and what it holds has to be given back.
    NotPickedUp(JobId),
    /// A limit may have something, or is to be looked at.
    Look(LimitId),
}

/// Where a ticket stands, for those who ask.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub place: Option<Place>,
    /// Until it is served, or until it is worth asking again.
    pub eta_seconds: u64,
    pub elapsed_seconds: u64,
}

impl Room {
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
            let id = account.id;
            let new = Limit { account, spec: Arc::clone(&spec), outlook: None, wake_ms: None, needed_by: 0 };
            let limit = self.limits.entry(id).or_insert(new);
            limit.spec = spec;
            limit.needed_by += 1;
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
        let all_taken = self.lines.len() as u64 >= policy.places_max;
        if crowded.is_none() && !all_taken {
            return Ok(());
        }
        let (account, spec, own) = crowded.unwrap_or(&limits[0]);
        let ahead = self.lines.ahead_at(account.id);
        let known = self.known(account.id, spec, account, line_part(account.id));
        let eta_seconds =
            known.wait_ms(ahead, *own, now_ms).map_or(policy.max_seconds, |ms| eta::after_ms(ms, policy));
        Err(Full { limit: crowded.map(|(account, ..)| Arc::clone(account)), eta_seconds })
    }

    /// Whom to try now.
    pub fn next(&mut self, now_ms: u64) -> Option<JobId> {
        let id = self.lines.next()?;
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
        if let Some(limit) = self.limits.get_mut(&limit) {
            limit.spec = Arc::clone(spec);
        }
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
        Some((limit, Arc::clone(&self.limits.get(&limit)?.spec)))
    }

    /// What the ledger last said of a limit.
    pub fn outlook(&self, limit: LimitId) -> Option<&Outlook> {
        self.limits.get(&limit)?.outlook.as_ref()
    }

    /// The first at a limit, what it needs of it, and the limit.
    pub fn first_at(&self, limit: LimitId) -> Option<(u64, &Arc<Account>, &Arc<LimitSpec>)> {
        let (_, amount) = self.lines.first_at(limit)?;
        let Limit { account, spec, .. } = self.limits.get(&limit)?;
        Some((amount, account, spec))
    }

    /// What the ledger says of a limit, and when to look again. At a limit that nobody waits at there's nothing to see.
    pub fn looked(&mut self, limit: LimitId, outlook: Option<Outlook>, again_ms: Option<u64>) {
        let again_ms = again_ms.filter(|_| self.lines.first_at(limit).is_some());
        let Some(there) = self.limits.get_mut(&limit) else { return };
        if outlook.is_some() {
            there.outlook = outlook;
        }
        if let Some(old_ms) = std::mem::replace(&mut there.wake_ms, again_ms) {
            self.timers.remove(&(old_ms, Timer::Limit(limit)));
        }
        if let Some(again_ms) = again_ms {
            self.timers.insert((again_ms, Timer::Limit(limit)));
        }
    }

    /// One who was tried is served. It holds that until it is picked up, or not.
    pub fn served(&mut self, id: JobId, reserved: Reserved, policy: &Queue, now_ms: u64) {
        self.out_of_line(id);
        self.by_lease.insert(reserved.lease.bits(), id);
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
        self.set_timer(id, None);
        self.keep(id);
        true
    }

    /// The end of a ticket's way. False if it had ended before, or never was.
    pub fn end(&mut self, id: JobId, state: State, now_ms: u64) -> bool {
        match self.tickets.get(&id) {
            None => return false,
            Some(ticket) if ticket.state.is_last() => return false,
            Some(ticket) if matches!(&ticket.state, State::Reserved(reserved) if reserved.is_picked_up) => {}
            Some(_) => self.keep(id),
        }
        self.out_of_line(id);
        self.set_timer(id, None);
        if let Some(Ticket { state: State::Reserved(reserved), .. }) = self.tickets.get(&id) {
            self.by_lease.remove(&reserved.lease.bits());
        }
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
        let mut due = Vec::new();
        while let Some(&(at_ms, timer)) = self.timers.first()
            && at_ms <= now_ms
        {
            self.timers.pop_first();
            match timer {
                Timer::Limit(limit) => {
                    if let Some(there) = self.limits.get_mut(&limit) {
                        there.wake_ms = None;
                    }
                    due.push(Due::Look(limit));
                }
                Timer::Job(id) => {
                    let Some(ticket) = self.tickets.get_mut(&id) else { continue };
                    ticket.timer_ms = None;
                    due.push(match ticket.state {
                        State::Reserved(_) => Due::NotPickedUp(id),
                        _ => Due::Deadline(id),
                    });
                }
            }
        }
        due
    }

    /// When to call [`Room::due`] next.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.timers.first().map(|(at_ms, _)| *at_ms)
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
                let limit = self.limits.get(&place.limit)?;
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
        let outlook = self.limits.get(&limit).and_then(|limit| limit.outlook.as_ref());
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
        for (id, _) in self.lines.remove(id).into_iter().flatten() {
            let Some(limit) = self.limits.get_mut(&id) else { continue };
            limit.needed_by -= 1;
            if limit.needed_by > 0 {
                continue;
            }
            if let Some(wake_ms) = limit.wake_ms {
                self.timers.remove(&(wake_ms, Timer::Limit(id)));
            }
            self.limits.remove(&id);
        }
    }

    fn set_timer(&mut self, id: JobId, at_ms: Option<u64>) {
        let Some(ticket) = self.tickets.get_mut(&id) else { return };
        if let Some(old_ms) = std::mem::replace(&mut ticket.timer_ms, at_ms) {
            self.timers.remove(&(old_ms, Timer::Job(id)));
        }
        if let Some(at_ms) = at_ms {
            self.timers.insert((at_ms, Timer::Job(id)));
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
