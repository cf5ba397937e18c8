//! The waiting room on virtual time: the production room, its forecasts and the memory ledger's rules, in a loop that
//! only moves the clock. Honest promises, order, and no limit ever over its capacity.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::sync::Arc;

use sluice::ledger::memory::Core;
use sluice::ledger::{Account, Action, Chain, Hold, Keep, Transfer, Verdict};
use sluice::limit::{Kind, LeaseId, LimitKey, LimitSpec, Origin, Overage};
use sluice::retry::policy::{Queue, RetryPolicy};
use sluice::room::lines::JobId;
use sluice::room::turnstile::Turnstile;
use sluice::room::{Arrival, Due, Reserved, Room};

const SECOND: u64 = 1000;

/// A world with one clock.
struct World {
    room: Room,
    ledger: Core,
    turnstile: Turnstile,
    policy: Queue,
    now_ms: u64,
    limits: Vec<(Arc<Account>, Arc<LimitSpec>)>,
    /// When each job came, what it needs, its first promise and its lease.
    jobs: HashMap<JobId, Job>,
    served: Vec<JobId>,
    /// Leases that end before they expire: what a completion is.
    completions: BTreeMap<(u64, u64), JobId>,
    hold_ms: Option<u64>,
    rng: fastrand::Rng,
    came: u64,
}

struct Job {
    came_ms: u64,
    needs: Vec<(usize, u64)>,
    promised_seconds: u64,
    served_ms: Option<u64>,
}

impl World {
    fn new(limits: &[(Kind, u64)], seed: u64) -> Self {
        let limit = |(n, (kind, capacity)): (usize, &(Kind, u64))| {
            let key = LimitKey::new(&format!("limit {n}"));
            (Arc::new(Account::new(key)), Arc::new(spec(*kind, *capacity)))
        };
        Self {
            room: Room::new(false),
            ledger: Core::default(),
            turnstile: Turnstile::default(),
            policy: RetryPolicy {
                queue: Queue {
                    max_seconds: 86_400,
                    deadline_seconds: 86_400,
                    ..RetryPolicy::default().queue
                },
                ..RetryPolicy::default()
            }
            .queue,
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

    fn chain(&self, lease: JobId, needs: &[(usize, u64)], action: impl Fn(Hold) -> Action) -> Chain {
        let transfer = |&(limit, amount): &(usize, u64)| {
            let (account, spec) = &self.limits[limit];
            let lifetime_seconds = spec.kind.lifetime_seconds();
            Transfer {
                account: Arc::clone(account),
                action: action(Hold { amount, lifetime_seconds, capacity: spec.capacity }),
            }
        };
        let lease = LeaseId::fresh(0, lease);
        Chain { lease, keep: Keep::ForCompletion, transfers: needs.iter().map(transfer).collect() }
    }

    /// A newcomer that doesn't queue. Whether it was admitted.
    fn newcomer(&mut self, limit: usize) -> bool {
        self.came += 1;
        let id = (1 << 70) + u128::from(self.came);
        let account = self.limits[limit].0.id;
        let Ok(pass) = self.turnstile.enter([(account, 1)].into_iter()) else { return false };
        let chain = self.chain(id, &[(limit, 1)], Action::Reserve);
        let done = self.ledger.apply(&chain, self.now_ms).unwrap().verdict == Verdict::Done;
        if done {
            pass.into_iter().for_each(|pass| pass.through());
        }
        done
    }

    /// A job that queues. What it was promised, or `None` if it was served at once.
    fn arrive(&mut self, needs: &[(usize, u64)]) -> JobId {
        self.came += 1;
        let id = LeaseId::fresh(0, u128::from(self.came));
        let bits = id.bits();
        let limits = needs.iter().map(|&(limit, amount)| {
            let (account, spec) = &self.limits[limit];
            (Arc::clone(account), Arc::clone(spec), amount)
        });
        let arrival = Arrival {
            id,
            job_id: String::new(),
            wants: Arc::from([]),
            limits: limits.collect(),
            refused_by: None,
        };
        let part = |limit| self.turnstile.line_part(limit);
        self.room.join(arrival, &self.policy, part, self.now_ms).expect("there must be a place");
        let job = Job { came_ms: self.now_ms, needs: needs.to_vec(), promised_seconds: 0, served_ms: None };
        self.jobs.insert(bits, job);
        self.serve();
        let part = |limit| self.turnstile.line_part(limit);
        let status = self.room.status(bits, &self.policy, part, self.now_ms).unwrap();
        self.jobs.get_mut(&bits).unwrap().promised_seconds = status.eta_seconds;
        bits
    }

    /// What the waiter does, with answers at once.
    fn serve(&mut self) {
        while let Some(id) = self.room.next_turn(self.now_ms) {
            let needs = self.jobs[&id].needs.clone();
            let chain = self.chain(id, &needs, Action::Reserve);
            match self.ledger.apply(&chain, self.now_ms).unwrap().verdict {
                Verdict::Done => self.is_served(id, &needs),
                Verdict::NotAsked => panic!("the ledger must be asked"),
                Verdict::Refused(refusal) => {
                    let (limit, _) = needs[refusal.index];
                    let (account, spec) = self.limits[limit].clone();
                    self.room.refused(id, account.id, &spec, self.now_ms);
                    for limit in self.room.spots(id) {
                        let (first, _, spec) = self.room.first_at(limit).unwrap();
                        self.turnstile.set(limit, self.policy.reserved_share, first, spec.capacity);
                    }
                    let schedule = self.ledger.schedule(&account, self.now_ms);
                    self.room.looked(account.id, Some(schedule), self.now_ms, |n| n / 2);
                }
            }
        }
        for (account, _) in &self.limits {
            if self.room.is_idle(account.id) {
                self.turnstile.remove(account.id);
            }
        }
    }

    fn is_served(&mut self, id: JobId, needs: &[(usize, u64)]) {
        let lease = LeaseId::fresh(0, id);
        let reserved = Reserved {
            lease,
            token: None,
            reserved_at_unix_ms: 0,
            ends_at_unix_ms: u64::MAX,
            unclaimed: None,
            is_picked_up: false,
        };
        self.room.served(id, reserved, &self.policy, self.now_ms);
        self.room.picked_up(id);
        needs.iter().for_each(|&(limit, amount)| self.turnstile.served(self.limits[limit].0.id, amount));
        self.jobs.get_mut(&id).unwrap().served_ms = Some(self.now_ms);
        self.served.push(id);
        if let Some(mean_ms) = self.hold_ms {
            // Evenly between half and one and a half of the mean.
            let hold_ms = self.rng.u64(mean_ms / 2..=mean_ms * 3 / 2);
            self.came += 1;
            self.completions.insert((self.now_ms + hold_ms, self.came), id);
        }
        self.check_capacities();
    }

    fn check_capacities(&mut self) {
        for (account, spec) in &self.limits {
            let balance = self.ledger.balance(account, spec.capacity, self.now_ms);
            assert!(balance.used <= spec.capacity, "{account:?}: {balance:?}");
        }
    }

    /// Moves the clock, to each moment at which something happens.
    fn run_to(&mut self, until_ms: u64) {
        loop {
            let completion = self.completions.first_key_value().map(|((at_ms, _), _)| *at_ms);
            let next = [completion, self.room.next_due_ms()].into_iter().flatten().min();
            let Some(next_ms) = next.filter(|ms| *ms <= until_ms) else { break };
            self.now_ms = self.now_ms.max(next_ms);
            self.on_time();
            self.serve();
        }
        self.now_ms = until_ms;
    }

    fn on_time(&mut self) {
        while let Some(((at_ms, n), id)) = self.completions.pop_first() {
            if at_ms > self.now_ms {
                self.completions.insert((at_ms, n), id);
                break;
            }
            let needs = self.jobs[&id].needs.clone();
            let chain = self.chain(id, &needs, |_| Action::Void);
            assert_eq!(self.ledger.apply(&chain, self.now_ms).unwrap().verdict, Verdict::Done);
            for (limit, _) in needs {
                let account = Arc::clone(&self.limits[limit].0);
                account.hints.saw_hold(self.now_ms - self.jobs[&id].served_ms.unwrap());
                self.room.freed(account.id);
            }
        }
        for due in self.room.due(self.now_ms) {
            match due {
                Due::Look(limit) => self.room.look(limit, None, self.now_ms),
                Due::Deadline(_) | Due::NotPickedUp(_) => panic!("nobody waits that long"),
            }
        }
    }

    /// Of the jobs that were promised a time and served: how many waited within a quarter of it.
    fn honesty(&self, from_ms: u64) -> (usize, usize) {
        let waited = self.jobs.values().filter(|job| job.came_ms >= from_ms);
        let waited = waited.filter_map(|job| Some((job.promised_seconds, job.served_ms? - job.came_ms)));
        let promised: Vec<(u64, u64)> = waited.filter(|(_, waited_ms)| *waited_ms > 0).collect();
        let honest =
            promised.iter().filter(|(seconds, ms)| ms.abs_diff(seconds * SECOND) * 4 <= seconds * SECOND);
        (honest.count(), promised.len())
    }
}

fn spec(kind: Kind, capacity: u64) -> LimitSpec {
    let (unit, description, origin) = (String::new(), String::new(), Origin::Api);
    LimitSpec { kind, capacity, overage: Overage::Deny, unit, description, origin }
}

fn rolling(seconds: u32) -> Kind {
    Kind::Rolling { window_seconds: NonZeroU32::new(seconds).unwrap() }
}

fn concurrency(seconds: u32) -> Kind {
    Kind::Concurrency { timeout_seconds: NonZeroU32::new(seconds).unwrap() }
}

/// Arrivals at random, on average one every `every_ms`, for `seconds`; then everybody is served.
fn steady(world: &mut World, every_ms: u64, seconds: u64, mut arrive: impl FnMut(&mut World)) {
    let end_ms = world.now_ms + seconds * SECOND;
    loop {
        let gap = -(1.0 - world.rng.f64()).ln() * every_ms as f64;
        let next_ms = world.now_ms + (gap as u64).max(1);
        if next_ms > end_ms {
            break;
        }
        world.run_to(next_ms);
        arrive(world);
    }
    world.run_to(end_ms + 3_600 * SECOND);
}

fn assert_honest(world: &World, from_ms: u64, at_least: usize) {
    let (honest, promised) = world.honesty(from_ms);
    assert!(promised >= at_least, "only {promised} had to wait");
    assert!(honest * 10 >= promised * 9, "{honest} of {promised} waited within a quarter of the promise");
    assert!(world.jobs.values().all(|job| job.served_ms.is_some()), "somebody was never served");
}

#[test]
fn a_rolling_limit_keeps_its_promises_under_steady_load() {
    for seed in 0..5 {
        // 60 a minute, a backlog of a minute and a half, then one a second.
        let mut world = World::new(&[(rolling(60), 60)], seed);
        (0..150).for_each(|_| {
            world.arrive(&[(0, 1)]);
        });
        let from_ms = world.now_ms;
        steady(&mut world, 1000, 600, |world| {
            world.arrive(&[(0, 1)]);
        });
        assert_honest(&world, from_ms, 500);
        assert!(world.served.is_sorted_by_key(|id| world.jobs[id].came_ms), "first come, first served");
    }
}

#[test]
fn amounts_of_all_sizes_are_promised_as_well() {
    for seed in 0..5 {
        // LLM tokens: 30,000 a minute, 100 to 1,900 a job, one every two seconds.
        let mut world = World::new(&[(rolling(60), 30_000)], seed);
        let arrive = |world: &mut World| {
            let tokens = world.rng.u64(100..=1900);
            world.arrive(&[(0, tokens)]);
        };
        (0..80).for_each(|_| arrive(&mut world));
        let from_ms = world.now_ms;
        steady(&mut world, 2000, 600, arrive);
        assert_honest(&world, from_ms, 200);
    }
}

#[test]
fn what_was_used_up_at_once_comes_back_at_once_and_that_is_promised() {
    let mut world = World::new(&[(rolling(60), 100)], 1);
    (0..100).for_each(|_| {
        world.arrive(&[(0, 1)]);
    });
    world.run_to(world.now_ms + 20 * SECOND);
    let [first, last] = [world.arrive(&[(0, 1)]), world.arrive(&[(0, 1)])];
    // 40 s until the window is over, 6 ms of work, a fifth on top: 48.01 s.
    assert_eq!([first, last].map(|id| world.jobs[&id].promised_seconds), [49, 49]);
    world.run_to(world.now_ms + 41 * SECOND);
    let waited = [first, last].map(|id| world.jobs[&id].served_ms.map(|ms| ms - world.jobs[&id].came_ms));
    assert_eq!(waited, [Some(40_000), Some(40_000)]);
}

#[test]
fn a_concurrency_limit_keeps_its_promises_under_steady_load() {
    for seed in 0..5 {
        // 20 at a time for 4 s on average are 5 a second; a backlog of 300, then 5 a second.
        let mut world = World::new(&[(concurrency(300), 20)], seed);
        world.hold_ms = Some(4000);
        (0..320).for_each(|_| {
            world.arrive(&[(0, 1)]);
        });
        world.run_to(world.now_ms + 10 * SECOND);
        let from_ms = world.now_ms;
        steady(&mut world, 200, 300, |world| {
            world.arrive(&[(0, 1)]);
        });
        assert_honest(&world, from_ms, 1000);
    }
}

#[test]
fn nobody_promises_what_nobody_knows() {
    let mut world = World::new(&[(concurrency(300), 1)], 1);
    world.arrive(&[(0, 1)]);
    // Nobody has given it back yet: B(E), and E is 0.
    let second = world.arrive(&[(0, 1)]);
    assert_eq!(world.jobs[&second].promised_seconds, 4);
}

/// The line needs 10 at a time, and newcomers who need 1 ask all the time: what the line is served of all that is.
fn part_of_the_line(share: f64) -> f64 {
    let mut world = World::new(&[(rolling(60), 60)], 7);
    world.policy.reserved_share = share;
    steady(&mut world, 1000, 120, |world| {
        world.newcomer(0);
    });
    let start_ms = world.now_ms;
    (0..60).for_each(|n| {
        world.run_to(start_ms + n * SECOND);
        world.newcomer(0);
    });
    (0..100).for_each(|_| {
        world.arrive(&[(0, 10)]);
    });
    let (from_ms, mut newcomers) = (world.now_ms, 0u64);
    let before = world.served.len();
    while world.now_ms < from_ms + 600 * SECOND {
        world.run_to(world.now_ms + 100);
        newcomers += u64::from(world.newcomer(0));
    }
    let line = (world.served.len() - before) as f64 * 10.0;
    let all = line + newcomers as f64;
    assert!(all > 500.0, "of 600 only {all} were used");
    line / all
}

#[test]
fn newcomers_do_not_starve_the_line() {
    assert!(part_of_the_line(0.0) < 0.05, "without a share the line would starve");
    for share in [0.25, 0.5, 0.75, 1.0] {
        let part = part_of_the_line(share);
        assert!(part >= share - 0.05, "a share of {share}, and the line got {part}");
    }
}

/// One job needs two limits that others hold in turn: they are never free at the same time by chance.
#[test]
fn one_who_needs_two_limits_is_not_starved_by_those_who_need_one() {
    for queue in [true, false] {
        let mut world = World::new(&[(concurrency(300), 1), (concurrency(300), 1)], 3);
        world.policy.reserved_share = 1.0;
        world.hold_ms = Some(1000);
        world.arrive(&[(0, 1)]);
        world.run_to(world.now_ms + 400);
        world.arrive(&[(1, 1)]);
        let two = world.arrive(&[(0, 1), (1, 1)]);
        for n in 0..1000 {
            if queue {
                // Whoever came later waits behind it in the end.
                for limit in 0..2 {
                    if world.room.depth() < 20 || n % 50 == limit {
                        world.arrive(&[(limit, 1)]);
                    }
                }
            } else {
                for limit in 0..2 {
                    if world.newcomer(limit) {
                        let id = (1 << 70) + u128::from(world.came);
                        let job = Job {
                            came_ms: world.now_ms,
                            needs: vec![(limit, 1)],
                            promised_seconds: 0,
                            served_ms: Some(world.now_ms),
                        };
                        world.jobs.insert(id, job);
                        world.completions.insert((world.now_ms + 1000, world.came), id);
                    }
                }
            }
            world.run_to(world.now_ms + 100);
        }
        let waited = world.jobs[&two].served_ms.map(|ms| ms - world.jobs[&two].came_ms);
        assert!(waited.is_some_and(|ms| ms < 60 * SECOND), "queue {queue}: {waited:?}");
    }
}

#[test]
fn a_thousand_jobs_over_fifty_limits_are_served_in_order_and_hold_up_nobody() {
    for seed in 0..3 {
        // One shared limit that is wide, 49 tenants: most have 10 a minute, tenant 1 has one an hour.
        let mut limits = vec![(rolling(60), 600), (rolling(3600), 1)];
        limits.extend((2..50).map(|_| (rolling(60), 10)));
        let mut world = World::new(&limits, seed);
        let mut by_tenant: HashMap<usize, Vec<JobId>> = HashMap::new();
        for _ in 0..1000 {
            let tenant = world.rng.usize(1..50);
            let id = world.arrive(&[(0, 1), (tenant, 1)]);
            by_tenant.entry(tenant).or_default().push(id);
        }
        assert!(world.room.depth() > 400, "most have to wait");
        world.run_to(world.now_ms + 300 * SECOND);
        for (tenant, jobs) in &by_tenant {
            let order: Vec<JobId> = world.served.iter().copied().filter(|id| jobs.contains(id)).collect();
            assert_eq!(order, jobs[..order.len()], "tenant {tenant}: first come, first served");
            if *tenant == 1 {
                assert_eq!(order.len(), 1, "one an hour");
            } else {
                assert_eq!(order.len(), jobs.len(), "tenant {tenant} was held up");
                // 10 at once, 10 a minute later, …: not a moment later than its own limit says.
                for (n, id) in jobs.iter().enumerate() {
                    let waited_ms = world.jobs[id].served_ms.unwrap() - world.jobs[id].came_ms;
                    let own_limit_ms = (n as u64 / 10) * 60 * SECOND;
                    assert!(
                        waited_ms <= own_limit_ms + 120 * SECOND,
                        "tenant {tenant}, job {n}: {waited_ms} ms"
                    );
                }
            }
        }
    }
}
