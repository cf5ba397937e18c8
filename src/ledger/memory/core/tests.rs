//! The rules where the ledger has no room left.

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use super::*;
use crate::limit::{LeaseId, LimitKey, Overage};

fn account(n: usize) -> Arc<Account> {
    Arc::new(Account::new(LimitKey::new(&format!("k{n}"))))
}

fn hold(amount: u64) -> Hold {
    Hold {
        amount,
        lifetime_seconds: NonZeroU32::new(600).unwrap(),
        capacity: 100,
        overage: Overage::Debt,
        is_exact: false,
    }
}

fn chain(lease: usize, keep: Keep, account: &Arc<Account>, actions: &[Action]) -> Chain {
    let transfers: SmallVec<[Transfer; 4]> =
        actions.iter().map(|&action| Transfer { account: Arc::clone(account), action }).collect();
    Chain { lease: LeaseId::parse(&format!("lease-{lease}")), keep, transfers }
}

#[test]
fn what_frees_is_never_refused_by_a_full_ledger() {
    let (mut core, limit) = (Core::new(32), account(0));
    for lease in 0..32 {
        let keep = if lease % 2 == 0 { Keep::ForRetries } else { Keep::ForCompletion };
        let reserve = chain(lease, keep, &limit, &[Action::Reserve(hold(3))]);
        assert_eq!(core.apply(&reserve, 0).unwrap().verdict, Verdict::Done);
    }
    assert!(core.is_full());
    let one_more = chain(99, Keep::ForCompletion, &limit, &[Action::Reserve(hold(1))]);
    assert_eq!(core.apply(&one_more, 0), Err(LedgerError::Full(32)));
    // A lease that took more than it had reserved, and those that took less: nothing is lost.
    let more = chain(0, Keep::ForRetries, &limit, &[Action::Rereserve(hold(4))]);
    assert_eq!(core.apply(&more, 0).unwrap().verdict, Verdict::Done);
    for lease in 0..32 {
        let actions = [Action::Void, Action::Rereserve(hold(1))];
        let actions = if lease % 4 == 1 { &actions[..] } else { &actions[..1] };
        let settle = chain(lease, Keep::ForCompletion, &limit, actions);
        assert_eq!(core.apply(&settle, 0).unwrap().verdict, Verdict::Done, "lease {lease}");
    }
    assert_eq!(core.balance(&limit, 100, 0).used, 4 + 8);
    assert!(!core.is_full());
    assert_eq!(core.apply(&one_more, 0).unwrap().verdict, Verdict::Done);
}
