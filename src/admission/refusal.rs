//! What a refusal of the ledger means for the request.

use crate::ledger::{Refusal, RefusalCode};
use crate::limit::RequirementSet;
use crate::telemetry::Reason;

/// The name was used for something that is not held any more.
pub(super) fn is_over(code: RefusalCode) -> bool {
    matches!(
        code,
        RefusalCode::Abandoned
            | RefusalCode::PendingTransferAlreadyVoided
            | RefusalCode::PendingTransferExpired
    )
}

/// The name was used for something else, or for something that is not held any more.
pub(crate) fn is_used(code: RefusalCode) -> bool {
    code == RefusalCode::ExistsWithDifferentFields || is_over(code)
}

pub(super) fn reason_of(code: RefusalCode) -> Reason {
    match code {
        RefusalCode::LimitDecreasing => Reason::LimitDecreasing,
        RefusalCode::InDebt => Reason::Debt,
        // A name that was given back is like one that was refused: another one is needed.
        RefusalCode::ExceedsCredits | RefusalCode::IdAlreadyFailed | RefusalCode::Abandoned => {
            Reason::OverLimit
        }
        RefusalCode::ExistsWithDifferentFields
        | RefusalCode::PendingTransferNotFound
        | RefusalCode::PendingTransferExpired
        | RefusalCode::PendingTransferAlreadyVoided
        | RefusalCode::NotAsked => Reason::BackendError,
    }
}

pub(super) fn failed_requirements(members: &[usize], refusal: Refusal) -> RequirementSet {
    refusal.failed.iter().map(|place| members[place]).collect()
}
