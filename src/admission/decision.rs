//! What a decision says: a status per descriptor, and for a denial which limit, why and when to come back.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Name;
use super::chain::{lease_of, undo_of};
use super::findings::Findings;
use super::late::LateCharge;
use crate::activity;
use crate::lease::Lease;
use crate::ledger::{Chain, RefusalCode};
use crate::limit::{Kind, LeaseId, LimitKey, RequirementSet, Unit};
use crate::registry::{Enforcement, Plan, Requirement, Wanted};
use crate::retry::RetryHint;
use crate::telemetry::Reason;

/// The answer to a request.
#[derive(Debug)]
pub struct Decision {
    /// One per descriptor, in the order of the request.
    pub statuses: SmallVec<[DescriptorStatus; 2]>,
    /// `None`: allowed.
    pub denial: Option<Denial>,
    /// Why it is what it is.
    pub reason: Reason,
    /// The lease that a completion must name, if one is needed. Never in a denial.
    pub lease: Option<Box<Lease>>,
    /// There is one with each lease: all that was reserved, to be given back if the caller never hears of it.
    pub undo: Option<Box<Chain>>,
    /// What the ledger said, if it was the ledger that refused.
    pub refused: Option<RefusalCode>,
    /// What it is charged although it is refused.
    pub late: Option<Box<LateCharge>>,
    /// When the ledger decided, by the monotonic clock, if it was asked and says so.
    pub decided_at_ns: Option<u64>,
    /// What is free of each limit after it was allowed, in the order of the plan, where that is known.
    pub(crate) available: SmallVec<[Option<u64>; 4]>,
    /// The requirements that were not charged although it was allowed: quotas and shadows that are over.
    pub(crate) left_out: RequirementSet,
}

#[derive(Debug, Clone)]
pub struct Denial {
    /// The limit that said no. `None` if the request was refused before any limit was asked.
    pub limit: Option<LimitKey>,
    pub reason: Reason,
    /// `None` for what can never be admitted.
    pub retry_after_ms: Option<u64>,
}

impl Denial {
    /// What the denied client is told in headers.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let hint = self.retry_after_ms.map(|ms| RetryHint { ms });
        let retry_after = hint.map(|hint| ("retry-after", hint.retry_after_seconds().to_string()));
        let retry_after_ms = hint.map(|hint| ("retry-after-ms", hint.ms.to_string()));
        let limit = self.limit.as_ref().map(|limit| ("x-sluice-limit", activity::shown(limit).to_string()));
        let reason = Some(("x-sluice-reason", self.reason.name().to_owned()));
        [retry_after, retry_after_ms, limit, reason].into_iter().flatten()
    }
}

/// The answer to one descriptor.
#[derive(Debug, Clone)]
pub struct DescriptorStatus {
    pub is_over: bool,
    pub limit: Option<CurrentLimit>,
    pub remaining: u32,
    pub reset_ms: Option<u64>,
}

/// A limit in Envoy's terms.
#[derive(Debug, Clone)]
pub struct CurrentLimit {
    pub requests_per_unit: u32,
    /// `None` for a window that has no name.
    pub unit: Option<Unit>,
    pub name: Arc<str>,
}

impl Decision {
    pub(super) fn out_of_budget(descriptors: usize, hint_ms: u64) -> Self {
        let over = DescriptorStatus { is_over: true, reset_ms: Some(hint_ms), ..DescriptorStatus::bare() };
        let denial = Denial { limit: None, reason: Reason::RetryBudget, retry_after_ms: Some(hint_ms) };
        let statuses = (0..descriptors).map(|_| over.clone()).collect();
        Self { statuses, denial: Some(denial), reason: Reason::RetryBudget, ..Self::bare() }
    }

    /// The denial of a request that some limits refuse. It may be charged all the same.
    pub(super) fn denied(
        plan: &Plan,
        name: Name<'_>,
        mut findings: Findings,
        reason: Reason,
        hint_ms: Option<u64>,
    ) -> Self {
        // All or nothing: none of its limits was charged.
        let refused = RequirementSet::first(plan.requirements.len());
        let late = LateCharge::of(plan, refused, name);
        if late.is_some() {
            findings.expect_late_charges(plan, refused);
        }
        Self { late, ..Self::unavailable(plan, &findings, reason, hint_ms) }
    }

    /// The denial of a request, for whatever reason.
    pub(super) fn unavailable(
        plan: &Plan,
        findings: &Findings,
        reason: Reason,
        hint_ms: Option<u64>,
    ) -> Self {
        let failed = findings.failed.iter().map(|index| &plan.requirements[index]);
        // A quota that is over is named only if no stricter limit failed; among equals, the first.
        let first = failed.min_by_key(|requirement| std::cmp::Reverse(requirement.enforcement));
        // When the ledger could not be asked, no limit said anything.
        let asked = !matches!(reason, Reason::QueueFull | Reason::BackendError);
        let limit = first.filter(|_| asked).map(|requirement| requirement.account.key.clone());
        let denial = Denial { limit, reason, retry_after_ms: hint_ms };
        let statuses = statuses(plan, findings, hint_ms);
        let decided_at_ns = findings.decided_at_ns;
        Self { statuses, denial: Some(denial), reason, decided_at_ns, ..Self::bare() }
    }

    /// A quota that was left out because it is over may be charged what it has left.
    pub(super) fn allowed(
        plan: &Plan,
        mut findings: Findings,
        name: Name<'_>,
        id: LeaseId,
        reserved_at_unix_ms: u64,
    ) -> Self {
        let lease = lease_of(plan, &findings, id, reserved_at_unix_ms);
        let undo = lease.as_ref().map(|lease| Box::new(undo_of(plan, &findings, name, &lease.id)));
        let late = LateCharge::of(plan, findings.left_out, name);
        if late.is_some() {
            findings.expect_late_charges(plan, findings.left_out);
        }
        let statuses = statuses(plan, &findings, None);
        let Findings { available, left_out, decided_at_ns, .. } = findings;
        Self { statuses, lease, undo, late, available, left_out, decided_at_ns, ..Self::bare() }
    }

    /// Allowed because the ledger could not be asked.
    pub(super) fn unasked(plan: &Plan, findings: &Findings) -> Self {
        let statuses = statuses(plan, findings, None);
        Self { statuses, reason: Reason::BackendError, ..Self::bare() }
    }

    /// Allowed, and nothing else is said.
    fn bare() -> Self {
        Self {
            statuses: SmallVec::new(),
            denial: None,
            reason: Reason::Allowed,
            lease: None,
            undo: None,
            refused: None,
            late: None,
            available: SmallVec::new(),
            left_out: RequirementSet::EMPTY,
            decided_at_ns: None,
        }
    }
}

impl DescriptorStatus {
    /// That of a descriptor that no limit applies to.
    pub(crate) fn bare() -> Self {
        Self { is_over: false, limit: None, remaining: 0, reset_ms: None }
    }
}

fn statuses(plan: &Plan, findings: &Findings, hint_ms: Option<u64>) -> SmallVec<[DescriptorStatus; 2]> {
    plan.descriptors.iter().map(|wanted| status(plan, findings, *wanted, hint_ms)).collect()
}

fn status(plan: &Plan, findings: &Findings, wanted: Wanted, hint_ms: Option<u64>) -> DescriptorStatus {
    let (all, enforcement) = match wanted {
        Wanted::Bare => return DescriptorStatus::bare(),
        Wanted::Unlimited => return DescriptorStatus { remaining: u32::MAX, ..DescriptorStatus::bare() },
        Wanted::Limited { requirements, enforcement } => (requirements, enforcement),
    };
    let failed = match enforcement {
        Enforcement::Shadow => None,
        Enforcement::Quota | Enforcement::Enforced => all.intersection(findings.failed).lowest(),
    };
    let (index, is_over) = match failed {
        None => (nearest(plan, findings, all), false),
        Some(failed) => (failed, true),
    };
    let requirement = &plan.requirements[index];
    let available = findings.available[index].unwrap_or(requirement.spec.capacity);
    DescriptorStatus {
        is_over,
        limit: Some(current_limit(requirement)),
        remaining: u32::try_from(available).unwrap_or(u32::MAX),
        reset_ms: if is_over { hint_ms } else { window_ms(requirement) },
    }
}

/// Of these requirements, the one with the least left. A rolling limit comes first: people ask how much they may still do,
/// and what is held now says nothing of that.
fn nearest(plan: &Plan, findings: &Findings, requirements: RequirementSet) -> usize {
    let is_concurrency = |index: usize| plan.requirements[index].spec.kind.is_concurrency();
    let left = |index: usize| findings.available[index].unwrap_or(u64::MAX);
    requirements.iter().min_by_key(|&index| (is_concurrency(index), left(index))).unwrap_or(0)
}

/// When everything spent now is back.
fn window_ms(requirement: &Requirement) -> Option<u64> {
    match requirement.spec.kind {
        Kind::Rolling { window_seconds } => Some(u64::from(window_seconds.get()) * 1000),
        Kind::Concurrency { .. } => None,
    }
}

fn current_limit(requirement: &Requirement) -> CurrentLimit {
    let unit = match requirement.spec.kind {
        Kind::Rolling { window_seconds } => Unit::of_seconds(window_seconds),
        Kind::Concurrency { .. } => None,
    };
    let requests_per_unit = u32::try_from(requirement.spec.capacity).unwrap_or(u32::MAX);
    CurrentLimit { requests_per_unit, unit, name: Arc::clone(&requirement.name) }
}
