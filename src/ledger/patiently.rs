//! A chain that nobody else would send again: it is sent until the ledger answers, or until there is no use in it.
//!
//! Its transfers are named, so that however often it is sent, it happens once.

use super::{Chain, Ledger, LedgerError, Outcome};
use crate::retry::backoff::Backoff;

/// Sends what `chain` says now, again and again while the ledger is away and it is not too late.
pub(crate) async fn complete_patiently(
    ledger: &impl Ledger,
    chain: impl Fn() -> Chain,
    is_too_late: impl Fn() -> bool,
) -> Result<Outcome, LedgerError> {
    let mut backoff = Backoff::default();
    loop {
        match ledger.complete(&chain()).await {
            Ok(outcome) => return Ok(outcome),
            // Waiting doesn't help against a full ledger.
            Err(error @ LedgerError::Full(_)) => return Err(error),
            Err(error) if is_too_late() => return Err(error),
            Err(_) => tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await,
        }
    }
}
