//! The limits that somebody in line needs: what the ledger said of them, and when each is worth another try.
//!
//! A limit that refused somebody is looked at once. That says when it will have enough by itself, and until then nobody
//! asks it, unless something of it is given back. What other instances give back to a shared ledger nobody tells, so
//! there the samples that are taken anyway are looked at every second.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

use super::lines::LimitId;
use crate::ledger::{Account, Schedule};
use crate::limit::LimitSpec;
use crate::retry::backoff;

/// How often a limit is looked at whose time to give back is not known, or that others give back to.
const LOOK_MS: u64 = 1000;

/// A shared ledger frees what expired a little late.
const EXPIRY_LAG_MS: u64 = 20;

#[derive(Debug, Default)]
pub struct Watch {
    limits: AHashMap<LimitId, Watched>,
    wakes: BTreeSet<(u64, LimitId)>,
    /// Others than this process take from the ledger's accounts and give back.
    is_shared: bool,
}

#[derive(Debug)]
pub struct Watched {
    pub account: Arc<Account>,
    /// As it was when it was last asked for.
    pub spec: Arc<LimitSpec>,
    pub schedule: Option<Schedule>,
    wake_ms: Option<u64>,
    /// In a row.
    refusals: u32,
    /// How many in line need it, wherever they wait.
    needed_by: usize,
}

impl Watch {
    pub fn new(is_shared: bool) -> Self {
        Self { is_shared, ..Self::default() }
    }

    pub fn get(&self, limit: LimitId) -> Option<&Watched> {
        self.limits.get(&limit)
    }

    /// One more in line needs a limit.
    pub fn add(&mut self, account: Arc<Account>, spec: Arc<LimitSpec>) {
        let id = account.id;
        let new = Watched {
            account,
            spec: Arc::clone(&spec),
            schedule: None,
            wake_ms: None,
            refusals: 0,
            needed_by: 0,
        };
        let watched = self.limits.entry(id).or_insert(new);
        watched.spec = spec;
        watched.needed_by += 1;
    }

    /// One of those is out of line.
    pub fn drop_one(&mut self, limit: LimitId) {
        let Some(watched) = self.limits.get_mut(&limit) else { return };
        watched.needed_by -= 1;
        if watched.needed_by == 0 {
            self.wake_at(limit, None);
            self.limits.remove(&limit);
        }
    }

    /// It refused somebody, and is now as `spec` says.
    pub fn refused(&mut self, limit: LimitId, spec: &Arc<LimitSpec>) {
        if let Some(watched) = self.limits.get_mut(&limit) {
            watched.spec = Arc::clone(spec);
            watched.refusals = watched.refusals.saturating_add(1);
        }
    }

    pub fn served(&mut self, limit: LimitId) {
        if let Some(watched) = self.limits.get_mut(&limit) {
            watched.refusals = 0;
        }
    }

    /// What the ledger says after a refusal, if it says anything; `amount` is what the first in line needs.
    pub fn looked(
        &mut self,
        limit: LimitId,
        schedule: Option<Schedule>,
        amount: u64,
        now_ms: u64,
        rand: impl FnOnce(u64) -> u64,
    ) {
        let Some(watched) = self.limits.get_mut(&limit) else { return };
        let capacity = watched.spec.capacity;
        let fits_ms = schedule.as_ref().and_then(|schedule| schedule.fits_at_ms(amount, capacity, now_ms));
        let again_ms = match fits_ms {
            // It should have it: it was given back meanwhile, or expires a little late.
            Some(at_ms) if at_ms <= now_ms => {
                let wait = backoff::delay(watched.refusals, rand);
                now_ms + u64::try_from(wait.as_millis()).unwrap_or(LOOK_MS)
            }
            Some(at_ms) if self.is_shared => (at_ms + EXPIRY_LAG_MS).min(now_ms + LOOK_MS),
            Some(at_ms) => at_ms,
            None => now_ms + LOOK_MS,
        };
        // What it said before may be long past: without a word it is simply tried again.
        watched.schedule = schedule;
        self.wake_at(limit, Some(again_ms));
    }

    /// Its time has come: true if it is worth a try, else it is waited for again. `sample` is what was last seen free.
    pub fn is_worth_a_try(&mut self, limit: LimitId, amount: u64, sample: Option<u64>, now_ms: u64) -> bool {
        let Some(watched) = self.limits.get(&limit) else { return false };
        let capacity = watched.spec.capacity;
        let fits =
            watched.schedule.as_ref().and_then(|schedule| schedule.fits_at_ms(amount, capacity, now_ms));
        let given_back = self.is_shared && sample.is_some_and(|free| free >= amount);
        match fits {
            Some(at_ms) if at_ms > now_ms && !given_back => {
                let again_ms = if self.is_shared { at_ms.min(now_ms + LOOK_MS) } else { at_ms };
                self.wake_at(limit, Some(again_ms));
                false
            }
            _ => true,
        }
    }

    /// Limits whose time has come.
    pub fn due(&mut self, now_ms: u64) -> Vec<LimitId> {
        let mut due = Vec::new();
        while let Some(&(at_ms, limit)) = self.wakes.first()
            && at_ms <= now_ms
        {
            self.wake_at(limit, None);
            due.push(limit);
        }
        due
    }

    pub fn next_due_ms(&self) -> Option<u64> {
        self.wakes.first().map(|(at_ms, _)| *at_ms)
    }

    fn wake_at(&mut self, limit: LimitId, at_ms: Option<u64>) {
        let Some(watched) = self.limits.get_mut(&limit) else { return };
        if let Some(old_ms) = std::mem::replace(&mut watched.wake_ms, at_ms) {
            self.wakes.remove(&(old_ms, limit));
        }
        if let Some(at_ms) = at_ms {
            self.wakes.insert((at_ms, limit));
        }
    }
}
