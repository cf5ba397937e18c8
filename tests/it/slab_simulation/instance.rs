//! One simulated instance: the production core, a clock of its own, and the calls and requests that are under way.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;
use std::rc::Rc;

use sluice::ledger::slabs::core::{Aside, Core, Need, Notifier};
use sluice::ledger::slabs::limit::{Outside, Rules};
use sluice::ledger::slabs::requests::Requests;
use sluice::ledger::slabs::returns::Number;
use sluice::ledger::slabs::times::Times;
use sluice::limit::{LeaseId, LimitId};
use sluice::telemetry::SlabUnits;

use super::plan::Plan;

/// Notices are counted; who waits compares.
#[derive(Debug, Default)]
pub struct CountingNotifier {
    notices: Rc<Cell<u64>>,
}

#[derive(Debug)]
pub struct CountedSubscription {
    notices: Rc<Cell<u64>>,
    heard: u64,
}

impl Notifier for CountingNotifier {
    type Subscription = CountedSubscription;

    fn subscribe(&mut self) -> CountedSubscription {
        CountedSubscription { notices: Rc::clone(&self.notices), heard: self.notices.get() }
    }

    fn notify(&mut self) {
        self.notices.set(self.notices.get() + 1);
    }
}

impl CountedSubscription {
    pub fn is_notified(&self) -> bool {
        self.notices.get() != self.heard
    }
}

/// A request without an answer.
#[derive(Debug, Clone)]
pub struct Request {
    pub needs: Vec<(usize, u64)>,
    pub id: Option<u64>,
    pub came_us: u64,
    pub waits: u32,
}

/// What a call to the ledger is for.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "there are few at a time")]
pub enum Call {
    /// The rests of a request. `slab_needs` are its needs that may come from slabs, `aside_us` when those were set aside.
    Request {
        request: Request,
        aside: Aside,
        slab_needs: Vec<(usize, u64)>,
        exact: Vec<(usize, u64)>,
        aside_us: u64,
    },
    Take {
        limit: usize,
        up_to: bool,
    },
    GiveBack(Number),
}

/// Something that a hub was asked.
#[derive(Debug, Clone)]
pub struct Sent {
    pub hub: usize,
    pub chain: Vec<super::ledger::Transfer>,
    /// The hub may lend it.
    pub is_slab: bool,
    /// Its first stream was lost: what exists under its name is its own.
    pub is_second: bool,
}

/// A stream to a hub. Every time that it is lost its number changes.
#[derive(Debug, Clone, Copy, Default)]
pub struct Stream {
    pub number: u32,
    pub is_lost: bool,
}

pub struct Instance {
    pub core: Core<usize, CountingNotifier>,
    pub ids: Requests<bool>,
    /// Counts the lives of this instance: what was sent in another one is nobody's.
    pub epoch: u32,
    pub is_up: bool,
    pub is_draining: bool,
    pub paused_until_us: u64,
    pub pause_inside: Option<(u32, u64)>,
    pub pause_at_ask: Option<u64>,
    pub capacity: Vec<u64>,
    pub calls: BTreeMap<u64, Call>,
    /// Reserves whose callers have left: the layer below gives them back when they land.
    pub left_behind: HashMap<u64, Vec<super::ledger::Transfer>>,
    /// What was sent to which hub and is not answered.
    pub sent: BTreeMap<u64, Sent>,
    /// The streams to the hubs.
    pub streams: Vec<Stream>,
    pub waiting: Vec<(Request, CountedSubscription)>,
    pub waiting_for_id: Vec<Request>,
    pub wakes_at_us: Option<u64>,
    /// Units handed out of slabs, by limit, as the callers see it.
    pub handed_out: Vec<u64>,
    pub clock: Clock,
}

/// What the core sees of the world.
pub struct Clock {
    pub now_us: u64,
    /// Its clock shows another time than anybody else's, and not on the same millisecond.
    pub offset_us: u64,
    pub wall_ms: i64,
    pub names: fastrand::Rng,
    /// Readings until a pause, and how long it is.
    pub pause: Option<(u32, u64)>,
    pub first_reading_us: Option<u64>,
}

impl Clock {
    pub fn new(mut rng: fastrand::Rng) -> Self {
        let offset_us = rng.u64(1_000_000..90_000_000);
        Self { now_us: 0, offset_us, wall_ms: 0, names: rng, pause: None, first_reading_us: None }
    }
}

impl Outside for Clock {
    fn now_ms(&mut self) -> u64 {
        if let Some((readings, us)) = &mut self.pause {
            if *readings == 0 {
                self.now_us += *us;
                self.pause = None;
            } else {
                *readings -= 1;
            }
        }
        self.first_reading_us.get_or_insert(self.now_us);
        (self.now_us + self.offset_us) / 1_000
    }

    fn fresh_name(&mut self) -> LeaseId {
        let unix_ms = 1_700_000_000_000 + (self.now_us / 1_000).cast_signed() + self.wall_ms;
        LeaseId::fresh(unix_ms.cast_unsigned(), self.names.u128(..))
    }
}

impl Instance {
    pub fn new(plan: &Plan, index: usize, epoch: u32) -> Self {
        let rng = fastrand::Rng::with_seed(plan.seed ^ (index as u64) << 32 ^ u64::from(epoch) << 48);
        Self {
            core: Core::new(SlabUnits::default()),
            ids: Requests::new(1_000),
            epoch,
            is_up: true,
            is_draining: false,
            paused_until_us: 0,
            pause_inside: None,
            pause_at_ask: None,
            capacity: plan.limits.iter().map(|limit| limit.capacity).collect(),
            calls: BTreeMap::new(),
            left_behind: HashMap::new(),
            sent: BTreeMap::new(),
            streams: vec![Stream::default(); plan.hubs],
            waiting: Vec::new(),
            waiting_for_id: Vec::new(),
            wakes_at_us: None,
            handed_out: vec![0; plan.limits.len()],
            clock: Clock::new(rng),
        }
    }

    pub fn need(&self, plan: &Plan, limit: usize, units: u64) -> Need<usize> {
        let window = NonZeroU32::new(plan.limits[limit].window_seconds).unwrap();
        let rules = Rules { capacity: self.capacity[limit], times: Times::of(window).unwrap() };
        Need { limit: limit_id(limit), account: limit, units, rules }
    }

    /// When its clock shows `at_ms`.
    pub fn us_of(&self, at_ms: u64) -> u64 {
        (at_ms * 1_000).saturating_sub(self.clock.offset_us)
    }
}

pub fn limit_id(limit: usize) -> LimitId {
    LimitId::new(limit as u128 + 1)
}
