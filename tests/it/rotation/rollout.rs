//! A fleet that is rolled from the old ledger to both and on to the new one, while callers ask, leave and complete, and
//! instances crash. An oracle outside counts what was admitted.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use sluice::ledger::{Account, Action, Chain, Hold, Keep, Ledger, Outcome, Rotation, Transfer, Verdict};
use sluice::limit::{LeaseId, LimitKey, Overage};

use super::virtual_ledger::{Clock, VirtualLedger};
use super::{both, want};

const INSTANCES: usize = 4;

/// Capacity and window of each limit.
const LIMITS: [(u64, u32); 3] = [(10, 1), (25, 3), (60, 5)];
const LONGEST_MS: u64 = 5_000;

struct Fleet {
    rng: fastrand::Rng,
    clock: Clock,
    old: VirtualLedger,
    new: VirtualLedger,
    instances: Vec<Instance>,
    /// Of each limit: when, and how many.
    admitted: [VecDeque<(u64, u64)>; LIMITS.len()],
    /// Leases that may be completed: their limit and amount, and when they were reserved.
    leases: Vec<(LeaseId, usize, u64, u64)>,
    names: u64,
    counts: Counts,
}

struct Instance {
    ledger: Rotation<VirtualLedger>,
    accounts: Vec<Arc<Account>>,
    step: Step,
    since_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Old,
    Both,
    New,
}

#[derive(Debug, Default)]
struct Counts {
    admitted: u64,
    refused: u64,
    left: u64,
    completed: u64,
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let clock = Clock::default();
        clock.pass(1_000_000);
        let (old, new) = (VirtualLedger::new(&clock), VirtualLedger::new(&clock));
        let mut fleet = Self {
            rng: fastrand::Rng::with_seed(seed),
            clock,
            old,
            new,
            instances: Vec::new(),
            admitted: Default::default(),
            leases: Vec::new(),
            names: 0,
            counts: Counts::default(),
        };
        fleet.instances = (0..INSTANCES).map(|_| fleet.instance(Step::Old)).collect();
        fleet
    }

    fn instance(&self, step: Step) -> Instance {
        let ledger = match step {
            Step::Old => Rotation::one(self.old.clone()),
            Step::Both => both(&self.old, &self.new),
            Step::New => Rotation::one(self.new.clone()),
        };
        let account = |n: usize| Arc::new(Account::new(LimitKey::new(&format!("limit{n}"))));
        let accounts = (0..LIMITS.len()).map(account).collect();
        Instance { ledger, accounts, step, since_ms: self.clock.now_ms() }
    }

    fn roll(&mut self, instance: usize, step: Step) {
        self.instances[instance] = self.instance(step);
    }

    async fn load(&mut self, steps: usize) {
        for _ in 0..steps {
            self.clock.pass(self.rng.u64(0..60));
            match self.rng.u32(0..100) {
                0..10 => self.complete().await,
                // A crash: whoever waits is not answered, and the next process is as far as this one was.
                10..12 => {
                    let instance = self.rng.usize(..INSTANCES);
                    let since_ms = self.instances[instance].since_ms;
                    self.roll(instance, self.instances[instance].step);
                    self.instances[instance].since_ms = since_ms;
                }
                _ => self.ask().await,
            }
        }
    }

    /// Somebody asks for one to three limits, or takes what there is of one, and may leave at any moment.
    async fn ask(&mut self) {
        let at = self.rng.usize(..INSTANCES);
        let takes = self.rng.u32(0..10) == 0;
        let mut limits: Vec<usize> = (0..LIMITS.len()).filter(|_| self.rng.bool()).collect();
        limits.truncate(if takes { 1 } else { LIMITS.len() });
        if limits.is_empty() {
            return;
        }
        let wanted: Vec<(usize, u64)> = limits.into_iter().map(|n| (n, self.rng.u64(1..6))).collect();
        let transfer = |&(n, amount): &(usize, u64)| {
            let hold = hold(n, amount);
            let action = if takes { Action::TakeUpTo(hold) } else { Action::Reserve(hold) };
            Transfer { account: self.instances[at].accounts[n].clone(), action }
        };
        let keeps = [Keep::Nothing, Keep::ForUndo, Keep::ForCompletion, Keep::ForRetries];
        let keep = if takes { Keep::ForCompletion } else { keeps[self.rng.usize(..keeps.len())] };
        self.names += 1;
        let lease = LeaseId::parse(&format!("lease{}", self.names));
        let chain = Chain { lease: lease.clone(), keep, transfers: wanted.iter().map(transfer).collect() };
        let patience = if self.rng.u32(0..4) == 0 { self.rng.usize(1..12) } else { usize::MAX };
        let Some(outcome) = polled(self.instances[at].ledger.apply(&chain), patience) else {
            self.counts.left += 1;
            return;
        };
        let outcome = outcome.expect("both must answer");
        if outcome.verdict != Verdict::Done {
            self.counts.refused += 1;
            return;
        }
        let Outcome { taken, .. } = outcome;
        let got = if takes { vec![(wanted[0].0, taken[0])] } else { wanted };
        for &(n, amount) in &got {
            self.admit(n, amount);
        }
        if keep == Keep::ForCompletion && !takes && got.len() == 1 {
            self.leases.push((lease, got[0].0, got[0].1, self.clock.now_ms()));
        }
        self.counts.admitted += 1;
    }

    /// The oracle: never more than the capacity in any window.
    fn admit(&mut self, n: usize, amount: u64) {
        let now_ms = self.clock.now_ms();
        let (capacity, window) = LIMITS[n];
        let admitted = &mut self.admitted[n];
        admitted.push_back((now_ms, amount));
        while admitted.front().is_some_and(|(at_ms, _)| at_ms + u64::from(window) * 1000 <= now_ms) {
            admitted.pop_front();
        }
        let sum: u64 = admitted.iter().map(|(_, amount)| amount).sum();
        assert!(sum <= capacity, "limit{n}: {sum} of {capacity} in one window; {:?}", self.counts);
    }

    /// Any instance completes a lease, whichever reserved it: less was used.
    async fn complete(&mut self) {
        if self.leases.is_empty() {
            return;
        }
        let (lease, n, amount, at_ms) = self.leases.swap_remove(self.rng.usize(..self.leases.len()));
        let ends_ms = at_ms + u64::from(LIMITS[n].1) * 1000;
        let left_ms = ends_ms.saturating_sub(self.clock.now_ms());
        if left_ms == 0 {
            return;
        }
        let used = self.rng.u64(0..amount);
        let instance = &self.instances[self.rng.usize(..INSTANCES)];
        let one = |action| Transfer { account: instance.accounts[n].clone(), action };
        let mut transfers = vec![one(Action::Void)];
        let seconds = u32::try_from(left_ms.div_ceil(1000)).expect("windows are short");
        let lifetime_seconds = NonZeroU32::new(seconds).expect("something must be left");
        let again = Hold { lifetime_seconds, ..hold(n, used) };
        transfers.extend((used > 0).then(|| one(Action::Rereserve(again))));
        let chain = Chain { lease, keep: Keep::ForCompletion, transfers: transfers.into() };
        let outcome = instance.ledger.complete(&chain).await.expect("both must answer");
        assert_eq!(outcome.verdict, Verdict::Done, "{at_ms}");
        // What was not used may be admitted again.
        let spent = self.admitted[n].iter_mut().find(|it| **it == (at_ms, amount));
        spent.expect("it must have been admitted").1 = used;
        self.counts.completed += 1;
    }

    async fn used(&self, ledger: &VirtualLedger, n: usize) -> u64 {
        let account = Arc::new(Account::new(LimitKey::new(&format!("limit{n}"))));
        ledger.balances(vec![want(&account, LIMITS[n].0)]).await.expect("it must answer")[0].used
    }
}

fn hold(n: usize, amount: u64) -> Hold {
    let (capacity, window) = LIMITS[n];
    let lifetime_seconds = NonZeroU32::new(window).expect("it must have a window");
    Hold { amount, lifetime_seconds, capacity, is_exact: true, overage: Overage::Deny }
}

/// What a future comes to within so many turns; then its caller leaves.
fn polled<T>(future: impl Future<Output = T>, turns: usize) -> Option<T> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..turns).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    })
}

/// Returns when every instance has used both for long enough.
async fn until_safe(fleet: &mut Fleet) {
    let last_ms = fleet.instances.iter().map(|it| it.since_ms).max().expect("there must be some");
    while fleet.clock.now_ms() < last_ms + LONGEST_MS {
        fleet.load(10).await;
    }
}

#[tokio::test]
async fn a_fleet_that_is_rolled_over_never_exceeds_a_limit() {
    for seed in 0..60 {
        let mut fleet = Fleet::new(seed);
        fleet.load(200).await;
        for instance in 0..INSTANCES {
            fleet.roll(instance, Step::Both);
            fleet.load(60).await;
        }
        until_safe(&mut fleet).await;
        for instance in 0..INSTANCES {
            fleet.roll(instance, Step::New);
            fleet.load(60).await;
        }
        fleet.load(200).await;
        let Counts { admitted, refused, left, completed } = fleet.counts;
        assert!(admitted > 50 && refused > 50 && left > 20 && completed > 3, "{seed}: {:?}", fleet.counts);
        // In the end everything comes back.
        fleet.clock.pass(2 * LONGEST_MS);
        for n in 0..LIMITS.len() {
            let held = (fleet.used(&fleet.old, n).await, fleet.used(&fleet.new, n).await);
            assert_eq!(held, (0, 0), "{seed}: limit{n}");
        }
    }
}

/// The oracle sees a rollout that leaves out the wait: then the steps are there for a reason.
#[tokio::test]
#[should_panic(expected = "in one window")]
async fn a_fleet_that_does_not_wait_exceeds_its_limits() {
    for seed in 0..60 {
        let mut fleet = Fleet::new(seed);
        fleet.load(200).await;
        (0..INSTANCES).for_each(|instance| fleet.roll(instance, Step::Both));
        (0..INSTANCES).for_each(|instance| fleet.roll(instance, Step::New));
        fleet.load(100).await;
    }
}

/// With all instances on both, whoever leaves at whatever moment leaves nothing behind on either.
#[tokio::test]
async fn a_caller_that_leaves_between_the_two_leaves_nothing_behind() {
    for keep in [Keep::Nothing, Keep::ForUndo, Keep::ForCompletion, Keep::ForRetries] {
        for turns in 1..12 {
            let fleet = Fleet::new(0);
            let instance = fleet.instance(Step::Both);
            let transfer = |n: usize| Transfer {
                account: instance.accounts[n].clone(),
                action: Action::Reserve(hold(n, 4)),
            };
            let transfers = [transfer(0), transfer(1)].into_iter().collect();
            let chain = Chain { lease: LeaseId::parse("x"), keep, transfers };
            let outcome = polled(instance.ledger.apply(&chain), turns);
            let expected = if outcome.is_some() { 4 } else { 0 };
            // On the new one a chain that nobody names can be given back only by the ledger itself.
            for ledger in [&fleet.old, &fleet.new] {
                let used = fleet.used(ledger, 0).await;
                let is_anonymous = keep == Keep::Nothing && std::ptr::eq(ledger, &fleet.new);
                assert!(used == expected || is_anonymous, "{keep:?} after {turns}: {used}");
            }
        }
    }
}
