//! Every job that has a place: it joins, is served, ends, and its timers run. The words are in [`super::place`].
//!
//! A core: it is told what happened and when, says which job has its turn and when to be called again, and reserves
//! nothing itself. Refuses to know the ledger's calls and the clock.

mod heard;
mod kept;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

use self::kept::Kept;
use super::limits::Limits;
use super::order::{Amounts, Order};
use super::place::{JobId, LimitId, Need, NewPlace, Place, PlaceState, QueueFull, Reserved};
use super::share::Share;
use crate::lease::Lease;
use crate::ledger::Account;
use crate::ledger::Schedule;
use crate::limit::{LeaseBits, LeaseId, LimitSpec};
use crate::retry::policy::Queue as Policy;

/// A job that was sent from limit to limit this often begins to insist: it would hardly find all of them free by chance.
const BOUNCES_MAX: u32 = 3;

/// The least time for which a job insists.
const INSIST_MS_MIN: u64 = 1000;

/// Every job that has a place.
#[derive(Debug, Default)]
pub struct Places {
    pub(super) order: Order,
    places: AHashMap<JobId, Place>,
    /// The places of jobs that were served, by what the ledger calls their leases.
    by_lease: AHashMap<LeaseBits, JobId>,
    pub(super) limits: Limits,
    /// Deadlines, and times by which a lease must be picked up.
    timers: BTreeSet<(u64, JobId)>,
    /// Until when those jobs insist that do.
    insisting: BTreeSet<(u64, JobId)>,
    /// How many were served and not picked up yet.
    unclaimed: usize,
    /// What the places take that are not over, in bytes.
    open_bytes: usize,
    /// Places that were picked up or have ended.
    kept: Kept,
    /// What nobody was told of, until the runner releases it.
    releases: Vec<Lease>,
}

/// What came due. Nothing has been done about it yet: whoever reads it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// A job waited as long as it may, so its place has to end.
    Deadline(JobId),
    /// A job was served and nobody came, so its place has to end and its lease has to be released.
    NotPickedUp(JobId),
    /// A limit may have something again, so it has to be checked.
    Check(LimitId),
}

/// What ending a place did.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// False if the place had ended before, or never was.
    pub(super) is_news: bool,
    /// What it held that nobody was told of: it has to be released.
    pub(super) unclaimed: Option<Box<Lease>>,
}

impl Places {
    /// `is_shared`: others than this process take from the ledger's accounts and give back.
    pub fn new(is_shared: bool) -> Self {
        Self { limits: Limits::new(is_shared), ..Self::default() }
    }

    /// How many jobs wait or are being attempted.
    pub fn depth(&self) -> usize {
        self.order.len()
    }

    pub(super) fn get(&self, id: JobId) -> Option<&Place> {
        self.places.get(&id)
    }

    /// Takes a place. The job has its turn at once if no other is before it.
    pub fn join(
        &mut self,
        new: NewPlace,
        policy: &Policy,
        share: &Share,
        now_ms: u64,
    ) -> Result<(), QueueFull> {
        let NewPlace { id: lease_id, job_id, wants, needs, refused_by, terms } = new;
        let id = JobId::of(&lease_id);
        let bytes = kept::bytes_of(&lease_id, &job_id, &wants, terms.is_some());
        self.check_full(&needs, bytes, policy, share, now_ms)?;
        let amounts: Amounts = needs.iter().map(|need| (need.account.id, need.amount)).collect();
        for Need { account, spec, .. } in needs {
            self.limits.add(account, spec);
        }
        let is_placed = self.order.join(id, amounts, refused_by);
        let deadline_seconds = terms.map_or(policy.deadline_seconds, |terms| terms.deadline_seconds);
        let deadline_ms = now_ms.saturating_add(deadline_seconds * 1000);
        let place = Place {
            id: lease_id,
            job_id,
            wants,
            state: PlaceState::Queued,
            joined_ms: now_ms,
            since_ms: now_ms,
            promised_seconds: None,
            is_placed,
            attempts: u32::from(refused_by.is_some()),
            changed: Arc::default(),
            callers: 0,
            heard: 0,
            terms,
            bounces: 0,
            refused_by,
            insists: None,
            timer_ms: None,
            bytes,
        };
        self.open_bytes += bytes;
        self.places.insert(id, place);
        self.set_timer(id, Some(deadline_ms));
        Ok(())
    }

    /// The job to attempt now, if one has its turn.
    pub(super) fn next_turn(&mut self, now_ms: u64) -> Option<&Place> {
        let id = self.order.next_turn()?;
        self.enter(id, PlaceState::Processing, now_ms);
        let place = self.places.get_mut(&id).expect("a job that has its turn must have a place");
        place.attempts += 1;
        Some(place)
    }

    /// Something of a limit came back.
    pub fn freed(&mut self, limit: LimitId) {
        self.order.freed(limit);
    }

    /// Something of every limit may have come back.
    pub(super) fn freed_all(&mut self) {
        self.order.freed_all();
    }

    /// A job that was attempted did not get this limit, which is now as `spec` says: it waits there. True if the ledger has
    /// to be asked when that limit gets back what.
    pub(super) fn refused(&mut self, id: JobId, limit: LimitId, spec: &Arc<LimitSpec>, now_ms: u64) -> bool {
        self.order.refused(id, limit);
        let first = self.order.first_at(limit);
        let asks = first.is_some_and(|(_, amount)| self.limits.refused(limit, spec, amount, now_ms));
        if self.places.get(&id).is_some_and(|place| place.state == PlaceState::Processing) {
            self.enter(id, PlaceState::Queued, now_ms);
        }
        self.count_bounce(id, limit, now_ms);
        if !self.limits.is_asked(limit) {
            self.set_placed(limit);
        }
        asks
    }

    /// A job that was sent from limit to limit insists for as long as it has waited so far, and then rests for as long.
    fn count_bounce(&mut self, id: JobId, limit: LimitId, now_ms: u64) {
        let Some(place) = self.places.get_mut(&id) else { return };
        let before = place.refused_by.replace(limit);
        place.bounces += u32::from(before.is_some_and(|before| before != limit));
        let rests =
            place.insists.is_some_and(|(since_ms, until_ms)| now_ms < until_ms + (until_ms - since_ms));
        if place.bounces < BOUNCES_MAX || rests {
            return;
        }
        let until_ms = now_ms + now_ms.saturating_sub(place.joined_ms).max(INSIST_MS_MIN);
        place.bounces = 0;
        place.insists = Some((now_ms, until_ms));
        self.insisting.insert((until_ms, id));
        self.order.insist(id);
    }

    /// A job waits at one of these limits.
    pub(super) fn has_queue(&self, mut limits: impl Iterator<Item = LimitId>) -> bool {
        limits.any(|limit| self.order.waiting_at(limit) > 0)
    }

    /// One of the limits that a job needs.
    pub(super) fn any_limit(&self, id: JobId) -> Option<(LimitId, Arc<LimitSpec>)> {
        let (limit, _) = *self.order.needs(id).first()?;
        Some((limit, Arc::clone(&self.limits.get(limit)?.spec)))
    }

    /// All that a job needs, of its limits as they were last asked for.
    pub(super) fn needs(&self, id: JobId) -> Vec<Need> {
        let need = |&(limit, amount): &(LimitId, u64)| {
            let known = self.limits.get(limit)?;
            Some(Need { account: Arc::clone(&known.account), spec: Arc::clone(&known.spec), amount })
        };
        self.order.needs(id).iter().filter_map(need).collect()
    }

    /// What the first job at a limit needs of it, and the limit.
    pub(super) fn first_at(&self, limit: LimitId) -> Option<(u64, &Arc<Account>, &Arc<LimitSpec>)> {
        let (_, amount) = self.order.first_at(limit)?;
        let known = self.limits.get(limit)?;
        Some((amount, &known.account, &known.spec))
    }

    /// What the ledger says of a limit that refused a job; `None` if it said nothing.
    pub(super) fn scheduled(
        &mut self,
        limit: LimitId,
        schedule: Option<Schedule>,
        now_ms: u64,
        rand: impl FnOnce(u64) -> u64,
    ) {
        let first = self.order.first_at(limit).map(|(_, amount)| amount);
        self.limits.scheduled(limit, schedule, first, now_ms, rand);
        self.set_placed(limit);
    }

    /// The jobs that wait at a limit know their position.
    fn set_placed(&mut self, limit: LimitId) {
        let here: Vec<JobId> = self.order.at(limit).collect();
        for id in here {
            if let Some(place) = self.places.get_mut(&id)
                && !std::mem::replace(&mut place.is_placed, true)
            {
                place.changed.notify_waiters();
            }
        }
    }

    /// A limit came due: the first job there has its turn, if that is worth an attempt. `sample` is what was last seen
    /// free of the limit.
    pub(super) fn check(&mut self, limit: LimitId, sample: Option<u64>, now_ms: u64) {
        if let Some((_, amount)) = self.order.first_at(limit)
            && self.limits.is_worth_an_attempt(limit, amount, sample, now_ms)
        {
            self.order.freed(limit);
        }
    }

    /// A job that was attempted is served. Its lease is kept until it is picked up, or until the time for that is over.
    pub(super) fn served(&mut self, id: JobId, reserved: Reserved, policy: &Policy, now_ms: u64) {
        self.order.needs(id).iter().for_each(|(limit, _)| self.limits.served(*limit));
        self.leave_order(id);
        self.by_lease.insert(reserved.lease.bits(), id);
        self.unclaimed += 1;
        self.enter(id, PlaceState::Reserved(Box::new(reserved)), now_ms);
        let terms = self.places.get(&id).and_then(|place| place.terms);
        let pickup_seconds = terms.map_or(policy.pickup_seconds, |terms| terms.pickup_seconds);
        self.set_timer(id, Some(now_ms.saturating_add(pickup_seconds * 1000)));
    }

    /// The holder of a place was told what it holds.
    pub fn picked_up(&mut self, id: JobId) -> Option<Box<Lease>> {
        let Some(Place { state: PlaceState::Reserved(reserved), .. }) = self.places.get_mut(&id) else {
            return None;
        };
        if std::mem::replace(&mut reserved.is_picked_up, true) {
            return None;
        }
        let unclaimed = reserved.unclaimed.take();
        self.unclaimed -= 1;
        self.set_timer(id, None);
        self.keep(id);
        unclaimed
    }

    /// Nobody was told of this lease: the runner releases it.
    pub(super) fn release_later(&mut self, unclaimed: Option<Box<Lease>>) {
        self.releases.extend(unclaimed.map(|lease| *lease));
    }

    pub(super) fn take_releases(&mut self) -> Vec<Lease> {
        std::mem::take(&mut self.releases)
    }

    /// The times of a new policy hold for those who have a place, too.
    pub(super) fn policy_changed(&mut self, policy: &Policy) {
        let until = |place: &Place| match &place.state {
            // Its times are those of another instance.
            _ if place.terms.is_some() => place.timer_ms,
            PlaceState::Reserved(reserved) if !reserved.is_picked_up => {
                Some(place.since_ms.saturating_add(policy.pickup_seconds * 1000))
            }
            state if state.is_waiting() => {
                Some(place.joined_ms.saturating_add(policy.deadline_seconds * 1000))
            }
            _ => None,
        };
        let timers: Vec<_> = self.places.iter().map(|(id, place)| (*id, until(place))).collect();
        timers.into_iter().for_each(|(id, until_ms)| self.set_timer(id, until_ms));
    }

    /// Ends a place in its last state.
    pub(super) fn end(&mut self, id: JobId, state: PlaceState, now_ms: u64) -> Ended {
        let mut unclaimed = None;
        match self.places.get_mut(&id).map(|place| &mut place.state) {
            None => return Ended::default(),
            Some(state) if state.is_last() => return Ended::default(),
            Some(PlaceState::Reserved(reserved)) => {
                self.by_lease.remove(&reserved.lease.bits());
                unclaimed = reserved.unclaimed.take();
                if !reserved.is_picked_up {
                    self.unclaimed -= 1;
                    self.keep(id);
                }
            }
            Some(_) => self.keep(id),
        }
        self.leave_order(id);
        self.set_timer(id, None);
        self.enter(id, state, now_ms);
        Ended { is_news: true, unclaimed }
    }

    /// The place that a lease was reserved for.
    pub(super) fn of_lease(&self, lease: &LeaseId) -> Option<JobId> {
        self.by_lease.get(&lease.bits()).copied()
    }

    /// The places of jobs that wait, or hold a lease that nobody has picked up.
    pub(super) fn open(&self) -> Vec<JobId> {
        self.places.iter().filter(|(_, place)| !place.is_over()).map(|(id, _)| *id).collect()
    }

    /// What has come due by now.
    pub(super) fn due(&mut self, now_ms: u64) -> Vec<Due> {
        while let Some(&(until_ms, id)) = self.insisting.first()
            && until_ms <= now_ms
        {
            self.insisting.pop_first();
            self.order.relent(id);
        }
        let mut due: Vec<Due> = self.limits.due(now_ms).into_iter().map(Due::Check).collect();
        while let Some(&(at_ms, id)) = self.timers.first()
            && at_ms <= now_ms
        {
            self.set_timer(id, None);
            due.push(match self.places.get(&id).map(|place| &place.state) {
                Some(PlaceState::Reserved(_)) => Due::NotPickedUp(id),
                _ => Due::Deadline(id),
            });
        }
        due
    }

    /// When to call [`Places::due`] next.
    pub fn next_due_ms(&self) -> Option<u64> {
        let first = self.timers.first().map(|(at_ms, _)| *at_ms);
        let insisting = self.insisting.first().map(|(until_ms, _)| *until_ms);
        [first, insisting, self.limits.next_due_ms()].into_iter().flatten().min()
    }

    fn enter(&mut self, id: JobId, state: PlaceState, now_ms: u64) {
        if let Some(place) = self.places.get_mut(&id) {
            // An attempt that is refused does not begin a new wait.
            if !(place.state.is_waiting() && state.is_waiting()) {
                place.since_ms = now_ms;
            }
            place.state = state;
            place.changed.notify_waiters();
        }
    }

    fn leave_order(&mut self, id: JobId) {
        if let Some(Place { insists: Some((_, until_ms)), .. }) = self.places.get(&id) {
            self.insisting.remove(&(*until_ms, id));
        }
        let needs = self.order.remove(id);
        needs.into_iter().flatten().for_each(|(limit, _)| self.limits.remove_one(limit));
    }

    fn set_timer(&mut self, id: JobId, at_ms: Option<u64>) {
        let Some(place) = self.places.get_mut(&id) else { return };
        if let Some(old_ms) = std::mem::replace(&mut place.timer_ms, at_ms) {
            self.timers.remove(&(old_ms, id));
        }
        if let Some(at_ms) = at_ms {
            self.timers.insert((at_ms, id));
        }
    }
}

#[cfg(test)]
mod tests;
