//! What a refused request is charged all the same. With `charge: always` a request reports what was used already. So whatever is
//! left of the limit is taken, and the rest is dropped or owed.
//!
//! Where the rest is owed, both happen in one chain, so that no crash can keep one part and lose the other. The ledger can't
//! compute the rest by itself: a transfer that takes as much as there is doesn't tell the next transfer how much that was.
//! So we read what is free and write both amounts into the chain. If somebody else has taken of it meanwhile, the chain is
//! refused as a whole, and we read again. A crash before the chain is applied charges nothing, and its caller has no answer yet.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::chain::lease_id;
use super::findings::Findings;
use super::{Admission, Name};
use crate::clock;
use crate::ledger::{
    Account, Action, Chain, Hold, Keep, Ledger, LedgerError, Outcome, Refusal, RefusalCode, Transfer,
    Verdict, Want, complete_patiently,
};
use crate::limit::{LeaseId, Overage, RequirementSet};
use crate::registry::Plan;

/// How long we wait for a ledger that is away: a restart takes some seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often we look at what is free. After that the whole charge becomes a debt, which can't be refused.
const LOOKS_MAX: usize = 3;

/// Late charges are named like attempts of their request, from this number on. No request is attempted so often.
const FIRST_ATTEMPT: u32 = 1 << 16;

/// Charges that are made although the request was refused.
#[derive(Debug)]
pub struct LateCharge {
    /// A name for each time that we look: one that was refused stays refused.
    leases: [LeaseId; LOOKS_MAX + 1],
    keep: Keep,
    holds: SmallVec<[(Arc<Account>, Hold); 2]>,
}

impl LateCharge {
    /// What a request is charged for requirements that were refused; `None` if that is nothing.
    pub(super) fn of(plan: &Plan, refused: RequirementSet, name: Name<'_>) -> Option<Box<Self>> {
        let refused = plan.requirements.iter().enumerate().filter(|(index, _)| refused.contains(*index));
        let late = refused.map(|(_, requirement)| requirement).filter(|requirement| requirement.late > 0);
        let holds: SmallVec<_> = late
            .map(|requirement| {
                let hold = Hold {
                    amount: requirement.late,
                    lifetime_seconds: requirement.spec.kind.lifetime_seconds(),
                    capacity: requirement.spec.capacity,
                    overage: requirement.spec.overage,
                    is_exact: true,
                };
                (Arc::clone(&requirement.account), hold)
            })
            .collect();
        // Sent again under the same name, it is charged once.
        let keep = if matches!(name, Name::Fresh) { Keep::Nothing } else { Keep::ForRetries };
        (!holds.is_empty()).then(|| {
            let (mut attempt, now_unix_ms) = (FIRST_ATTEMPT, clock::unix_ms());
            let leases = [(); LOOKS_MAX + 1].map(|()| {
                attempt += 1;
                lease_id(plan, name, attempt, now_unix_ms)
            });
            Box::new(Self { leases, keep, holds })
        })
    }

    fn chain(&self, look: usize, account: &Arc<Account>, actions: impl Iterator<Item = Action>) -> Chain {
        let transfers = actions.map(|action| Transfer { account: Arc::clone(account), action }).collect();
        Chain { lease: self.leases[look].clone(), keep: self.keep, transfers }
    }
}

/// Takes what is `free`, and owes the rest. A request that has a name may be sent again at a time when another amount is free. Then
/// the ledger must find both names: that of the debt if the chain was done, and that of the take if it was refused. So for such a
/// request both transfers are there, even one with an amount of 0.
fn take_and_owe(hold: Hold, free: u64, is_named: bool) -> impl Iterator<Item = Action> {
    let taken = Hold { amount: hold.amount.min(free), ..hold };
    let rest = Hold { amount: hold.amount - taken.amount, ..hold };
    let take = (taken.amount > 0 || is_named).then_some(Action::Rereserve(taken));
    std::iter::once(Action::Debt(rest)).chain(take)
}

impl Findings {
    /// What will be left when the late charges are made.
    pub(super) fn expect_late_charges(&mut self, plan: &Plan, refused: RequirementSet) {
        for index in refused.iter() {
            let late = plan.requirements[index].late;
            self.available[index] = self.available[index].map(|left| left.saturating_sub(late));
        }
    }
}

impl Admission {
    /// Takes what is left of each limit, up to what was used; what is left over is owed where the limit has debts.
    pub(crate) async fn charge_late(&self, late: &LateCharge) -> Result<(), LedgerError> {
        let each = late.holds.iter().map(|(account, hold)| self.charge_one(late, account, *hold));
        join_all(each).await.into_iter().collect()
    }

    async fn charge_one(
        &self,
        late: &LateCharge,
        account: &Arc<Account>,
        hold: Hold,
    ) -> Result<(), LedgerError> {
        if hold.overage == Overage::Deny {
            // If it is refused it took nothing: a limit that is being lowered has nothing left.
            let take = std::iter::once(Action::TakeUpTo(hold));
            return self.patiently(&late.chain(0, account, take)).await.map(|_| ());
        }
        for look in 0..LOOKS_MAX {
            let free = self.look(account, hold).await;
            let chain = late.chain(look, account, take_and_owe(hold, free, late.keep.is_named()));
            match self.patiently(&chain).await?.verdict {
                Verdict::Refused(Refusal {
                    code: RefusalCode::ExceedsCredits | RefusalCode::IdAlreadyFailed,
                    ..
                }) => {}
                // An earlier sending of the same name may have found another amount free.
                _ => return Ok(()),
            }
        }
        let chain = late.chain(LOOKS_MAX, account, std::iter::once(Action::Debt(hold)));
        self.patiently(&chain).await.map(|_| ())
    }

    /// What is free of a limit now. If that can't be read it is nothing: then all of a charge is owed, and none is lost.
    async fn look(&self, account: &Arc<Account>, hold: Hold) -> u64 {
        let Hold { lifetime_seconds, capacity, overage, .. } = hold;
        let want = Want { account: Arc::clone(account), capacity, overage, lifetime_seconds };
        let balance =
            self.ledger.balances(vec![want]).await.ok().and_then(|balances| balances.first().copied());
        // A limit that is being lowered counts with the capacity that it will have.
        balance.map_or(0, |balance| balance.capacity.min(capacity).saturating_sub(balance.used))
    }

    async fn patiently(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let started = clock::instant();
        complete_patiently(&self.ledger, || chain.clone(), || started.elapsed() >= PATIENCE).await
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn what_is_taken_and_what_is_owed_is_one_chain() {
        let hold = |amount| Hold {
            amount,
            lifetime_seconds: NonZeroU32::MIN,
            capacity: 100,
            overage: Overage::Repay,
            is_exact: true,
        };
        for (amount, free, owed, taken) in [
            (40, 100, 0, Some(40)),
            (40, 40, 0, Some(40)),
            (40, 10, 30, Some(10)),
            (40, 0, 40, None),
            (u64::MAX, 1, u64::MAX - 1, Some(1)),
        ] {
            let actions: Vec<Action> = take_and_owe(hold(amount), free, false).collect();
            let expected =
                [Some(Action::Debt(hold(owed))), taken.map(|taken| Action::Rereserve(hold(taken)))];
            let expected: Vec<Action> = expected.into_iter().flatten().collect();
            assert_eq!(actions, expected, "{amount} of {free}");
            let named: Vec<Action> = take_and_owe(hold(amount), free, true).collect();
            let taken = Action::Rereserve(hold(taken.unwrap_or(0)));
            assert_eq!(named, [Action::Debt(hold(owed)), taken], "{amount} of {free}, with a name");
        }
    }
}
