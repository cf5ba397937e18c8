//! One configuration on virtual time: a snapshot of its files, the decision on the memory ledger, and the leases that are to be
//! completed. What a server has around these, its sockets and its tasks, is not here.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use ahash::AHashMap;
use smallvec::SmallVec;

use super::clients::Clients;
use super::limits::Limits;
use super::traffic::batch::{Batch, Request};
use crate::activity::Activity;
use crate::admission::{self, Admission, DecideError, Decision, Denial};
use crate::app::ledger::layered;
use crate::clock::{self, VirtualTime};
use crate::config::{Loaded, settings};
use crate::lease::Lease;
use crate::lease::apply::Settler;
use crate::lease::settle::settle;
use crate::ledger::memory::Memory;
use crate::ledger::{Accounts, Backend, Ledger, LedgerError, Rotation};
use crate::limit::{Kind, LimitKey, LimitSpec, Origin};
use crate::registry::{Ask, Plan, Wanted};
use crate::service::check::take_retry_marks;
use crate::snapshot::Snapshot;
use crate::telemetry::Metrics;

/// Keys that are remembered: the coldest are forgotten, never their balances. 300 bytes each, so 40 MB.
const KEYS_MAX: usize = 1 << 17;

/// Requests after which it is forgotten who was active: nobody looks at a simulation while it runs.
const REQUESTS_PER_CLEANING: u64 = 1_024;

/// Whose denials are counted apart.
const TENANTS_MAX: usize = 10_000;

/// What every limit has where nothing is denied: half of 64 bits, as in a file.
const UNLIMITED: u64 = u64::MAX >> 1;

#[derive(Debug, Default)]
pub(super) struct Totals {
    pub(super) requests: u64,
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) unmatched: u64,
}

/// How a side differs from what its files say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    AsWritten,
    /// Every limit has as much as there can be, so that what is used is what is wanted.
    Unlimited,
}

#[derive(Debug)]
pub(super) struct Side {
    snapshot: Snapshot,
    admission: Admission,
    mode: Mode,
    /// The specs of limits without their capacities, by the address of the one in the registry.
    unlimited: AHashMap<usize, Arc<LimitSpec>>,
    releases: BinaryHeap<Reverse<Release>>,
    released: u64,
    /// The state of this thread's dice while this side decides, so that another side changes nothing here.
    dice: u64,
    pub(super) clients: Clients,
    pub(super) limits: Limits,
    pub(super) totals: Totals,
    /// By the first entry of the request.
    pub(super) tenants: AHashMap<String, u64>,
}

/// A lease that ends.
#[derive(Debug)]
struct Release {
    at_ms: u64,
    order: u64,
    lease: Box<Lease>,
}

impl Ord for Release {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_ms, self.order).cmp(&(other.at_ms, other.order))
    }
}

impl PartialOrd for Release {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Release {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Release {}

impl Side {
    /// Begins now, by the clock of this thread.
    pub(super) fn new(loaded: Loaded, mode: Mode, seed: u64, clients: Clients) -> Self {
        let metrics = Arc::new(Metrics::default());
        let keys_max = loaded.settings.limits.dynamic_keys_max.min(KEYS_MAX);
        // Nothing that is hashed may depend on chance.
        let hash = ahash::RandomState::with_seeds(1, 2, 3, 4);
        let ledger = Arc::new(Rotation::one(Backend::Memory(Memory::default())));
        let admission = Admission {
            ledger: layered(ledger, &settings::Ledger::default(), &metrics),
            accounts: Accounts::with_hash(keys_max, hash.clone()),
            share: Arc::default(),
            activity: Activity::default(),
            tracer: None,
            metrics: Arc::clone(&metrics),
        };
        let now_ms = clock::unix_ms();
        Self {
            snapshot: Snapshot::new(1, now_ms, loaded.hot, None, &metrics, None).with_hash(&hash),
            admission,
            mode,
            unlimited: AHashMap::new(),
            releases: BinaryHeap::new(),
            released: 0,
            dice: seed,
            clients,
            limits: Limits::new(now_ms, mode == Mode::Unlimited),
            totals: Totals::default(),
            tenants: AHashMap::new(),
        }
    }

    /// Decides one request at its time. What was due before that is given back first. `Ok(None)`: it is admitted.
    pub(super) fn decide(
        &mut self,
        batch: &Batch,
        request: &Request,
        time: &mut VirtualTime,
    ) -> Result<Option<Denial>, DecideError> {
        fastrand::seed(self.dice);
        self.release_until(request.time_ms, time)?;
        time.set(request.time_ms);
        let decided = self.decide_now(batch, request);
        self.dice = fastrand::get_seed();
        if self.totals.requests.is_multiple_of(REQUESTS_PER_CLEANING) {
            self.admission.activity.ignore();
        }
        decided
    }

    fn decide_now(&mut self, batch: &Batch, request: &Request) -> Result<Option<Denial>, DecideError> {
        let mut asks = batch.asks(request);
        if asks.is_empty() {
            // Envoy doesn't ask about a request that has no descriptor.
            self.totals.requests += 1;
            self.totals.admitted += 1;
            self.totals.unmatched += 1;
            return Ok(None);
        }
        let is_retry = take_retry_marks(&mut asks, &self.snapshot.retry.budget.descriptor_key);
        let name = batch.domain(request);
        let mut plan = self.snapshot.registry.plan(name, &asks, &self.admission.accounts)?;
        if self.mode == Mode::Unlimited {
            self.lift(&mut plan);
        }
        let (now_ms, unix_ms) = (clock::monotonic_ms(), request.time_ms);
        let asked = admission::Request { domain: name, asks: &asks, is_retry, request_id: None };
        let domain = self.snapshot.domain(name);
        let decision = at_once(self.admission.decide_plan(&self.snapshot, domain, &asked, &plan, now_ms))?;
        self.totals.requests += 1;
        let is_unmatched = plan.descriptors.iter().all(|wanted| *wanted == Wanted::Bare);
        self.totals.unmatched += u64::from(is_unmatched && decision.denial.is_none());
        self.count(&plan, &decision, &asks, request.duration_ms, unix_ms);
        let Decision { denial, lease, late, .. } = decision;
        if let Some(late) = late {
            at_once(self.admission.charge_late(&late))?;
            let charged = plan.requirements.iter().filter(|requirement| requirement.late > 0);
            for requirement in charged {
                let free = self.admission.ledger.peek(&requirement.account, &requirement.spec).unwrap_or(0);
                self.limits.charged_late(
                    requirement,
                    requirement.spec.capacity.saturating_sub(free),
                    unix_ms,
                );
            }
        }
        // A lease whose end nobody states is held until its timeout.
        if let (Some(lease), Some(duration_ms)) = (lease, request.duration_ms) {
            self.released += 1;
            let (at_ms, order) = (unix_ms.saturating_add(duration_ms), self.released);
            self.releases.push(Reverse(Release { at_ms, order, lease }));
        }
        Ok(denial)
    }

    fn count(
        &mut self,
        plan: &Plan,
        decision: &Decision,
        asks: &[Ask<'_>],
        duration_ms: Option<u64>,
        unix_ms: u64,
    ) {
        let Some(denial) = &decision.denial else {
            self.totals.admitted += 1;
            for (index, requirement) in plan.requirements.iter().enumerate() {
                let lifetime_ms = u64::from(requirement.spec.kind.lifetime_seconds().get()) * 1000;
                let held_ms = match requirement.spec.kind {
                    Kind::Rolling { .. } => lifetime_ms,
                    Kind::Concurrency { .. } => duration_ms.map_or(lifetime_ms, |ms| ms.min(lifetime_ms)),
                };
                if decision.left_out.contains(index) {
                    self.limits.denied(requirement, unix_ms);
                } else if requirement.amount > 0 {
                    let available = decision.available.get(index).copied().flatten();
                    self.limits.admitted(requirement, available, held_ms, unix_ms);
                }
            }
            return;
        };
        self.totals.denied += 1;
        let said_no =
            |key: &LimitKey| plan.requirements.iter().find(|requirement| requirement.account.key == *key);
        if let Some(requirement) = denial.limit.as_ref().and_then(said_no) {
            self.limits.denied(requirement, unix_ms);
        }
        if let Some(first) = asks.first().and_then(|ask| ask.entries.first()) {
            let tenant = format!("{}={}", first.key, first.value);
            if self.tenants.len() < TENANTS_MAX || self.tenants.contains_key(&tenant) {
                *self.tenants.entry(tenant).or_default() += 1;
            }
        }
    }

    /// Every limit of a plan has as much as there can be.
    fn lift(&mut self, plan: &mut Plan) {
        for requirement in &mut plan.requirements {
            let lifted = |spec: &LimitSpec| Arc::new(LimitSpec { capacity: UNLIMITED, ..spec.clone() });
            requirement.late = 0;
            if requirement.spec.origin == Origin::Override {
                // This spec was made for this request, and another one may have its address next time.
                requirement.spec = lifted(&requirement.spec);
                continue;
            }
            let address = Arc::as_ptr(&requirement.spec).addr();
            let spec = self.unlimited.entry(address).or_insert_with(|| lifted(&requirement.spec));
            requirement.spec = Arc::clone(spec);
        }
    }

    /// Completes the leases that end until then, each at its time.
    fn release_until(&mut self, until_ms: u64, time: &mut VirtualTime) -> Result<(), LedgerError> {
        while self.releases.peek().is_some_and(|Reverse(next)| next.at_ms <= until_ms) {
            let Some(Reverse(Release { at_ms, lease, .. })) = self.releases.pop() else { break };
            time.set(at_ms);
            let unreported: SmallVec<[Option<u64>; 4]> = lease.held.iter().map(|_| None).collect();
            let settlements = settle(&lease, &unreported, at_ms);
            let settler = Settler {
                ledger: &self.admission.ledger,
                registry: &self.snapshot.registry,
                accounts: &self.admission.accounts,
            };
            at_once(settler.apply(&lease, &settlements))?;
            settler.note_holds(&lease, &settlements, at_ms);
        }
        Ok(())
    }
}

/// The memory ledger never waits, so one poll is the whole future.
fn at_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => unreachable!("the memory ledger must not wait"),
    }
}
