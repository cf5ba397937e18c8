//! What the results of a request mean for those who wait for it.
//!
//! A reserve whose caller has left is given back, but only if it is this instance's to give back. Somebody may have sent
//! the same name again, here or to another instance, and may have been admitted on it:
//!
//! * The reserve was done by this request: it is ours. Whoever sent the name later found that it exists and claims it
//!   before they are admitted. Giving back claims it too, in one chain with the voids, and one id can be taken once.
//! * It existed when this request arrived: it is not ours. With a caller who still waits, we claim it. Without one we leave
//!   it alone: the one who made it is still there to give it back.
//! * It existed when this request was sent again: it may be ours, from a first sending whose answer was lost, or another's,
//!   who made it in between and has claimed nothing, because for them it was new. We can't tell, so we leave it alone. In
//!   the first case it holds its capacity until it expires: too much is counted for a while, never too little.
//!
//! A name that only this instance knows is always ours.

use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;

use super::Worker;
use crate::clock;
use crate::ledger::tigerbeetle::batch::{Batch, MemberResult};
use crate::ledger::tigerbeetle::shared::Side;
use crate::ledger::tigerbeetle::sum::{self, Sum};
use crate::ledger::tigerbeetle::wire::{self, ChainResult};
use crate::ledger::tigerbeetle::work::{ChainAnswer, Work, WorkKind};
use crate::ledger::{Action, Chain, Keep, LedgerError, Outcome, Refusal, RefusalCode, Transfer, Verdict};
use crate::limit::Overage;
use crate::telemetry::LeaseEvent;

impl Worker<'_> {
    pub(super) fn settle_all(&mut self, settled: Vec<(Work, MemberResult)>) {
        let now_ms = clock::monotonic_ms();
        let mut decided = 0;
        let mut again = Vec::new();
        let mut left = None;
        for (work, result) in settled {
            decided += 1;
            match result {
                MemberResult::Alone(result) => self.settle(work, result, now_ms),
                MemberResult::InSum(sum) => self.done_together(work, sum, &mut left),
                MemberResult::SendAgain { index } => {
                    decided -= 1;
                    work.chain.transfers[index].account.known.set_refused(now_ms);
                    again.push(work);
                }
            }
        }
        self.inbox.next.extend(left.map(|(chain, sum)| Work::give_back(chain, Some(sum))));
        // Before all that came after them.
        again.into_iter().rev().for_each(|work| self.inbox.next.push_front(work));
        self.shared.drain.record(decided, now_ms);
    }

    fn settle(&mut self, work: Work, result: ChainResult, now_ms: u64) {
        match (work.kind, sent_again(&work.chain, result)) {
            (
                WorkKind::GiveBack,
                ChainResult::Refused(Refusal {
                    code: RefusalCode::PendingTransferExpired,
                    index: index @ 1..,
                    ..
                }),
            ) if work.chain.keep.is_named() => self.give_back_the_others(work, index - 1),
            (WorkKind::GiveBack, result) => {
                if matches!(result, ChainResult::Done | ChainResult::DoneBefore) {
                    self.shared.metrics.lease_event(LeaseEvent::VoidedOnCancel);
                }
                tracing::debug!(lease = %work.chain.lease, ?result, "gave back what its caller left behind");
            }
            (
                WorkKind::Claim,
                ChainResult::Refused(Refusal { code: RefusalCode::ExistsWithDifferentFields, .. }),
            ) => {
                let refusal = Refusal::one(0, RefusalCode::Abandoned);
                work.answer(Ok(Outcome::bare(Verdict::Refused(refusal))));
            }
            (WorkKind::Claim, _) if work.chain.keep == Keep::ForRetries => {
                self.inbox.next.push_back(Work { kind: WorkKind::Verify, ..work });
            }
            (WorkKind::Claim, _) => work.answer(Ok(repeat())),
            (WorkKind::Verify, result) => {
                let verdict = wire::verified(result, &work.chain);
                work.answer(Ok(Outcome { verdict, ..repeat() }));
            }
            (WorkKind::Apply, ChainResult::Done | ChainResult::DoneBefore) if takes_up_to(&work.chain) => {
                self.took.push(work)
            }
            (WorkKind::Apply, ChainResult::Done) => self.done(work, SmallVec::new()),
            (WorkKind::Apply, ChainResult::DoneBefore) if needs_claim(&work.chain) => {
                if !work.has_left() {
                    self.inbox.next.push_back(Work { kind: WorkKind::Claim, ..work });
                }
            }
            (WorkKind::Apply, ChainResult::DoneBefore) => {
                self.note_debts(&work.chain, false);
                work.answer(Ok(repeat()));
            }
            (WorkKind::Apply, ChainResult::Refused(refusal)) => {
                self.touch(&work.chain);
                if refusal.code == RefusalCode::ExceedsCredits {
                    work.chain.transfers[refusal.index].account.known.set_refused(now_ms);
                }
                work.answer(Ok(Outcome::bare(Verdict::Refused(refusal))));
            }
            (WorkKind::Apply, ChainResult::AccountMissing { index }) => {
                // The data file was replaced under us: everything is made again on next use.
                let account = &work.chain.transfers[index].account;
                account.known.forget();
                let text = format!("the account of {} is gone and will be made again", account.key);
                work.answer(Err(LedgerError::Unavailable(text)));
            }
            (WorkKind::Apply, ChainResult::Unexpected { index, kind }) => {
                tracing::error!(lease = %work.chain.lease, index, ?kind, "TigerBeetle refused a transfer");
                work.answer(Err(LedgerError::Unavailable(format!(
                    "TigerBeetle refused a transfer: {kind:?}"
                ))));
            }
        }
    }

    /// One of the reserves to give back has ended by itself, and so the chain was refused: the others are given back without it.
    fn give_back_the_others(&mut self, mut work: Work, ended: usize) {
        let mut left = work.chain.transfers.iter_mut().filter_map(|transfer| match &mut transfer.action {
            Action::Reserve(hold) if hold.amount > 0 => Some(hold),
            _ => None,
        });
        if let Some(hold) = left.nth(ended) {
            hold.amount = 0;
        }
        let is_left = |action| matches!(action, Action::Reserve(hold) if hold.amount > 0);
        if work.chain.transfers.iter().any(|transfer| is_left(transfer.action)) {
            self.inbox.next.push_back(work);
        }
    }

    /// Finds out how much was taken by those who take what there is. If that can't be found out it is given back.
    pub(super) async fn look_up_takes(&mut self) {
        if self.took.is_empty() {
            return;
        }
        let works = std::mem::take(&mut self.took);
        let ids = self.shared.options.transfer_ids;
        let asked: Vec<Vec<u128>> = works.iter().map(|work| wire::takes(ids, &work.chain)).collect();
        let call = self.shared.writer.session.lookup_transfers(asked.concat());
        let found = self.shared.ask(Side::Writer, call).await;
        let found = found.inspect_err(|error| tracing::warn!(%error, "what was taken can't be looked up"));
        let found: AHashMap<u128, u128> =
            found.unwrap_or_default().iter().map(|transfer| (transfer.id(), transfer.amount())).collect();
        for (work, asked) in works.into_iter().zip(asked) {
            let amount = |id| found.get(id).map(|amount| u64::try_from(*amount).unwrap_or(u64::MAX));
            match asked.iter().map(amount).collect::<Option<_>>() {
                Some(taken) => self.done(work, taken),
                None => {
                    if !work.is_completion && work.chain.can_be_given_back() {
                        self.inbox.next.push_back(Work::give_back(work.chain.clone(), None));
                    }
                    work.answer(Err(LedgerError::Unavailable("what was taken is not known".to_owned())));
                }
            }
        }
    }

    /// The chain was done. If its caller has left it is given back.
    fn done(&mut self, work: Work, taken: SmallVec<[u64; 1]>) {
        self.touch(&work.chain);
        self.note_debts(&work.chain, true);
        let Work { chain, reply, is_completion, .. } = work;
        let Some(reply) = reply else { return };
        let outcome = Outcome { taken, ..Outcome::bare(Verdict::Done) };
        let answer = ChainAnswer { outcome, sum: None };
        if reply.send(Ok(answer)).is_err() && !is_completion && chain.can_be_given_back() {
            self.inbox.next.push_back(Work::give_back(chain, None));
        }
    }

    /// The chain is part of a sum that was done. `left` gathers the parts of the same sum whose callers have left: they are given
    /// back together.
    fn done_together(&mut self, work: Work, sum: Arc<Sum>, left: &mut Option<(Chain, Arc<Sum>)>) {
        self.touch(&work.chain);
        let Some(reply) = work.reply else { return };
        let answer = ChainAnswer { outcome: Outcome::bare(Verdict::Done), sum: Some(Arc::clone(&sum)) };
        if reply.send(Ok(answer)).is_ok() {
            return;
        }
        match left {
            Some((part, from)) if Arc::ptr_eq(from, &sum) => {
                self.shared.metrics.lease_event(LeaseEvent::VoidedOnCancel);
                sum::add(part, &work.chain, 1);
            }
            _ => {
                let before = left.replace((work.chain, sum));
                self.inbox.next.extend(before.map(|(part, from)| Work::give_back(part, Some(from))));
            }
        }
    }

    /// What a limit owes that repays it stops others from now on, and is paid.
    fn note_debts(&self, chain: &Chain, is_new: bool) {
        for Transfer { account, action } in &chain.transfers {
            if let Action::Debt(hold) = action
                && hold.overage == Overage::Repay
                && hold.amount > 0
            {
                account.known.owing().meet(Some(hold.lifetime_seconds));
                self.shared.owes_more(account, if is_new { hold.amount } else { 0 });
            }
        }
    }

    fn touch(&self, chain: &Chain) {
        chain.transfers.iter().for_each(|transfer| self.shared.touch(&transfer.account));
    }

    /// The request can't be made at all: everybody hears so.
    pub(super) fn fail(&mut self, batch: Batch, reason: &str) {
        tracing::error!(reason, "TigerBeetle took none of a batch");
        for work in batch.into_works() {
            work.answer(Err(LedgerError::Unavailable(reason.to_owned())));
        }
    }
}

/// The result of a void that is sent again. If it exists it was done, even if it was linked differently then. If it failed before, there
/// was nothing to give back.
fn sent_again(chain: &Chain, result: ChainResult) -> ChainResult {
    let ChainResult::Refused(refusal) = result else { return result };
    let is_void = chain.transfers.get(refusal.index).is_some_and(|transfer| transfer.action.is_void());
    match refusal.code {
        RefusalCode::ExistsWithDifferentFields if is_void && refusal.index == 0 => ChainResult::DoneBefore,
        RefusalCode::IdAlreadyFailed if is_void => {
            ChainResult::Refused(Refusal { code: RefusalCode::PendingTransferNotFound, ..refusal })
        }
        _ => result,
    }
}

/// The outcome of a chain that an earlier sending has done.
fn repeat() -> Outcome {
    Outcome { is_repeat: true, ..Outcome::bare(Verdict::Done) }
}

/// Whether only the ledger knows how much this chain takes.
fn takes_up_to(chain: &Chain) -> bool {
    chain.transfers.iter().any(|transfer| matches!(transfer.action, Action::TakeUpTo(_)))
}

/// A name that its caller chose may be on its way back because an earlier caller of that name left.
fn needs_claim(chain: &Chain) -> bool {
    chain.keep.is_named() && chain.can_be_given_back()
}
