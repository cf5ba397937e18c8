//! Hubs between the instances and the ledger: what they hand on, what is lost with them, and what is sent again.
//!
//! An instance knows of a hub only what its stream says. What a stream that is lost had not answered is sent once more to
//! another hub under the same name; what its caller has left is given back there.

use super::lending::{Asker, Lender};
use super::{AtHub, Happening, World};
use crate::slab_simulation::instance::Sent;
use crate::slab_simulation::ledger::{Outcome, Transfer};
use crate::slab_simulation::plan::{Event, Plan};

/// A stream on which nothing comes for so long is given up.
const SILENT_US: u64 = 2_000_000;

/// A hub and the ledger are close to each other.
pub(super) const HOP_US: u64 = 2_000;

pub struct Hub {
    pub is_up: bool,
    /// Counts its lives.
    pub(super) epoch: u32,
    pub(super) paused_until_us: u64,
    /// By instance: until when nothing passes to it, and from it.
    cuts: Vec<(usize, u64, u64)>,
    pub(super) lender: Lender,
}

impl Hub {
    pub fn new(plan: &Plan, hub: usize, epoch: u32) -> Self {
        let lender = Lender::new(plan, hub, epoch);
        Self { is_up: true, epoch, paused_until_us: 0, cuts: Vec::new(), lender }
    }

    /// Until when what an instance sends, and what it is sent, doesn't arrive.
    pub(super) fn cut_until_us(&self, instance: usize) -> (u64, u64) {
        let cuts = self.cuts.iter().filter(|(other, ..)| *other == instance);
        cuts.fold((0, 0), |(to, from), (_, to_us, from_us)| (to.max(*to_us), from.max(*from_us)))
    }
}

/// By which hub, in which of its lives, and by which stream to it.
#[derive(Debug, Clone, Copy)]
pub struct Via {
    pub(super) hub: usize,
    epoch: u32,
    pub(super) stream: u32,
}

impl World<'_> {
    /// To the home of its first limit among the hubs that are there. If none is, nobody hears of it.
    pub(super) fn send_to_hub(&mut self, index: usize, call: u64, sent: Sent, sent_us: u64) {
        let instance = &mut self.instances[index];
        let there: Vec<usize> = (0..self.plan.hubs).filter(|hub| !instance.streams[*hub].is_lost).collect();
        if there.is_empty() {
            return;
        }
        let hub = there[sent.chain[0].limit % there.len()];
        let what = AtHub::Asked { chain: sent.chain.clone(), is_slab: sent.is_slab };
        instance.sent.insert(call, Sent { hub, ..sent });
        let via = Via { hub, epoch: self.hubs[hub].epoch, stream: instance.streams[hub].number };
        let epoch = instance.epoch;
        let cut_until_us = self.hubs[hub].cut_until_us(index).0;
        if let Some(at_us) = self.travel() {
            let at_us = (at_us + (sent_us - self.now_us)).max(cut_until_us);
            self.at(at_us, Happening::AtHub { instance: index, epoch, call, via, what });
        }
    }

    pub(super) fn at_hub(&mut self, instance: usize, epoch: u32, call: u64, via: Via, what: AtHub) {
        let hub = &self.hubs[via.hub];
        if !hub.is_up || hub.epoch != via.epoch {
            return;
        }
        if hub.paused_until_us > self.now_us {
            let until_us = hub.paused_until_us;
            return self.at(until_us, Happening::AtHub { instance, epoch, call, via, what });
        }
        let asker = Asker { instance, epoch, call, via };
        match what {
            AtHub::Asked { chain, is_slab: false } => self.deliver(asker, chain),
            AtHub::Asked { chain, is_slab: true } => self.lend(asker, chain, 0, self.now_us),
            AtHub::Done(outcome) => {
                self.settle_lender(asker, &outcome);
                let is_of_this_stream = self.is_heard(instance, via);
                let cut_until_us = self.hubs[via.hub].cut_until_us(instance).1;
                if let Some(at_us) = self.travel().filter(|_| is_of_this_stream) {
                    let at_us = at_us.max(cut_until_us);
                    // One that was kept for so long comes on a stream that was given up.
                    if at_us < self.now_us + SILENT_US {
                        let via = Some(via);
                        self.at(at_us, Happening::Answer { instance, epoch, call, outcome, via });
                    }
                }
            }
        }
    }

    /// The hub asks the ledger.
    pub(super) fn deliver(&mut self, asker: Asker, chain: Vec<Transfer>) {
        let Asker { instance, epoch, call, via } = asker;
        let at_us = self.now_us + self.rng.u64(50..HOP_US);
        self.at(at_us, Happening::Deliver { instance, epoch, call, chain, via: Some(via) });
    }

    /// Whether the instance still listens to that stream.
    pub(super) fn is_heard(&self, instance: usize, via: Via) -> bool {
        self.instances[instance].streams[via.hub].number == via.stream
    }

    pub(super) fn back_to_hub(&mut self, instance: usize, epoch: u32, call: u64, via: Via, outcome: Outcome) {
        let at_us = self.now_us + self.rng.u64(50..HOP_US);
        self.at(at_us, Happening::AtHub { instance, epoch, call, via, what: AtHub::Done(outcome) });
    }

    pub(super) fn hub_event(&mut self, event: &Event) {
        self.note(|| format!("{event:?}"));
        match *event {
            Event::HubCrash { hub } if self.hubs[hub].is_up => {
                self.hubs[hub].is_up = false;
                self.hubs[hub].epoch += 1;
                for instance in 0..self.instances.len() {
                    let at_us = self.now_us + self.rng.u64(100..20_000);
                    self.lose_stream(instance, hub, at_us);
                }
            }
            Event::HubStart { hub } if !self.hubs[hub].is_up => {
                self.hubs[hub] = Hub::new(self.plan, hub, self.hubs[hub].epoch);
            }
            Event::HubPause { hub, us } => {
                self.hubs[hub].paused_until_us = self.now_us + us;
                for instance in 0..self.instances.len() {
                    self.fall_silent(instance, hub, us);
                }
            }
            Event::Cut { instance, hub, us, to_hub, to_instance } => {
                let until_us = |is_cut: bool| if is_cut { self.now_us + us } else { 0 };
                let cut = (instance, until_us(to_hub), until_us(to_instance));
                self.hubs[hub].cuts.push(cut);
                self.fall_silent(instance, hub, us);
            }
            _ => {}
        }
    }

    /// Nothing comes from a hub for `us`.
    fn fall_silent(&mut self, instance: usize, hub: usize, us: u64) {
        if us > SILENT_US {
            self.lose_stream(instance, hub, self.now_us + SILENT_US);
        }
    }

    pub(super) fn lose_stream(&mut self, instance: usize, hub: usize, at_us: u64) {
        let (epoch, number) = (self.instances[instance].epoch, self.instances[instance].streams[hub].number);
        self.at(at_us, Happening::StreamLost { instance, epoch, hub, number });
    }

    /// Some time later it is tried again.
    fn regain_stream(&mut self, instance: usize, hub: usize) {
        let epoch = self.instances[instance].epoch;
        let at_us = self.now_us + self.rng.u64(10_000..1_000_000);
        self.at(at_us, Happening::StreamBack { instance, epoch, hub });
    }

    pub(super) fn stream_lost(&mut self, index: usize, hub: usize, number: u32) {
        let instance = &mut self.instances[index];
        if !instance.is_up || instance.streams[hub].number != number {
            return;
        }
        instance.streams[hub].number += 1;
        instance.streams[hub].is_lost = true;
        let lost: Vec<(u64, Sent)> = instance.sent.extract_if(.., |_, sent| sent.hub == hub).collect();
        self.note(|| format!("{index} has lost hub {hub}, and {} answers", lost.len()));
        self.regain_stream(index, hub);
        for (call, sent) in lost {
            let instance = &mut self.instances[index];
            if instance.calls.contains_key(&call) {
                if !sent.is_second {
                    let again = Sent { is_second: true, is_slab: false, ..sent };
                    self.send_to_hub(index, call, again, self.now_us);
                }
            } else if let Some(chain) = instance.left_behind.remove(&call) {
                // Its caller has left, and nobody else knows its name.
                self.void_left_behind(index, chain);
            }
        }
    }

    pub(super) fn stream_back(&mut self, index: usize, hub: usize) {
        let there = &self.hubs[hub];
        let (to_us, from_us) = there.cut_until_us(index);
        if there.is_up && there.paused_until_us.max(to_us).max(from_us) <= self.now_us {
            self.instances[index].streams[hub].is_lost = false;
        } else {
            self.regain_stream(index, hub);
        }
    }
}
