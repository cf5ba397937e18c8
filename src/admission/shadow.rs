//! Shadow limits: they count what was admitted, and never deny.

use futures_util::future::join_all;
use parking_lot::Mutex;

use super::chain::{chain_of, chain_of_one};
use super::findings::Findings;
use super::{Admission, Name};
use crate::ledger::{Chain, Keep, Ledger, LedgerError, Outcome, RefusalCode, Verdict};
use crate::limit::LeaseId;
use crate::registry::{Enforcement, Plan, Requirement};

impl Admission {
    /// Each is a chain of its own, after the real one. All go at once, so that they cost one round trip together.
    pub(super) async fn count_shadows(
        &self,
        plan: &Plan,
        name: Name<'_>,
        lease: &LeaseId,
        findings: &mut Findings,
    ) {
        let is_shadow = |requirement: &Requirement| requirement.enforcement == Enforcement::Shadow;
        // The caller may leave while this waits for the ledger.
        let (reserved, _) = chain_of(plan, name, lease, findings.left_out);
        let keep = reserved.keep;
        let undo = UndoOnDrop::new(&self.ledger, reserved);
        let counts =
            |(_, requirement): &(usize, &Requirement)| is_shadow(requirement) && requirement.amount > 0;
        let counting = plan.requirements.iter().enumerate().filter(counts).map(|(index, requirement)| {
            let counted = undo.count(shadow_chain(requirement, name, lease, keep));
            async move { (index, requirement, counted.await) }
        });
        for (index, requirement, counted) in join_all(counting).await {
            // A ledger that fails now costs a count of a limit that denies nobody.
            let verdict = counted.map_or(Verdict::NotAsked, |Outcome { verdict, available, .. }| {
                findings.available[index] = available.first().copied();
                verdict
            });
            match verdict {
                Verdict::Done => continue,
                Verdict::Refused(refusal) if refusal.code != RefusalCode::NotAsked => {
                    self.metrics.shadow_denied(called(requirement));
                }
                Verdict::Refused(_) | Verdict::NotAsked => {}
            }
            findings.left_out.insert(index);
        }
        undo.keep();
    }
}

/// What metrics call a limit, however many values its descriptor has.
fn called(requirement: &Requirement) -> &str {
    let names = requirement.spec.metric.as_ref();
    names.map_or(requirement.account.key.as_str(), |names| &names.limit)
}

/// A chain of its own that can be given back: by its caller who leaves now, and together with what was `reserved` if its
/// answer is never sent.
fn shadow_chain(requirement: &Requirement, name: Name<'_>, lease: &LeaseId, reserved: Keep) -> Chain {
    let chain = chain_of_one(requirement, name, lease);
    let keep = if chain.keep == Keep::Nothing { reserved } else { chain.keep };
    Chain { keep, ..chain }
}

/// Gives back what was reserved and counted so far unless it is told to keep it.
struct UndoOnDrop<'l, L: Ledger> {
    ledger: &'l L,
    /// A plain mutex, because shadows are counted side by side; nobody waits while it is locked.
    chains: Mutex<Vec<Chain>>,
}

impl<'l, L: Ledger> UndoOnDrop<'l, L> {
    fn new(ledger: &'l L, reserved: Chain) -> Self {
        Self { ledger, chains: Mutex::new(vec![reserved]) }
    }

    async fn count(&self, chain: Chain) -> Result<Outcome, LedgerError> {
        // If the caller leaves here, the ledger gives it back.
        let outcome = self.ledger.apply(&chain).await?;
        if outcome.verdict == Verdict::Done {
            self.chains.lock().push(chain);
        }
        Ok(outcome)
    }

    fn keep(self) {
        self.chains.lock().clear();
    }
}

impl<L: Ledger> Drop for UndoOnDrop<'_, L> {
    fn drop(&mut self) {
        self.chains.get_mut().drain(..).for_each(|chain| self.ledger.give_back(chain));
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use smallvec::smallvec;

    use super::*;
    use crate::ledger::memory::Memory;
    use crate::ledger::{Account, Action, Hold, Transfer};
    use crate::limit::{LimitKey, Overage};

    #[tokio::test]
    async fn shadows_that_were_counted_are_given_back_with_the_rest() {
        let ledger = Memory::default();
        let accounts = ["real", "dark", "full"].map(|key| Arc::new(Account::new(LimitKey::new(key))));
        let lifetime_seconds = NonZeroU32::new(60).unwrap();
        let chain = |index: usize, capacity: u64| {
            let hold = Hold { amount: 1, lifetime_seconds, capacity, overage: Overage::Deny, is_exact: true };
            let transfer = Transfer { account: Arc::clone(&accounts[index]), action: Action::Reserve(hold) };
            Chain { lease: LeaseId::parse("x"), keep: Keep::ForCompletion, transfers: smallvec![transfer] }
        };
        for is_kept in [false, true] {
            let reserved = chain(0, 10);
            ledger.apply(&reserved).await.unwrap();
            let undo = UndoOnDrop::new(&ledger, reserved);
            assert_eq!(undo.count(chain(1, 10)).await.unwrap().verdict, Verdict::Done);
            assert_ne!(undo.count(chain(2, 0)).await.unwrap().verdict, Verdict::Done);
            if is_kept {
                undo.keep()
            } else {
                drop(undo)
            }
            let mut used = Vec::new();
            for account in &accounts {
                used.push(ledger.schedule(account, NonZeroU32::MIN).await.unwrap().used);
            }
            assert_eq!(used, if is_kept { [1, 1, 0] } else { [0, 0, 0] });
        }
    }
}
