//! What happens in one run: who asks for what and which faults come when, drawn from a seed as an explicit list, so that
//! a history that fails can be made shorter by leaving events out.

/// One run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub instances: usize,
    /// Between the instances and the ledger; none: they use it directly.
    pub hubs: usize,
    /// How many slabs of a limit a hub must be asked for in a life to lend some.
    pub lends_from: u32,
    /// Of a thousand ends of loans so many are never told.
    pub untold_per_mille: u32,
    pub limits: Vec<LimitPlan>,
    /// Microseconds one way, at most; drawn anew for every message.
    pub latency_us: u64,
    /// Without faults.
    pub is_calm: bool,
    pub end_us: u64,
    /// By time.
    pub events: Vec<(u64, Event)>,
}

#[derive(Debug, Clone, Copy)]
pub struct LimitPlan {
    pub window_seconds: u32,
    pub capacity: u64,
    /// It never has a slab.
    pub is_exact: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Event {
    Arrive {
        instance: usize,
        needs: Vec<(usize, u64)>,
        /// What the caller calls it.
        id: Option<u64>,
    },
    Crash {
        instance: usize,
    },
    Start {
        instance: usize,
    },
    /// SIGTERM.
    Drain {
        instance: usize,
    },
    /// SIGSTOP, and SIGCONT so much later.
    Pause {
        instance: usize,
        us: u64,
    },
    /// The same in the middle of the next request, before its clock reading number `reading`.
    PauseInside {
        instance: usize,
        reading: u32,
        us: u64,
    },
    /// The same right after the next slab was asked for, so that its answer waits.
    PauseAtAsk {
        instance: usize,
        us: u64,
    },
    /// The wall clock jumps.
    WallStep {
        instance: usize,
        ms: i64,
    },
    /// An instance learns of another capacity.
    Configure {
        instance: usize,
        limit: usize,
        capacity: u64,
    },
    /// The ledger stands still.
    LedgerPause {
        us: u64,
    },
    /// Messages and answers are lost, so many of a thousand.
    Lossy {
        us: u64,
        per_mille: u32,
    },
    /// Messages and answers take up to this much longer.
    Slow {
        us: u64,
        extra_us: u64,
    },
    /// A hub is killed, or started again.
    HubCrash {
        hub: usize,
    },
    HubStart {
        hub: usize,
    },
    /// A hub stands still.
    HubPause {
        hub: usize,
        us: u64,
    },
    /// Nothing passes between an instance and a hub, one way or both.
    Cut {
        instance: usize,
        hub: usize,
        us: u64,
        to_hub: bool,
        to_instance: bool,
    },
    /// Limits that are idle are forgotten.
    Sweep {
        instance: usize,
    },
}

pub const SECOND: u64 = 1_000_000;

impl Plan {
    /// Any number of instances, limits, loads and faults.
    pub fn draw(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let instances = rng.usize(1..=4);
        let limits: Vec<LimitPlan> = (0..rng.usize(1..=3)).map(|_| LimitPlan::draw(&mut rng)).collect();
        let longest = limits.iter().map(|limit| limit.window_seconds).max().unwrap_or(1);
        let end_us = u64::from(longest) * SECOND * rng.u64(2..=4);
        let latency_us = [500, 2_000, 10_000, 40_000][rng.usize(0..4)];
        let mut events = Vec::new();
        for instance in 0..instances {
            draw_arrivals(&mut rng, instance, instances, &limits, end_us, &mut events);
        }
        let is_calm = rng.u8(0..3) == 0;
        if !is_calm {
            for _ in 0..rng.usize(1..=10) {
                draw_fault(&mut rng, instances, &limits, end_us, &mut events);
            }
        }
        events.sort_by_key(|(at_us, _)| *at_us);
        Self {
            seed,
            instances,
            hubs: 0,
            lends_from: 0,
            untold_per_mille: 0,
            limits,
            latency_us,
            is_calm,
            end_us,
            events,
        }
    }

    /// The same with hubs between the instances and the ledger, and what may happen to those.
    pub fn with_hubs(mut self) -> Self {
        let mut rng = fastrand::Rng::with_seed(self.seed ^ HUBS);
        self.hubs = rng.usize(1..=3);
        self.lends_from = [0, 0, 1, 2, 4, u32::MAX][rng.usize(0..6)];
        self.untold_per_mille = [0, 0, 50, 600][rng.usize(0..4)];
        self.is_calm = false;
        for _ in 0..rng.usize(1..=8) {
            draw_hub_fault(&mut rng, &mut self);
        }
        self.events.sort_by_key(|(at_us, _)| *at_us);
        self
    }
}

/// Sets what is drawn for hubs apart from the rest of a plan.
const HUBS: u64 = 0x6875_6273;

fn draw_hub_fault(rng: &mut fastrand::Rng, plan: &mut Plan) {
    let at_us = rng.u64(0..plan.end_us);
    let (hub, instance) = (rng.usize(0..plan.hubs), rng.usize(0..plan.instances));
    let long_us = [20_000, 300_000, 1_200_000, 6_000_000][rng.usize(0..4)];
    let us = rng.u64(long_us / 4..=long_us);
    let event = match rng.u8(0..4) {
        0 | 1 => {
            plan.events.push((at_us + us, Event::HubStart { hub }));
            Event::HubCrash { hub }
        }
        2 => Event::HubPause { hub, us },
        3.. => {
            let way = rng.u8(0..3);
            Event::Cut { instance, hub, us, to_hub: way != 0, to_instance: way != 1 }
        }
    };
    plan.events.push((at_us, event));
}

impl LimitPlan {
    fn draw(rng: &mut fastrand::Rng) -> Self {
        let window_seconds = [1, 1, 2, 3, 5, 10][rng.usize(0..6)];
        let capacity = [rng.u64(1..60), rng.u64(40..400), rng.u64(200..2_000)][rng.usize(0..3)];
        Self { window_seconds, capacity, is_exact: rng.u8(0..5) == 0 }
    }
}

/// Requests at one instance: a steady rate with bursts and quiet times, between a tenth and five times its share.
fn draw_arrivals(
    rng: &mut fastrand::Rng,
    instance: usize,
    instances: usize,
    limits: &[LimitPlan],
    end_us: u64,
    events: &mut Vec<(u64, Event)>,
) {
    let first = rng.usize(0..limits.len());
    let limit = limits[first];
    let fair_us = u64::from(limit.window_seconds) * SECOND * instances as u64 / limit.capacity.max(1);
    let mut at_us = rng.u64(0..SECOND);
    let mut load = 1.0;
    let mut id = 0;
    // Enough to fill every limit, and few enough for thousands of runs.
    for n in 0..4_000 {
        if n % 200 == 0 {
            load = [0.1, 0.5, 1.2, 2.0, 5.0, 50.0][rng.usize(0..6)];
        }
        let mean_us = (fair_us as f64 / load).max(50.0);
        at_us += (mean_us * -(1.0 - rng.f64()).ln()) as u64;
        if at_us >= end_us {
            break;
        }
        let several = rng.u8(0..4) == 0;
        let mut needs = vec![(first, if rng.u8(0..10) == 0 { rng.u64(1..=6) } else { 1 })];
        if several {
            needs.extend((0..limits.len()).filter(|other| *other != first).map(|other| (other, 1)));
        }
        id += u64::from(rng.u8(0..3) > 0);
        let named = rng.u8(0..8) == 0;
        events.push((at_us, Event::Arrive { instance, needs, id: named.then_some(id) }));
    }
}

fn draw_fault(
    rng: &mut fastrand::Rng,
    instances: usize,
    limits: &[LimitPlan],
    end_us: u64,
    events: &mut Vec<(u64, Event)>,
) {
    let at_us = rng.u64(0..end_us);
    let instance = rng.usize(0..instances);
    let long_us = [20_000, 300_000, 1_200_000, 6_000_000][rng.usize(0..4)];
    let us = rng.u64(long_us / 4..=long_us);
    let event = match rng.u8(0..15) {
        0 => {
            events.push((at_us + us, Event::Start { instance }));
            Event::Crash { instance }
        }
        1 => {
            events.push((at_us + 2 * SECOND, Event::Start { instance }));
            Event::Drain { instance }
        }
        2 | 11..=13 => Event::Pause { instance, us },
        14 => Event::PauseAtAsk { instance, us },
        3 | 4 => Event::PauseInside { instance, reading: rng.u32(0..6), us },
        5 => Event::WallStep { instance, ms: rng.i64(-10_000_000..10_000_000) },
        6 => {
            let limit = rng.usize(0..limits.len());
            let capacity = rng.u64(0..=limits[limit].capacity * 2);
            // Some hear of it later than others.
            for other in 0..instances {
                let event = Event::Configure { instance: other, limit, capacity };
                events.push((at_us + rng.u64(0..2 * SECOND), event));
            }
            return;
        }
        7 => Event::LedgerPause { us },
        8 => Event::Lossy { us, per_mille: [50, 300, 1_000][rng.usize(0..3)] },
        9 => Event::Slow { us, extra_us: [20_000, 100_000, 600_000][rng.usize(0..3)] },
        10.. => Event::Sweep { instance },
    };
    events.push((at_us, event));
}
