//! How a lease is settled: what was held and what was really used in, chains for the ledger out. Pure.
//!
//! Each limit is a chain of its own. So a limit that has expired or is full does not stop the others from being settled:
//!
//! | limit | used | chain |
//! |---|---|---|
//! | concurrency | whatever | void |
//! | rolling | nothing said, or what was reserved | none: a void costs a transfer for ever |
//! | rolling | nothing | void |
//! | rolling | less | void, re-reserve what was used for the rest of the window |
//! | rolling | more | re-reserve the difference for the rest of the window |
//! | rolling, its window is over | more | a debt, where the limit has debts, and a re-reserve of nothing |
//!
//! If that doesn't fit, the limit's overage decides: what is left is taken for the rest of the window and the rest is forgotten
//! (`deny`), or the whole difference becomes a debt, which a limit pays before anything else (`repay`) or never (`debt`).
//!
//! What was held and has expired by our clock is left alone: it has come back. If more was used than that, there is no rest
//! of the window to take it for, so it never fits: with `deny` all of it is forgotten.
//!
//! A completion that is sent again when the window is over, and to somebody who doesn't know of the first one, must not owe
//! what the first one took. So the debt is in one chain with a re-reserve, which has the name that the first one used.
//!
//! Knows no tokens, no lease table, no clock.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::{SmallVec, smallvec};

use super::{Held, Lease};
use crate::ledger::{Account, Action, Chain, Hold, Keep, Refusal, RefusalCode, Transfer};
use crate::limit::{LeaseId, Overage};

/// What one completion descriptor of Envoy says about a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Report<'a> {
    /// A token, or a plain id.
    pub(crate) lease: &'a str,
    /// Only the limit that is called so.
    pub(crate) limit: Option<&'a str>,
    pub(crate) used: Option<Used>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Used {
    /// This much was used.
    Hits(u64),
    /// This much of what was reserved was not.
    Refund(u64),
}

/// What is to be done about one limit of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settlement {
    /// Which of the lease's limits.
    pub(crate) index: usize,
    pub(crate) adjustment: Adjustment,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Adjustment {
    /// All of it comes back.
    Release,
    /// Only this much of it was used.
    Lower { to: u64, remaining_seconds: NonZeroU32 },
    /// This much more was used.
    Raise { by: u64, remaining_seconds: NonZeroU32 },
    /// This much more was used, and the window is over.
    Owe { by: u64 },
}

/// How long after its window a lease may still be told what it used. A stream is over within the hour; a token that
/// turns up later is sent by mistake, and nobody remembers whether it was completed before.
pub(super) const LATE_MS: u64 = 3_600_000;

/// What was used of each limit of a lease, as the completions of one call say together: hits add up, and refunds are
/// taken off.
pub(crate) fn used_by_reports(lease: &Lease, reports: &[Report<'_>]) -> Vec<Option<u64>> {
    let used = |held: &Held| {
        let (mut hits, mut refund) = (None, None);
        let about = |report: &&Report<'_>| report.limit.is_none_or(|name| held.is_called(name));
        for report in reports.iter().filter(about) {
            match report.used {
                None => {}
                Some(Used::Hits(more)) => hits = Some(hits.unwrap_or(0u64).saturating_add(more)),
                Some(Used::Refund(more)) => refund = Some(refund.unwrap_or(0u64).saturating_add(more)),
            }
        }
        match (hits, refund) {
            (None, None) => None,
            (hits, refund) => Some(hits.unwrap_or(held.amount).saturating_sub(refund.unwrap_or(0))),
        }
    };
    lease.held.iter().map(|held| if held.costs_hits { used(held) } else { None }).collect()
}

/// What has to be done, given what was used of each limit; `used` is in the order of the lease.
pub(crate) fn settle(lease: &Lease, used: &[Option<u64>], now_unix_ms: u64) -> Vec<Settlement> {
    let elapsed_ms = now_unix_ms.saturating_sub(lease.reserved_at_unix_ms);
    let each = lease.held.iter().zip(used).enumerate();
    each.filter_map(|(index, (held, used))| {
        Some(Settlement { index, adjustment: adjustment(held, *used, elapsed_ms)? })
    })
    .collect()
}

fn adjustment(held: &Held, used: Option<u64>, elapsed_ms: u64) -> Option<Adjustment> {
    if elapsed_ms >= held.lifetime_ms() {
        let is_late = elapsed_ms < held.lifetime_ms().saturating_add(LATE_MS);
        let more = used?.checked_sub(held.amount).filter(|more| *more > 0 && is_late && held.has_debts());
        return more.map(|by| Adjustment::Owe { by });
    }
    if held.kind.is_concurrency() {
        return Some(Adjustment::Release);
    }
    let elapsed_seconds = u32::try_from(elapsed_ms / 1000).unwrap_or(u32::MAX);
    let left = held.kind.lifetime_seconds().get().saturating_sub(elapsed_seconds);
    let remaining_seconds = NonZeroU32::new(left).unwrap_or(NonZeroU32::MIN);
    match used? {
        used if used == held.amount => None,
        0 => Some(Adjustment::Release),
        used if used < held.amount => Some(Adjustment::Lower { to: used, remaining_seconds }),
        used => Some(Adjustment::Raise { by: used - held.amount, remaining_seconds }),
    }
}

/// Whether the same completion would be owed if it were sent again after the end, and nobody knew of it.
pub(super) fn may_owe_again(lease: &Lease, settlements: &[Settlement]) -> bool {
    settlements.iter().any(|each| each.adjustment.takes_more() && lease.held[each.index].has_debts())
}

impl Adjustment {
    /// Whether more was used than was reserved.
    pub(crate) fn takes_more(self) -> bool {
        matches!(self, Adjustment::Raise { .. } | Adjustment::Owe { .. })
    }

    /// What the ledger is asked first. `capacity` is what the files say now; a limit that they no longer know has
    /// none, and can only be given back whole.
    pub(crate) fn chain(
        self,
        held: &Held,
        lease: &LeaseId,
        account: &Arc<Account>,
        capacity: Option<u64>,
    ) -> Option<Chain> {
        let actions: SmallVec<[Action; 2]> = match self {
            Adjustment::Release => smallvec![Action::Void],
            Adjustment::Lower { to, remaining_seconds } => {
                smallvec![Action::Void, take_again(to, remaining_seconds, capacity?)]
            }
            Adjustment::Raise { by, remaining_seconds } => {
                smallvec![take_again(by, remaining_seconds, capacity?)]
            }
            Adjustment::Owe { by } => {
                smallvec![owe(by, held, capacity?), take_again(0, NonZeroU32::MIN, capacity?)]
            }
        };
        Some(chain_of(lease, account, &actions))
    }

    /// What it is asked next, after a refusal; nothing if the refusal settles it.
    pub(crate) fn after_refusal(
        self,
        refusal: Refusal,
        held: &Held,
        lease: &LeaseId,
        account: &Arc<Account>,
        capacity: Option<u64>,
    ) -> Option<Chain> {
        let action = match (self, refusal) {
            // It has ended by the ledger's clock, but not by ours: what was used still counts.
            (
                Adjustment::Lower { to, remaining_seconds },
                Refusal { index: 0, code: RefusalCode::PendingTransferExpired, .. },
            ) => take_again(to, remaining_seconds, capacity?),
            // The second code is how the first one reads when a completion is sent again.
            (
                Adjustment::Raise { by, .. },
                Refusal { code: RefusalCode::ExceedsCredits | RefusalCode::IdAlreadyFailed, .. },
            ) if held.has_debts() => owe(by, held, capacity?),
            // A completion within the window found no room, and did not come to write it down.
            (Adjustment::Owe { by }, Refusal { code: RefusalCode::IdAlreadyFailed, .. }) => {
                owe(by, held, capacity?)
            }
            (
                Adjustment::Raise { by, remaining_seconds },
                Refusal { code: RefusalCode::ExceedsCredits | RefusalCode::IdAlreadyFailed, .. },
            ) => Action::TakeUpTo(hold(by, remaining_seconds, capacity?, Overage::Deny)),
            // Settled before, expired, or never there.
            _ => return None,
        };
        Some(chain_of(lease, account, &[action]))
    }
}

/// Whatever the limit owes: this was used already.
fn take_again(amount: u64, lifetime_seconds: NonZeroU32, capacity: u64) -> Action {
    Action::Rereserve(hold(amount, lifetime_seconds, capacity, Overage::Deny))
}

fn owe(amount: u64, held: &Held, capacity: u64) -> Action {
    Action::Debt(hold(amount, held.kind.lifetime_seconds(), capacity, held.overage))
}

fn hold(amount: u64, lifetime_seconds: NonZeroU32, capacity: u64, overage: Overage) -> Hold {
    Hold { amount, lifetime_seconds, capacity, overage, is_exact: true }
}

fn chain_of(lease: &LeaseId, account: &Arc<Account>, actions: &[Action]) -> Chain {
    // A re-reserve that was refused must stay refused when the completion is sent again, even if it would fit then.
    let keep = if actions[0] == Action::Void { Keep::ForCompletion } else { Keep::ForRetries };
    let transfers = actions.iter().map(|&action| Transfer { account: Arc::clone(account), action }).collect();
    Chain { lease: lease.clone(), keep, transfers }
}

#[cfg(test)]
mod guarantees;
#[cfg(test)]
mod tests;
