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
use sluice::ledger::{Account, Action, Chain, Hold, Keep, Release, Schedule, Transfer, Verdict};
use sluice::limit::{Kind, LeaseId, LimitKey, Overage};
use sluice::retry::informed::{self, CapacityAhead, Need};
use sluice::retry::policy::RetryPolicy;
use sluice::retry::{self, RetryHint};

/// What the clients compete for: one limit on the embedded ledger.
pub struct Limit {
    core: Core,
    hit: Chain,
    kind: Kind,
    capacity: u64,
}

/// What the embedded ledger knows of it.
struct Known<'a> {
    core: &'a mut Core,
    account: &'a Account,
    now_ms: u64,
}

impl CapacityAhead for Known<'_> {
    fn schedule(&mut self, _: usize, _: &[Release]) -> Option<Schedule> {
        let mut schedule = self.core.schedule(self.account, self.now_ms)?;
        schedule.releases.sort_unstable();
        Some(schedule)
    }

    fn has_room(&mut self, _: usize) -> bool {
        false
    }

    fn queued_before(&mut self, _: usize, _: u64) -> u64 {
        0
    }
}

impl Limit {
    pub fn new(capacity: u64, lifetime_seconds: NonZeroU32) -> Self {
        let kind = Kind::Rolling { window_seconds: lifetime_seconds };
        let hold = Hold { amount: 1, lifetime_seconds, capacity, overage: Overage::Deny, is_exact: true };
        let account = Arc::new(Account::new(LimitKey::new("fleet")));
        let transfers = [Transfer { account, action: Action::Reserve(hold) }].into_iter().collect();
        let hit = Chain { lease: LeaseId::fresh(0, 0), keep: Keep::Nothing, transfers };
        Self { core: Core::default(), hit, kind, capacity }
    }

    /// Spends one hit, or refuses and says when to come back.
    pub fn ask(
        &mut self,
        is_retry: bool,
        policy: &RetryPolicy,
        now_ms: u64,
        rand: impl FnMut(u64) -> u64,
    ) -> Result<(), RetryHint> {
        self.ask_for(1, is_retry, policy, now_ms, rand)
    }

    /// The same for more than one.
    pub fn ask_for(
        &mut self,
        amount: u64,
        is_retry: bool,
        policy: &RetryPolicy,
        now_ms: u64,
        rand: impl FnMut(u64) -> u64,
    ) -> Result<(), RetryHint> {
        let Transfer { account, action } = &mut self.hit.transfers[0];
        if let Action::Reserve(hold) = action {
            hold.amount = amount;
        }
        let account = Arc::clone(account);
        let outcome = self.core.apply(&self.hit, now_ms).expect("one limit must have room");
        let has_failed = outcome.verdict != Verdict::Done;
        let (hints, is_informed) = (&account.hints, policy.rolling.informed);
        let need = Need { hints, kind: self.kind, capacity: self.capacity, amount, has_failed };
        if !has_failed {
            retry::on_allowed([(hints, self.kind)], policy, now_ms);
            if is_informed {
                informed::on_admitted(&need, is_retry, false, now_ms);
            }
            return Ok(());
        }
        let hint = if is_informed {
            let mut known = Known { core: &mut self.core, account: &account, now_ms };
            informed::on_denied(&[need], is_retry, policy, now_ms, &mut known, rand).map(|told| told.hint)
        } else {
            retry::on_denied([(hints, self.kind)], policy, now_ms, rand).map(|(_, hint)| hint)
        };
        Err(hint.expect("whoever is refused must hear a hint"))
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
    /// Retries say that they are.
    pub marks: bool,
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
    pub wait_ms_p50: u64,
    pub wait_ms_p99: u64,
    /// Tries at a told time, by admissions.
    pub returns_per_admission: f64,
    /// The most attempts within a tenth of a second.
    pub herd: u64,
}

/// What a client makes of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum After {
    /// It comes back when it was told.
    Obey,
    /// It comes back after so many milliseconds, whatever it was told.
    Own(u64),
}

/// What happens while it is measured.
#[derive(Default)]
struct Seen {
    attempts: u64,
    returns: u64,
    waits: Vec<u64>,
    herd: u64,
    herd_at_ms: u64,
    herd_now: u64,
}

impl Seen {
    fn attempt(&mut self, arrival: &Arrival) {
        self.attempts += 1;
        self.returns += u64::from(arrival.is_told);
        let at_ms = arrival.at_ms / 100;
        self.herd_now = if at_ms == self.herd_at_ms { self.herd_now + 1 } else { 1 };
        (self.herd_at_ms, self.herd) = (at_ms, self.herd.max(self.herd_now));
    }
}

/// One client on its way to the limit; the earliest comes first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Arrival {
    at_ms: u64,
    client: usize,
    first_ms: u64,
    denials: u32,
    /// It was told to come now.
    is_told: bool,
}

impl Fleet {
    /// Two hundred clients, 10 ms away.
    pub fn new(capacity: usize, window_seconds: NonZeroU32, think_ms: u64) -> Self {
        let (settle_windows, windows) = (10, 30);
        let (clients, round_trip_ms, marks) = (200, 10, false);
        Self { clients, think_ms, round_trip_ms, capacity, window_seconds, marks, settle_windows, windows }
    }

    /// What the clients would spend if nobody refused them, by what the limit gives.
    pub fn demand(&self) -> f64 {
        let cycle_ms = self.think_ms + self.round_trip_ms;
        (self.clients as u64 * self.window_ms()) as f64 / (cycle_ms * self.capacity as u64) as f64
    }

    /// Runs the fleet. `wait` is what a client makes of a denial: who it is, how many it had before for this request, the
    /// hint, and its own dice.
    pub fn run(
        &self,
        policy: &RetryPolicy,
        seed: u64,
        mut wait: impl FnMut(usize, u32, RetryHint, &mut fastrand::Rng) -> After,
    ) -> Report {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut limit = Limit::new(self.capacity as u64, self.window_seconds);
        let start_ms = self.settle_windows * self.window_ms();
        let end_ms = start_ms + self.windows * self.window_ms();
        let mut seen = Seen::default();
        let mut arrivals: BinaryHeap<_> =
            (0..self.clients).map(|client| Reverse(self.next_request(client, 0, &mut rng))).collect();
        while let Some(Reverse(arrival)) = arrivals.pop() {
            let now_ms = arrival.at_ms;
            if now_ms >= end_ms {
                break;
            }
            let measured = now_ms >= start_ms;
            if measured {
                seen.attempt(&arrival);
            }
            let answered_ms = now_ms + self.round_trip_ms;
            let is_retry = self.marks && arrival.denials > 0;
            match limit.ask(is_retry, policy, now_ms, |n| rng.u64(0..=n)) {
                Ok(()) => {
                    if measured {
                        seen.waits.push(now_ms - arrival.first_ms);
                    }
                    arrivals.push(Reverse(self.next_request(arrival.client, answered_ms, &mut rng)));
                }
                Err(hint) => {
                    let after = wait(arrival.client, arrival.denials, hint, &mut rng);
                    let (is_told, wait_ms) = match after {
                        After::Obey => (true, hint.ms),
                        After::Own(ms) => (false, ms),
                    };
                    let (at_ms, denials) = (answered_ms + wait_ms, arrival.denials + 1);
                    arrivals.push(Reverse(Arrival { at_ms, denials, is_told, ..arrival }));
                }
            }
        }
        self.report(seen)
    }

    fn next_request(&self, client: usize, now_ms: u64, rng: &mut fastrand::Rng) -> Arrival {
        #[expect(clippy::cast_possible_truncation, reason = "a few times the mean")]
        let think_ms = (-(1.0 - rng.f64()).ln() * self.think_ms as f64) as u64;
        let at_ms = now_ms + think_ms;
        Arrival { at_ms, client, first_ms: at_ms, denials: 0, is_told: false }
    }

    fn report(&self, seen: Seen) -> Report {
        let Seen { attempts, returns, mut waits, herd, .. } = seen;
        waits.sort_unstable();
        let admissions = waits.len() as f64;
        let seconds = (self.windows * u64::from(self.window_seconds.get())) as f64;
        Report {
            goodput: admissions / (self.capacity as u64 * self.windows) as f64,
            attempts_per_admission: attempts as f64 / admissions,
            attempts_per_second: attempts as f64 / seconds,
            wait_ms_mean: waits.iter().sum::<u64>() as f64 / admissions,
            returns_per_admission: returns as f64 / admissions,
            herd,
            wait_ms_p50: waits.get(waits.len() / 2).copied().unwrap_or(0),
            wait_ms_p99: waits.get(waits.len() * 99 / 100).copied().unwrap_or(0),
        }
    }

    fn window_ms(&self) -> u64 {
        u64::from(self.window_seconds.get()) * 1000
    }
}

/// The hints are when there will be room.
pub fn informed_policy() -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    policy.rolling.informed = true;
    policy
}

/// Twenty clients for each time that they want what a limit of 20 in 10 s gives.
pub fn closed(demand: f64) -> Fleet {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few dozens")]
    let clients = (20.0 * demand).round() as usize;
    let ten = NonZeroU32::new(10).expect("it is not 0");
    Fleet { clients, ..Fleet::new(20, ten, 10_000) }
}

/// For a fleet that wants twice what there is: nobody comes back before half the window has passed.
pub fn patient_policy() -> RetryPolicy {
    let mut policy = RetryPolicy::default();
    policy.rolling.max_ms = 30_000;
    policy.rolling.window_fraction = 0.5;
    policy
}
