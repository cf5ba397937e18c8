//! What happens beside requests: slabs are asked for, and one task gives back what is due.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use smallvec::smallvec;

use super::guards::{Returning, Taking};
use super::{GaveBack, Live, Purpose, Shared};
use crate::clock;
use crate::ledger::restart::restart_on_panic;
use crate::ledger::slabs::limit::{Ask, Took};
use crate::ledger::slabs::returns::{GiveBack, Landed, Number, ReturnStep};
use crate::ledger::slabs::slab::EndedLoan;
use crate::ledger::{
    Account, Action, Chain, Hold, Keep, Ledger, LedgerError, Lender, LoanEnd, Outcome, Refusal, RefusalCode,
    SlabTake, Transfer, Verdict,
};
use crate::limit::{LimitId, Overage};

/// How long the task sleeps at most.
const SLEEP_MS_MAX: u64 = 1_000;

/// How often it is looked whether everything has landed, when the process ends.
const SETTLED_LOOK: Duration = Duration::from_millis(5);

/// Gives back whatever is due until the process ends. A panic is counted, and it goes on.
pub(super) async fn run<L: Ledger + 'static>(shared: Arc<Shared<L>>) {
    let due = || shared.closing.clone().run_until_cancelled_owned(give_back_due(Arc::clone(&shared)));
    restart_on_panic(due, |_| shared.panicked()).await;
}

async fn give_back_due<L: Ledger + 'static>(shared: Arc<Shared<L>>) {
    loop {
        while let Some((number, back)) = shared.core.next_due(&mut Live) {
            shared.tasks.spawn(give_back(Arc::clone(&shared), number, back));
        }
        let now_ms = clock::monotonic_ms();
        let due_ms = shared.core.next_due_ms().unwrap_or(u64::MAX);
        let wait = Duration::from_millis(due_ms.saturating_sub(now_ms).clamp(1, SLEEP_MS_MAX));
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = shared.news.notified() => {}
        }
    }
}

/// Asks for one slab.
pub(super) async fn take<L: Ledger + 'static>(
    shared: Arc<Shared<L>>,
    limit: LimitId,
    account: Arc<Account>,
    ask: Ask,
) {
    let hold = Hold {
        amount: ask.amount,
        lifetime_seconds: ask.timeout_seconds,
        capacity: ask.capacity,
        overage: Overage::Deny,
        is_exact: true,
    };
    let action = if ask.up_to { Action::TakeUpTo(hold) } else { Action::Reserve(hold) };
    // It is given back by its name.
    let keep = Keep::ForCompletion;
    let chain = Chain { lease: ask.name, keep, transfers: smallvec![Transfer { account, action }] };
    let mut taking = Taking { shared, limit, took: Took::Nothing };
    let ledger = &taking.shared.ledger;
    let may_borrow = matches!(taking.shared.purpose, Purpose::HandsOut);
    let answer = match window_seconds(ask.window_ms).filter(|_| may_borrow) {
        Some(window_seconds) => ledger.take_slab(&chain, window_seconds).await,
        None => ledger.apply(&chain).await.map(SlabTake::Applied),
    };
    taking.took = match answer {
        Ok(SlabTake::Lent(loan)) => Took::Lent(loan),
        Ok(SlabTake::Full { for_ms }) => Took::Full { for_ms },
        Ok(SlabTake::Applied(Outcome { verdict: Verdict::Done, taken, .. })) => {
            Took::Units(if ask.up_to { taken.first().copied().unwrap_or(0) } else { ask.amount })
        }
        Ok(SlabTake::Applied(Outcome {
            verdict: Verdict::Refused(Refusal { code: RefusalCode::ExceedsCredits, .. }),
            ..
        })) => Took::Refused,
        Ok(SlabTake::Applied(_)) | Err(_) => Took::Nothing,
    };
}

fn window_seconds(window_ms: u64) -> Option<NonZeroU32> {
    NonZeroU32::new(u32::try_from(window_ms / 1_000).ok()?)
}

async fn give_back<L: Ledger + 'static>(
    shared: Arc<Shared<L>>,
    number: Number,
    back: GiveBack<Arc<Account>>,
) {
    let mut returning = Returning { shared, number, landed: Landed::Failed };
    let shared = &returning.shared;
    returning.landed = match chain_of(&back) {
        Ok(chain) => {
            let landed = landed(&shared.ledger.complete(&chain).await);
            if let (Purpose::Lends(GaveBack(tell)), Landed::Done) = (&shared.purpose, landed) {
                tell(back.account.id);
            }
            landed
        }
        Err((lender, end)) => {
            // A hub that never hears of it takes it for spent.
            shared.ledger.end_loan(lender, end);
            Landed::Done
        }
    };
}

/// What gives it back; of what was lent, what the lender is told.
fn chain_of(back: &GiveBack<Arc<Account>>) -> Result<Chain, (Lender, LoanEnd)> {
    let GiveBack { account, name, up_to, step } = back;
    let void = if *up_to { Action::VoidTaken } else { Action::Void };
    let one = |action| Transfer { account: Arc::clone(account), action };
    let transfers = match *step {
        ReturnStep::Void => smallvec![one(void)],
        ReturnStep::EndLoan { spent, loan: EndedLoan { lender, last_ms, tell_within_ms } } => {
            let (account, name) = (Arc::clone(account), name.clone());
            return Err((lender, LoanEnd { account, name, spent, last_ms, tell_within_ms }));
        }
        ReturnStep::VoidKept => smallvec![one(Action::VoidRereserved)],
        ReturnStep::Keep { units, timeout_seconds } => {
            // Whatever the capacity is now: it is taken from what the account has.
            let hold = Hold {
                amount: units,
                lifetime_seconds: timeout_seconds,
                capacity: 0,
                overage: Overage::Deny,
                is_exact: true,
            };
            smallvec![one(void), one(Action::Rereserve(hold))]
        }
    };
    Ok(Chain { lease: name.clone(), keep: Keep::ForCompletion, transfers })
}

fn landed(answer: &Result<Outcome, LedgerError>) -> Landed {
    match answer {
        Ok(Outcome { verdict: Verdict::Done, .. }) => Landed::Done,
        Ok(Outcome { verdict: Verdict::Refused(refusal), .. }) => {
            if refusal.code != RefusalCode::PendingTransferExpired {
                tracing::warn!(code = ?refusal.code, "a slab could not be given back; the ledger's timeout does it");
            }
            Landed::Gone
        }
        Ok(Outcome { verdict: Verdict::NotAsked, .. }) | Err(_) => Landed::Failed,
    }
}

/// Returns when no slab is asked for any more and nothing is on its way back that nobody spent.
pub(super) async fn settled<L: Ledger + 'static>(shared: &Shared<L>) {
    while !shared.core.is_settled() {
        tokio::time::sleep(SETTLED_LOOK).await;
    }
}
