//! Requests that only look at a limit (0 hits). They charge nothing, so the ledger isn't asked. But a look must not answer OK for a
//! limit that would refuse a request that takes something.

use super::Admission;
use crate::ledger::Ledger;
use crate::limit::{Charge, Overage, RequirementSet};
use crate::registry::{Enforcement, Plan, Requirement};
use crate::telemetry::Reason;

impl Admission {
    /// The requirements that only look at a limit and have to be refused, and why. A requirement that takes something is refused
    /// by the ledger itself.
    pub(super) fn looks(&self, plan: &Plan) -> [(RequirementSet, Reason); 3] {
        let looks = |is_closed: &dyn Fn(&Requirement) -> bool| {
            let looks = plan.requirements.iter().enumerate();
            let looks = looks.filter(|(_, r)| r.amount == 0 && r.enforcement != Enforcement::Shadow);
            looks.filter(|(_, r)| is_closed(r)).map(|(index, _)| index).collect()
        };
        let (ledger, always) = (&self.ledger, |r: &Requirement| r.spec.charge == Charge::Always);
        [
            // It holds more than its capacity.
            (looks(&|r| ledger.is_decreasing(&r.account, &r.spec)), Reason::LimitDecreasing),
            (looks(&|r| self.owes(r)), Reason::Debt),
            // A charge that came afterwards may have used it up.
            (looks(&|r| always(r) && ledger.is_used_up(&r.account, &r.spec)), Reason::OverLimit),
        ]
    }

    /// Whether a limit pays what it owes before anybody gets anything.
    pub(super) fn owes(&self, requirement: &Requirement) -> bool {
        let Requirement { account, spec, .. } = requirement;
        spec.overage == Overage::Repay && self.ledger.owed(account, spec) > 0
    }
}
