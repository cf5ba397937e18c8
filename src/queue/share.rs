//! What newcomers, the requests that don't queue, may take of a limit at which jobs wait: the rest is the queue's share.
//!
//! While a job waits at a limit, newcomers spend a credit there that grows with what the queue is served, so that of
//! all that is admitted the queue gets at least its share. A limit at which no job waits isn't here, and costs a request
//! nothing but one read. It holds back the newcomers of this instance only: others don't know of this queue.

use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::AHashMap;
use parking_lot::Mutex;

use super::place::LimitId;
use crate::limit::RequirementSet;

/// A plain mutex: sections are some lookups and never wait.
#[derive(Debug, Default)]
pub struct Share {
    limits: Mutex<AHashMap<LimitId, LimitShare>>,
    /// How many there are, read without the lock.
    count: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct LimitShare {
    /// What newcomers may take per unit that the queue takes: (1 - share) / share.
    per_unit: f64,
    credit: f64,
    /// However long only the queue took, so much at once is enough.
    credit_max: f64,
    queue_took: u64,
    newcomers_took: u64,
}

/// What a newcomer took. It is put back if this is dropped before the newcomer was admitted.
#[derive(Debug)]
pub struct Taken<'s> {
    share: &'s Share,
    amounts: Vec<(LimitId, u64)>,
}

impl Share {
    /// Jobs wait at a limit, and the first of them needs `first`. A limit that is there keeps its credit.
    pub(super) fn set(&self, limit: LimitId, share: f64, first: u64, capacity: u64) {
        if share <= 0.0 {
            return self.remove(limit);
        }
        let per_unit = (1.0 - share) / share;
        let credit_max = (first.max(capacity) as f64) * per_unit;
        let mut limits = self.limits.lock();
        let credit = first as f64 * per_unit;
        let new = LimitShare { per_unit, credit, credit_max, queue_took: 0, newcomers_took: 0 };
        let here = limits.entry(limit).or_insert(new);
        (here.per_unit, here.credit_max) = (per_unit, credit_max);
        here.credit = here.credit.min(credit_max);
        self.count.store(limits.len(), Ordering::Release);
    }

    /// No job waits there any more.
    pub(super) fn remove(&self, limit: LimitId) {
        let mut limits = self.limits.lock();
        limits.remove(&limit);
        self.count.store(limits.len(), Ordering::Release);
    }

    /// Keeps only these limits.
    pub(super) fn retain(&self, keeps: impl Fn(LimitId) -> bool) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut limits = self.limits.lock();
            limits.retain(|limit, _| keeps(*limit));
            self.count.store(limits.len(), Ordering::Release);
        }
    }

    /// A job that waited got this much.
    pub(super) fn served(&self, limit: LimitId, amount: u64) {
        if let Some(here) = self.limits.lock().get_mut(&limit) {
            here.queue_took = here.queue_took.saturating_add(amount);
            here.credit = (here.credit + amount as f64 * here.per_unit).min(here.credit_max);
        }
    }

    /// The part of a limit that the queue gets, as measured since it formed; 1 while nobody else takes any.
    pub(super) fn queue_part(&self, limit: LimitId) -> f64 {
        let limits = self.limits.lock();
        let Some(here) = limits.get(&limit) else { return 1.0 };
        let all = here.queue_took.saturating_add(here.newcomers_took);
        if here.queue_took == 0 || all == 0 { 1.0 } else { here.queue_took as f64 / all as f64 }
    }

    /// A newcomer takes what it needs, or hears which of its limits (by their index in `needs`) are kept for the queue.
    pub fn take<'n>(
        &self,
        needs: impl Iterator<Item = (LimitId, u64)> + Clone + 'n,
    ) -> Result<Option<Taken<'_>>, RequirementSet> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let mut limits = self.limits.lock();
        let kept = |(index, (limit, amount)): (usize, (LimitId, u64))| {
            // Whoever finds some credit may overdraw it: else a newcomer that needs much would never be admitted.
            let lacks = limits.get(&limit).is_some_and(|here| amount > 0 && here.credit <= 0.0);
            lacks.then_some(index)
        };
        let kept: RequirementSet = needs.clone().enumerate().filter_map(kept).collect();
        if !kept.is_empty() {
            return Err(kept);
        }
        let mut amounts = Vec::new();
        for (limit, amount) in needs {
            if let Some(here) = limits.get_mut(&limit) {
                here.credit -= amount as f64;
                here.newcomers_took = here.newcomers_took.saturating_add(amount);
                amounts.push((limit, amount));
            }
        }
        Ok((!amounts.is_empty()).then_some(Taken { share: self, amounts }))
    }
}

impl Taken<'_> {
    /// The newcomer was admitted.
    pub fn keep(mut self) {
        self.amounts.clear();
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.amounts.is_empty() {
            return;
        }
        let mut limits = self.share.limits.lock();
        for (limit, amount) in &self.amounts {
            if let Some(here) = limits.get_mut(limit) {
                here.credit = (here.credit + *amount as f64).min(here.credit_max);
                here.newcomers_took = here.newcomers_took.saturating_sub(*amount);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: LimitId = LimitId::new(1);
    const B: LimitId = LimitId::new(2);
    const C: LimitId = LimitId::new(3);

    fn takes(share: &Share, amount: u64) -> bool {
        match share.take([(A, amount)].into_iter()) {
            Ok(Some(taken)) => {
                taken.keep();
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    #[test]
    fn without_a_queue_every_newcomer_takes_what_it_needs() {
        let share = Share::default();
        assert!(share.take([(A, u64::MAX)].into_iter()).unwrap().is_none());
        share.set(A, 0.0, 1, 10);
        assert!(share.take([(A, u64::MAX)].into_iter()).unwrap().is_none(), "a share of 0 keeps nothing");
    }

    #[test]
    fn newcomers_take_what_the_share_leaves() {
        // A quarter is the queue's: newcomers may take 3 for each 1, 3 to begin with.
        let share = Share::default();
        share.set(A, 0.25, 1, 100);
        assert!(takes(&share, 2) && takes(&share, 1) && !takes(&share, 1));
        share.served(A, 2);
        assert!(takes(&share, 6) && !takes(&share, 1));
        assert!((share.queue_part(A) - 2.0 / 11.0).abs() < 1e-9); // 2 of 2 + 9
        share.remove(A);
        assert!(takes(&share, 1000));
    }

    #[test]
    fn what_needs_much_overdraws_and_is_waited_for() {
        let share = Share::default();
        share.set(A, 0.5, 1, 10);
        assert!(takes(&share, 9) && !takes(&share, 1)); // 1 - 9
        share.served(A, 8);
        assert!(!takes(&share, 1));
        share.served(A, 1);
        assert!(takes(&share, 1));
    }

    #[test]
    fn all_of_it_can_be_the_queues() {
        let share = Share::default();
        share.set(A, 1.0, 5, 100);
        share.served(A, 50);
        assert!(!takes(&share, 1));
    }

    #[test]
    fn credit_does_not_pile_up_beyond_the_capacity() {
        let share = Share::default();
        share.set(A, 0.5, 1, 10);
        share.served(A, 1_000_000);
        assert!(takes(&share, 10) && !takes(&share, 1));
    }

    #[test]
    fn a_newcomer_that_the_ledger_refused_took_nothing() {
        let share = Share::default();
        share.set(A, 0.5, 1, 10);
        for _ in 0..3 {
            assert!(share.take([(A, 1)].into_iter()).unwrap().is_some()); // dropped
        }
        assert!(takes(&share, 1) && !takes(&share, 1));
    }

    #[test]
    fn it_names_the_limits_that_are_kept_and_takes_of_none() {
        let share = Share::default();
        share.set(A, 0.5, 1, 10);
        share.set(C, 1.0, 1, 10);
        let needs = [(A, 1), (B, 1), (C, 1)];
        assert_eq!(share.take(needs.into_iter()).unwrap_err(), RequirementSet::one(2));
        assert!(takes(&share, 1), "nothing was taken of the first");
    }
}
