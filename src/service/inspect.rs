//! What people look at: limits with what is used of them, leases of this instance, and the metrics.
//!
//! Changes nothing. Refuses to know the wire.

use std::fmt;
use std::sync::Arc;

use super::Service;
use crate::clock;
use crate::lease::table::LeaseState;
use crate::lease::{Held, Lease};
use crate::ledger::{Balance, Ledger, LedgerError, SlabView};
use crate::registry::NamedLimit;
use crate::retry::eta;
use crate::telemetry::{LimitLabel, RatelimitMetrics};

/// A limit, and what its account holds.
#[derive(Debug)]
pub(crate) struct LimitState {
    pub(crate) limit: Arc<NamedLimit>,
    /// `None` while the ledger can't be asked.
    pub(crate) balance: Option<Balance>,
    /// What this instance holds of it to hand out by itself.
    pub(crate) slab: Option<SlabView>,
}

/// A lease of this instance.
#[derive(Debug)]
pub(crate) struct LeaseView {
    pub(crate) state: LeaseState,
    pub(crate) lease: Lease,
    pub(crate) job_id: String,
    /// While it is reserved, unless its keys are too long for one.
    pub(crate) token: Option<String>,
    pub(crate) age_ms: u64,
    /// When it is worth looking again.
    pub(crate) look_again_seconds: u64,
}

impl LeaseView {
    /// When this comes back by itself.
    pub(crate) fn expires_in_ms(&self, held: &Held) -> u64 {
        held.lifetime_ms().saturating_sub(self.age_ms)
    }
}

impl Service {
    /// The named limits by their keys, in one read. Derived ones are asked for by key, because there may be millions.
    pub(crate) async fn limits(&self) -> Result<Vec<LimitState>, LedgerError> {
        let mut named: Vec<Arc<NamedLimit>> = self.live.load().registry.named().cloned().collect();
        named.sort_by(|a, b| a.account.key.cmp(&b.account.key));
        self.states(named).await
    }

    /// A named limit, or one that a rule derives; `None` if nothing does.
    pub(crate) async fn limit(&self, key: &str) -> Result<Option<LimitState>, LedgerError> {
        let limit = self.live.load().registry.resolve(key, &self.admission.accounts);
        let Some(limit) = limit else { return Ok(None) };
        Ok(self.states(vec![limit]).await?.pop())
    }

    /// A limit that was just written: it holds, also when the ledger can't say what is used of it.
    pub(crate) async fn written_limit(&self, limit: Arc<NamedLimit>) -> LimitState {
        let balances = self.admission.ledger.balances(vec![limit.want()]).await;
        let balance = balances.ok().and_then(|balances| balances.first().copied());
        let slab = self.admission.ledger.slab(&limit.account);
        LimitState { limit, balance, slab }
    }

    pub(super) async fn states(&self, limits: Vec<Arc<NamedLimit>>) -> Result<Vec<LimitState>, LedgerError> {
        let wants = limits.iter().map(|limit| limit.want()).collect();
        let balances = self.admission.ledger.balances(wants).await?;
        let state = |(limit, balance): (Arc<NamedLimit>, _)| {
            let slab = self.admission.ledger.slab(&limit.account);
            LimitState { limit, balance: Some(balance), slab }
        };
        Ok(limits.into_iter().zip(balances).map(state).collect())
    }

    pub(crate) fn lease(&self, id: &str) -> Option<LeaseView> {
        let view = self.leases.view(id)?;
        let age_ms = clock::unix_ms().saturating_sub(view.lease.reserved_at_unix_ms);
        let (token, look_again_seconds) = match view.state {
            LeaseState::Open => {
                let wait = eta::elapsed_or_default(&self.live.load().retry.queue, age_ms);
                (self.leases.token(&view.lease), wait)
            }
            LeaseState::Completed => (None, 0),
        };
        let (state, lease, job_id) = (view.state, view.lease, view.job_id);
        Some(LeaseView { state, lease, job_id, token, age_ms, look_again_seconds })
    }

    /// Everything that is measured, as Prometheus reads it. What is a reading and not a count is read now.
    pub(crate) async fn metrics_text(&self) -> Result<String, fmt::Error> {
        self.read_gauges().await;
        self.metrics.ratelimit.iter().for_each(RatelimitMetrics::read_memory);
        let ratio = self.live.load().retry_budget_ratio(clock::monotonic_ms());
        self.metrics.retry_budget_ratio.set(ratio);
        self.metrics.ledger_up.set(i64::from(self.is_ledger_up()));
        let ledgers = self.ledgers();
        self.metrics.ledgers.set(i64::try_from(ledgers.len()).unwrap_or(i64::MAX));
        let safe_after_ms = ledgers.last().map_or(0, |ledger| ledger.safe_after_unix_ms);
        self.metrics.ledger_safe_after.set(safe_after_ms as f64 / 1000.0);
        self.metrics.encode()
    }

    async fn read_gauges(&self) {
        let Ok(limits) = self.limits().await else { return };
        let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
        for LimitState { limit, balance, .. } in limits {
            let (label, metrics) = (LimitLabel { limit: limit.account.key.to_string() }, &self.metrics);
            let balance = balance.unwrap_or_default();
            metrics.limit_used.get_or_create(&label).set(gauge(balance.used));
            metrics.limit_capacity.get_or_create(&label).set(gauge(balance.capacity));
            metrics.limit_debt.get_or_create(&label).set(gauge(balance.debt));
        }
    }
}
