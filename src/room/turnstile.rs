//! A share of what comes back is for those who wait: how much newcomers, who don't queue, may take meanwhile.
//!
//! While somebody waits at a limit, newcomers spend a credit there that grows with what the line is served, so that of
//! all that is admitted the line gets at least its share. A limit that nobody waits at isn't here and costs a request
//! nothing but one read. This instance's newcomers only: another instance doesn't know of this line.

use std::sync::atomic::{AtomicUsize, Ordering};

use ahash::AHashMap;
use parking_lot::Mutex;

use super::lines::LimitId;
use crate::limit::RequirementSet;

/// A plain mutex: sections are some lookups and never wait.
#[derive(Debug, Default)]
pub struct Turnstile {
    gates: Mutex<AHashMap<LimitId, Gate>>,
    /// How many there are, read without the lock.
    count: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct Gate {
    /// What newcomers may take per unit that the line takes: (1 - share) / share.
    per_unit: f64,
    credit: f64,
    /// However long only the line took, so much at once is enough.
    credit_max: f64,
    line_took: u64,
    newcomers_took: u64,
}

/// A newcomer that went in. What it took is given back if it is dropped before it came through.
#[derive(Debug)]
pub struct Pass<'t> {
    turnstile: &'t Turnstile,
    took: Vec<(LimitId, u64)>,
}

impl Turnstile {
    /// Somebody waits at a limit, first of all for `first`. Keeps the credit of one that is there.
    pub fn set(&self, limit: LimitId, share: f64, first: u64, capacity: u64) {
        if share <= 0.0 {
            return self.remove(limit);
        }
        let per_unit = (1.0 - share) / share;
        let credit_max = (first.max(capacity) as f64) * per_unit;
        let mut gates = self.gates.lock();
        let new =
            Gate { per_unit, credit: first as f64 * per_unit, credit_max, line_took: 0, newcomers_took: 0 };
        let gate = gates.entry(limit).or_insert(new);
        (gate.per_unit, gate.credit_max) = (per_unit, credit_max);
        gate.credit = gate.credit.min(credit_max);
        self.count.store(gates.len(), Ordering::Release);
    }

    /// Nobody waits there any more.
    pub fn remove(&self, limit: LimitId) {
        let mut gates = self.gates.lock();
        gates.remove(&limit);
        self.count.store(gates.len(), Ordering::Release);
    }

    /// The line was served.
    pub fn served(&self, limit: LimitId, amount: u64) {
        if let Some(gate) = self.gates.lock().get_mut(&limit) {
            gate.line_took = gate.line_took.saturating_add(amount);
            gate.credit = (gate.credit + amount as f64 * gate.per_unit).min(gate.credit_max);
        }
    }

    /// The part of a limit that its line gets, as measured since it formed; 1 while nobody else takes any.
    pub fn line_part(&self, limit: LimitId) -> f64 {
        let gates = self.gates.lock();
        let Some(gate) = gates.get(&limit) else { return 1.0 };
        let all = gate.line_took.saturating_add(gate.newcomers_took);
        if gate.line_took == 0 || all == 0 { 1.0 } else { gate.line_took as f64 / all as f64 }
    }

    /// A newcomer goes in, or hears which of its limits (by their place in `needs`) are kept for the line.
    pub fn enter<'n>(
        &self,
        needs: impl Iterator<Item = (LimitId, u64)> + Clone + 'n,
    ) -> Result<Option<Pass<'_>>, RequirementSet> {
        if self.count.load(Ordering::Acquire) == 0 {
            return Ok(None);
        }
        let mut gates = self.gates.lock();
        let kept = |(index, (limit, amount)): (usize, (LimitId, u64))| {
            // Whoever has some left may overdraw it: else what needs much would never come in.
            let lacks = gates.get(&limit).is_some_and(|gate| amount > 0 && gate.credit <= 0.0);
            lacks.then_some(index)
        };
        let kept: RequirementSet = needs.clone().enumerate().filter_map(kept).collect();
        if !kept.is_empty() {
            return Err(kept);
        }
        let mut took = Vec::new();
        for (limit, amount) in needs {
            if let Some(gate) = gates.get_mut(&limit) {
                gate.credit -= amount as f64;
                gate.newcomers_took = gate.newcomers_took.saturating_add(amount);
                took.push((limit, amount));
            }
        }
        Ok((!took.is_empty()).then_some(Pass { turnstile: self, took }))
    }
}

impl Pass<'_> {
    /// It was admitted.
    pub fn through(mut self) {
        self.took.clear();
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.took.is_empty() {
            return;
        }
        let mut gates = self.turnstile.gates.lock();
        for (limit, amount) in &self.took {
            if let Some(gate) = gates.get_mut(limit) {
                gate.credit = (gate.credit + *amount as f64).min(gate.credit_max);
                gate.newcomers_took = gate.newcomers_took.saturating_sub(*amount);
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

    fn enters(turnstile: &Turnstile, amount: u64) -> bool {
        match turnstile.enter([(A, amount)].into_iter()) {
            Ok(Some(pass)) => {
                pass.through();
                true
            }
            Ok(None) => true,
            Err(_) => false,
        }
    }

    #[test]
    fn without_a_line_everybody_enters() {
        let turnstile = Turnstile::default();
        assert!(turnstile.enter([(A, u64::MAX)].into_iter()).unwrap().is_none());
        turnstile.set(A, 0.0, 1, 10);
        assert!(
            turnstile.enter([(A, u64::MAX)].into_iter()).unwrap().is_none(),
            "a share of 0 keeps nothing"
        );
    }

    #[test]
    fn newcomers_take_what_the_share_leaves() {
        // A quarter is the line's: newcomers may take 3 for each 1, 3 to begin with.
        let turnstile = Turnstile::default();
        turnstile.set(A, 0.25, 1, 100);
        assert!(enters(&turnstile, 2) && enters(&turnstile, 1) && !enters(&turnstile, 1));
        turnstile.served(A, 2);
        assert!(enters(&turnstile, 6) && !enters(&turnstile, 1));
        assert!((turnstile.line_part(A) - 2.0 / 11.0).abs() < 1e-9); // 2 of 2 + 9
        turnstile.remove(A);
        assert!(enters(&turnstile, 1000));
    }

    #[test]
    fn what_needs_much_overdraws_and_is_waited_for() {
        let turnstile = Turnstile::default();
        turnstile.set(A, 0.5, 1, 10);
        assert!(enters(&turnstile, 9) && !enters(&turnstile, 1)); // 1 - 9
        turnstile.served(A, 8);
        assert!(!enters(&turnstile, 1));
        turnstile.served(A, 1);
        assert!(enters(&turnstile, 1));
    }

    #[test]
    fn all_of_it_can_be_the_lines() {
        let turnstile = Turnstile::default();
        turnstile.set(A, 1.0, 5, 100);
        turnstile.served(A, 50);
        assert!(!enters(&turnstile, 1));
    }

    #[test]
    fn credit_does_not_pile_up_beyond_the_capacity() {
        let turnstile = Turnstile::default();
        turnstile.set(A, 0.5, 1, 10);
        turnstile.served(A, 1_000_000);
        assert!(enters(&turnstile, 10) && !enters(&turnstile, 1));
    }

    #[test]
    fn who_was_refused_behind_the_turnstile_took_nothing() {
        let turnstile = Turnstile::default();
        turnstile.set(A, 0.5, 1, 10);
        for _ in 0..3 {
            assert!(turnstile.enter([(A, 1)].into_iter()).unwrap().is_some()); // dropped
        }
        assert!(enters(&turnstile, 1) && !enters(&turnstile, 1));
    }

    #[test]
    fn it_names_the_limits_that_are_kept_and_takes_of_none() {
        let turnstile = Turnstile::default();
        turnstile.set(A, 0.5, 1, 10);
        turnstile.set(C, 1.0, 1, 10);
        let needs = [(A, 1), (B, 1), (C, 1)];
        assert_eq!(turnstile.enter(needs.into_iter()).unwrap_err(), RequirementSet::one(2));
        assert!(enters(&turnstile, 1), "nothing was taken of the first");
    }
}
