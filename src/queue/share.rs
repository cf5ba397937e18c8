//! What newcomers, the requests that don't queue, may take of a limit at which jobs wait.
//!
//! With C the capacity, S the settings' share of the queue and R = ⌈S × C⌉, a newcomer may take an amount if either holds:
//!
//! * **Credit.** Newcomers have had less than (1 - S) / S for each 1 that the queue was served. Whatever they take spends
//!   credit, so that of all that is admitted each side gets its part while both want more than there is.
//! * **Room.** What would be left free is at least what is kept for the queue. That is what its jobs need, at most R. A
//!   first job that needs more than R has everything kept that it needs, but only for the part S of the time.
//!
//! Nobody keeps more idle than the share. A first job that needs at most R is served as soon as that much is free, so less
//! than R, that is at most S × C, is ever idle for it. For a larger one up to C is idle, but only for the last part S of each
//! cycle, and nothing in its first part 1 - S: on average over a cycle at most S × C.
//!
//! The first job does not starve. Let T be the time in which what it needs comes back if newcomers take nothing: at most
//! the limit's window or timeout. Credit is bounded and grows only when the queue is served, so newcomers can live on it only
//! once. After that a job that needs at most R has it within T, because all that comes back is kept. A larger one has it in
//! the first cycle whose kept part is at least T. Cycle n lasts u × 2^z, z being how often 2 divides n: 1, 2, 1, 4, 1, 2, 1, 8
//! times u. So a cycle of at least 2^k × u comes within (k / 2 + 1) × 2^k × u, whatever came before it, and with
//! 2^(k-1) × u < T / S ≤ 2^k × u that is less than (k + 2) × T / S. The unit u is chosen so that k is mostly 0.
//!
//! A limit at which no job waits isn't here, and costs a request nothing but one read. This holds back the newcomers of this
//! instance, and of its sidecars if it is a hub (`hub/newcomers.rs`). Others that use the same ledger don't know of this queue.

use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::AHashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use super::place::{JobId, LimitId};
use crate::limit::RequirementSet;

/// The shortest and the longest unit of a cycle. A longer one would shut newcomers out for minutes at a time.
const UNIT_MS_MIN: u64 = 1000;
const UNIT_MS_MAX: u64 = 300_000;

/// How much longer a cycle is made than computed: what comes back is a little late, and newcomers may have some credit left.
const UNIT_MARGIN: f64 = 1.25;

/// A plain mutex: sections are some lookups and never wait.
#[derive(Debug, Default)]
pub struct Share {
    limits: Mutex<AHashMap<LimitId, LimitShare>>,
    /// How many there are, read without the lock.
    count: AtomicUsize,
}

/// What waits at a limit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Demand {
    pub(super) first: JobId,
    /// What the first job needs of the limit.
    pub(super) needs: u64,
    /// What all jobs need that wait there.
    pub(super) all_need: u64,
    pub(super) capacity: u64,
    /// In how many milliseconds the first job would have what it needs if newcomers took nothing, if that can be told.
    pub(super) comes_back_ms: Option<u64>,
}

#[derive(Debug)]
struct LimitShare {
    share: f64,
    demand: Demand,
    /// What newcomers may take before the queue is served again. Below 0 they have had more than their part.
    credit: f64,
    /// Newcomers took this much and don't know yet whether the ledger lets them.
    under_way: u64,
    queue_took: u64,
    newcomers_took: u64,
    /// For a first job that needs more than the share.
    unit_ms: u64,
    cycle: u64,
    cycle_since_ms: u64,
}

/// What a newcomer took. It is put back if this is dropped before the newcomer was admitted.
#[derive(Debug)]
pub struct Taken<'s> {
    share: &'s Share,
    /// On the heap: it is seldom made, and every decision carries the space for it.
    amounts: Vec<TakenAmount>,
    is_admitted: bool,
}

#[derive(Debug)]
struct TakenAmount {
    limit: LimitId,
    amount: u64,
    credit: f64,
}

impl Share {
    /// Jobs wait at a limit. Credit and cycles go on while the same job is first.
    pub(super) fn set(&self, limit: LimitId, share: f64, demand: Demand, now_ms: u64) {
        if share <= 0.0 {
            return self.remove(limit);
        }
        let mut limits = self.limits.lock();
        let here = limits.entry(limit).or_insert_with(|| LimitShare::new(share, demand, now_ms));
        if here.demand.first != demand.first {
            (here.unit_ms, here.cycle, here.cycle_since_ms) = (UNIT_MS_MIN, 1, now_ms);
        }
        (here.share, here.demand) = (share, demand);
        here.credit = here.credit.min(here.credit_max());
        here.stretch(now_ms);
        self.count.store(limits.len(), Ordering::Release);
    }

    /// No job waits there any more.
    pub(super) fn remove(&self, limit: LimitId) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut limits = self.limits.lock();
            limits.remove(&limit);
            self.count.store(limits.len(), Ordering::Release);
        }
    }

    /// A job that waited got this much.
    pub(super) fn served(&self, limit: LimitId, amount: u64) {
        if let Some(here) = self.limits.lock().get_mut(&limit) {
            here.queue_took = here.queue_took.saturating_add(amount);
            here.credit = (here.credit + amount as f64 * here.per_unit()).min(here.credit_max());
        }
    }

    /// The part of a limit that the queue gets, as measured since it formed; 1 while nobody else takes any.
    pub(super) fn queue_part(&self, limit: LimitId) -> f64 {
        let limits = self.limits.lock();
        let Some(here) = limits.get(&limit) else { return 1.0 };
        let all = here.queue_took.saturating_add(here.newcomers_took);
        if here.queue_took == 0 || all == 0 { 1.0 } else { here.queue_took as f64 / all as f64 }
    }

    /// What the queue gets of a limit before newcomers have had `amount` of it.
    pub fn queue_gets_before(&self, limit: LimitId, amount: u64) -> u64 {
        if self.count.load(Ordering::Acquire) == 0 {
            return 0;
        }
        let limits = self.limits.lock();
        let Some(here) = limits.get(&limit) else { return 0 };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
        let part = (amount as f64 / here.per_unit()).ceil() as u64;
        part.min(here.demand.all_need)
    }

    /// A newcomer takes what it needs, or hears which of its limits (by their index in `needs`) are kept for the queue.
    /// `free` says what is free of one of them, as far as is known. It is asked without the lock.
    pub fn take<'n>(
        &self,
        needs: impl Iterator<Item = (LimitId, u64)> + Clone + 'n,
        now_ms: u64,
        free: impl Fn(usize) -> Option<u64>,
    ) -> Result<Option<Taken<'_>>, RequirementSet> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let mut known: SmallVec<[(usize, Option<u64>); 4]> = SmallVec::new();
        loop {
            let mut limits = self.limits.lock();
            let mut kept = RequirementSet::default();
            let mut unknown: SmallVec<[usize; 4]> = SmallVec::new();
            for (index, (limit, amount)) in needs.clone().enumerate() {
                let Some(here) = limits.get_mut(&limit).filter(|here| amount > 0 && here.credit <= 0.0)
                else {
                    continue;
                };
                match known.iter().find(|(there, _)| *there == index) {
                    None => unknown.push(index),
                    Some((_, free)) if here.has_room(amount, *free, now_ms) => {}
                    Some(_) => kept.insert(index),
                }
            }
            if !unknown.is_empty() {
                drop(limits);
                known.extend(unknown.into_iter().map(|index| (index, free(index))));
                continue;
            }
            if !kept.is_empty() {
                return Err(kept);
            }
            let amounts: Vec<TakenAmount> = needs
                .filter_map(|(limit, amount)| {
                    Some(TakenAmount { limit, amount, credit: limits.get_mut(&limit)?.take(amount) })
                })
                .collect();
            // What is taken locks again when it is dropped.
            drop(limits);
            let is_any = !amounts.is_empty();
            return Ok(is_any.then(|| Taken { share: self, amounts, is_admitted: false }));
        }
    }
}

impl LimitShare {
    fn new(share: f64, demand: Demand, now_ms: u64) -> Self {
        let mut new = Self {
            share,
            demand,
            credit: 0.0,
            under_way: 0,
            queue_took: 0,
            newcomers_took: 0,
            unit_ms: UNIT_MS_MIN,
            cycle: 1,
            cycle_since_ms: now_ms,
        };
        new.credit = demand.needs as f64 * new.per_unit();
        new
    }

    /// What newcomers may take per unit that the queue takes.
    fn per_unit(&self) -> f64 {
        (1.0 - self.share) / self.share
    }

    /// Credit doesn't pile up beyond this, nor debt, however long only one side took.
    fn credit_max(&self) -> f64 {
        self.demand.needs.max(self.demand.capacity) as f64 * self.per_unit()
    }

    #[expect(clippy::cast_possible_truncation, reason = "a part of the capacity fits")]
    fn share_amount(&self) -> u64 {
        (self.demand.capacity as f64 * self.share).ceil() as u64
    }

    /// Cycles begin anew when the unit is far too short for what the first job needs. The unit is never made shorter, and at least
    /// doubled each time: otherwise cycles could begin anew again and again, and the job would never get the end of one.
    #[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and the clamp follows")]
    fn stretch(&mut self, now_ms: u64) {
        let Some(ms) = self.demand.comes_back_ms else { return };
        let unit_ms = ((ms as f64 * UNIT_MARGIN / self.share) as u64).clamp(UNIT_MS_MIN, UNIT_MS_MAX);
        if unit_ms >= 2 * self.unit_ms {
            (self.unit_ms, self.cycle, self.cycle_since_ms) = (unit_ms, 1, now_ms);
        }
    }

    fn has_room(&mut self, amount: u64, free: Option<u64>, now_ms: u64) -> bool {
        let kept = self.kept(now_ms);
        let left = free.and_then(|free| free.checked_sub(self.under_way)?.checked_sub(amount));
        left.is_some_and(|left| left >= kept)
    }

    /// What newcomers must leave free now.
    fn kept(&mut self, now_ms: u64) -> u64 {
        let share = self.share_amount();
        if self.demand.needs <= share {
            return self.demand.all_need.clamp(self.demand.needs, share);
        }
        let mut length_ms = self.cycle_ms();
        while now_ms.saturating_sub(self.cycle_since_ms) >= length_ms {
            self.cycle_since_ms += length_ms;
            self.cycle += 1;
            length_ms = self.cycle_ms();
        }
        let age_ms = now_ms.saturating_sub(self.cycle_since_ms);
        let is_open = (age_ms as f64) < length_ms as f64 * (1.0 - self.share);
        if is_open { 0 } else { self.demand.needs }
    }

    fn cycle_ms(&self) -> u64 {
        self.unit_ms << self.cycle.trailing_zeros()
    }

    /// Takes credit for `amount`; how much that was. If there is any credit it may be overdrawn: otherwise a newcomer that needs much would
    /// never be admitted.
    fn take(&mut self, amount: u64) -> f64 {
        let before = self.credit;
        self.credit = (before - amount as f64).max(-self.credit_max()).min(before);
        self.under_way = self.under_way.saturating_add(amount);
        self.newcomers_took = self.newcomers_took.saturating_add(amount);
        before - self.credit
    }
}

impl Taken<'_> {
    /// The newcomer was admitted.
    pub fn keep(mut self) {
        self.is_admitted = true;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        let mut limits = self.share.limits.lock();
        for TakenAmount { limit, amount, credit } in &self.amounts {
            let Some(here) = limits.get_mut(limit) else { continue };
            here.under_way = here.under_way.saturating_sub(*amount);
            if !self.is_admitted {
                here.credit = (here.credit + credit).min(here.credit_max());
                here.newcomers_took = here.newcomers_took.saturating_sub(*amount);
            }
        }
    }
}

#[cfg(test)]
mod tests;
