//! The decision: one request in, one answer out.
//!
//! A ladder of refusals in the order below, then one atomic reserve. Nothing is charged unless everything is. Knows
//! neither protobuf nor HTTP, and never reads a balance to decide.

mod answer;

use std::sync::Arc;

use smallvec::SmallVec;

pub use self::answer::{Code, Decision, Denial, Status};
use crate::clock;
use crate::ledger::{
    self, Action, Chain, Hold, Keep, Ledger, LedgerError, OnFailure, Outcome, Refusal, Transfer, Verdict,
};
use crate::limit::{Accounts, LeaseId};
use crate::registry::{Ask, Enforcement, Plan, PlanError, Requirement, Wanted};
use crate::retry::{Retry, RetryHint};
use crate::snapshot::Snapshot;
use crate::telemetry::{Metrics, Reason};

/// One request, as the domain sees it.
#[derive(Debug)]
pub struct Request<'a> {
    pub domain: &'a str,
    pub asks: SmallVec<[Ask<'a>; 4]>,
    /// The caller says that it has tried before.
    pub is_retry: bool,
    /// What the caller calls this request, so that sending it twice charges once.
    pub request_id: Option<&'a str>,
}

/// Why a request has no answer.
#[derive(Debug, thiserror::Error)]
pub enum DecideError {
    #[error(transparent)]
    Invalid(#[from] PlanError),
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// Names tried for one request: quota descriptors left out one by one, and earlier sendings that were given back.
const ATTEMPTS_MAX: u32 = 64;

/// What deciding needs, shared by every way in.
#[derive(Debug)]
pub struct Admission {
    pub ledger: Ledger,
    pub accounts: Accounts,
    pub retry: Retry,
    pub metrics: Arc<Metrics>,
}

/// What was found out about the requirements of a request; bit n stands for requirement n.
#[derive(Debug, Default)]
struct Findings {
    failed: u32,
    /// Quota requirements that are over and were left out for it.
    left_out: u32,
    available: SmallVec<[Option<u64>; 4]>,
}

impl Findings {
    fn of(plan: &Plan) -> Self {
        Self { available: plan.requirements.iter().map(|_| None).collect(), ..Self::default() }
    }
}

impl Admission {
    pub async fn decide(&self, snapshot: &Snapshot, request: &Request<'_>) -> Result<Decision, DecideError> {
        let started = clock::instant();
        let decided = self.climb(snapshot, request).await;
        self.metrics.decision_seconds.observe(started.elapsed().as_secs_f64());
        let decision = decided?;
        let counters = snapshot.counters(request.domain);
        match &decision.denial {
            None => counters.allowed(decision.reason),
            Some(denial) => {
                counters.denied(denial.reason);
                if let Some(ms) = denial.retry_after_ms {
                    self.metrics.retry_after_ms.observe(ms as f64);
                }
            }
        }
        Ok(decision)
    }

    /// The ladder. The order of the rungs is the specification.
    async fn climb(&self, snapshot: &Snapshot, request: &Request<'_>) -> Result<Decision, DecideError> {
        let now_ms = clock::monotonic_ms();
        if let Err(hint) = self.within_budget(snapshot, request, now_ms) {
            return Ok(Decision::out_of_budget(request.asks.len(), hint.ms));
        }
        let plan = snapshot.registry.plan(request.domain, &request.asks, &self.accounts)?;
        let mut findings = Findings::of(&plan);

        let never = never_fits(&plan);
        if never != 0 && !leave_out(&plan, &mut findings, never) {
            findings.failed |= never;
            self.peek_the_rest(&plan, &mut findings);
            return Ok(Decision::denied(&plan, &findings, Reason::NeverFits, None));
        }
        let lease = match self.reserve(&plan, request, &mut findings).await {
            Ok(Ok(lease)) => lease,
            Ok(Err(reason)) => {
                self.count_per_limit(&plan, &findings);
                let hint = self.hint(snapshot, &plan, &findings, reason, now_ms);
                self.peek_the_rest(&plan, &mut findings);
                return Ok(Decision::denied(&plan, &findings, reason, Some(hint.ms)));
            }
            Err(LedgerError::QueueFull { waiting, per_second }) => {
                let hint = RetryHint::queue_full(&snapshot.retry, waiting as u64, per_second);
                findings.failed = everything(&plan);
                return Ok(Decision::denied(&plan, &findings, Reason::QueueFull, Some(hint.ms)));
            }
            Err(error) => return self.without_ledger(snapshot, &plan, error),
        };
        // From here on it succeeds.
        self.count_per_limit(&plan, &findings);
        self.count_shadows(&plan, request, &lease, &mut findings).await;
        self.retry.on_allowed(charged(&plan, &findings).map(|requirement| requirement.account.id), now_ms);
        charged(&plan, &findings).for_each(|requirement| requirement.account.end_decreasing());
        self.peek_the_rest(&plan, &mut findings);
        Ok(Decision::allowed(&plan, &findings, lease))
    }

    /// The ledger failed and said nothing: `on_failure` decides.
    fn without_ledger(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        error: LedgerError,
    ) -> Result<Decision, DecideError> {
        let mut findings = Findings::of(plan);
        match self.ledger.on_failure() {
            OnFailure::Allow => Ok(Decision::unasked(plan, &findings)),
            OnFailure::Deny => {
                let hint_ms = snapshot.retry.decreasing_ms;
                findings.failed = everything(plan);
                Ok(Decision::denied(plan, &findings, Reason::BackendError, Some(hint_ms)))
            }
            OnFailure::Error | OnFailure::Local { .. } => Err(error.into()),
        }
    }

    fn within_budget(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_>,
        now_ms: u64,
    ) -> Result<(), RetryHint> {
        if request.is_retry {
            self.retry.admit_retry(&snapshot.retry, now_ms, up_to)
        } else {
            self.retry.on_original(now_ms);
            Ok(())
        }
    }

    /// One atomic reserve of everything that can deny. A quota descriptor that is over is left out and the rest is
    /// tried again under another name, as long as one of them is not over.
    async fn reserve(
        &self,
        plan: &Plan,
        request: &Request<'_>,
        findings: &mut Findings,
    ) -> Result<Result<LeaseId, Reason>, LedgerError> {
        let mut attempt = 0;
        loop {
            let lease = lease_id(request.request_id, attempt);
            let (chain, members) = chain_of(plan, request.request_id.is_some(), &lease, findings.left_out);
            if members.is_empty() {
                return Ok(Ok(lease));
            }
            let Outcome { verdict, available } = self.ledger.apply(chain).await?;
            for (&member, available) in members.iter().zip(available) {
                findings.available[member] = Some(available);
            }
            let Verdict::Refused(refusal) = verdict else { return Ok(Ok(lease)) };
            let failed = failed_requirements(&members, refusal);
            if refusal.code == ledger::Code::Abandoned && attempt < ATTEMPTS_MAX {
                attempt += 1;
                continue;
            }
            if !leave_out(plan, findings, failed) {
                findings.failed |= failed;
                return Ok(Err(reason_of(refusal.code)));
            }
            attempt += 1;
        }
    }

    /// For descriptors that asked for a metric of their own.
    fn count_per_limit(&self, plan: &Plan, findings: &Findings) {
        for (index, requirement) in plan.requirements.iter().enumerate().filter(|(_, r)| r.metric_per_value) {
            self.metrics.limit_decided(requirement.account.key.as_str(), findings.failed & (1 << index) == 0);
        }
    }

    /// Shadow limits count what was admitted and never deny: each is a chain of its own, after the real one.
    async fn count_shadows(
        &self,
        plan: &Plan,
        request: &Request<'_>,
        lease: &LeaseId,
        findings: &mut Findings,
    ) {
        for (index, requirement) in plan.requirements.iter().enumerate() {
            if requirement.enforcement != Enforcement::Shadow || requirement.amount == 0 {
                continue;
            }
            let transfers = SmallVec::from_iter([transfer_of(requirement)]);
            let keep = keep(request.request_id.is_some(), needs_completion(requirement));
            let chain = Chain { lease: lease.clone(), keep, transfers };
            // A ledger that fails now costs a count of a limit that denies nobody.
            if let Ok(outcome) = self.ledger.apply(chain).await {
                findings.available[index] = outcome.available.first().copied();
                if outcome.verdict != Verdict::Done {
                    self.metrics.shadow_denials.inc();
                }
            }
        }
    }

    /// The largest hint over the requirements that failed.
    fn hint(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        findings: &Findings,
        reason: Reason,
        now_ms: u64,
    ) -> RetryHint {
        let failed = (0..plan.requirements.len()).filter(|n| findings.failed & (1 << n) != 0);
        let mut failed = failed.map(|n| &plan.requirements[n]);
        if reason == Reason::LimitDecreasing {
            let since_ms =
                failed.next().map_or(now_ms, |requirement| requirement.account.decreasing_since_ms(now_ms));
            return RetryHint::decreasing(&snapshot.retry, now_ms.saturating_sub(since_ms));
        }
        let failed = failed.map(|requirement| (requirement.account.id, requirement.spec.kind));
        let hint = self.retry.on_denied(failed, &snapshot.retry, now_ms, up_to);
        hint.map_or(RetryHint { ms: snapshot.retry.decreasing_ms }, |(_, hint)| hint)
    }

    /// What is free on accounts that were not part of the reserve, where that costs no round trip.
    fn peek_the_rest(&self, plan: &Plan, findings: &mut Findings) {
        for (requirement, available) in plan.requirements.iter().zip(&mut findings.available) {
            if available.is_none() {
                *available = self.ledger.peek(&requirement.account, requirement.spec.capacity);
            }
        }
    }
}

/// The requirements that no wait would ever let pass.
fn never_fits(plan: &Plan) -> u32 {
    let all = plan.requirements.iter().enumerate();
    let never = all.filter(|(_, r)| r.amount > r.spec.capacity && r.enforcement != Enforcement::Shadow);
    never.fold(0, |mask, (index, _)| mask | 1 << index)
}

/// Leaves out the quota descriptors that `failed` puts over. False if that doesn't help: a limit that is nobody's quota
/// failed, or no quota descriptor is left.
fn leave_out(plan: &Plan, findings: &mut Findings, failed: u32) -> bool {
    if failed & !quota_mask(plan) != 0 {
        return false;
    }
    let mut left = false;
    let mut still_needed = 0;
    for wanted in &plan.descriptors {
        if let Wanted::Limited { requirements, enforcement } = *wanted {
            let over = requirements & (failed | findings.left_out) != 0;
            if enforcement == Enforcement::Quota && !over {
                left = true;
            }
            if enforcement != Enforcement::Quota || !over {
                still_needed |= requirements;
            }
        }
    }
    if left {
        findings.failed |= failed;
        findings.left_out |= failed | (quota_mask(plan) & !still_needed);
    }
    left
}

fn quota_mask(plan: &Plan) -> u32 {
    let quota = plan.requirements.iter().enumerate().filter(|(_, r)| r.enforcement == Enforcement::Quota);
    quota.fold(0, |mask, (index, _)| mask | 1 << index)
}

fn charged<'p>(plan: &'p Plan, findings: &Findings) -> impl Iterator<Item = &'p Requirement> {
    let left_out = findings.left_out;
    let all = plan.requirements.iter().enumerate();
    all.filter(move |(index, r)| r.amount > 0 && left_out & (1 << index) == 0).map(|(_, r)| r)
}

/// Nobody was asked, so nobody is excepted.
fn everything(plan: &Plan) -> u32 {
    (0..plan.requirements.len()).fold(0, |mask, index| mask | 1 << index)
}

/// Jitter; nothing secret.
fn up_to(n: u64) -> u64 {
    fastrand::u64(0..=n)
}

fn lease_id(request_id: Option<&str>, attempt: u32) -> LeaseId {
    let unix_ms = clock::unix_ms();
    match request_id {
        None => LeaseId::fresh(unix_ms, fastrand::u128(..)),
        Some(id) if attempt == 0 => LeaseId::of_request(id, unix_ms),
        Some(id) => LeaseId::of_request(&format!("{id}#{attempt}"), unix_ms),
    }
}

fn needs_completion(requirement: &Requirement) -> bool {
    requirement.reconcile || requirement.spec.kind.is_concurrency()
}

fn transfer_of(requirement: &Requirement) -> Transfer {
    let hold = Hold {
        amount: requirement.amount,
        lifetime_seconds: requirement.spec.kind.lifetime_seconds(),
        capacity: requirement.spec.capacity,
    };
    Transfer { account: Arc::clone(&requirement.account), action: Action::Reserve(hold) }
}

/// The chain of what can deny, and the requirement behind each of its transfers.
fn chain_of(plan: &Plan, named: bool, lease: &LeaseId, left_out: u32) -> (Chain, SmallVec<[usize; 4]>) {
    let mut members = SmallVec::new();
    let mut transfers = SmallVec::new();
    let mut completed = false;
    for (index, requirement) in plan.requirements.iter().enumerate() {
        let counts = requirement.enforcement != Enforcement::Shadow && requirement.amount > 0;
        if !counts || left_out & (1 << index) != 0 {
            continue;
        }
        completed |= needs_completion(requirement);
        members.push(index);
        transfers.push(transfer_of(requirement));
    }
    (Chain { lease: lease.clone(), keep: keep(named, completed), transfers }, members)
}

/// Who may name a chain again: its caller, who gave it a name, or whoever completes it.
fn keep(named: bool, completed: bool) -> Keep {
    match (named, completed) {
        (true, _) => Keep::ForRetries,
        (false, true) => Keep::ForCompletion,
        (false, false) => Keep::Nothing,
    }
}

fn failed_requirements(members: &[usize], refusal: Refusal) -> u32 {
    let failed = members.iter().enumerate().filter(|(place, _)| refusal.failed & (1 << place) != 0);
    failed.fold(0, |mask, (_, member)| mask | 1 << member)
}

fn reason_of(code: ledger::Code) -> Reason {
    match code {
        ledger::Code::LimitDecreasing => Reason::LimitDecreasing,
        ledger::Code::ExceedsCredits | ledger::Code::IdAlreadyFailed => Reason::OverLimit,
        ledger::Code::ExistsWithDifferentFields
        | ledger::Code::PendingTransferNotFound
        | ledger::Code::PendingTransferExpired
        | ledger::Code::PendingTransferAlreadyVoided
        | ledger::Code::Abandoned => Reason::BackendError,
    }
}
