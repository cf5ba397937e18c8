//! A hub that lends: the production core, with a clock of its own, and what it asks of the ledger for itself.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU32;

use sluice::ledger::slabs::core::{Aside, Asks, Core, LendDecision, Need, Settled};
use sluice::ledger::slabs::limit::{Rules, Took};
use sluice::ledger::slabs::returns::{Landed, Number};
use sluice::ledger::slabs::slab::EndedLoan;
use sluice::ledger::slabs::times::Times;
use sluice::limit::{BitSet, LeaseBits, LeaseId};
use sluice::telemetry::SlabUnits;

use super::answers::give_back_chain;
use super::happening::{AtHub, Happening, HubHappening};
use super::hubs::{HOP_US, Via};
use super::{TIMEOUT_US, World};
use crate::slab_simulation::instance::{Clock, CountedSubscription, CountingNotifier, limit_id};
use crate::slab_simulation::ledger::{Action, Code, Label, Outcome, Transfer};
use crate::slab_simulation::plan::Plan;

/// Who has asked a hub for something.
#[derive(Debug, Clone, Copy)]
pub struct Asker {
    pub instance: usize,
    pub epoch: u32,
    pub call: u64,
    pub via: Via,
}

/// What a hub has lent, and what it has asked the ledger for.
pub struct Lender {
    pub core: Core<usize, CountingNotifier>,
    clock: Clock,
    calls: BTreeMap<u64, OwnCall>,
    /// Takes that were answered too late: given back when they land.
    left_behind: HashMap<u64, Transfer>,
    /// What went to the ledger for one sidecar alone.
    asides: HashMap<(usize, u64, u32), Aside>,
    waiting: Vec<(Waiting, CountedSubscription)>,
    wakes_at_us: Option<u64>,
}

#[derive(Debug)]
enum OwnCall {
    Take { limit: usize, up_to: bool, transfer: Transfer },
    GiveBack(Number),
}

#[derive(Debug)]
struct Waiting {
    asker: Asker,
    chain: Vec<Transfer>,
    waits: u32,
    came_us: u64,
}

impl Lender {
    pub fn new(plan: &Plan, hub: usize, epoch: u32) -> Self {
        let seed = plan.seed ^ 0x6c65_6e64 ^ (hub as u64) << 32 ^ u64::from(epoch) << 48;
        Self {
            core: Core::new(SlabUnits::default()),
            clock: Clock::new(fastrand::Rng::with_seed(seed)),
            calls: BTreeMap::new(),
            left_behind: HashMap::new(),
            asides: HashMap::new(),
            waiting: Vec::new(),
            wakes_at_us: None,
        }
    }
}

impl World<'_> {
    pub(super) fn lend(&mut self, asker: Asker, chain: Vec<Transfer>, waits: u32, came_us: u64) {
        let hub = asker.via.hub;
        let Transfer { lease, limit, action: Action::Reserve { amount, capacity, up_to, .. } } = chain[0]
        else {
            return self.deliver(asker, chain);
        };
        let window = NonZeroU32::new(self.plan.limits[limit].window_seconds).unwrap();
        let times = Times::of_lender(window, self.plan.lends_from).unwrap();
        let need =
            Need { limit: limit_id(limit), account: limit, units: amount, rules: Rules { capacity, times } };
        let stands_still = !self.plan.is_calm && self.rng.u8(0..100) == 0;
        let pause = stands_still.then(|| (self.rng.u32(0..4), self.rng.u64(1_000..300_000)));
        let lender = &mut self.hubs[hub].lender;
        lender.clock.now_us = lender.clock.now_us.max(self.now_us);
        lender.clock.pause = pause;
        let mut asks = Asks::new();
        let name = LeaseBits::new(lease);
        let decision = lender.core.lend(&need, name, up_to, waits, &mut lender.clock, &mut asks);
        lender.clock.pause = None;
        let stood_until_us = lender.clock.now_us;
        self.hubs[hub].paused_until_us = self.hubs[hub].paused_until_us.max(stood_until_us);
        self.send_own_asks(hub, asks);
        match decision {
            LendDecision::Lent { units, for_ms } => {
                self.tally.lent += 1;
                self.note(|| format!("hub {hub} lends {units} of {limit} to {}", asker.instance));
                self.say(asker, Outcome::Lent { hub, units, for_ms });
            }
            LendDecision::Full { for_ms } => self.say(asker, Outcome::Full { for_ms }),
            LendDecision::Refused => {
                self.say(asker, Outcome::Refused { index: 0, code: Code::ExceedsCredits });
            }
            LendDecision::Wait(subscription) => {
                let waiting = Waiting { asker, chain, waits: waits + 1, came_us };
                self.hubs[hub].lender.waiting.push((waiting, subscription));
            }
            LendDecision::Ledger(aside) => {
                self.hubs[hub].lender.asides.insert((asker.instance, asker.call, asker.via.stream), aside);
                self.deliver(asker, chain);
            }
            LendDecision::NotLent => self.deliver(asker, chain),
        }
        self.hub_goes_on(hub);
    }

    /// Limits that are idle are forgotten.
    pub(super) fn sweep_hubs(&mut self) {
        for hub in &mut self.hubs {
            let lender = &mut hub.lender;
            lender.clock.now_us = lender.clock.now_us.max(self.now_us);
            lender.core.sweep(&mut lender.clock);
        }
    }

    /// The hub answers without the ledger, when it goes on if it stood still.
    fn say(&mut self, asker: Asker, outcome: Outcome) {
        let Asker { instance, epoch, call, via } = asker;
        self.at(self.now_us, Happening::AtHub { instance, epoch, call, via, what: AtHub::Done(outcome) });
    }

    /// The ledger has said something of what was asked for one sidecar alone.
    pub(super) fn settle_lender(&mut self, asker: Asker, outcome: &Outcome) {
        let hub = asker.via.hub;
        let lender = &mut self.hubs[hub].lender;
        let Some(mut aside) = lender.asides.remove(&(asker.instance, asker.call, asker.via.stream)) else {
            return;
        };
        let refused = Settled::Refused { needs: BitSet::one(0) };
        let settled = match outcome {
            Outcome::Done { took, .. } | Outcome::DoneBefore { took, .. } => {
                aside.took_up_to(took[0]);
                if took[0] == 0 { refused } else { Settled::Admitted }
            }
            Outcome::Refused { code: Code::ExceedsCredits, .. } => refused,
            Outcome::Refused { .. } | Outcome::Lent { .. } | Outcome::Full { .. } => Settled::Failed,
        };
        lender.clock.now_us = lender.clock.now_us.max(self.now_us);
        lender.core.settle(aside, settled, &mut lender.clock);
        self.hub_goes_on(hub);
    }

    fn send_own_asks(&mut self, hub: usize, asks: Asks<usize>) {
        for (_, limit, ask) in asks {
            self.note(|| format!("hub {hub} asks for {ask:?}"));
            let action = Action::Reserve {
                label: Label::Reserve,
                amount: ask.amount,
                capacity: ask.capacity,
                seconds: ask.timeout_seconds.get(),
                up_to: ask.up_to,
            };
            let transfer = Transfer { lease: ask.name.bits().get(), limit, action };
            let call = OwnCall::Take { limit, up_to: ask.up_to, transfer: transfer.clone() };
            self.send_own(hub, call, vec![transfer]);
        }
    }

    fn send_own(&mut self, hub: usize, call: OwnCall, chain: Vec<Transfer>) {
        self.next += 1;
        let number = self.next;
        let epoch = self.hubs[hub].epoch;
        self.hubs[hub].lender.calls.insert(number, call);
        let at_us = self.now_us + self.rng.u64(50..HOP_US);
        self.at(at_us, Happening::DeliverOwn { hub, epoch, call: number, chain });
        let late = HubHappening::TimeOut { call: number };
        self.at(self.now_us + TIMEOUT_US, Happening::Hub { hub, epoch, what: late });
    }

    pub(super) fn answer_hub(&mut self, hub: usize, epoch: u32, call: u64, outcome: Outcome) {
        let at_us = self.now_us + self.rng.u64(50..HOP_US);
        self.at(at_us, Happening::Hub { hub, epoch, what: HubHappening::Answer { call, outcome } });
    }

    pub(super) fn hub_happening(&mut self, hub: usize, epoch: u32, what: HubHappening) -> Result<(), String> {
        let there = &mut self.hubs[hub];
        if !there.is_up || there.epoch != epoch {
            return Ok(());
        }
        if there.paused_until_us > self.now_us {
            let until_us = there.paused_until_us + self.rng.u64(0..2_000);
            self.at(until_us, Happening::Hub { hub, epoch, what });
            return Ok(());
        }
        let lender = &mut there.lender;
        lender.clock.now_us = lender.clock.now_us.max(self.now_us);
        match what {
            HubHappening::Wake => {
                lender.wakes_at_us = None;
                while let Some((number, back)) = {
                    let lender = &mut self.hubs[hub].lender;
                    lender.core.next_due(&mut lender.clock)
                } {
                    self.note(|| format!("hub {hub} gives back {:?} {:?}", back.step, back.name));
                    let chain = give_back_chain(&back, self.ledger.capacity[back.account]);
                    self.send_own(hub, OwnCall::GiveBack(number), chain);
                }
            }
            HubHappening::Answer { call, outcome } => self.own_answer(hub, call, outcome)?,
            HubHappening::TimeOut { call } => match lender.calls.remove(&call) {
                None => {}
                Some(OwnCall::GiveBack(number)) => {
                    lender.core.returned(number, Landed::Failed, &mut lender.clock, |n| n / 2);
                }
                Some(OwnCall::Take { limit, transfer, .. }) => {
                    lender.left_behind.insert(call, transfer);
                    let mut asks = Asks::new();
                    lender.core.took(limit_id(limit), Took::Nothing, &mut lender.clock, &mut asks);
                    self.send_own_asks(hub, asks);
                }
            },
            HubHappening::LoanEnd { limit, name, spent, last_ago_ms } => {
                lender.core.end_loan(limit_id(limit), name, spent, last_ago_ms, &mut lender.clock);
            }
        }
        self.hub_goes_on(hub);
        self.count_of_hub(hub)
    }

    fn own_answer(&mut self, hub: usize, call: u64, outcome: Outcome) -> Result<(), String> {
        let lender = &mut self.hubs[hub].lender;
        match lender.calls.remove(&call) {
            None => {
                // It was answered too late: the layer below gives it back.
                let done = matches!(outcome, Outcome::Done { .. });
                if let Some(transfer) = lender.left_behind.remove(&call).filter(|_| done) {
                    let action = Action::Void { label: Label::Void, target: Label::Reserve };
                    let chain = vec![Transfer { action, ..transfer }];
                    self.next += 1;
                    let (number, epoch) = (self.next, self.hubs[hub].epoch);
                    self.at(self.now_us + HOP_US, Happening::DeliverOwn { hub, epoch, call: number, chain });
                }
            }
            Some(OwnCall::GiveBack(number)) => {
                let landed = match outcome {
                    Outcome::Done { .. } | Outcome::DoneBefore { .. } => Landed::Done,
                    Outcome::Refused { code: Code::Expired, .. } => Landed::Gone,
                    other => return Err(format!("hub {hub} gave back in vain: {other:?}")),
                };
                lender.core.returned(number, landed, &mut lender.clock, |_| 0);
            }
            Some(OwnCall::Take { limit, up_to, .. }) => {
                let took = match outcome {
                    Outcome::Done { took, .. } => Took::Units(took[0]),
                    Outcome::Refused { code: Code::ExceedsCredits, .. } if !up_to => Took::Refused,
                    Outcome::Refused { code: Code::LimitDecreasing, .. } => Took::Nothing,
                    other => return Err(format!("a take of hub {hub} was answered {other:?}")),
                };
                let mut asks = Asks::new();
                lender.core.took(limit_id(limit), took, &mut lender.clock, &mut asks);
                self.send_own_asks(hub, asks);
            }
        }
        Ok(())
    }

    /// Lets those ask again who were woken, and sets the next time at which something is due.
    fn hub_goes_on(&mut self, hub: usize) {
        let now_us = self.now_us;
        let lender = &mut self.hubs[hub].lender;
        lender.waiting.retain(|(waiting, _)| now_us < waiting.came_us + TIMEOUT_US);
        if let Some(at) = lender.waiting.iter().position(|(_, subscription)| subscription.is_notified()) {
            let (Waiting { asker, chain, waits, came_us }, _) = lender.waiting.remove(at);
            // It comes back here.
            return self.lend(asker, chain, waits, came_us);
        }
        let Some(due_ms) = lender.core.next_due_ms() else { return };
        let due_us = (due_ms * 1_000).saturating_sub(lender.clock.offset_us).max(now_us);
        if lender.wakes_at_us.is_none_or(|at_us| at_us > due_us + 1_500) {
            let is_starved = !self.plan.is_calm && self.rng.u8(0..50) == 0;
            let late_us = self.rng.u64(0..if is_starved { 80_000 } else { 1_500 });
            let there = &mut self.hubs[hub];
            there.lender.wakes_at_us = Some(due_us + late_us);
            let epoch = there.epoch;
            self.at(due_us + late_us, Happening::Hub { hub, epoch, what: HubHappening::Wake });
        }
    }

    /// An instance tells a hub what became of a loan, now or a little later.
    pub(super) fn tell_loan_end(
        &mut self,
        index: usize,
        limit: usize,
        name: &LeaseId,
        spent: u64,
        loan: EndedLoan,
    ) {
        let hub = loan.lender.0 as usize;
        if self.rng.u32(0..1_000) < self.plan.untold_per_mille {
            return self
                .note(|| format!("{index} never tells hub {hub} of a loan, of which {spent} were spent"));
        }
        let wait_us = self.rng.u64(0..=loan.tell_within_ms * 1_000);
        let clock = &self.instances[index].clock;
        let sent_ms = (clock.now_us.max(self.now_us) + wait_us + clock.offset_us) / 1_000;
        let last_ago_ms = sent_ms.saturating_sub(loan.last_ms);
        self.note(|| format!("{index} tells hub {hub} of a loan: {spent} spent, {last_ago_ms} ms ago"));
        let what = HubHappening::LoanEnd { limit, name: name.bits(), spent, last_ago_ms };
        let cut_until_us = self.hubs[hub].cut_until_us(index).0;
        let epoch = self.hubs[hub].epoch;
        if let Some(at_us) = self.travel() {
            self.at((at_us + wait_us).max(cut_until_us), Happening::Hub { hub, epoch, what });
        }
    }

    /// A loan came after its caller had left.
    pub(super) fn loan_left_behind(&mut self, index: usize, hub: usize, transfer: &Transfer) {
        let what = HubHappening::LoanEnd {
            limit: transfer.limit,
            name: LeaseBits::new(transfer.lease),
            spent: 0,
            last_ago_ms: 0,
        };
        let epoch = self.hubs[hub].epoch;
        self.note(|| format!("{index} has left a loan of hub {hub} behind"));
        if let Some(at_us) = self.travel() {
            self.at(at_us, Happening::Hub { hub, epoch, what });
        }
    }

    /// What the core of a hub says of its units must add up.
    fn count_of_hub(&mut self, hub: usize) -> Result<(), String> {
        for limit in 0..self.plan.limits.len() {
            let Some((counts, held)) = self.hubs[hub].lender.core.counts(limit_id(limit)) else { continue };
            if counts.taken != counts.handed_out + counts.given_back + held {
                return Err(format!("hub {hub}, limit {limit}: {counts:?} and {held} held don't add up"));
            }
        }
        Ok(())
    }
}
