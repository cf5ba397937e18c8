//! What a refused request is charged all the same: with `charge: always` it tells of what was used already, so whatever is
//! left of the limit is taken, and the rest is dropped or owed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use smallvec::SmallVec;

use super::chain::lease_id;
use super::findings::Findings;
use super::{Admission, Name};
use crate::clock;
use crate::ledger::{Account, Action, Chain, Hold, Keep, Ledger, LedgerError, Outcome, Transfer};
use crate::limit::{LeaseId, Overage, RequirementSet};
use crate::registry::Plan;
use crate::retry::backoff::Backoff;

/// How long the ledger is waited for: a restart takes some seconds.
const PATIENCE: Duration = Duration::from_secs(10);

/// Charges that no refusal takes back.
#[derive(Debug)]
pub struct LateCharge {
    lease: LeaseId,
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
        let lease = || lease_id(plan, name, 0, clock::unix_ms());
        (!holds.is_empty()).then(|| Box::new(Self { lease: lease(), keep, holds }))
    }

    fn chain(&self, account: &Arc<Account>, action: Action) -> Chain {
        let transfers = SmallVec::from_iter([Transfer { account: Arc::clone(account), action }]);
        Chain { lease: self.lease.clone(), keep: self.keep, transfers }
    }
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
        // Refused, it took nothing: a limit that is being lowered has nothing left.
        let outcome = self.patiently(&late.chain(account, Action::TakeUpTo(hold))).await?;
        let taken = outcome.taken.first().copied().unwrap_or(0);
        let rest = Hold { amount: hold.amount.saturating_sub(taken), ..hold };
        if hold.overage != Overage::Deny && rest.amount > 0 {
            self.patiently(&late.chain(account, Action::Debt(rest))).await?;
        }
        Ok(())
    }

    /// Its transfers are named, so that however often it is sent, it happens once.
    async fn patiently(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let started = clock::instant();
        let mut backoff = Backoff::default();
        loop {
            match self.ledger.complete(chain).await {
                Err(error @ LedgerError::Full(_)) => return Err(error),
                Err(_) if started.elapsed() < PATIENCE => {
                    tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
                }
                answer => return answer,
            }
        }
    }
}
