//! Chains that settle something, on two ledgers: each does its part, and what is taken is taken by both or by neither.

use super::Rotation;
use super::chain::{
    all_owed, for_new, for_old, gives_nothing_back, kept_part, lowered, merged, takes_nothing, trimmed, undo,
};
use super::successor::Successor;
use crate::ledger::{Chain, Ledger, LedgerError, Outcome, RefusalCode, Verdict};

/// How a chain is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    Apply,
    Complete,
}

impl Manner {
    async fn send<L: Ledger>(self, ledger: &L, chain: &Chain) -> Result<Outcome, LedgerError> {
        match self {
            Manner::Apply => ledger.apply(chain).await,
            Manner::Complete => ledger.complete(chain).await,
        }
    }
}

impl<L: Ledger> Rotation<L> {
    /// A chain that settles something.
    pub(super) async fn settle(
        &self,
        new: &Successor<L>,
        chain: &Chain,
        manner: Manner,
    ) -> Result<Outcome, LedgerError> {
        let at_old = self.settle_old(&for_old(chain), manner).await.map_err(|error| new.of_old(error))?;
        let old_refusal = match at_old.verdict {
            Verdict::Done => None,
            Verdict::Refused(refusal) if gives_nothing_back(chain, refusal) => Some(refusal),
            Verdict::Refused(_) | Verdict::NotAsked => return Ok(at_old),
        };
        let second = lowered(for_new(chain), &at_old.taken);
        if takes_nothing(&second) {
            return Ok(at_old);
        }
        let at_new = manner.send(&new.ledger, &second).await.map_err(|error| new.of_new(error))?;
        match (old_refusal, at_new.verdict) {
            (None, Verdict::Done) => {
                if let Some(trimming) = trimmed(chain, &at_old.taken, &at_new.taken) {
                    self.trim(&trimming).await;
                }
                Ok(merged(at_old, at_new))
            }
            (None, Verdict::Refused(refusal)) if gives_nothing_back(chain, refusal) => Ok(at_old),
            // If one of these fails it is all sent again.
            (None, _) => {
                if let Some(all) = all_owed(&second) {
                    let owed = new.ledger.complete(&all).await.map_err(|error| new.of_new(error))?;
                    return Ok(if owed.verdict == Verdict::Done { merged(at_old, owed) } else { at_new });
                }
                if let Some(undo) = undo(chain) {
                    self.old.complete(&undo).await.map_err(|error| new.of_old(error))?;
                }
                Ok(at_new)
            }
            (Some(_), Verdict::Done | Verdict::NotAsked) => Ok(at_new),
            // The one that knew the lease says more.
            (Some(refusal), Verdict::Refused(other)) => {
                let new_says_more = refusal.code == RefusalCode::PendingTransferNotFound;
                Ok(if new_says_more || !gives_nothing_back(chain, other) { at_new } else { at_old })
            }
        }
    }

    /// The same on the old one, which may have been trimmed: then what is left of it has another name.
    async fn settle_old(&self, first: &Chain, manner: Manner) -> Result<Outcome, LedgerError> {
        let at_old = manner.send(&self.old, first).await?;
        let is_gone = match at_old.verdict {
            Verdict::Done => at_old.is_repeat,
            Verdict::Refused(refusal) => matches!(
                refusal.code,
                RefusalCode::PendingTransferNotFound | RefusalCode::PendingTransferAlreadyVoided
            ),
            Verdict::NotAsked => false,
        };
        match kept_part(first).filter(|_| is_gone) {
            Some(kept) => {
                let at_kept = manner.send(&self.old, &kept).await?;
                Ok(if at_kept.verdict == Verdict::Done { at_kept } else { at_old })
            }
            None => Ok(at_old),
        }
    }
}
