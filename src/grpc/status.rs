//! Errors as gRPC statuses, with Envoy's reaction beside each.
//!
//! Envoy treats every gRPC error alike: `failure_mode_deny` decides, 500 or pass. So a refusal is never an error.

use tonic::Status;

use crate::admission::DecideError;
use crate::ledger::LedgerError;

pub fn of_decide(error: &DecideError) -> Status {
    match error {
        // The request can't be read as one; the same request would fail again.
        DecideError::Invalid(error) => Status::invalid_argument(format!("descriptors: {error}")),
        DecideError::Ledger(error) => of_ledger(error),
    }
}

pub fn of_ledger(error: &LedgerError) -> Status {
    match error {
        // Nothing was charged: a retry policy with `unavailable` may try another instance.
        LedgerError::Unavailable(_) | LedgerError::Full(_) | LedgerError::QueueFull { .. } => {
            Status::unavailable(error.to_string())
        }
        // It may have been charged, and is voided if so: never retried by us.
        LedgerError::TimedOut(_) => Status::deadline_exceeded(error.to_string()),
    }
}
