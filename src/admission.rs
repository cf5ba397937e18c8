//! The decision: one request in, one answer out.
//!
//! A list of refusals in the order below, then one atomic reserve. Nothing is charged unless everything is. Knows
//! neither protobuf nor HTTP, and never reads a balance to decide.

mod attempt;
mod chain;
mod counts;
mod decision;
mod findings;
mod hint;
mod late;
mod looks;
mod quota;
mod refusal;
mod shadow;
mod traced;

use std::sync::Arc;

use self::chain::{chain_of, lease_id, undo_of};
use self::findings::{Findings, charged, never_fits};
pub(crate) use self::refusal::is_used;
use self::refusal::{failed_requirements, is_over, reason_of};

pub use self::attempt::Attempt;
pub use self::decision::{Decision, Denial, DescriptorStatus};
pub use self::late::LateCharge;
use crate::activity::{Activity, LastDenial};
use crate::clock;
use crate::ledger::{
    Account, Accounts, Chain, Ledger, LedgerError, LiveLedger, Outcome, RefusalCode, Verdict,
};
use crate::limit::{LeaseId, LimitId, RequirementSet};
use crate::queue::share::{Share, Taken};
use crate::registry::{Ask, Enforcement, Plan, PlanError, Wanted};
use crate::retry::policy::RetryPolicy;
use crate::retry::{self, RetryHint};
use crate::snapshot::{Domain, Snapshot};
use crate::telemetry::{Metrics, Reason};
use crate::trace::Tracer;

/// One request, as the domain sees it.
#[derive(Debug)]
pub struct Request<'a, 'w> {
    pub domain: &'a str,
    pub asks: &'a [Ask<'w>],
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

/// A plan, and what it is decided with.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    pub snapshot: &'a Snapshot,
    pub plan: &'a Plan,
    pub name: Name<'a>,
    /// The domain that asks, for the lists of who uses most.
    pub domain: &'a Arc<str>,
    /// The caller says that it has tried before.
    pub is_retry: bool,
    pub now_ms: u64,
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
    pub ledger: LiveLedger,
    pub accounts: Accounts,
    /// Keeps a share of each limit for those who wait for it.
    pub share: Arc<Share>,
    /// What was decided, for those who watch the server.
    pub(crate) activity: Activity<Account>,
    /// `None`: nobody wants traces.
    pub(crate) tracer: Option<Tracer>,
    pub metrics: Arc<Metrics>,
}

/// What became of a reserve.
enum Reserved {
    Held(LeaseId),
    Refused(RefusalCode),
    /// The ledger did not answer, and that is a yes. Nothing is held.
    NotAsked,
}

impl Admission {
    pub async fn decide(
        &self,
        snapshot: &Snapshot,
        request: &Request<'_, '_>,
    ) -> Result<Decision, DecideError> {
        let started_ns = clock::monotonic_ns();
        let domain = snapshot.domain(request.domain);
        let now_ms = started_ns / clock::NS_PER_MS;
        let decided = self.decide_uncounted(snapshot, domain, request, now_ms).await;
        let took_ns = clock::monotonic_ns().saturating_sub(started_ns);
        self.metrics.decision_seconds.observe(took_ns as f64 / 1e9);
        self.trace(&domain.name, &decided);
        if let Some(ratelimit) = &self.metrics.ratelimit {
            match &decided {
                Ok(_) => ratelimit.answered(),
                Err(error) => ratelimit.failed(matches!(error, DecideError::Ledger(_))),
            }
        }
        let decision = decided?;
        let counters = &domain.counters;
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

    /// First the plan, then the budget, then the limits: the order of the refusals is the specification. So a request that is
    /// invalid spends no budget.
    async fn decide_uncounted(
        &self,
        snapshot: &Snapshot,
        domain: &Domain,
        request: &Request<'_, '_>,
        now_ms: u64,
    ) -> Result<Decision, DecideError> {
        let plan = snapshot.registry.plan(request.domain, request.asks, &self.accounts)?;
        self.decide_plan(snapshot, domain, request, &plan, now_ms).await
    }

    /// What follows the plan of a request.
    pub(crate) async fn decide_plan(
        &self,
        snapshot: &Snapshot,
        domain: &Domain,
        request: &Request<'_, '_>,
        plan: &Plan,
        now_ms: u64,
    ) -> Result<Decision, DecideError> {
        if let Err(hint) = within_budget(snapshot, domain, request, plan, now_ms) {
            return Ok(Decision::out_of_budget(request.asks.len(), hint.ms));
        }
        if plan.descriptors.iter().all(|wanted| *wanted == Wanted::Bare) {
            domain.counters.unmatched();
        }
        let name = request.request_id.map_or(Name::Fresh, Name::Request);
        let is_retry = request.is_retry;
        self.admit(&Asked { snapshot, plan, name, domain: &domain.name, is_retry, now_ms }).await
    }

    /// Decides a plan: what follows it, for callers who make the plan themselves.
    pub async fn admit(&self, asked: &Asked<'_>) -> Result<Decision, DecideError> {
        let Asked { snapshot, plan, name, now_ms, .. } = *asked;
        self.trace_limits(plan);
        let mut findings = Findings::of(plan);
        let refuse = |mut findings: Findings, failed: RequirementSet, reason| {
            findings.failed |= failed;
            self.deny(asked, findings, reason, None)
        };
        let never = never_fits(plan);
        if !never.is_empty() && !findings.leave_out(plan, never) {
            return Ok(refuse(findings, never, Reason::NeverFits));
        }
        for (failed, reason) in self.looks(plan) {
            if !failed.is_empty() && !findings.leave_out(plan, failed) {
                return Ok(refuse(findings, failed, reason));
            }
        }
        let taken = match self.share.take(enforced(plan), now_ms, |index| self.free(plan, index)) {
            Ok(taken) => taken,
            Err(kept) if findings.leave_out(plan, kept) => None,
            Err(kept) => return Ok(refuse(findings, kept, Reason::OverLimit)),
        };
        // Read before the ledger is asked: so whatever has ended by the ledger's clock has ended by ours too.
        let reserved_at_unix_ms = clock::unix_ms();
        let id = match self.reserve(plan, name, reserved_at_unix_ms, &mut findings).await {
            Ok(Reserved::Held(id)) => id,
            Ok(Reserved::NotAsked) => return Ok(Decision::unasked(plan, &Findings::of(plan))),
            Ok(Reserved::Refused(RefusalCode::NotAsked)) => {
                let hint_ms = snapshot.retry.decreasing_ms;
                let findings = Findings::all_failed(plan);
                return Ok(Decision::unavailable(plan, &findings, Reason::BackendError, Some(hint_ms)));
            }
            Ok(Reserved::Refused(code)) if is_used(code) => {
                let denied = Decision::unavailable(plan, &findings, reason_of(code), None);
                return Ok(Decision { refused: Some(code), ..denied });
            }
            Ok(Reserved::Refused(code)) => {
                return Ok(self.deny(asked, findings, reason_of(code), Some(code)));
            }
            Err(LedgerError::QueueFull { waiting, per_second }) => {
                let hint = RetryHint::queue_full(&snapshot.retry, waiting as u64, per_second);
                findings.failed = RequirementSet::first(plan.requirements.len());
                return Ok(Decision::unavailable(plan, &findings, Reason::QueueFull, Some(hint.ms)));
            }
            Err(error) => return Err(error.into()),
        };
        // From here on it succeeds.
        taken.into_iter().for_each(Taken::keep);
        if plan.requirements.iter().any(|requirement| requirement.enforcement == Enforcement::Shadow) {
            // On the heap, because few have one and all would carry the space for it.
            Box::pin(self.count_shadows(plan, name, &id, &mut findings)).await;
        }
        self.note_allowed(plan, &findings, &snapshot.retry, asked.domain, asked.is_retry, now_ms);
        self.peek_the_rest(plan, &mut findings);
        self.count_per_limit(plan, &findings, true);
        Ok(Decision::allowed(plan, findings, name, id, reserved_at_unix_ms))
    }

    /// The denial of a plan that asks a limit for more than its capacity, so that no wait would help. `None` if it does not.
    pub fn never(&self, plan: &Plan) -> Option<Denial> {
        let requirement = &plan.requirements[never_fits(plan).lowest()?];
        let limit = Some(requirement.account.key.clone());
        Some(Denial { limit, reason: Reason::NeverFits, retry_after_ms: None })
    }

    /// What a reservation of this plan would be called.
    pub fn name(&self, plan: &Plan, name: Name<'_>) -> LeaseId {
        lease_id(plan, name, 0, clock::unix_ms())
    }

    /// The chain that gives back a reservation of all of this plan.
    pub(crate) fn undo(&self, plan: &Plan, name: Name<'_>, id: &LeaseId) -> Chain {
        undo_of(plan, &Findings::of(plan), name, id)
    }

    /// One atomic reserve of everything that can deny. A quota descriptor that is over is left out and the rest is
    /// tried again under another name, as long as one of them is not over.
    async fn reserve(
        &self,
        plan: &Plan,
        name: Name<'_>,
        now_unix_ms: u64,
        findings: &mut Findings,
    ) -> Result<Reserved, LedgerError> {
        let mut attempt = 0;
        loop {
            let lease = lease_id(plan, name, attempt, now_unix_ms);
            let (chain, members) = chain_of(plan, name, &lease, findings.left_out);
            if members.is_empty() {
                return Ok(Reserved::Held(lease));
            }
            let Outcome { verdict, available, decided_at_ns, .. } = self.ledger.apply(&chain).await?;
            findings.decided_at_ns = decided_at_ns;
            for (&member, available) in members.iter().zip(available) {
                findings.available[member] = Some(available);
            }
            let refusal = match verdict {
                Verdict::Done => return Ok(Reserved::Held(lease)),
                Verdict::NotAsked => return Ok(Reserved::NotAsked),
                Verdict::Refused(refusal) => refusal,
            };
            let may_rename = !matches!(name, Name::Lease(_)) && attempt < ATTEMPTS_MAX;
            let is_decided = match refusal.code {
                // What an earlier sending reserved is not held any more: this one is another request.
                code if may_rename && is_over(code) => false,
                RefusalCode::NotAsked => true,
                _ => {
                    let failed = failed_requirements(&members, refusal);
                    let is_decided = !findings.leave_out(plan, failed);
                    if is_decided {
                        findings.failed |= failed;
                    }
                    is_decided
                }
            };
            if is_decided {
                return Ok(Reserved::Refused(refusal.code));
            }
            attempt += 1;
        }
    }

    /// The denial of what some limits refuse; `code` is what the ledger said, if it was asked.
    fn deny(
        &self,
        asked: &Asked<'_>,
        mut findings: Findings,
        reason: Reason,
        code: Option<RefusalCode>,
    ) -> Decision {
        let Asked { snapshot, plan, name, domain, is_retry, now_ms } = *asked;
        // What never fits is not told to come back.
        let hint = (reason != Reason::NeverFits)
            .then(|| self.hint(&snapshot.retry, plan, &findings, reason, is_retry, now_ms).ms);
        self.peek_the_rest(plan, &mut findings);
        code.inspect(|code| findings.believe_the_refusal(plan, *code));
        self.count_per_limit(plan, &findings, false);
        let denied = Decision::denied(plan, name, findings, reason, hint);
        if let Some(key) = denied.denial.as_ref().and_then(|denial| denial.limit.as_ref()) {
            let said_no = plan.requirements.iter().find(|requirement| requirement.account.key == *key);
            let last = LastDenial { at_ms: now_ms, reason, retry_after_ms: hint };
            said_no.inspect(|requirement| self.activity.denied(&requirement.account, domain, last));
        }
        Decision { refused: code, ..denied }
    }

    /// The limits that were charged said yes.
    fn note_allowed(
        &self,
        plan: &Plan,
        findings: &Findings,
        policy: &RetryPolicy,
        domain: &Arc<str>,
        is_retry: bool,
        now_ms: u64,
    ) {
        let charged = || charged(plan, findings);
        let hints = charged().map(|requirement| (&requirement.account.hints, requirement.spec.kind));
        retry::on_allowed(hints, policy, now_ms);
        if policy.rolling.informed {
            charged().for_each(|it| self.keep_promise(it, is_retry, now_ms));
        }
        charged().for_each(|it| self.activity.admitted(&it.account, domain, it.amount, now_ms));
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
            // A sample may say otherwise, but what did not fit is not there.
            if findings.failed.contains(index) {
                *available = available.map(|left| left.min(requirement.amount.saturating_sub(1)));
            }
        }
    }
}

/// What each requirement takes of its limit. A shadow requirement counts as 0, because it never takes anything away from others.
fn enforced(plan: &Plan) -> impl Iterator<Item = (LimitId, u64)> + Clone {
    plan.requirements.iter().map(|requirement| {
        let is_shadow = requirement.enforcement == Enforcement::Shadow;
        (requirement.account.id, if is_shadow { 0 } else { requirement.amount })
    })
}

/// Jitter; nothing secret.
fn up_to(n: u64) -> u64 {
    fastrand::u64(0..=n)
}

/// The tenant of a request is its first limit that is derived from its own values, and not a named limit that others share.
fn within_budget(
    snapshot: &Snapshot,
    domain: &Domain,
    request: &Request<'_, '_>,
    plan: &Plan,
    now_ms: u64,
) -> Result<(), RetryHint> {
    let Some(budget) = &domain.budget else { return Ok(()) };
    if !request.is_retry {
        budget.record_original(now_ms);
        return Ok(());
    }
    let mut accounts = plan.requirements.iter().map(|requirement| &requirement.account);
    let own = accounts.find(|account| snapshot.registry.get_named(account.key.as_str()).is_none());
    let tenant = own.map(|account| account.id);
    retry::admit_retry(budget, tenant, &snapshot.retry, now_ms, up_to)
}
