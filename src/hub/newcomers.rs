//! What sidecars reserve for callers who don't wait: newcomers leave the line of this hub its part.
//!
//! As for the callers of this instance itself, [`Share`](crate::queue::Share) decides. Late charges and completions are no newcomers:
//! what they take was used already.

use std::num::NonZeroU32;

use super::Hub;
use crate::clock;
use crate::ledger::{
    Action, Chain, Hold, Ledger, LedgerError, Lent, Outcome, Refusal, RefusalCode, Transfer, Verdict,
};
use crate::limit::{Kind, LimitSpec};
use crate::queue::share::Taken;

/// Applies a chain, or lends the slab of a limit with the window `slab` that it asks for, unless the line keeps what it wants. While
/// nobody waits this costs two reads.
pub(super) async fn apply(hub: &Hub, chain: &Chain, slab: Option<NonZeroU32>) -> Result<Lent, LedgerError> {
    let service = &hub.service;
    let wants = chain.transfers.iter().filter_map(|transfer| Some((transfer, hold(transfer)?)));
    service.queue.capacities_are(wants.map(|(transfer, hold)| (transfer.account.id, hold.capacity)));
    let needs = chain
        .transfers
        .iter()
        .map(|transfer| (transfer.account.id, hold(transfer).map_or(0, |hold| hold.amount)));
    let taken =
        match service.admission.share.take(needs, clock::monotonic_ms(), |index| free(hub, chain, index)) {
            Ok(taken) => taken,
            Err(kept) => {
                let refusal = Refusal {
                    index: kept.lowest().unwrap_or(0),
                    code: RefusalCode::ExceedsCredits,
                    failed: kept,
                };
                return Ok(Lent::Applied(Outcome::bare(Verdict::Refused(refusal))));
            }
        };
    let lent = match slab {
        Some(window_seconds) => hub.lending.lend(chain, window_seconds).await?,
        None => Lent::Applied(hub.ledger.apply(chain).await?),
    };
    let is_done = match &lent {
        Lent::Units { .. } => true,
        Lent::Full { .. } => false,
        Lent::Applied(outcome) => outcome.verdict == Verdict::Done,
    };
    if is_done {
        taken.into_iter().for_each(Taken::keep);
    }
    Ok(lent)
}

/// What is free of the limit of a transfer, as far as is known.
fn free(hub: &Hub, chain: &Chain, index: usize) -> Option<u64> {
    let Transfer { account, .. } = chain.transfers.get(index)?;
    let hold = hold(&chain.transfers[index])?;
    let kind = Kind::Rolling { window_seconds: hold.lifetime_seconds };
    hub.ledger.peek(account, &LimitSpec::of_another(kind, hold.capacity, hold.overage))
}

fn hold(transfer: &Transfer) -> Option<Hold> {
    match transfer.action {
        Action::Reserve(hold) | Action::TakeUpTo(hold) => Some(hold),
        _ => None,
    }
}
