//! What was found out about the requirements of a request, and what follows from the plan alone. Asks nobody.

use smallvec::SmallVec;

use crate::ledger::RefusalCode;
use crate::limit::RequirementSet;
use crate::registry::{Enforcement, Plan, Requirement};

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) failed: RequirementSet,
    /// Quota requirements that are over and were left out for it, and shadow ones that could not be counted.
    pub(super) left_out: RequirementSet,
    /// What is free on the account of each requirement, where that is known.
    pub(super) available: SmallVec<[Option<u64>; 4]>,
    /// When the ledger decided, if it says so.
    pub(super) decided_at_ns: Option<u64>,
}

impl Findings {
    /// Nothing is known yet.
    pub(super) fn of(plan: &Plan) -> Self {
        Self { available: plan.requirements.iter().map(|_| None).collect(), ..Self::default() }
    }

    /// The ledger was not asked, so every requirement counts as failed.
    pub(super) fn all_failed(plan: &Plan) -> Self {
        Self { failed: RequirementSet::first(plan.requirements.len()), ..Self::of(plan) }
    }

    /// What is known of a balance may be an old sample. A refusal proves that less is left than was asked for, and that a limit
    /// that owes something has nothing left.
    pub(super) fn believe_the_refusal(&mut self, plan: &Plan, code: RefusalCode) {
        for index in self.failed.iter() {
            let most = match code {
                RefusalCode::ExceedsCredits => plan.requirements[index].amount.saturating_sub(1),
                RefusalCode::InDebt => 0,
                _ => return,
            };
            self.available[index] = Some(self.available[index].map_or(most, |left| left.min(most)));
        }
    }
}

/// The requirements that no wait would ever let pass.
pub(super) fn never_fits(plan: &Plan) -> RequirementSet {
    let all = plan.requirements.iter().enumerate();
    let never = all.filter(|(_, r)| r.amount > r.spec.capacity && r.enforcement != Enforcement::Shadow);
    never.map(|(index, _)| index).collect()
}

/// The requirements that a request was charged for.
pub(super) fn charged<'p>(plan: &'p Plan, findings: &Findings) -> impl Iterator<Item = &'p Requirement> {
    let left_out = findings.left_out;
    let all = plan.requirements.iter().enumerate();
    all.filter(move |(index, r)| r.amount > 0 && !left_out.contains(*index)).map(|(_, r)| r)
}
