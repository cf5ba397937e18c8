//! What a request would meet, without charging it: which limits, what is left of each, and why it would pass or not.
//!
//! Follows the rules of [`admission`](crate::admission) on balances that it reads, so its answer is as current as they are. Refuses
//! to know the wire.

use std::sync::Arc;

use super::Service;
use super::check::{Check, take_retry_marks};
use super::inspect::LimitState;
use crate::admission::DecideError;
use crate::limit::{Charge, Overage, RequirementSet};
use crate::registry::{Enforcement, NamedLimit, Plan, Requirement, Wanted};
use crate::telemetry::Reason;

/// What would become of a request.
#[derive(Debug)]
pub(crate) struct Explained {
    pub(crate) is_over: bool,
    pub(crate) limits: Vec<ExplainedLimit>,
}

/// A limit that the request meets.
#[derive(Debug)]
pub(crate) struct ExplainedLimit {
    pub(crate) state: LimitState,
    pub(crate) amount: u64,
    pub(crate) enforcement: Enforcement,
    /// Why it would say no; `None` if it would not.
    pub(crate) refusal: Option<Reason>,
}

impl Service {
    /// Completions in it are left out: they ask for nothing.
    pub(crate) async fn explain(&self, mut check: Check<'_>) -> Result<Explained, DecideError> {
        let snapshot = self.live.load_full();
        take_retry_marks(&mut check.asks, &snapshot.retry.budget.descriptor_key);
        let plan = snapshot.registry.plan(check.domain, &check.asks, &self.admission.accounts)?;
        let limits = plan.requirements.iter().map(|it| {
            let (account, spec) = (Arc::clone(&it.account), Arc::clone(&it.spec));
            Arc::new(NamedLimit { account, spec })
        });
        let states = self.states(limits.collect()).await?;
        let limits: Vec<ExplainedLimit> = plan
            .requirements
            .iter()
            .zip(states)
            .map(|(requirement, state)| explained(requirement, state))
            .collect();
        let refused = limits.iter().enumerate().filter(|(_, limit)| limit.refusal.is_some());
        let is_over = is_over(&plan, refused.map(|(index, _)| index).collect());
        Ok(Explained { is_over, limits })
    }
}

fn explained(requirement: &Requirement, state: LimitState) -> ExplainedLimit {
    let (balance, spec) = (state.balance.unwrap_or_default(), &requirement.spec);
    // What this instance holds in a slab counts as used in the ledger, but this instance can still hand it out.
    let left = balance.available().saturating_add(state.slab.map_or(0, |slab| slab.held));
    let refusal = if requirement.amount > spec.capacity {
        Some(Reason::NeverFits)
    } else if balance.capacity > spec.capacity && requirement.amount > 0 {
        Some(Reason::LimitDecreasing)
    } else if balance.debt > 0 && spec.overage == Overage::Repay {
        Some(Reason::Debt)
    } else if requirement.amount > left || (left == 0 && spec.charge == Charge::Always) {
        Some(Reason::OverLimit)
    } else {
        None
    };
    let (amount, enforcement) = (requirement.amount, requirement.enforcement);
    ExplainedLimit { state, amount, enforcement, refusal }
}

/// Whether the request would be denied. A shadow limit never denies, and a quota only if every descriptor with a quota is over.
fn is_over(plan: &Plan, refused: RequirementSet) -> bool {
    let limited = plan.descriptors.iter().filter_map(|wanted| match wanted {
        Wanted::Limited { requirements, enforcement } => Some((*requirements, *enforcement)),
        Wanted::Bare | Wanted::Unlimited => None,
    });
    let (mut quotas, mut quotas_over) = (0, 0);
    for (requirements, enforcement) in limited {
        let is_refused = requirements.intersects(refused);
        match enforcement {
            Enforcement::Shadow => {}
            Enforcement::Enforced if is_refused => return true,
            Enforcement::Enforced => {}
            Enforcement::Quota => {
                quotas += 1;
                quotas_over += u32::from(is_refused);
            }
        }
    }
    quotas > 0 && quotas == quotas_over
}
