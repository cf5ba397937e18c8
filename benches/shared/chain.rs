//! The chain that reserves all that a plan requires, under a name that nobody sends again.

use std::sync::Arc;

use sluice::ledger::{Action, Chain, Hold, Keep, Transfer};
use sluice::limit::LeaseId;
use sluice::registry::Plan;

pub fn reserve(plan: &Plan, now_ms: u64) -> Chain {
    let transfers = plan.requirements.iter().map(|requirement| {
        let hold = Hold {
            amount: requirement.amount,
            lifetime_seconds: requirement.spec.kind.lifetime_seconds(),
            capacity: requirement.spec.capacity,
            is_exact: true,
            overage: requirement.spec.overage,
        };
        Transfer { account: Arc::clone(&requirement.account), action: Action::Reserve(hold) }
    });
    let lease = LeaseId::fresh(now_ms, fastrand::u128(..));
    Chain { lease, keep: Keep::Nothing, transfers: transfers.collect() }
}
