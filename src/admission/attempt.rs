//! A reserve for a job that waits in the queue. It reserves as any request does, but a refusal is not a denial: no caller is told
//! of it, no streak grows, and it says which limit to wait for.

use std::sync::Arc;

use super::findings::{Findings, never_fits};
use super::{Admission, Name, Reserved, is_used};
use crate::clock;
use crate::lease::Lease;
use crate::ledger::{LedgerError, RefusalCode};
use crate::limit::{LimitId, LimitSpec};
use crate::registry::Plan;
use crate::retry::policy::RetryPolicy;

/// What became of it.
#[derive(Debug)]
pub enum Attempt {
    /// `None`: allowed because the ledger could not be asked, and nothing is held.
    Taken(Option<Box<Lease>>),
    /// This limit had too little of it left.
    Refused { limit: LimitId, spec: Arc<LimitSpec> },
    /// The name was used before, and stays refused.
    NameIsSpent,
    /// The name was used for something else, or for something that is not held any more.
    NameIsUsed,
    /// It needs more of this limit than there ever is.
    Never(Arc<str>),
}

impl Admission {
    pub async fn attempt(
        &self,
        plan: &Plan,
        name: Name<'_>,
        policy: &RetryPolicy,
        domain: &Arc<str>,
    ) -> Result<Attempt, LedgerError> {
        if let Some(never) = never_fits(plan).lowest() {
            return Ok(Attempt::Never(Arc::from(plan.requirements[never].account.key.as_str())));
        }
        let mut findings = Findings::of(plan);
        let (now_ms, reserved_at_unix_ms) = (clock::monotonic_ms(), clock::unix_ms());
        let id = match self.reserve(plan, name, reserved_at_unix_ms, &mut findings).await? {
            Reserved::Held(id) => id,
            Reserved::NotAsked => return Ok(Attempt::Taken(None)),
            Reserved::Refused(RefusalCode::NotAsked) => {
                return Err(LedgerError::Unavailable("no limit could be asked".to_owned()));
            }
            Reserved::Refused(RefusalCode::IdAlreadyFailed | RefusalCode::Abandoned) => {
                return Ok(Attempt::NameIsSpent);
            }
            Reserved::Refused(code) if is_used(code) => return Ok(Attempt::NameIsUsed),
            Reserved::Refused(_) => {
                let first = findings.failed.lowest().expect("a refusal must name a transfer");
                let requirement = &plan.requirements[first];
                let (limit, spec) = (requirement.account.id, Arc::clone(&requirement.spec));
                return Ok(Attempt::Refused { limit, spec });
            }
        };
        // A job that waited in the queue was given no hint, so none is checked against this admission.
        self.note_allowed(plan, &findings, policy, domain, false, now_ms);
        Ok(Attempt::Taken(super::chain::lease_of(plan, &findings, id, reserved_at_unix_ms)))
    }
}
