//! Forgiving: what a limit owes is not owed any more, and jobs that wait for the limit may try again.
//!
//! Refuses to know the wire.

use super::Service;
use crate::ledger::{Ledger, LedgerError};

impl Service {
    /// Forgives what a limit owes; `None` if there is no such limit.
    pub(crate) async fn forgive(&self, key: &str) -> Result<Option<()>, LedgerError> {
        let limit = self.live.load().registry.resolve(key, &self.admission.accounts);
        let Some(limit) = limit else { return Ok(None) };
        self.admission.ledger.forgive(limit.want()).await?;
        tracing::info!(limit = %limit.account.key, "the debt of a limit was forgiven through the API");
        self.queue.freed([limit.account.id].into_iter());
        Ok(Some(()))
    }
}
