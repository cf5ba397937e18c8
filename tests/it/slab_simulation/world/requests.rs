//! What comes to an instance from outside: requests, signals and other capacities.

use sluice::ledger::slabs::core::{Asks, Decision};
use sluice::ledger::slabs::requests::RequestState;
use sluice::limit::LeaseBits;

use super::{Happening, TIMEOUT_US, World};
use crate::slab_simulation::instance::{Call, Instance, Request, limit_id};
use crate::slab_simulation::ledger::{Action, Label, Transfer};
use crate::slab_simulation::plan::Event;

impl World<'_> {
    pub(super) fn plan_event(&mut self, index: usize, event: Event) {
        if !matches!(event, Event::Arrive { .. }) {
            self.note(|| format!("{event:?}"));
        }
        let instance = &mut self.instances[index];
        match event {
            Event::Arrive { needs, id, .. } => {
                let request = Request { needs, id, came_us: self.now_us, waits: 0 };
                self.arrive(index, request);
            }
            Event::Crash { .. } => {
                instance.is_up = false;
                instance.epoch += 1;
            }
            Event::Start { .. } if !instance.is_up => {
                let capacity = instance.capacity.clone();
                *instance = Instance::new(self.plan, index, instance.epoch + 1);
                instance.capacity = capacity;
                instance.clock.now_us = self.now_us;
                // It finds out like anybody which hubs are there.
                for hub in 0..self.plan.hubs {
                    self.lose_stream(index, hub, self.now_us);
                }
            }
            Event::Drain { .. } if instance.is_up => {
                instance.is_draining = true;
                instance.core.close(&mut instance.clock, |_| true);
            }
            Event::Pause { us, .. } => instance.paused_until_us = self.now_us + us,
            Event::PauseInside { reading, us, .. } => instance.pause_inside = Some((reading, us)),
            Event::PauseAtAsk { us, .. } => instance.pause_at_ask = Some(us),
            Event::WallStep { ms, .. } => instance.clock.wall_ms += ms,
            Event::Configure { limit, capacity, .. } => {
                let lowered = capacity < instance.capacity[limit];
                instance.capacity[limit] = capacity;
                if lowered {
                    instance.core.close(&mut instance.clock, |other| other == limit_id(limit));
                }
            }
            Event::Sweep { .. } => {
                instance.core.sweep(&mut instance.clock);
                self.sweep_hubs();
            }
            _ => {}
        }
    }

    pub(super) fn arrive(&mut self, index: usize, request: Request) {
        let instance = &mut self.instances[index];
        if !instance.is_up || instance.is_draining {
            return;
        }
        if let Some(id) = request.id {
            let now_ms = (self.now_us + instance.clock.offset_us) / 1_000;
            match instance.ids.begin(LeaseBits::new(u128::from(id)), now_ms) {
                RequestState::New => {}
                RequestState::Answered(_) => return,
                RequestState::UnderWay => {
                    let (epoch, at_us) = (instance.epoch, request.came_us + TIMEOUT_US);
                    instance.waiting_for_id.push(request);
                    self.at(at_us, Happening::WaitTooLong { instance: index, epoch });
                    return;
                }
            }
        }
        self.request(index, request);
    }

    pub(super) fn request(&mut self, index: usize, mut request: Request) {
        let is_exact = |limit: usize| self.plan.limits[limit].is_exact;
        let (exact, from_slabs): (Vec<_>, Vec<_>) =
            request.needs.iter().copied().partition(|(limit, _)| is_exact(*limit));
        let instance = &mut self.instances[index];
        let needs: Vec<_> =
            from_slabs.iter().map(|(limit, units)| instance.need(self.plan, *limit, *units)).collect();
        instance.clock.now_us = instance.clock.now_us.max(self.now_us);
        instance.clock.pause = instance.pause_inside.take();
        instance.clock.first_reading_us = None;
        let mut asks = Asks::new();
        let decision =
            instance.core.request(&needs, !exact.is_empty(), request.waits, &mut instance.clock, &mut asks);
        instance.clock.pause = None;
        instance.paused_until_us = instance.paused_until_us.max(instance.clock.now_us);
        let at_us = instance.clock.first_reading_us.unwrap_or(self.now_us);
        self.send_asks(index, asks);
        match decision {
            Decision::Admitted => {
                self.tally.from_slabs += 1;
                for (limit, units) in from_slabs {
                    self.instances[index].handed_out[limit] += units;
                    self.admit(limit, units, at_us);
                }
                self.note(|| format!("{index} hands out {:?}", request.needs));
                self.end_id(index, &request, Some(true));
            }
            Decision::Full { .. } => {
                self.tally.full += 1;
                self.end_id(index, &request, Some(false));
            }
            Decision::Wait(listening) => {
                request.waits += 1;
                let late_us = request.came_us + TIMEOUT_US;
                let instance = &mut self.instances[index];
                let epoch = instance.epoch;
                instance.waiting.push((request, listening));
                self.at(late_us, Happening::WaitTooLong { instance: index, epoch });
            }
            Decision::Ledger(aside) => {
                let instance = &mut self.instances[index];
                let lease = instance.clock.names.u128(..);
                let rests = from_slabs.iter().zip(aside.rests()).map(|((limit, _), rest)| (*limit, rest));
                let asked: Vec<_> =
                    rests.chain(exact.iter().copied()).filter(|(_, units)| *units > 0).collect();
                let chain = asked.iter().map(|&(limit, amount)| {
                    let (capacity, seconds) =
                        (instance.capacity[limit], self.plan.limits[limit].window_seconds);
                    let label = Label::Reserve;
                    let action = Action::Reserve { label, amount, capacity, seconds, up_to: false };
                    Transfer { lease, limit, action }
                });
                let chain = chain.collect();
                let call = Call::Request { request, aside, slab_needs: from_slabs, exact, aside_us: at_us };
                self.send(index, call, chain);
            }
        }
    }

    pub(super) fn send_asks(&mut self, index: usize, asks: Asks<usize>) {
        for (_, limit, ask) in asks {
            self.note(|| format!("{index} asks for {ask:?}"));
            let action = Action::Reserve {
                label: Label::Reserve,
                amount: ask.amount,
                capacity: ask.capacity,
                seconds: ask.timeout_seconds.get(),
                up_to: ask.up_to,
            };
            let chain = vec![Transfer { lease: ask.name.bits().get(), limit, action }];
            self.send(index, Call::Take { limit, up_to: ask.up_to }, chain);
            let instance = &mut self.instances[index];
            if let Some(us) = instance.pause_at_ask.take() {
                instance.paused_until_us = instance.paused_until_us.max(self.now_us + us);
            }
        }
    }
}
