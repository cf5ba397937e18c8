//! The queue on virtual time: the production queue, its estimates and the memory ledger's rules, and a clock that only
//! this file moves. What [`sluice::queue::runner`] does with a real ledger is done here with answers at once.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use sluice::ledger::memory::Core;
use sluice::ledger::{Account, Action, Chain, Hold, Keep, Transfer, Verdict};
use sluice::limit::{Charge, Kind, LeaseId, LimitKey, LimitSpec, Origin, Overage};
use sluice::queue::places::Places;
use sluice::queue::step::{Attempted, QueueStep, Work};
use sluice::queue::{JobId, Need, NewPlace, Reserved, Share};
use sluice::retry::policy::{Queue as Policy, RetryPolicy};
use sluice::telemetry::Metrics;

pub const SECOND: u64 = 1000;

/// A world with one clock.
pub struct World {
    pub places: Places,
    pub ledger: Core,
    pub share: Share,
    pub policy: Policy,
    metrics: Metrics,
    pub now_ms: u64,
    pub limits: Vec<(Arc<Account>, Arc<LimitSpec>)>,
    pub jobs: HashMap<JobId, Job>,
    pub served: Vec<JobId>,
    /// Leases that end before they expire, which is what a completion is.
    completions: BTreeMap<(u64, u64), Held>,
    /// How long a job holds what it was served, on average; `None` if it is never completed.
    pub hold_ms: Option<u64>,
    pub rng: fastrand::Rng,
    came: u64,
}

/// A job that queues.
pub struct Job {
    pub came_ms: u64,
    pub promised_seconds: u64,
    pub served_ms: Option<u64>,
    lease: LeaseId,
    needs: Vec<(usize, u64)>,
}

/// What a completion gives back.
struct Held {
    lease: LeaseId,
    needs: Vec<(usize, u64)>,
    since_ms: u64,
}

impl World {
    pub fn new(limits: &[(Kind, u64)], seed: u64) -> Self {
        let limit = |(n, (kind, capacity)): (usize, &(Kind, u64))| {
            let key = LimitKey::new(&format!("limit {n}"));
            (Arc::new(Account::new(key)), Arc::new(spec(*kind, *capacity)))
        };
        let policy = Policy { max_seconds: 86_400, deadline_seconds: 86_400, ..RetryPolicy::default().queue };
        Self {
            places: Places::new(false),
            ledger: Core::default(),
            share: Share::default(),
            policy,
            metrics: Metrics::default(),
            now_ms: 1_000_000,
            limits: limits.iter().enumerate().map(limit).collect(),
            jobs: HashMap::new(),
            served: Vec::new(),
            completions: BTreeMap::new(),
            hold_ms: None,
            rng: fastrand::Rng::with_seed(seed),
            came: 0,
        }
    }

    /// A name that nobody had before; they count up.
    fn name(&mut self) -> LeaseId {
        self.came += 1;
        LeaseId::fresh(0, u128::from(self.came))
    }

    fn chain(&self, lease: &LeaseId, needs: &[(usize, u64)], action: impl Fn(Hold) -> Action) -> Chain {
        let transfer = |&(limit, amount): &(usize, u64)| {
            let (account, spec) = &self.limits[limit];
            let lifetime_seconds = spec.kind.lifetime_seconds();
            Transfer {
                account: Arc::clone(account),
                action: action(Hold {
                    amount,
                    lifetime_seconds,
                    capacity: spec.capacity,
                    overage: spec.overage,
                    is_exact: true,
                }),
            }
        };
        let transfers = needs.iter().map(transfer).collect();
        Chain { lease: lease.clone(), keep: Keep::ForCompletion, transfers }
    }

    /// A newcomer that doesn't queue, and completes its lease after `hold_ms`. Whether it was admitted.
    pub fn newcomer(&mut self, limit: usize, hold_ms: Option<u64>) -> bool {
        let lease = self.name();
        let needs = vec![(limit, 1)];
        let chain = self.chain(&lease, &needs, Action::Reserve);
        let (account, capacity) = (self.limits[limit].0.id, self.limits[limit].1.capacity);
        let free = capacity - self.used(limit);
        let done = {
            let needed = [(account, 1)].into_iter();
            let Ok(taken) = self.share.take(needed, self.now_ms, |_| Some(free)) else { return false };
            let done = self.ledger.apply(&chain, self.now_ms).unwrap().verdict == Verdict::Done;
            taken.into_iter().filter(|_| done).for_each(|taken| taken.keep());
            done
        };
        if let Some(hold_ms) = hold_ms.filter(|_| done) {
            self.complete_in(hold_ms, lease, needs);
        }
        done
    }

    fn complete_in(&mut self, hold_ms: u64, lease: LeaseId, needs: Vec<(usize, u64)>) {
        self.came += 1;
        let held = Held { lease, needs, since_ms: self.now_ms };
        self.completions.insert((self.now_ms + hold_ms, self.came), held);
    }

    /// A job that queues.
    pub fn arrive(&mut self, needs: &[(usize, u64)]) -> JobId {
        let lease = self.name();
        let id = JobId::of(&lease);
        let need = |&(limit, amount): &(usize, u64)| {
            let (account, spec) = self.limits[limit].clone();
            Need { account, spec, amount }
        };
        let new = NewPlace {
            id: lease.clone(),
            job_id: String::new(),
            wants: Arc::from([]),
            needs: needs.iter().map(need).collect(),
            refused_by: None,
            terms: None,
        };
        self.places.join(new, &self.policy, &self.share, self.now_ms).expect("there must be a place");
        let needs = needs.to_vec();
        let job = Job { came_ms: self.now_ms, promised_seconds: 0, served_ms: None, lease, needs };
        self.jobs.insert(id, job);
        self.serve();
        let status = self.places.status(id, &self.policy, &self.share, self.now_ms, 0).unwrap();
        self.jobs.get_mut(&id).unwrap().promised_seconds = status.eta_seconds;
        id
    }

    fn step<R>(&mut self, step: impl FnOnce(&mut QueueStep<'_>) -> R) -> R {
        step(&mut QueueStep {
            places: &mut self.places,
            share: &self.share,
            policy: &self.policy,
            metrics: &self.metrics,
            now_ms: self.now_ms,
        })
    }

    /// What the runner does, with answers at once.
    fn serve(&mut self) {
        loop {
            let mut work = self.step(|step| step.work(|_, _| None));
            if work.is_empty() {
                return;
            }
            while let Some(next) = work.pop() {
                work.extend(self.carry_out(next));
            }
        }
    }

    fn carry_out(&mut self, work: Work) -> Option<Work> {
        match work {
            Work::Attempt(attempt) => {
                let needs = self.jobs[&attempt.id].needs.clone();
                let chain = self.chain(&attempt.name, &needs, Action::Reserve);
                match self.ledger.apply(&chain, self.now_ms).unwrap().verdict {
                    Verdict::Done => self.is_served(attempt.id),
                    Verdict::Refused(refusal) => {
                        let (account, spec) = self.limits[needs[refusal.index].0].clone();
                        let refused = Attempted::Refused { limit: account.id, spec };
                        self.step(|step| {
                            step.attempted(attempt.id, refused, |_, _| panic!("not served"), half)
                        })
                    }
                    Verdict::NotAsked => panic!("the memory ledger always answers"),
                }
            }
            Work::Schedule(account, _) => {
                let mut schedule = loop {
                    if let Some(schedule) = self.ledger.schedule(&account, self.now_ms) {
                        break schedule;
                    }
                };
                schedule.releases.sort_unstable();
                self.step(|step| step.scheduled(account.id, Some(schedule), half));
                None
            }
            Work::Release(_) => panic!("everybody picks up what it is served"),
        }
    }

    fn is_served(&mut self, id: JobId) -> Option<Work> {
        let hand_out = |place: &sluice::queue::Place, _| Reserved {
            lease: place.id.clone(),
            token: None,
            reserved_at_unix_ms: 0,
            ends_at_unix_ms: u64::MAX,
            unclaimed: None,
            is_picked_up: false,
            for_another: None,
        };
        let work = self.step(|step| step.attempted(id, Attempted::Served(None), hand_out, half));
        self.places.picked_up(id);
        let job = self.jobs.get_mut(&id).unwrap();
        job.served_ms = Some(self.now_ms);
        let (lease, needs) = (job.lease.clone(), job.needs.clone());
        self.served.push(id);
        if let Some(mean_ms) = self.hold_ms {
            // Evenly between half and one and a half of the mean.
            let hold_ms = self.rng.u64(mean_ms / 2..=mean_ms * 3 / 2);
            self.complete_in(hold_ms, lease, needs);
        }
        self.check_capacities();
        work
    }

    fn check_capacities(&mut self) {
        for limit in 0..self.limits.len() {
            let (used, capacity) = (self.used(limit), self.limits[limit].1.capacity);
            assert!(used <= capacity, "{used} of {capacity} are used");
        }
    }

    pub fn used(&mut self, limit: usize) -> u64 {
        let (account, spec) = &self.limits[limit];
        self.ledger.balance(account, spec.capacity, self.now_ms).used
    }

    /// Moves the clock, to each moment at which something happens.
    pub fn run_to(&mut self, until_ms: u64) {
        loop {
            let completion = self.completions.first_key_value().map(|((at_ms, _), _)| *at_ms);
            let next = [completion, self.places.next_due_ms()].into_iter().flatten().min();
            let Some(next_ms) = next.filter(|ms| *ms <= until_ms) else { break };
            self.now_ms = self.now_ms.max(next_ms);
            self.complete();
            self.serve();
        }
        self.now_ms = until_ms;
    }

    pub fn run_for(&mut self, ms: u64) {
        self.run_to(self.now_ms + ms);
    }

    fn complete(&mut self) {
        while let Some(first) = self.completions.first_entry().filter(|first| first.key().0 <= self.now_ms) {
            let Held { lease, needs, since_ms } = first.remove();
            let chain = self.chain(&lease, &needs, |_| Action::Void);
            assert_eq!(self.ledger.apply(&chain, self.now_ms).unwrap().verdict, Verdict::Done);
            for (limit, _) in needs {
                let account = Arc::clone(&self.limits[limit].0);
                account.hints.saw_hold(self.now_ms - since_ms);
                self.places.freed(account.id);
            }
        }
    }

    pub fn waited_ms(&self, id: JobId) -> Option<u64> {
        let job = &self.jobs[&id];
        job.served_ms.map(|ms| ms - job.came_ms)
    }

    /// Of the jobs that were told a time and served: how many waited within a quarter of it, and how many there were.
    pub fn honesty(&self, from_ms: u64) -> (usize, usize) {
        let waited = self.jobs.values().filter(|job| job.came_ms >= from_ms);
        let waited = waited.filter_map(|job| Some((job.promised_seconds, job.served_ms? - job.came_ms)));
        let promised: Vec<(u64, u64)> = waited.filter(|(_, waited_ms)| *waited_ms > 0).collect();
        let honest =
            promised.iter().filter(|(seconds, ms)| ms.abs_diff(seconds * SECOND) * 4 <= seconds * SECOND);
        (honest.count(), promised.len())
    }
}

fn half(n: u64) -> u64 {
    n / 2
}

fn spec(kind: Kind, capacity: u64) -> LimitSpec {
    let (unit, description, origin) = (String::new(), String::new(), Origin::Api);
    LimitSpec {
        kind,
        capacity,
        overage: Overage::Deny,
        is_exact: false,
        charge: Charge::Admitted,
        unit,
        description,
        origin,
        metric: None,
    }
}

pub fn rolling(seconds: u32) -> Kind {
    Kind::Rolling { window_seconds: NonZeroU32::new(seconds).unwrap() }
}

pub fn concurrency(seconds: u32) -> Kind {
    Kind::Concurrency { timeout_seconds: NonZeroU32::new(seconds).unwrap() }
}
