//! When a refused request is told to come back: the largest hint over the limits that said no. Where hints are informed, it is
//! the time at which all limits of the request will have room.

use smallvec::SmallVec;

use super::findings::Findings;
use super::{Admission, up_to};
use crate::ledger::{Ledger, Release, Schedule};
use crate::limit::Kind;
use crate::registry::{Enforcement, Plan, Requirement};
use crate::retry::informed::{self, CapacityAhead, Need};
use crate::retry::policy::RetryPolicy;
use crate::retry::{self, RetryHint};
use crate::telemetry::Reason;

/// A shared ledger frees what expired a little late.
const EXPIRY_LAG_MS: u64 = 150;

type Part<'p> = SmallVec<[&'p Requirement; 4]>;

impl Admission {
    /// The largest hint over the requirements that failed. `is_retry`: the caller says that it has tried before.
    pub(super) fn hint(
        &self,
        policy: &RetryPolicy,
        plan: &Plan,
        findings: &Findings,
        reason: Reason,
        is_retry: bool,
        now_ms: u64,
    ) -> RetryHint {
        let mut failed = findings.failed.iter().map(|index| &plan.requirements[index]);
        if reason == Reason::LimitDecreasing {
            let since_ms = failed.next().and_then(|requirement| requirement.account.decreasing_since_ms());
            return RetryHint::decreasing(policy, now_ms.saturating_sub(since_ms.unwrap_or(now_ms)));
        }
        let (owing, full): (Part<'_>, Part<'_>) = failed.partition(|requirement| self.owes(requirement));
        let denied = |failed: &[&Requirement]| {
            let hints = failed.iter().map(|requirement| (&requirement.account.hints, requirement.spec.kind));
            retry::on_denied(hints, policy, now_ms, up_to).map(|(_, hint)| hint)
        };
        // A debt is counted like any denial, but when it is paid is known.
        denied(&owing);
        let paid =
            owing.iter().filter_map(|r| self.ledger.repaid_in_ms(&r.account, &r.spec, r.amount.max(1)));
        let paid = paid.max().map(|ms| RetryHint { ms: ms.saturating_add(up_to(policy.rolling.jitter_ms)) });
        let full = if policy.rolling.informed {
            self.informed(policy, plan, findings, &owing, is_retry, now_ms)
        } else {
            denied(&full)
        };
        full.max(paid).unwrap_or(RetryHint { ms: policy.decreasing_ms })
    }

    /// When all limits of the request that owe nothing will have room, also those that the ledger did not name.
    fn informed(
        &self,
        policy: &RetryPolicy,
        plan: &Plan,
        findings: &Findings,
        owing: &[&Requirement],
        is_retry: bool,
        now_ms: u64,
    ) -> Option<RetryHint> {
        let asked = |(index, requirement): &(usize, &Requirement)| {
            let has_failed = findings.failed.contains(*index);
            let is_taken = requirement.amount > 0 && !findings.left_out.contains(*index);
            let counts = has_failed || is_taken && requirement.enforcement != Enforcement::Shadow;
            counts && !owing.iter().any(|other| std::ptr::eq(*other, *requirement))
        };
        let asked: SmallVec<[(usize, &Requirement); 4]> =
            plan.requirements.iter().enumerate().filter(asked).collect();
        let needs = asked.iter().map(|&(index, it)| need(it, findings.failed.contains(index)));
        let needs: SmallVec<[Need<'_>; 4]> = needs.collect();
        let mut ahead = KnownAhead { admission: self, asked: &asked, needs: &needs, now_ms };
        let told = informed::on_denied(&needs, is_retry, policy, now_ms, &mut ahead, up_to)?;
        told.error_ms.inspect(|ms| self.note_error(*ms));
        Some(told.hint)
    }

    /// A limit said yes: whoever was told to come at this time has come.
    pub(super) fn keep_promise(&self, requirement: &Requirement, is_retry: bool, now_ms: u64) {
        let need = need(requirement, false);
        informed::on_admitted(&need, is_retry, self.ledger.is_shared(), now_ms)
            .inspect(|ms| self.note_error(*ms));
    }

    fn note_error(&self, ms: u64) {
        self.metrics.hint_error_seconds.observe(ms as f64 / 1000.0);
    }
}

fn need(requirement: &Requirement, has_failed: bool) -> Need<'_> {
    Need {
        hints: &requirement.account.hints,
        kind: requirement.spec.kind,
        capacity: requirement.spec.capacity,
        amount: requirement.amount,
        has_failed,
    }
}

/// What is known without a round trip.
struct KnownAhead<'a> {
    admission: &'a Admission,
    asked: &'a [(usize, &'a Requirement)],
    needs: &'a [Need<'a>],
    now_ms: u64,
}

impl CapacityAhead for KnownAhead<'_> {
    fn schedule(&mut self, place: usize, own: &[Release]) -> Option<Schedule> {
        let (requirement, need) = (self.asked[place].1, &self.needs[place]);
        let ledger = &self.admission.ledger;
        let said = ledger.comes_back(&requirement.account, &requirement.spec);
        if !ledger.is_shared() {
            return said;
        }
        let Kind::Rolling { window_seconds } = need.kind else { return said };
        let free = ledger.peek(&requirement.account, &requirement.spec).unwrap_or(0);
        let window_ms = u64::from(window_seconds.get()) * 1000;
        let schedule = said.unwrap_or_else(|| seen_here(own, need.capacity.saturating_sub(free)));
        let mut schedule = as_refused(schedule, need, window_ms, self.now_ms);
        schedule.releases.iter_mut().for_each(|release| release.at_ms += EXPIRY_LAG_MS);
        Some(schedule)
    }

    fn has_room(&mut self, place: usize) -> bool {
        let requirement = self.asked[place].1;
        let free = self.admission.ledger.peek(&requirement.account, &requirement.spec);
        free.is_none_or(|free| free >= requirement.amount)
    }

    fn queued_before(&mut self, place: usize, amount: u64) -> u64 {
        self.admission.share.queue_gets_before(self.asked[place].1.account.id, amount)
    }
}

/// What this instance has admitted and what is not back yet. If that is more than is used now, a part of it was given back early.
/// Nobody knows which part, so each amount is reduced in the same proportion.
fn seen_here(own: &[Release], used: u64) -> Schedule {
    let sum = own.iter().fold(0, |sum: u64, release| sum.saturating_add(release.amount));
    let amount = |amount: u64| match sum > used {
        true => u64::try_from(u128::from(amount) * u128::from(used) / u128::from(sum)).unwrap_or(amount),
        false => amount,
    };
    let left = |release: &Release| Release { amount: amount(release.amount), ..*release };
    Schedule { used, releases: own.iter().map(left).collect(), is_whole: sum >= used }
}

/// The schedule of a shared ledger may be some time old, or known in part only. If the ledger has refused since, others have taken
/// what should have come back, and it comes back a window later.
fn as_refused(mut schedule: Schedule, need: &Need<'_>, window_ms: u64, now_ms: u64) -> Schedule {
    if need.has_failed {
        let least = (need.capacity + 1).saturating_sub(need.amount.max(1));
        schedule.used = schedule.used.max(least);
        for release in schedule.releases.iter_mut().filter(|release| release.at_ms <= now_ms) {
            release.at_ms = release.at_ms.saturating_add(window_ms).max(now_ms + 1);
        }
        schedule.releases.sort_unstable();
    }
    schedule
}
