//! The limits that jobs in the queue need: what the ledger said of them, and when each is worth another attempt.
//!
//! When a limit refuses a job, the ledger is asked when that limit gets back what, unless it was just asked. Until it has
//! enough, no job is attempted there, unless something of it is given back earlier. Nobody tells what other instances give back to a
//! shared ledger, so there the samples that are taken anyway are checked every second.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

use super::place::LimitId;
use crate::ledger::{Account, Schedule};
use crate::limit::{Kind, LimitSpec};
use crate::retry::backoff;

/// How often a limit is checked when nobody knows what it gets back, or when others give back to it.
const CHECK_MS: u64 = 1000;

/// A schedule is asked for again when it is this old, however often a limit refuses.
const SCHEDULE_MS: u64 = 100;

/// A shared ledger frees what expired a little late.
const EXPIRY_LAG_MS: u64 = 20;

#[derive(Debug, Default)]
pub(super) struct Limits {
    limits: AHashMap<LimitId, Limit>,
    wakes: BTreeSet<(u64, LimitId)>,
    /// Others than this process take from the ledger's accounts and give back.
    is_shared: bool,
}

#[derive(Debug)]
pub(super) struct Limit {
    pub(super) account: Arc<Account>,
    /// As it was when it was last asked for.
    pub(super) spec: Arc<LimitSpec>,
    pub(super) schedule: Option<Schedule>,
    /// When the ledger said that.
    scheduled_ms: Option<u64>,
    /// The ledger is being asked.
    is_asked: bool,
    wake_ms: Option<u64>,
    /// How many there were in a row.
    refusals: u32,
    /// How many jobs in the queue need it, wherever they wait.
    needed_by: usize,
}

impl Limit {
    /// In how many milliseconds so much of it is free if nobody takes any, as far as can be told. A rolling limit has a
    /// schedule. Most of those who hold a concurrency limit now are done within twice the mean hold.
    pub(super) fn comes_back_ms(&self, amount: u64, now_ms: u64) -> Option<u64> {
        match self.spec.kind {
            Kind::Concurrency { .. } => Some(self.account.hints.mean_hold_ms()?.saturating_mul(2)),
            Kind::Rolling { .. } => {
                let at_ms = self.schedule.as_ref()?.fits_at_ms(amount, self.spec.capacity, now_ms)?;
                Some(at_ms.saturating_sub(now_ms))
            }
        }
    }
}

impl Limits {
    pub(super) fn new(is_shared: bool) -> Self {
        Self { is_shared, ..Self::default() }
    }

    pub(super) fn get(&self, limit: LimitId) -> Option<&Limit> {
        self.limits.get(&limit)
    }

    /// One more job in the queue needs a limit.
    pub(super) fn add(&mut self, account: Arc<Account>, spec: Arc<LimitSpec>) {
        let id = account.id;
        let new = Limit {
            account,
            spec: Arc::clone(&spec),
            schedule: None,
            scheduled_ms: None,
            is_asked: false,
            wake_ms: None,
            refusals: 0,
            needed_by: 0,
        };
        let known = self.limits.entry(id).or_insert(new);
        known.spec = spec;
        known.needed_by += 1;
    }

    /// Whoever asks for a limit now says that this is its capacity. True if that is news.
    pub(super) fn capacity_is(&mut self, limit: LimitId, capacity: u64) -> bool {
        match self.limits.get_mut(&limit) {
            Some(known) if known.spec.capacity != capacity => {
                Arc::make_mut(&mut known.spec).capacity = capacity;
                true
            }
            _ => false,
        }
    }

    /// One of those jobs has left the queue.
    pub(super) fn remove_one(&mut self, limit: LimitId) {
        let Some(known) = self.limits.get_mut(&limit) else { return };
        known.needed_by -= 1;
        if known.needed_by == 0 {
            self.wake_at(limit, None);
            self.limits.remove(&limit);
        }
    }

    /// A limit refused a job, and is now as `spec` says; the first job there needs `amount`. True if the ledger has to be
    /// asked for a schedule. If there is a recent one, that one says when to try again; whatever is given back before that time is attempted anyway.
    pub(super) fn refused(
        &mut self,
        limit: LimitId,
        spec: &Arc<LimitSpec>,
        amount: u64,
        now_ms: u64,
    ) -> bool {
        let Some(known) = self.limits.get_mut(&limit) else { return false };
        known.spec = Arc::clone(spec);
        known.refusals = known.refusals.saturating_add(1);
        let is_recent = known.scheduled_ms.is_some_and(|ms| now_ms < ms + SCHEDULE_MS);
        let fits_ms = known.schedule.as_ref().and_then(|it| it.fits_at_ms(amount, spec.capacity, now_ms));
        match fits_ms.filter(|ms| is_recent && *ms > now_ms) {
            Some(at_ms) => {
                let again_ms = again_ms(at_ms, self.is_shared, now_ms);
                self.wake_at(limit, Some(again_ms));
                false
            }
            None => !std::mem::replace(&mut known.is_asked, true),
        }
    }

    /// The ledger is being asked for a schedule.
    pub(super) fn is_asked(&self, limit: LimitId) -> bool {
        self.limits.get(&limit).is_some_and(|known| known.is_asked)
    }

    pub(super) fn served(&mut self, limit: LimitId) {
        if let Some(known) = self.limits.get_mut(&limit) {
            known.refusals = 0;
        }
    }

    /// What the ledger says after a refusal, if it says anything. `amount` is what the first job needs, if one waits: else
    /// it is being attempted, and its refusal says when to try again.
    pub(super) fn scheduled(
        &mut self,
        limit: LimitId,
        schedule: Option<Schedule>,
        amount: Option<u64>,
        now_ms: u64,
        rand: impl FnOnce(u64) -> u64,
    ) {
        let Some(known) = self.limits.get_mut(&limit) else { return };
        (known.is_asked, known.scheduled_ms) = (false, Some(now_ms));
        let Some(amount) = amount else {
            known.schedule = schedule;
            return;
        };
        let capacity = known.spec.capacity;
        let fits_ms = schedule.as_ref().and_then(|schedule| schedule.fits_at_ms(amount, capacity, now_ms));
        let again_ms = match fits_ms {
            // The limit should have enough by now: something was given back meanwhile, or expires a little late.
            Some(at_ms) if at_ms <= now_ms => {
                let wait = backoff::delay(known.refusals, rand);
                now_ms + u64::try_from(wait.as_millis()).unwrap_or(CHECK_MS)
            }
            Some(at_ms) => again_ms(at_ms, self.is_shared, now_ms),
            None => now_ms + CHECK_MS,
        };
        // An older schedule may be long past: without one the limit is simply attempted again.
        known.schedule = schedule;
        self.wake_at(limit, Some(again_ms));
    }

    /// A limit came due: true if it is worth an attempt, else it comes due again later. `sample` is what was last seen
    /// free.
    pub(super) fn is_worth_an_attempt(
        &mut self,
        limit: LimitId,
        amount: u64,
        sample: Option<u64>,
        now_ms: u64,
    ) -> bool {
        let Some(known) = self.limits.get(&limit) else { return false };
        let capacity = known.spec.capacity;
        let fits = known.schedule.as_ref().and_then(|schedule| schedule.fits_at_ms(amount, capacity, now_ms));
        let given_back = self.is_shared && sample.is_some_and(|free| free >= amount);
        match fits {
            Some(at_ms) if at_ms > now_ms && !given_back => {
                let again_ms = if self.is_shared { at_ms.min(now_ms + CHECK_MS) } else { at_ms };
                self.wake_at(limit, Some(again_ms));
                false
            }
            _ => true,
        }
    }

    /// The limits that have come due; each is told once.
    pub(super) fn due(&mut self, now_ms: u64) -> Vec<LimitId> {
        let mut due = Vec::new();
        while let Some(&(at_ms, limit)) = self.wakes.first()
            && at_ms <= now_ms
        {
            self.wake_at(limit, None);
            due.push(limit);
        }
        due
    }

    pub(super) fn next_due_ms(&self) -> Option<u64> {
        self.wakes.first().map(|(at_ms, _)| *at_ms)
    }

    fn wake_at(&mut self, limit: LimitId, at_ms: Option<u64>) {
        let Some(known) = self.limits.get_mut(&limit) else { return };
        if let Some(old_ms) = std::mem::replace(&mut known.wake_ms, at_ms) {
            self.wakes.remove(&(old_ms, limit));
        }
        if let Some(at_ms) = at_ms {
            self.wakes.insert((at_ms, limit));
        }
    }
}

/// When to try again a limit that should have enough at `at_ms`. Others may give back to a shared ledger before that.
fn again_ms(at_ms: u64, is_shared: bool, now_ms: u64) -> u64 {
    if is_shared { (at_ms + EXPIRY_LAG_MS).min(now_ms + CHECK_MS) } else { at_ms }
}
