//! Files and the admin API put together, without doing anything about it.

use std::sync::Arc;

use crate::config::{Hot, Problem, retry_policy_from_json};
use crate::ledger::Account;
use crate::limit::LimitKey;
use crate::registry::{NamedLimit, Registry};
use crate::retry::policy::RetryPolicy;
use crate::snapshot::PolicyOverride;
use crate::state::State;

/// What a snapshot is made of.
#[derive(Debug)]
pub struct Composed {
    /// With the limits of the API in its registry.
    pub hot: Hot,
    pub retry_override: Option<PolicyOverride>,
    /// Limits of the API that a file has now.
    pub taken_over: Vec<LimitKey>,
}

/// Puts what the admin API made beside what the files say. Fails only if an override doesn't fit the files.
pub fn compose(mut hot: Hot, state: &State, before: Option<&Registry>) -> Result<Composed, Vec<Problem>> {
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
pub fn policy_override(patch: serde_json::Value, file: &RetryPolicy) -> Result<PolicyOverride, Vec<Problem>> {
    let named = |problem: Problem| Problem { file: Arc::from("PUT /v1/retry-policy"), ..problem };
    let policy = retry_policy_from_json(&patch, file)
        .map_err(|problems| problems.into_iter().map(named).collect::<Vec<_>>())?;
    Ok(PolicyOverride { patch, policy })
}
