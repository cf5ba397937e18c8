//! What the sources say and what the admin API made, put together, without doing anything about it.

use std::sync::Arc;

use crate::config::{self, Content, Hot, Problem, retry_policy_from_json};
use crate::ledger::Account;
use crate::limit::LimitKey;
use crate::registry::changes::{self, ConfigChange};
use crate::registry::outline::Outline;
use crate::registry::{NamedLimit, Registry};
use crate::retry::policy::RetryPolicy;
use crate::snapshot::{PolicyOverride, Snapshot};
use crate::state::State;

/// What a snapshot is made of.
#[derive(Debug)]
pub(crate) struct Composed {
    /// With the limits of the API in its registry.
    pub(crate) hot: Hot,
    pub(crate) retry_override: Option<PolicyOverride>,
    /// Limits that were made through the admin API, and that a source defines now.
    pub(crate) taken_over: Vec<LimitKey>,
}

/// What all sources say, with what the admin API made beside it, and what that changes in what is live. Fails with every
/// problem of every source; a domain that two of them have is a problem too.
pub(super) fn compose(
    contents: &[Arc<Content>],
    state: &State,
    live: &Snapshot,
) -> Result<(Composed, Vec<ConfigChange>), Vec<Problem>> {
    let contents: Vec<&Content> = contents.iter().map(Arc::as_ref).collect();
    let hot = config::load_hot(&contents, Some(&live.registry))?;
    let composed = with_api(hot, state, Some(&live.registry))?;
    let mut changes = changes::between(&Outline::of(&live.registry), &Outline::of(&composed.hot.registry));
    changes.extend(changes::of_policy(&as_json(&live.file_retry), &as_json(&composed.hot.retry_policy)));
    Ok((composed, changes))
}

/// Puts what the admin API made beside what the sources say. Fails only if an override doesn't fit.
pub(crate) fn with_api(
    mut hot: Hot,
    state: &State,
    before: Option<&Registry>,
) -> Result<Composed, Vec<Problem>> {
    let retry_override = match &state.retry_override {
        Some(patch) => Some(policy_override(patch.clone(), &hot.retry_policy)?),
        None => None,
    };
    let mut taken_over = Vec::new();
    for (key, spec) in state.api_limits() {
        let known = before.and_then(|before| before.get_named(key.as_str()));
        let account = known.map(|limit| Arc::clone(&limit.account));
        let account = account.unwrap_or_else(|| Arc::new(Account::new(key.clone())));
        if hot.registry.add_named(Arc::new(NamedLimit { account, spec: Arc::clone(spec) })).is_err() {
            taken_over.push(key.clone());
        }
    }
    Ok(Composed { hot, retry_override, taken_over })
}

/// A patch over a policy.
pub(super) fn policy_override(
    patch: serde_json::Value,
    file: &RetryPolicy,
) -> Result<PolicyOverride, Vec<Problem>> {
    let named = |problem: Problem| Problem { file: Arc::from("PUT /v1/retry-policy"), ..problem };
    let policy = retry_policy_from_json(&patch, file)
        .map_err(|problems| problems.into_iter().map(named).collect::<Vec<_>>())?;
    Ok(PolicyOverride { patch, policy })
}

/// A policy for comparing and showing. It is plain data, so that this can't fail.
pub(crate) fn as_json(policy: &RetryPolicy) -> serde_json::Value {
    serde_json::to_value(policy).unwrap_or_default()
}
