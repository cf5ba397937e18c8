//! When a refused request is told to come back: the largest hint over the limits that said no.

use smallvec::SmallVec;

use super::findings::Findings;
use super::{Admission, up_to};
use crate::ledger::Ledger;
use crate::registry::{Plan, Requirement};
use crate::retry::policy::RetryPolicy;
use crate::retry::{self, RetryHint};
use crate::telemetry::Reason;

impl Admission {
    /// The largest hint over the requirements that failed.
    pub(super) fn hint(
        &self,
        policy: &RetryPolicy,
        plan: &Plan,
        findings: &Findings,
        reason: Reason,
        now_ms: u64,
    ) -> RetryHint {
        let mut failed = findings.failed.iter().map(|index| &plan.requirements[index]);
        if reason == Reason::LimitDecreasing {
            let since_ms = failed.next().and_then(|requirement| requirement.account.decreasing_since_ms());
            return RetryHint::decreasing(policy, now_ms.saturating_sub(since_ms.unwrap_or(now_ms)));
        }
        type Part<'p> = SmallVec<[&'p Requirement; 4]>;
        let (owing, full): (Part<'_>, Part<'_>) = failed.partition(|requirement| self.owes(requirement));
        let denied = |failed: &[&Requirement]| {
            let hints = failed.iter().map(|requirement| (&requirement.account.hints, requirement.spec.kind));
            retry::on_denied(hints, policy, now_ms, up_to).map(|(_, hint)| hint)
        };
        // A debt is counted like any denial, but when it is paid is known.
        denied(&owing);
        let paid =
            owing.iter().filter_map(|r| self.ledger.repaid_in_ms(&r.account, &r.spec, r.amount.max(1)));
        let paid = paid.max().map(|ms| RetryHint { ms: ms.saturating_add(up_to(policy.rolling.jitter_ms)) });
        denied(&full).max(paid).unwrap_or(RetryHint { ms: policy.decreasing_ms })
    }
}
