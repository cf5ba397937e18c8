//! What comes back from the ledger, and what is done where nothing does.

use sluice::ledger::slabs::core::{Asks, Settled};
use sluice::ledger::slabs::limit::Took;
use sluice::ledger::slabs::returns::{GiveBack, Landed, ReturnStep};
use sluice::ledger::{Lender, Loan};

use super::{Happening, World};
use crate::slab_simulation::instance::{Call, Sent, limit_id};
use crate::slab_simulation::ledger::{Action, Code, Label, Outcome, Transfer};

impl World<'_> {
    pub(super) fn answered(&mut self, index: usize, number: u64, outcome: Outcome) -> Result<(), String> {
        let instance = &mut self.instances[index];
        let left_behind = instance.left_behind.remove(&number);
        let is_second = instance.sent.remove(&number).is_some_and(|sent| sent.is_second);
        let outcome = if is_second { of_first_sending(outcome) } else { outcome };
        let Some(call) = instance.calls.remove(&number) else {
            // Its caller has left: the layer below gives it back.
            match (left_behind, outcome) {
                (Some(chain), Outcome::Done { .. }) => self.void_left_behind(index, chain),
                (Some(chain), Outcome::Lent { hub, .. }) => self.loan_left_behind(index, hub, &chain[0]),
                _ => {}
            }
            return Ok(());
        };
        if is_second && matches!(outcome, Outcome::Lent { .. } | Outcome::Full { .. }) {
            return Err("only the ledger knows what became of a sending that was lost".to_owned());
        }
        match call {
            Call::GiveBack(back) => {
                let landed = match outcome {
                    Outcome::Done { .. } | Outcome::DoneBefore { .. } => Landed::Done,
                    Outcome::Refused { code: Code::NotFound | Code::IdAlreadyFailed, .. } => {
                        return Err(format!("instance {index} gave back what was never there: {outcome:?}"));
                    }
                    Outcome::Refused { code: Code::Expired, .. } => Landed::Gone,
                    Outcome::Refused { .. } | Outcome::Lent { .. } | Outcome::Full { .. } => {
                        return Err(format!("instance {index} gave back in vain: {outcome:?}"));
                    }
                };
                instance.core.returned(back, landed, &mut instance.clock, |_| 0);
            }
            Call::Take { limit, up_to } => {
                let took = match outcome {
                    Outcome::Done { took, .. } => Took::Units(took[0]),
                    Outcome::Lent { hub, units, for_ms } => {
                        Took::Lent(Loan { units, for_ms, lender: Lender(hub as u32) })
                    }
                    Outcome::Refused { code: Code::ExceedsCredits, .. } if !up_to => Took::Refused,
                    Outcome::Full { for_ms } => Took::Full { for_ms },
                    Outcome::Refused { code: Code::LimitDecreasing, .. } => Took::Nothing,
                    // Names are fresh, so an answer that says otherwise would be believed.
                    Outcome::DoneBefore { took, .. } => Took::Units(took[0]),
                    Outcome::Refused { .. } => return Err(format!("a take was refused: {outcome:?}")),
                };
                let mut asks = Asks::new();
                instance.core.took(limit_id(limit), took, &mut instance.clock, &mut asks);
                self.send_asks(index, asks);
            }
            Call::Request { request, aside, slab_needs, exact, aside_us } => {
                let rests: Vec<u64> = aside.rests().collect();
                match outcome {
                    Outcome::Done { at_us, .. } => {
                        instance.core.settle(aside, Settled::Admitted, &mut instance.clock);
                        self.tally.from_ledger += 1;
                        for ((limit, units), rest) in slab_needs.into_iter().zip(rests) {
                            self.instances[index].handed_out[limit] += units - rest;
                            self.admit(limit, units - rest, aside_us);
                            self.admit(limit, rest, at_us);
                        }
                        exact.into_iter().for_each(|(limit, units)| self.admit(limit, units, at_us));
                        self.end_id(index, &request, Some(true));
                    }
                    Outcome::Refused { index: at, code } => {
                        let asked = (0..rests.len()).filter(|need| rests[*need] > 0).nth(at);
                        let full = asked.filter(|_| code == Code::ExceedsCredits);
                        let needs = full.into_iter().collect();
                        instance.core.settle(aside, Settled::Refused { needs }, &mut instance.clock);
                        self.tally.refused += 1;
                        self.end_id(index, &request, Some(false));
                    }
                    Outcome::DoneBefore { .. } => return Err("two requests had one name".to_owned()),
                    Outcome::Lent { .. } | Outcome::Full { .. } => {
                        return Err("a request was answered like a slab".to_owned());
                    }
                }
            }
        }
        Ok(())
    }

    pub(super) fn timed_out(&mut self, index: usize, number: u64) {
        let instance = &mut self.instances[index];
        match instance.calls.remove(&number) {
            None => {}
            Some(Call::GiveBack(back)) => {
                instance.core.returned(back, Landed::Failed, &mut instance.clock, |n| n / 2);
            }
            Some(Call::Take { limit, .. }) => {
                let mut asks = Asks::new();
                instance.core.took(limit_id(limit), Took::Nothing, &mut instance.clock, &mut asks);
                self.send_asks(index, asks);
            }
            Some(Call::Request { request, aside, .. }) => {
                instance.core.settle(aside, Settled::Failed, &mut instance.clock);
                self.tally.failed += 1;
                self.end_id(index, &request, None);
            }
        }
    }

    /// Landed after its caller left. Nobody waits for this, and it is not repeated.
    pub(super) fn void_left_behind(&mut self, index: usize, chain: Vec<Transfer>) {
        let void = Action::Void { label: Label::Void, target: Label::Reserve };
        for transfer in chain {
            let epoch = self.instances[index].epoch;
            self.next += 1;
            let call = self.next;
            let chain = vec![Transfer { action: void, ..transfer }];
            if self.plan.hubs > 0 {
                let sent = Sent { hub: 0, chain, is_slab: false, is_second: false };
                self.send_to_hub(index, call, sent, self.now_us);
            } else if let Some(at_us) = self.travel() {
                self.at(at_us, Happening::Deliver { instance: index, epoch, call, chain, via: None });
            }
        }
    }
}

/// What exists under the name of a chain that was sent before, its first sending did.
fn of_first_sending(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::DoneBefore { at_us, took } => Outcome::Done { at_us, took },
        Outcome::Refused { index, code: Code::IdAlreadyFailed } => {
            Outcome::Refused { index, code: Code::ExceedsCredits }
        }
        other => other,
    }
}

pub fn give_back_chain(back: &GiveBack<usize>, capacity: u64) -> Vec<Transfer> {
    let one = |action| Transfer { lease: back.name.bits().get(), limit: back.account, action };
    let void = one(Action::Void { label: Label::Void, target: Label::Reserve });
    match back.step {
        ReturnStep::Void => vec![void],
        ReturnStep::EndLoan { .. } => unreachable!("a hub gives back what it has lent"),
        ReturnStep::VoidKept => vec![one(Action::Void { label: Label::VoidKept, target: Label::Kept })],
        ReturnStep::Keep { units, timeout_seconds } => {
            let (label, seconds) = (Label::Kept, timeout_seconds.get());
            vec![void, one(Action::Reserve { label, amount: units, capacity, seconds, up_to: false })]
        }
    }
}
