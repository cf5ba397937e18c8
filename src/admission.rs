//! The decision: one request in, one answer out.
//!
//! A ladder of refusals in the order below, then one atomic reserve. Nothing is charged unless everything is. Knows
//! neither protobuf nor HTTP, and never reads a balance to decide.

mod answer;
mod chain;
mod offer;

use std::sync::Arc;

use smallvec::SmallVec;

use self::chain::{UndoOnDrop, chain_of, chain_of_one, lease_id};

pub use self::answer::{Code, Decision, Denial, Status};
pub use self::offer::Offered;
use crate::clock;
use crate::ledger::{self, Ledger, LedgerError, OnFailure, Outcome, Refusal, Verdict};
use crate::limit::{Accounts, LeaseId};
use crate::queue::share::{Share, Taken};
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

/// What a reservation is called in the ledger.
#[derive(Debug, Clone, Copy)]
pub enum Name<'a> {
    /// Something new.
    Fresh,
    /// As the request that asks for it, so that sending it twice charges once.
    Request(&'a str),
    /// As the caller wants.
    Lease(&'a LeaseId),
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
    /// Keeps a share of each limit for those who wait for it.
    pub share: Arc<Share>,
    pub metrics: Arc<Metrics>,
}

/// What was found out about the requirements of a request; bit n stands for requirement n.
#[derive(Debug, Default)]
struct Findings {
    failed: u32,
    /// Quota requirements that are over and were left out for it, and shadow ones that could not be counted.
    left_out: u32,
    available: SmallVec<[Option<u64>; 4]>,
}

impl Findings {
    fn of(plan: &Plan) -> Self {
        Self { available: plan.requirements.iter().map(|_| None).collect(), ..Self::default() }
    }

    /// What is known of a balance may be a sample from before; a refusal proves that less is left than was asked for.
    fn believe_the_refusal(&mut self, plan: &Plan) {
        for (index, requirement) in plan.requirements.iter().enumerate() {
            if self.failed & (1 << index) != 0 {
                let most = requirement.amount.saturating_sub(1);
                self.available[index] = Some(self.available[index].map_or(most, |left| left.min(most)));
            }
        }
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
        let name = request.request_id.map_or(Name::Fresh, Name::Request);
        self.admit(snapshot, &plan, name, now_ms).await
    }

    /// The rungs below the plan, for those who know what they want.
    pub async fn admit(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        name: Name<'_>,
        now_ms: u64,
    ) -> Result<Decision, DecideError> {
        let mut findings = Findings::of(plan);
        let never = never_fits(plan);
        if never != 0 && !leave_out(plan, &mut findings, never) {
            findings.failed |= never;
            self.count_per_limit(plan, &findings);
            self.peek_the_rest(plan, &mut findings);
            return Ok(Decision::denied(plan, &findings, Reason::NeverFits, None));
        }
        let decreasing = self.looks_at_decreasing(plan);
        if decreasing != 0 && !leave_out(plan, &mut findings, decreasing) {
            return Ok(self.refuse(snapshot, plan, findings, decreasing, Reason::LimitDecreasing, now_ms));
        }
        let taken = match self.share.take(enforced(plan), now_ms, |index| self.free(plan, index)) {
            Ok(taken) => taken,
            Err(kept) if leave_out(plan, &mut findings, kept) => None,
            Err(kept) => return Ok(self.refuse(snapshot, plan, findings, kept, Reason::OverLimit, now_ms)),
        };
        // Before the ledger's clock starts, so that nothing outlives by our clock what it is by the ledger's.
        let reserved_at_unix_ms = clock::unix_ms();
        let id = match self.reserve(plan, name, reserved_at_unix_ms, &mut findings).await {
            Ok(Ok(id)) => id,
            Ok(Err(code)) => {
                let reason = reason_of(code);
                self.count_per_limit(plan, &findings);
                let hint = self.hint(snapshot, plan, &findings, reason, now_ms);
                self.peek_the_rest(plan, &mut findings);
                if code == ledger::Code::ExceedsCredits {
                    findings.believe_the_refusal(plan);
                }
                let denied = Decision::denied(plan, &findings, reason, Some(hint.ms));
                return Ok(Decision { refused: Some(code), ..denied });
            }
            Err(LedgerError::QueueFull { waiting, per_second }) => {
                let hint = RetryHint::queue_full(&snapshot.retry, waiting as u64, per_second);
                findings.failed = everything(plan);
                return Ok(Decision::denied(plan, &findings, Reason::QueueFull, Some(hint.ms)));
            }
            Err(error) => return self.without_ledger(snapshot, plan, error),
        };
        // From here on it succeeds.
        taken.into_iter().for_each(Taken::keep);
        self.count_shadows(plan, name, &id, &mut findings).await;
        self.count_per_limit(plan, &findings);
        self.retry.on_allowed(charged(plan, &findings).map(|requirement| requirement.account.id), now_ms);
        for requirement in charged(plan, &findings) {
            requirement.account.end_decreasing();
            requirement.account.spend_sample(requirement.amount);
        }
        self.peek_the_rest(plan, &mut findings);
        Ok(Decision::allowed(plan, &findings, id, reserved_at_unix_ms))
    }

    /// The denial of what no wait would ever let pass.
    pub fn never(&self, plan: &Plan) -> Option<Denial> {
        let never = never_fits(plan);
        let requirement = plan.requirements.get(never.trailing_zeros() as usize)?;
        let limit = Some(requirement.account.key.clone());
        Some(Denial { limit, reason: Reason::NeverFits, retry_after_ms: None })
    }

    /// What a reservation of this plan would be called.
    pub fn name(&self, plan: &Plan, name: Name<'_>) -> LeaseId {
        lease_id(plan, name, 0, clock::unix_ms())
    }

    /// Gives back what was reserved for a caller that left before it was told.
    pub fn give_back(&self, plan: &Plan, name: Name<'_>, id: &LeaseId) {
        self.ledger.give_back(chain_of(plan, name, id, 0).0);
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
        name: Name<'_>,
        now_unix_ms: u64,
        findings: &mut Findings,
    ) -> Result<Result<LeaseId, ledger::Code>, LedgerError> {
        let mut attempt = 0;
        loop {
            let lease = lease_id(plan, name, attempt, now_unix_ms);
            let (chain, members) = chain_of(plan, name, &lease, findings.left_out);
            if members.is_empty() {
                return Ok(Ok(lease));
            }
            let Outcome { verdict, available } = self.ledger.apply(chain).await?;
            for (&member, available) in members.iter().zip(available) {
                findings.available[member] = Some(available);
            }
            let Verdict::Refused(refusal) = verdict else { return Ok(Ok(lease)) };
            let failed = failed_requirements(&members, refusal);
            let may_rename = !matches!(name, Name::Lease(_)) && attempt < ATTEMPTS_MAX;
            if refusal.code == ledger::Code::Abandoned && may_rename {
                attempt += 1;
                continue;
            }
            if !leave_out(plan, findings, failed) {
                findings.failed |= failed;
                return Ok(Err(refusal.code));
            }
            attempt += 1;
        }
    }

    /// A refusal that needs no ledger.
    fn refuse(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        mut findings: Findings,
        failed: u32,
        reason: Reason,
        now_ms: u64,
    ) -> Decision {
        findings.failed |= failed;
        self.count_per_limit(plan, &findings);
        let hint = self.hint(snapshot, plan, &findings, reason, now_ms);
        self.peek_the_rest(plan, &mut findings);
        Decision::denied(plan, &findings, reason, Some(hint.ms))
    }

    /// The requirements that only look at a limit, where it holds more than its capacity. Who takes from one hears it from
    /// the ledger.
    fn looks_at_decreasing(&self, plan: &Plan) -> u32 {
        let looks = plan.requirements.iter().enumerate();
        let looks = looks.filter(|(_, r)| r.amount == 0 && r.enforcement != Enforcement::Shadow);
        let decreasing = looks.filter(|(_, r)| self.ledger.is_decreasing(&r.account, &r.spec));
        decreasing.fold(0, |mask, (index, _)| mask | 1 << index)
    }

    /// For descriptors that asked for a metric of their own. A shadow limit counts as what it would have said.
    fn count_per_limit(&self, plan: &Plan, findings: &Findings) {
        for (index, requirement) in plan.requirements.iter().enumerate().filter(|(_, r)| r.metric_per_value) {
            let over = (findings.failed | findings.left_out) & (1 << index) != 0;
            self.metrics.limit_decided(requirement.account.key.as_str(), !over);
        }
    }

    /// Shadow limits count what was admitted and never deny: each is a chain of its own, after the real one.
    async fn count_shadows(&self, plan: &Plan, name: Name<'_>, lease: &LeaseId, findings: &mut Findings) {
        let is_shadow = |requirement: &Requirement| requirement.enforcement == Enforcement::Shadow;
        if !plan.requirements.iter().any(is_shadow) {
            return;
        }
        // The caller may leave while this waits for the ledger.
        let undo = UndoOnDrop::new(&self.ledger, chain_of(plan, name, lease, findings.left_out).0);
        for (index, requirement) in plan.requirements.iter().enumerate() {
            if !is_shadow(requirement) || requirement.amount == 0 {
                continue;
            }
            // A ledger that fails now costs a count of a limit that denies nobody.
            let counted = self.ledger.apply(chain_of_one(requirement, name, lease)).await;
            let counted = counted.is_ok_and(|Outcome { verdict, available }| {
                findings.available[index] = available.first().copied();
                if verdict != Verdict::Done {
                    self.metrics.shadow_denied(&requirement.spec.origin);
                }
                verdict == Verdict::Done
            });
            if !counted {
                findings.left_out |= 1 << index;
            }
        }
        undo.keep();
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

    /// What is free of the limit of a requirement, where that costs no round trip.
    fn free(&self, plan: &Plan, index: usize) -> Option<u64> {
        let requirement = &plan.requirements[index];
        self.ledger.peek(&requirement.account, &requirement.spec)
    }

    /// What is free on accounts that were not part of the reserve, where that costs no round trip.
    fn peek_the_rest(&self, plan: &Plan, findings: &mut Findings) {
        for (index, requirement) in plan.requirements.iter().enumerate() {
            let available = &mut findings.available[index];
            if available.is_none() {
                let first_seen = || requirement.spec.capacity.saturating_sub(requirement.amount);
                let peeked = self.ledger.peek(&requirement.account, &requirement.spec);
                *available = Some(peeked.unwrap_or_else(first_seen));
            }
            // Whatever was guessed: what did not fit is not left.
            if findings.failed & (1 << index) != 0 {
                *available = available.map(|left| left.min(requirement.amount.saturating_sub(1)));
            }
        }
    }
}

/// What each requirement takes of its limit; a shadow takes nothing that others could lack.
fn enforced(plan: &Plan) -> impl Iterator<Item = (u128, u64)> + Clone {
    plan.requirements.iter().map(|requirement| {
        let is_shadow = requirement.enforcement == Enforcement::Shadow;
        (requirement.account.id, if is_shadow { 0 } else { requirement.amount })
    })
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

fn failed_requirements(members: &[usize], refusal: Refusal) -> u32 {
    let failed = members.iter().enumerate().filter(|(place, _)| refusal.failed & (1 << place) != 0);
    failed.fold(0, |mask, (_, member)| mask | 1 << member)
}

fn reason_of(code: ledger::Code) -> Reason {
    match code {
        ledger::Code::LimitDecreasing => Reason::LimitDecreasing,
        // A name that was given back is like one that was refused: another one is needed.
        ledger::Code::ExceedsCredits | ledger::Code::IdAlreadyFailed | ledger::Code::Abandoned => {
            Reason::OverLimit
        }
        ledger::Code::ExistsWithDifferentFields
        | ledger::Code::PendingTransferNotFound
        | ledger::Code::PendingTransferExpired
        | ledger::Code::PendingTransferAlreadyVoided => Reason::BackendError,
    }
}
