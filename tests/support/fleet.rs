//! A fleet of simulated clients against one rolling limit, on virtual time: what the hints are worth.
//!
//! The ledger, the hints and the streaks are the production code; the clients, their network and the clock are made up
//! here. A test and `make bench` run it.
//!
//! The law behind the numbers: a client that is admitted once every `think + wait` makes the wait
//! `clients / rate − think`, and each denial uses up one hint of it, so there are `1 + wait / hint` attempts per
//! admission. Fewer than two need hints longer than the wait: `max_ms` must suit the overload.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::num::NonZeroU32;
use std::sync::Arc;

use sluice::ledger::memory::Core;
use sluice::ledger::{Account, Action, Chain, Hold, Keep, Transfer, Verdict};
use sluice::limit::{Kind, LeaseId, LimitKey, Overage};
use sluice::retry::policy::RetryPolicy;
use sluice::retry::{self, Hints, RetryHint};

/// What the clients compete for: one limit on the embedded ledger.
struct Limit {
    core: Core,
    hit: Chain,
}

impl Limit {
    fn new(capacity: usize, lifetime_seconds: NonZeroU32) -> Self {
        let hold = Hold {
            amount: 1,
            lifetime_seconds,
            capacity: capacity as u64,
            overage: Overage::Deny,
            is_exact: true,
        };
        let account = Arc::new(Account::new(LimitKey::new("fleet")));
        let transfers = [Transfer { account, action: Action::Reserve(hold) }].into_iter().collect();
        let hit = Chain { lease: LeaseId::fresh(0, 0), keep: Keep::Nothing, transfers };
        Self { core: Core::default(), hit }
    }

    fn hints(&self) -> &Hints {
        &self.hit.transfers[0].account.hints
    }

    /// Spends one hit, or refuses.
    fn take(&mut self, now_ms: u64) -> bool {
        let outcome = self.core.apply(&self.hit, now_ms).expect("one limit must have room");
        outcome.verdict == Verdict::Done
    }
}

/// Clients that want one request admitted, then think, then want the next, and never give up.
#[derive(Debug, Clone)]
pub struct Fleet {
    pub clients: usize,
    /// The mean; the distribution is exponential.
    pub think_ms: u64,
    /// From an attempt to its answer.
    pub round_trip_ms: u64,
    pub capacity: usize,
    pub window_seconds: NonZeroU32,
    /// Windows to settle in, before those that are measured.
    pub settle_windows: u64,
    pub windows: u64,
}

/// What was measured.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Admissions by what the limit could have admitted.
    pub goodput: f64,
    pub attempts_per_admission: f64,
    pub attempts_per_second: f64,
    /// From the first attempt of a request to its admission.
    pub wait_ms_mean: f64,
    pub wait_ms_p99: u64,
}

/// One client on its way to the limit; the earliest comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at_ms: u64,
    client: usize,
    first_ms: u64,
    denials: u32,
}

impl Fleet {
    /// Two hundred clients, 10 ms away.
    pub fn new(capacity: usize, window_seconds: NonZeroU32, think_ms: u64) -> Self {
        let (settle_windows, windows) = (10, 30);
        Self { clients: 200, think_ms, round_trip_ms: 10, capacity, window_seconds, settle_windows, windows }
    }

    /// What the clients would spend if nobody refused them, by what the limit gives.
    pub fn demand(&self) -> f64 {
        let cycle_ms = self.think_ms + self.round_trip_ms;
        (self.clients as u64 * self.window_ms()) as f64 / (cycle_ms * self.capacity as u64) as f64
    }

    /// Runs the fleet. `wait` is what a client makes of a denial: how many it had before for this request, the hint,
    /// and its own dice.
    pub fn run(
        &self,
        policy: &RetryPolicy,
        seed: u64,
        mut wait: impl FnMut(u32, RetryHint, &mut fastrand::Rng) -> u64,
    ) -> Report {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut limit = Limit::new(self.capacity, self.window_seconds);
        let kind = Kind::Rolling { window_seconds: self.window_seconds };
        let start_ms = self.settle_windows * self.window_ms();
        let end_ms = start_ms + self.windows * self.window_ms();
        let (mut attempts, mut waits) = (0, Vec::new());
        let mut arrivals: BinaryHeap<_> =
            (0..self.clients).map(|client| Reverse(self.next_request(client, 0, &mut rng))).collect();
        while let Some(Reverse(arrival)) = arrivals.pop() {
            let now_ms = arrival.at_ms;
            if now_ms >= end_ms {
                break;
            }
            let measured = now_ms >= start_ms;
            attempts += u64::from(measured);
            let answered_ms = now_ms + self.round_trip_ms;
            if limit.take(now_ms) {
                retry::on_allowed([(limit.hints(), kind)], policy, now_ms);
                if measured {
                    waits.push(now_ms - arrival.first_ms);
                }
                arrivals.push(Reverse(self.next_request(arrival.client, answered_ms, &mut rng)));
            } else if let Some((_, hint)) =
                retry::on_denied([(limit.hints(), kind)], policy, now_ms, |n| rng.u64(0..=n))
            {
                let at_ms = answered_ms + wait(arrival.denials, hint, &mut rng);
                arrivals.push(Reverse(Arrival { at_ms, denials: arrival.denials + 1, ..arrival }));
            }
        }
        self.report(attempts, waits)
    }

    fn next_request(&self, client: usize, now_ms: u64, rng: &mut fastrand::Rng) -> Arrival {
        #[expect(clippy::cast_possible_truncation, reason = "a few times the mean")]
        let think_ms = (-(1.0 - rng.f64()).ln() * self.think_ms as f64) as u64;
        let at_ms = now_ms + think_ms;
        Arrival { at_ms, client, first_ms: at_ms, denials: 0 }
    }

    fn report(&self, attempts: u64, mut waits: Vec<u64>) -> Report {
        waits.sort_unstable();
        let admissions = waits.len() as f64;
        let seconds = (self.windows * u64::from(self.window_seconds.get())) as f64;
        Report {
            goodput: admissions / (self.capacity as u64 * self.windows) as f64,
            attempts_per_admission: attempts as f64 / admissions,
            attempts_per_second: attempts as f64 / seconds,
            wait_ms_mean: waits.iter().sum::<u64>() as f64 / admissions,
            wait_ms_p99: waits.get(waits.len() * 99 / 100).copied().unwrap_or(0),
        }
    }

    fn window_ms(&self) -> u64 {
        u64::from(self.window_seconds.get()) * 1000
    }
}

/// For a fleet that wants twice what there is: nobody comes back before half the window has passed.
pub fn patient_policy() -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    policy.rolling.max_ms = 30_000;
    policy.rolling.window_fraction = 0.5;
    policy
}
