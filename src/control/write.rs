//! What the admin API changes: limits that no file owns, and the override of the retry policy.
//!
//! Every write first checks all reasons to refuse it. Then it goes to the disk, and then into the live snapshot. It runs to its end even
//! if its caller leaves: otherwise what is on the disk and what is live could differ.

use std::sync::Arc;

use serde_json::Value;
use tokio::sync::MutexGuard;

use super::compose::policy_override;
use super::{Control, Owned, saved};
use crate::config::{Hot, Problem};
use crate::ledger::Account;
use crate::limit::{LimitKey, LimitSpec, Origin};
use crate::registry::NamedLimit;
use crate::snapshot::{PolicyOverride, Snapshot};
use crate::state::{API_LIMITS_MAX, State};

#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    #[error("{0} defines it: change it there, and it is live within two seconds")]
    OwnedByFile(Origin),
    #[error("there is no limit with this key")]
    Unknown,
    #[error("there are {API_LIMITS_MAX} limits made through the API already")]
    TooMany,
    #[error("{}", list(.0))]
    Invalid(Vec<Problem>),
    #[error("it could not be saved, so nothing was changed: {0}")]
    NotSaved(#[from] std::io::Error),
}

fn list(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

impl Control {
    /// Who owns the limit with this key; `None` if there is none.
    pub(crate) fn owner(&self, key: &str) -> Option<Origin> {
        let limit = self.live().registry.resolve(key, &self.service.admission.accounts);
        limit.map(|limit| limit.spec.origin.clone())
    }

    /// Makes or changes a limit.
    pub(crate) async fn put_limit(
        self: &Arc<Self>,
        key: LimitKey,
        spec: LimitSpec,
    ) -> Result<Arc<NamedLimit>, WriteError> {
        let control = Arc::clone(self);
        self.to_the_end(async move {
            let mut owned = control.writable(&key).await?;
            let live = control.live();
            let known = live.registry.get_named(key.as_str());
            if let Some(known) = known.filter(|known| *known.spec == spec) {
                return Ok(Arc::clone(known));
            }
            let account = known.map(|limit| Arc::clone(&limit.account));
            let account = account.unwrap_or_else(|| Arc::new(Account::new(key.clone())));
            let limit = Arc::new(NamedLimit { account, spec: Arc::new(spec) });
            let mut next = owned.state.clone();
            if !next.put(&key, Arc::clone(&limit.spec)) {
                return Err(WriteError::TooMany);
            }
            owned.state = saved(next, State::save_limits).await?;
            let mut hot = live.hot();
            hot.registry.put_named(Arc::clone(&limit));
            control.provision_new(&hot.registry, &live.registry).await;
            let version = control.replace(&live, hot, live.retry_override.clone());
            let (capacity, kind) = (limit.spec.capacity, limit.spec.kind.name());
            let what = if known.is_some() { "changed" } else { "made" };
            tracing::info!(version, limit = %key, capacity, kind, "a limit was {what} through the API");
            drop(owned);
            control.provision_soon().await;
            Ok(limit)
        })
        .await
    }

    /// Removes a limit. Its account stays in the ledger.
    pub(crate) async fn delete_limit(self: &Arc<Self>, key: LimitKey) -> Result<(), WriteError> {
        let control = Arc::clone(self);
        self.to_the_end(async move {
            let mut owned = control.writable(&key).await?;
            let live = control.live();
            if live.registry.get_named(key.as_str()).is_none() {
                return Err(WriteError::Unknown);
            }
            let mut next = owned.state.clone();
            next.remove(key.as_str());
            owned.state = saved(next, State::save_limits).await?;
            let mut hot = live.hot();
            hot.registry.remove_named(key.as_str());
            let version = control.replace(&live, hot, live.retry_override.clone());
            tracing::info!(version, limit = %key, "a limit was removed through the API");
            Ok(())
        })
        .await
    }

    /// Puts a policy, whole or in part, over the file's; `None` returns to the file's.
    pub(crate) async fn override_retry_policy(
        self: &Arc<Self>,
        patch: Option<Value>,
    ) -> Result<(), WriteError> {
        let control = Arc::clone(self);
        self.to_the_end(async move {
            let mut owned = control.owned.lock().await;
            let live = control.live();
            let over = patch.map(|patch| policy_override(patch, &live.file_retry)).transpose();
            let over = over.map_err(WriteError::Invalid)?;
            if over == live.retry_override {
                return Ok(());
            }
            let mut next = owned.state.clone();
            next.retry_override = over.as_ref().map(|over| over.patch.clone());
            owned.state = saved(next, State::save_override).await?;
            let what = if over.is_some() { "put over the file's" } else { "the file's again" };
            let version = control.replace(&live, live.hot(), over);
            tracing::info!(version, "the retry policy is {what}");
            control.retry_rejected(&mut owned).await;
            Ok(())
        })
        .await
    }

    /// The right to write a limit that no file owns.
    async fn writable(&self, key: &LimitKey) -> Result<MutexGuard<'_, Owned>, WriteError> {
        let owned = self.owned.lock().await;
        match self.owner(key.as_str()) {
            Some(origin) if origin.is_source() => Err(WriteError::OwnedByFile(origin)),
            _ => Ok(owned),
        }
    }

    /// The next version with the same files.
    fn replace(&self, live: &Snapshot, hot: Hot, retry_override: Option<PolicyOverride>) -> u64 {
        let (version, metrics) = (live.version + 1, &self.service.metrics);
        self.swap(Snapshot::new(version, live.loaded_at_unix_ms, hot, retry_override, metrics, Some(live)));
        version
    }

    /// Runs it to its end, whether or not anybody waits for it.
    async fn to_the_end<T: Send + 'static>(&self, write: impl Future<Output = T> + Send + 'static) -> T {
        self.tasks.run_to_the_end(write).await.expect("a write must not panic")
    }
}
