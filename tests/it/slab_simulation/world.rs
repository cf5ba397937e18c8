//! The loop: takes the next event, lets the instance or the ledger act, and asks the oracles.

mod happening;
mod requests;
mod answers;
mod hubs;
mod lending;
mod checks;

use std::collections::BTreeMap;

use sluice::ledger::slabs::returns::{Landed, ReturnStep};
use sluice::limit::LeaseBits;

use self::answers::give_back_chain;
use self::happening::{AtHub, Happening, who};
use self::hubs::Hub;
use super::instance::{Call, Instance, Request, Sent};
use super::ledger::{Ledger, Transfer};
use super::oracle::Oracle;
use super::plan::{Event, Plan, SECOND};

/// What a caller waits for the ledger, as in the settings.
const TIMEOUT_US: u64 = 250_000;

/// Steps of one run, at most.
const STEPS_MAX: usize = 3_000_000;

/// Lines of the history that are kept.
const LINES_MAX: usize = 400;

pub struct World<'p> {
    plan: &'p Plan,
    now_us: u64,
    queue: BTreeMap<(u64, u64), Happening>,
    next: u64,
    instances: Vec<Instance>,
    hubs: Vec<Hub>,
    ledger: Ledger,
    ledger_paused_until_us: u64,
    lossy: (u64, u32),
    slow: (u64, u64),
    oracles: Vec<Oracle>,
    rng: fastrand::Rng,
    is_traced: bool,
    history: Vec<String>,
    pub tally: Tally,
}

/// What came of a run.
#[derive(Debug, Default, Clone)]
pub struct Tally {
    pub from_slabs: u64,
    pub from_ledger: u64,
    pub full: u64,
    pub refused: u64,
    pub failed: u64,
    /// Slabs that hubs have lent.
    pub lent: u64,
    /// When the ledger was asked something, by instance.
    pub asked_us: Vec<Vec<u64>>,
    /// Units by limit, and of those what was admitted after `measured_from_us`.
    pub admitted: Vec<u64>,
    pub measured: Vec<u64>,
    pub measured_from_us: u64,
}

/// What broke, and how it came to it.
#[derive(Debug)]
pub struct Failure {
    pub what: String,
    pub history: Vec<String>,
}

impl<'p> World<'p> {
    pub fn new(plan: &'p Plan, is_traced: bool) -> Self {
        let capacity: Vec<u64> = plan.limits.iter().map(|limit| limit.capacity).collect();
        let queue = plan.events.iter().enumerate();
        let queue = queue.map(|(n, (at_us, event))| ((*at_us, n as u64), Happening::Plan(event.clone())));
        Self {
            plan,
            now_us: 0,
            queue: queue.collect(),
            next: plan.events.len() as u64,
            instances: (0..plan.instances).map(|index| Instance::new(plan, index, 0)).collect(),
            hubs: (0..plan.hubs).map(|hub| Hub::new(plan, hub, 0)).collect(),
            ledger: Ledger::new(&capacity),
            ledger_paused_until_us: 0,
            lossy: (0, 0),
            slow: (0, 0),
            oracles: plan.limits.iter().map(|limit| Oracle::new(limit.window_seconds)).collect(),
            rng: fastrand::Rng::with_seed(plan.seed.wrapping_mul(31) + 7),
            is_traced,
            history: Vec::new(),
            tally: Tally {
                asked_us: vec![Vec::new(); plan.instances],
                admitted: vec![0; capacity.len()],
                measured: vec![0; capacity.len()],
                ..Tally::default()
            },
        }
    }

    /// Runs the plan to its end, and on until everything must be back.
    pub fn run(mut self) -> Result<Tally, Box<Failure>> {
        let longest = self.plan.limits.iter().map(|limit| limit.window_seconds).max().unwrap_or(0);
        // What the last request holds, the longest pause, and the backstop.
        let quiet_us = self.plan.end_us + u64::from(longest + 20) * SECOND;
        let all = self.until(quiet_us).and_then(|()| self.all_is_back());
        all.map_err(|what| Box::new(Failure { what, history: std::mem::take(&mut self.history) }))?;
        Ok(self.tally)
    }

    fn until(&mut self, end_us: u64) -> Result<(), String> {
        for _ in 0..STEPS_MAX {
            let expiry_us = self.ledger.next_expiry_us().unwrap_or(u64::MAX);
            let event_us = self.queue.first_key_value().map_or(u64::MAX, |((at_us, _), _)| *at_us);
            if expiry_us.min(event_us) > end_us {
                return Ok(());
            }
            if expiry_us <= event_us {
                self.now_us = self.now_us.max(expiry_us);
                self.ledger.expire(self.now_us);
            } else {
                let ((at_us, _), happening) = self.queue.pop_first().unwrap();
                self.now_us = self.now_us.max(at_us);
                self.happen(happening)?;
            }
            self.check()?;
        }
        Err("it goes on for ever".to_owned())
    }

    fn at(&mut self, at_us: u64, happening: Happening) {
        self.next += 1;
        self.queue.insert((at_us, self.next), happening);
    }

    fn note(&mut self, line: impl FnOnce() -> String) {
        if !self.is_traced {
            return;
        }
        if self.history.len() == LINES_MAX {
            self.history.remove(0);
        }
        let line = format!("{:>10.3} ms  {}", self.now_us as f64 / 1_000.0, line());
        self.history.push(line);
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        let (index, epoch) = match &happening {
            Happening::Plan(event) => match who(event) {
                Some(index) => (index, self.instances[index].epoch),
                None => return self.beyond_instances(happening),
            },
            Happening::Deliver { .. }
            | Happening::DeliverOwn { .. }
            | Happening::AtHub { .. }
            | Happening::Hub { .. } => return self.beyond_instances(happening),
            Happening::Wake { instance, epoch }
            | Happening::Answer { instance, epoch, .. }
            | Happening::TimeOut { instance, epoch, .. }
            | Happening::StreamLost { instance, epoch, .. }
            | Happening::StreamBack { instance, epoch, .. }
            | Happening::WaitTooLong { instance, epoch } => (*instance, *epoch),
        };
        let instance = &mut self.instances[index];
        if epoch != instance.epoch {
            return Ok(());
        }
        let is_signal = matches!(&happening, Happening::Plan(Event::Crash { .. } | Event::Start { .. }));
        if instance.paused_until_us > self.now_us && !is_signal {
            // Whatever has gathered runs in any order then.
            let until_us = instance.paused_until_us + self.rng.u64(0..2_000);
            self.at(until_us, happening);
            return Ok(());
        }
        instance.clock.now_us = instance.clock.now_us.max(self.now_us);
        match happening {
            Happening::Plan(event) => self.plan_event(index, event),
            Happening::Wake { .. } => self.give_back(index),
            Happening::Answer { call, outcome, via, .. } => {
                if via.is_none_or(|via| self.is_heard(index, via)) {
                    self.answered(index, call, outcome)?;
                }
            }
            Happening::TimeOut { call, .. } => self.timed_out(index, call),
            Happening::StreamLost { hub, number, .. } => self.stream_lost(index, hub, number),
            Happening::StreamBack { hub, .. } => self.stream_back(index, hub),
            Happening::WaitTooLong { .. } => {
                let now_us = self.now_us;
                let is_late = |request: &Request| now_us >= request.came_us + TIMEOUT_US;
                let instance = &mut self.instances[index];
                let before = instance.waiting.len() + instance.waiting_for_id.len();
                let late = instance.waiting.extract_if(.., |(request, _)| is_late(request));
                let ids: Vec<_> = late.filter_map(|(request, _)| request.id).collect();
                ids.into_iter().for_each(|id| instance.ids.end(LeaseBits::new(u128::from(id)), None));
                instance.waiting_for_id.retain(|request| !is_late(request));
                let after = instance.waiting.len() + instance.waiting_for_id.len();
                self.tally.failed += (before - after) as u64;
            }
            Happening::Deliver { .. }
            | Happening::DeliverOwn { .. }
            | Happening::AtHub { .. }
            | Happening::Hub { .. } => {}
        }
        self.go_on(index)
    }

    /// What the one task does that gives back. Requests may run before it, however late it is.
    fn give_back(&mut self, index: usize) {
        self.instances[index].wakes_at_us = None;
        while self.instances[index].is_up {
            let instance = &mut self.instances[index];
            let Some((number, give_back)) = instance.core.next_due(&mut instance.clock) else { return };
            if let ReturnStep::EndLoan { spent, loan } = give_back.step {
                instance.core.returned(number, Landed::Done, &mut instance.clock, |_| 0);
                self.tell_loan_end(index, give_back.account, &give_back.name, spent, loan);
                continue;
            }
            let chain = give_back_chain(&give_back, instance.capacity[give_back.account]);
            self.note(|| format!("{index} gives back {:?} {:?}", give_back.step, give_back.name));
            self.send(index, Call::GiveBack(number), chain);
        }
    }

    /// Lets those ask again who were woken.
    fn go_on(&mut self, index: usize) -> Result<(), String> {
        while self.instances[index].is_up {
            let instance = &mut self.instances[index];
            if let Some(at) = instance.waiting.iter().position(|(_, waiting)| waiting.is_notified()) {
                let (request, _) = instance.waiting.remove(at);
                self.request(index, request);
                continue;
            }
            let is_known = |request: &Request| {
                request.id.is_none_or(|id| !instance.ids.is_under_way(LeaseBits::new(u128::from(id))))
            };
            if let Some(at) = instance.waiting_for_id.iter().position(is_known) {
                let request = instance.waiting_for_id.remove(at);
                self.arrive(index, request);
                continue;
            }
            break;
        }
        let instance = &mut self.instances[index];
        if instance.is_up && instance.is_draining && instance.core.is_settled() && instance.calls.is_empty() {
            instance.is_up = false;
            instance.epoch += 1;
            self.note(|| format!("{index} has drained and ends"));
        }
        self.count(index)?;
        self.schedule_wake(index);
        Ok(())
    }

    fn schedule_wake(&mut self, index: usize) {
        // Now and then the task has to wait for its turn.
        let is_starved = !self.plan.is_calm && self.rng.u8(0..50) == 0;
        let late_us = self.rng.u64(0..if is_starved { 80_000 } else { 1_500 });
        let instance = &mut self.instances[index];
        let Some(due_ms) = instance.core.next_due_ms().filter(|_| instance.is_up) else { return };
        let due_us = instance.us_of(due_ms).max(self.now_us);
        if instance.wakes_at_us.is_none_or(|at_us| at_us > due_us + 1_500) {
            instance.wakes_at_us = Some(due_us + late_us);
            let epoch = instance.epoch;
            self.at(due_us + late_us, Happening::Wake { instance: index, epoch });
        }
    }

    fn beyond_instances(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Plan(Event::LedgerPause { us }) => {
                self.ledger_paused_until_us = self.ledger_paused_until_us.max(self.now_us + us);
                self.note(|| format!("the ledger stands still for {us} us"));
            }
            Happening::Plan(Event::Lossy { us, per_mille }) => {
                self.lossy = (self.now_us + us, per_mille);
                self.note(|| format!("{per_mille} of 1000 messages are lost for {us} us"));
            }
            Happening::Plan(Event::Slow { us, extra_us }) => {
                self.slow = (self.now_us + us, extra_us);
                self.note(|| format!("messages take up to {extra_us} us longer for {us} us"));
            }
            Happening::Plan(event) => self.hub_event(&event),
            Happening::AtHub { instance, epoch, call, via, what } => {
                self.at_hub(instance, epoch, call, via, what);
            }
            Happening::Hub { hub, epoch, what } => self.hub_happening(hub, epoch, what)?,
            Happening::DeliverOwn { hub, epoch, call, chain } => {
                if self.ledger_paused_until_us > self.now_us {
                    let until_us = self.ledger_paused_until_us;
                    self.at(until_us, Happening::DeliverOwn { hub, epoch, call, chain });
                    return Ok(());
                }
                let late_us = self.rng.u64(0..100_000);
                let outcome = self.ledger.apply(&chain, self.now_us, late_us);
                self.note(|| format!("ledger: call {call} of hub {hub}: {chain:?}: {outcome:?}"));
                self.answer_hub(hub, epoch, call, outcome);
            }
            Happening::Deliver { instance, epoch, call, chain, via } => {
                if self.ledger_paused_until_us > self.now_us {
                    let until_us = self.ledger_paused_until_us;
                    self.at(until_us, Happening::Deliver { instance, epoch, call, chain, via });
                    return Ok(());
                }
                let late_us = self.rng.u64(0..100_000);
                let outcome = self.ledger.apply(&chain, self.now_us, late_us);
                self.note(|| format!("ledger: call {call} of {instance}: {chain:?}: {outcome:?}"));
                if let Some(via) = via {
                    self.back_to_hub(instance, epoch, call, via, outcome);
                } else if let Some(back_us) = self.travel() {
                    self.at(back_us, Happening::Answer { instance, epoch, call, outcome, via: None });
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// When a message that leaves now arrives, if it does.
    fn travel(&mut self) -> Option<u64> {
        let mut us = self.rng.u64(100..=self.plan.latency_us);
        if self.now_us < self.slow.0 {
            us += self.rng.u64(0..=self.slow.1);
        }
        let is_lost = self.now_us < self.lossy.0 && self.rng.u32(0..1_000) < self.lossy.1;
        (!is_lost).then_some(self.now_us + us)
    }

    fn send(&mut self, index: usize, call: Call, chain: Vec<Transfer>) {
        self.next += 1;
        let number = self.next;
        let instance = &mut self.instances[index];
        let epoch = instance.epoch;
        // A pause in the middle of what decided this delays it.
        let sent_us = instance.clock.now_us.max(self.now_us);
        let may_be_left = !matches!(call, Call::GiveBack(_));
        let is_slab = matches!(call, Call::Take { .. });
        instance.calls.insert(number, call);
        if may_be_left {
            instance.left_behind.insert(number, chain.clone());
        }
        self.tally.asked_us[index].push(sent_us);
        if self.plan.hubs > 0 {
            self.send_to_hub(index, number, Sent { hub: 0, chain, is_slab, is_second: false }, sent_us);
        } else if let Some(at_us) = self.travel().map(|at_us| at_us + (sent_us - self.now_us)) {
            self.at(at_us, Happening::Deliver { instance: index, epoch, call: number, chain, via: None });
        }
        self.at(sent_us + TIMEOUT_US, Happening::TimeOut { instance: index, epoch, call: number });
    }

    fn admit(&mut self, limit: usize, units: u64, at_us: u64) {
        self.oracles[limit].admit(units, at_us);
        self.tally.admitted[limit] += units;
        if at_us >= self.tally.measured_from_us {
            self.tally.measured[limit] += units;
        }
    }

    fn end_id(&mut self, index: usize, request: &Request, answer: Option<bool>) {
        if let Some(id) = request.id {
            self.instances[index].ids.end(LeaseBits::new(u128::from(id)), answer);
        }
    }
}
