//! Shadow limits: they count what was admitted, and never deny.

use futures_util::future::join_all;

use super::chain::{chain_of, chain_of_one};
use super::findings::Findings;
use super::{Admission, Name};
use crate::ledger::{Chain, Ledger, LiveLedger, Outcome, RefusalCode, Verdict};
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
        let undo = UndoOnDrop::new(&self.ledger, chain_of(plan, name, lease, findings.left_out).0);
        let counts =
            |(_, requirement): &(usize, &Requirement)| is_shadow(requirement) && requirement.amount > 0;
        let counting = plan.requirements.iter().enumerate().filter(counts).map(|(index, requirement)| {
            let chain = chain_of_one(requirement, name, lease);
            async move { (index, requirement, self.ledger.apply(&chain).await) }
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
                    self.metrics.shadow_denied(&requirement.spec.origin);
                }
                Verdict::Refused(_) | Verdict::NotAsked => {}
            }
            findings.left_out.insert(index);
        }
        undo.keep();
    }
}

/// Gives a reservation back unless it is told to keep it.
struct UndoOnDrop<'l> {
    ledger: &'l LiveLedger,
    chain: Option<Chain>,
}

impl<'l> UndoOnDrop<'l> {
    fn new(ledger: &'l LiveLedger, chain: Chain) -> Self {
        Self { ledger, chain: Some(chain) }
    }

    fn keep(mut self) {
        self.chain = None;
    }
}

impl Drop for UndoOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain.take() {
            self.ledger.give_back(chain);
        }
    }
}
