//! A plan in the ledger's words: the chain that reserves it, and the lease of what was reserved. Decides nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Name;
use super::findings::{Findings, charged};
use crate::lease::{Held, Lease};
use crate::ledger::{Action, Chain, Hold, Keep, Transfer};
use crate::limit::{Cost, LeaseId, RequirementSet};
use crate::registry::{Enforcement, Plan, Requirement};

/// The chain of what can deny, and the requirement behind each of its transfers.
pub(super) fn chain_of(
    plan: &Plan,
    name: Name<'_>,
    lease: &LeaseId,
    left_out: RequirementSet,
) -> (Chain, SmallVec<[usize; 4]>) {
    let mut members = SmallVec::new();
    let mut transfers = SmallVec::new();
    let mut completed = false;
    let shadowed = plan.requirements.iter().any(|r| r.enforcement == Enforcement::Shadow);
    for (index, requirement) in plan.requirements.iter().enumerate() {
        let counts = requirement.enforcement != Enforcement::Shadow && requirement.amount > 0;
        if !counts || left_out.contains(index) {
            continue;
        }
        completed |= needs_completion(requirement);
        members.push(index);
        transfers.push(transfer_of(requirement));
    }
    let keep = match keep(name, completed) {
        // Its caller may leave while the shadows are being counted.
        Keep::Nothing if shadowed => Keep::ForUndo,
        keep => keep,
    };
    (Chain { lease: lease.clone(), keep, transfers }, members)
}

/// All that was reserved, shadows too, as the chain that gives it back names it.
pub(super) fn undo_of(plan: &Plan, findings: &Findings, name: Name<'_>, lease: &LeaseId) -> Chain {
    let (mut chain, _) = chain_of(plan, name, lease, findings.left_out);
    let shadows = charged(plan, findings).filter(|r| r.enforcement == Enforcement::Shadow);
    chain.transfers.extend(shadows.map(transfer_of));
    chain.keep = keep(name, true);
    chain
}

/// The chain of one requirement alone.
pub(super) fn chain_of_one(requirement: &Requirement, name: Name<'_>, lease: &LeaseId) -> Chain {
    let transfers = SmallVec::from_iter([transfer_of(requirement)]);
    Chain { lease: lease.clone(), keep: keep(name, needs_completion(requirement)), transfers }
}

/// Who may name a chain again: its caller, who gave it a name, or whoever completes it.
fn keep(name: Name<'_>, completed: bool) -> Keep {
    match (name, completed) {
        (Name::Request(_), false) => Keep::Name,
        (Name::Request(_), true) | (Name::Lease(_), _) => Keep::ForRetries,
        (Name::Fresh, true) => Keep::ForCompletion,
        (Name::Fresh, false) => Keep::Nothing,
    }
}

fn transfer_of(requirement: &Requirement) -> Transfer {
    let hold = Hold {
        amount: requirement.amount,
        lifetime_seconds: requirement.spec.kind.lifetime_seconds(),
        capacity: requirement.spec.capacity,
        is_exact: requirement.spec.is_never_in_slabs() || needs_completion(requirement),
        overage: requirement.spec.overage,
    };
    Transfer { account: Arc::clone(&requirement.account), action: Action::Reserve(hold) }
}

pub(super) fn lease_id(plan: &Plan, name: Name<'_>, attempt: u32, now_unix_ms: u64) -> LeaseId {
    match name {
        Name::Fresh => LeaseId::fresh(now_unix_ms, fastrand::u128(..)),
        Name::Request(id) => LeaseId::of_request(&request_text(plan, id, attempt), now_unix_ms),
        Name::Lease(id) => id.clone(),
    }
}

/// What a request is called together with what it asks: the same id with other limits or amounts is another request.
fn request_text(plan: &Plan, id: &str, attempt: u32) -> String {
    let start = format!("{id}#{attempt}");
    plan.requirements
        .iter()
        .fold(start, |text, requirement| format!("{text}:{}x{}", requirement.account.id, requirement.amount))
}

/// The lease of what was charged, if any of it needs a completion. What can't be reconciled is not in it: the hits of a
/// completion are tokens or bytes, and must not be charged to a limit that counts requests.
pub(super) fn lease_of(
    plan: &Plan,
    findings: &Findings,
    id: LeaseId,
    reserved_at_unix_ms: u64,
) -> Option<Box<Lease>> {
    let held: Vec<Held> = charged(plan, findings).filter(|r| needs_completion(r)).map(held).collect();
    (!held.is_empty()).then(|| Box::new(Lease { id, reserved_at_unix_ms, held }))
}

fn needs_completion(requirement: &Requirement) -> bool {
    requirement.reconcile || requirement.spec.kind.is_concurrency()
}

fn held(requirement: &Requirement) -> Held {
    Held {
        key: requirement.account.key.clone(),
        amount: requirement.amount,
        kind: requirement.spec.kind,
        overage: requirement.spec.overage,
        costs_hits: requirement.cost == Cost::Hits,
        is_named: *requirement.name == *requirement.account.key.as_str(),
    }
}
