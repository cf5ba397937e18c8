//! A chain that is sent to a hub, and what its answer means and tells of the limits.

use std::num::NonZeroU32;

use super::pb::answer::What as Answer;
use super::pb::ask::What as Ask;
use super::{COMPLETION_TIMEOUT, Hub, pb, unexpected, wire};
use crate::clock;
use crate::ledger::account::Decrease;
use crate::ledger::{
    Action, Chain, LedgerError, Lender, Loan, Outcome, Refusal, RefusalCode, SlabTake, Transfer, Verdict,
};

/// How a chain is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Apply,
    /// Of a limit with this window.
    TakeSlab(NonZeroU32),
    Complete,
}

fn amount_of(action: Action) -> u64 {
    match action {
        Action::Reserve(hold) | Action::TakeUpTo(hold) => hold.amount,
        _ => 0,
    }
}

/// Only a slab is lent.
pub(super) fn applied(take: SlabTake) -> Result<Outcome, LedgerError> {
    match take {
        SlabTake::Applied(outcome) => Ok(outcome),
        SlabTake::Lent(_) | SlabTake::Full { .. } => Err(unexpected()),
    }
}

impl Hub {
    pub(super) async fn send(&self, chain: &Chain, manner: Manner) -> Result<SlabTake, LedgerError> {
        let done = SlabTake::Applied(Outcome::bare(Verdict::Done));
        let Some(first) = chain.transfers.first() else { return Ok(done) };
        let timeout = self.shared.options.timeout;
        let what = |was_lost: bool| match manner {
            // What the ledger may hold from a sending that was lost, only the ledger knows.
            Manner::TakeSlab(window_seconds) if !was_lost => {
                Ask::Apply(wire::slab_chain(chain, window_seconds))
            }
            Manner::Apply | Manner::TakeSlab(_) => Ask::Apply(wire::chain(chain)),
            Manner::Complete => Ask::Complete(wire::chain(chain)),
        };
        let answered = if manner == Manner::Complete {
            self.ask(first.account.id, what, None, timeout.max(COMPLETION_TIMEOUT)).await?
        } else {
            self.ask(first.account.id, what, Some(chain), timeout).await?
        };
        let (was_lost, at) = (answered.was_lost, answered.at);
        let Answer::Outcome(mut outcome) = answered.expect()? else { return Err(unexpected()) };
        self.shared.note_debts(chain, &outcome);
        let samples = std::mem::take(&mut outcome.samples);
        let asked = amount_of(first.action);
        let loan = wire::read_loan(&outcome, asked).map_err(LedgerError::Unavailable)?;
        let full_ms = u64::from(outcome.full_ms);
        let outcome =
            wire::read_outcome(&outcome, chain.transfers.len()).map_err(LedgerError::Unavailable)?;
        if outcome.verdict == Verdict::Done && manner != Manner::Complete {
            note_samples(chain, &outcome, &samples);
        }
        if let Some((units, for_ms)) = loan {
            let lender = Lender(u32::try_from(at).unwrap_or(u32::MAX));
            return Ok(SlabTake::Lent(Loan { units, for_ms, lender }));
        }
        if full_ms > 0 && matches!(manner, Manner::TakeSlab(_)) {
            return Ok(SlabTake::Full { for_ms: full_ms });
        }
        Ok(SlabTake::Applied(if was_lost { of_first_sending(outcome, chain) } else { outcome }))
    }

    /// Takes notice of what a chain that a caller waited for has told of its limits.
    pub(super) fn note_applied(&self, chain: &Chain, verdict: Verdict) {
        Decrease::note(chain, verdict, clock::monotonic_ms());
        for (index, Transfer { account, action }) in chain.transfers.iter().enumerate() {
            let (Action::Reserve(hold) | Action::TakeUpTo(hold)) = action else { continue };
            let want = self.shared.touch_hold(account, hold);
            if let Verdict::Refused(refusal) = verdict
                && refusal.code == RefusalCode::LimitDecreasing
                && refusal.index == index
            {
                self.shared.lowering.begin(want);
            }
        }
    }
}

/// What is left of the limits that a chain took from. Where a hub says nothing of one, what was taken is not free any more.
fn note_samples(chain: &Chain, outcome: &Outcome, samples: &[pb::Sample]) {
    let now_ms = clock::monotonic_ms();
    let mut samples = samples.iter();
    for (account, amount) in chain.amounts_taken(&outcome.taken) {
        let sample = &account.behind_hub().sample;
        match samples.next().and_then(|sample| sample.available) {
            Some(available) => sample.told(available, now_ms),
            None => sample.spend(amount),
        }
    }
}

/// What the answer to a second sending says about the first one, whose answer was lost. If the transfers exist, they are taken to be from
/// the first sending, and so this sidecar's. If they are not, too much is counted for a while, never too little.
fn of_first_sending(mut outcome: Outcome, chain: &Chain) -> Outcome {
    outcome.is_repeat = false;
    if let Verdict::Refused(Refusal { code, .. }) = &mut outcome.verdict
        && *code == RefusalCode::IdAlreadyFailed
        && !chain.keep.is_named()
        && chain.can_be_given_back()
    {
        *code = RefusalCode::ExceedsCredits;
    }
    outcome
}
