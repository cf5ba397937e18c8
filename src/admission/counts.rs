//! What a decision adds to the metrics of the limits that it met. A shadow limit counts as what it would have said.

use std::sync::Arc;

use super::Admission;
use super::findings::Findings;
use crate::limit::{LimitKey, Origin};
use crate::registry::{Enforcement, Plan, Requirement};
use crate::telemetry::{Hit, MetricName};

impl Admission {
    /// Counts the decision for each limit. To be called when it is known what was free of each.
    pub(super) fn count_per_limit(&self, plan: &Plan, findings: &Findings, is_admitted: bool) {
        for (index, requirement) in plan.requirements.iter().enumerate() {
            let is_over = (findings.failed | findings.left_out).contains(index);
            if requirement.metric_per_value {
                self.metrics.limit_decided(requirement.account.key.as_str(), !is_over);
            }
            if let Some(ratelimit) = &self.metrics.ratelimit
                && let Some(name) = name(requirement)
            {
                let available = findings.available[index].unwrap_or(0);
                let amount = requirement.amount;
                let (left, taken) = match (is_admitted, is_over) {
                    (true, false) => (available.saturating_add(amount), amount),
                    // It may be charged although it is refused, or a quota that is over.
                    _ => (available, requirement.late.min(available)),
                };
                let is_shadow = requirement.enforcement == Enforcement::Shadow;
                let capacity = requirement.spec.capacity;
                ratelimit.count(&name, Hit { amount, capacity, left, taken, is_over, is_shadow });
            }
        }
    }
}

/// What envoyproxy/ratelimit's metrics call its limit; a limit that several share has no such name.
fn name(requirement: &Requirement) -> Option<Arc<MetricName>> {
    let by_values = requirement.metric_per_value || requirement.spec.origin == Origin::Override;
    match by_values {
        true => of_key(&requirement.account.key),
        false => requirement.spec.metric.as_ref().map(|names| Arc::clone(&names.ratelimit)),
    }
}

fn of_key(key: &LimitKey) -> Option<Arc<MetricName>> {
    let (domain, entries) = key.path()?;
    let descriptors = entries.into_iter().map(|(key, value)| match value.as_str() {
        "" => key,
        value => format!("{key}_{value}"),
    });
    Some(Arc::new(MetricName::new(&domain, descriptors)))
}
