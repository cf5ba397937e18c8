//! A reserve for one who waits: the same reservation as anybody's, but a refusal is no denial. Nobody hears of it, no
//! streak grows, and it says which limit to wait for.

use std::sync::Arc;

use super::{Admission, Findings, Name, charged, never_fits};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::{Code, LedgerError, OnFailure};
use crate::limit::LimitSpec;
use crate::registry::Plan;

/// What became of it.
#[derive(Debug)]
pub enum Offered {
    /// `None`: allowed because the ledger could not be asked, and nothing is held.
    Taken(Option<Box<Lease>>),
    /// This limit had too little of it left, by the id of its account.
    Refused { limit: u128, spec: Arc<LimitSpec> },
    /// The name was used before, and stays refused.
    NameIsSpent,
    /// The name was used for something else.
    UsedForAnother,
    /// It needs more of this limit than there ever is.
    Never(Arc<str>),
}

impl Admission {
    pub async fn offer(&self, plan: &Plan, name: Name<'_>) -> Result<Offered, LedgerError> {
        let never = never_fits(plan);
        if never != 0 {
            let requirement = &plan.requirements[never.trailing_zeros() as usize];
            return Ok(Offered::Never(Arc::from(requirement.account.key.as_str())));
        }
        let mut findings = Findings::of(plan);
        let (now_ms, reserved_at_unix_ms) = (clock::monotonic_ms(), clock::unix_ms());
        let id = match self.reserve(plan, name, reserved_at_unix_ms, &mut findings).await {
            Ok(Ok(id)) => id,
            Ok(Err(Code::IdAlreadyFailed | Code::Abandoned)) => return Ok(Offered::NameIsSpent),
            Ok(Err(Code::ExistsWithDifferentFields)) => return Ok(Offered::UsedForAnother),
            Ok(Err(code)) => {
                let requirement = &plan.requirements[findings.failed.trailing_zeros() as usize];
                if code == Code::LimitDecreasing {
                    requirement.account.decreasing_since_ms(now_ms);
                }
                let (limit, spec) = (requirement.account.id, Arc::clone(&requirement.spec));
                return Ok(Offered::Refused { limit, spec });
            }
            Err(LedgerError::Unavailable(_) | LedgerError::TimedOut(_))
                if self.ledger.on_failure() == OnFailure::Allow =>
            {
                return Ok(Offered::Taken(None));
            }
            Err(error) => return Err(error),
        };
        self.retry.on_allowed(charged(plan, &findings).map(|requirement| requirement.account.id), now_ms);
        for requirement in charged(plan, &findings) {
            requirement.account.end_decreasing();
            requirement.account.spend_sample(requirement.amount);
        }
        Ok(Offered::Taken(super::chain::lease_of(plan, &findings, id, reserved_at_unix_ms)))
    }
}
