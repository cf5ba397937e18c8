//! What a hub answers.

use crate::clock;
use crate::ledger::hub::pb;
use crate::ledger::hub::pb::answer::What;
use crate::ledger::{
    Balance, LedgerError, Outcome, Refusal, RefusalCode, Release, Schedule, TransferSet, Verdict,
};
use crate::limit::BitSet;

/// Of a schedule, so that it fits into a message.
const RELEASES_MAX: usize = 4096;

/// Amounts for which a hub says when they fit.
const REPAID_MAX: usize = 16;

/// What became of a chain; `owing` is what is known of a limit that refused it for a debt, `samples` what is known of those that it takes
/// from.
pub(crate) fn outcome(outcome: &Outcome, owing: Option<pb::Sample>, samples: Vec<pb::Sample>) -> What {
    let refusal = match outcome.verdict {
        Verdict::Done => None,
        Verdict::Refused(refusal) => Some(pb::Refusal {
            index: u32::try_from(refusal.index).unwrap_or(u32::MAX),
            code: code(refusal.code).into(),
            failed: refusal.failed.iter().fold(0, |bits, place| bits | 1 << place),
            owing,
        }),
        Verdict::NotAsked => return failure(&LedgerError::Unavailable("it was not asked".to_owned())),
    };
    What::Outcome(pb::Outcome {
        refusal,
        available: outcome.available.to_vec(),
        is_repeat: outcome.is_repeat,
        taken: outcome.taken.to_vec(),
        samples,
        ..Default::default()
    })
}

/// What a hub has lent.
pub(crate) fn lent(units: u64, for_ms: u64, samples: Vec<pb::Sample>) -> What {
    // A loan is half a second at most.
    let loan_ms = u32::try_from(for_ms).unwrap_or(u32::MAX);
    What::Outcome(pb::Outcome { taken: vec![units], loan_ms, samples, ..Default::default() })
}

/// A hub that lends has nothing of the limit, and asks again in so long.
pub(crate) fn full(for_ms: u64) -> What {
    let refusal = Refusal::one(0, RefusalCode::ExceedsCredits);
    let mut full = outcome(&Outcome::bare(Verdict::Refused(refusal)), None, Vec::new());
    if let What::Outcome(outcome) = &mut full {
        outcome.full_ms = u32::try_from(for_ms).unwrap_or(u32::MAX);
    }
    full
}

/// What was lent, if anything was: how many units and for how long. `asked` is how many were asked for.
pub(crate) fn read_loan(outcome: &pb::Outcome, asked: u64) -> Result<Option<(u64, u64)>, String> {
    if outcome.loan_ms == 0 {
        return Ok(None);
    }
    match (&outcome.refusal, &outcome.taken[..]) {
        (None, [units]) if (1..=asked).contains(units) => Ok(Some((*units, u64::from(outcome.loan_ms)))),
        _ => Err(format!("loan: {asked} were asked for, and {:?} were lent", outcome.taken)),
    }
}

/// Of a chain of `count` transfers.
pub(crate) fn read_outcome(outcome: &pb::Outcome, count: usize) -> Result<Outcome, String> {
    let verdict = match &outcome.refusal {
        None => Verdict::Done,
        Some(refusal) => {
            let index = usize::try_from(refusal.index).ok().filter(|index| *index < count);
            let index = index.ok_or_else(|| format!("refusal.index: there is no {}", refusal.index))?;
            let code = read_code(refusal.code())
                .ok_or_else(|| format!("refusal.code: {} is not known here", refusal.code))?;
            let set = (0..count.min(BitSet::SIZE)).filter(|place| refusal.failed >> place & 1 == 1);
            let failed = set.collect::<TransferSet>() | TransferSet::one(index);
            Verdict::Refused(Refusal { index, code, failed })
        }
    };
    let available = outcome.available.iter().copied().take(count).collect();
    let taken = outcome.taken.iter().copied().take(count).collect();
    Ok(Outcome { verdict, available, is_repeat: outcome.is_repeat, taken, decided_at_ns: None })
}

fn code(code: RefusalCode) -> pb::RefusalCode {
    match code {
        RefusalCode::ExceedsCredits => pb::RefusalCode::ExceedsCredits,
        RefusalCode::IdAlreadyFailed => pb::RefusalCode::IdAlreadyFailed,
        RefusalCode::ExistsWithDifferentFields => pb::RefusalCode::ExistsWithDifferentFields,
        RefusalCode::PendingTransferNotFound => pb::RefusalCode::PendingTransferNotFound,
        RefusalCode::PendingTransferExpired => pb::RefusalCode::PendingTransferExpired,
        RefusalCode::PendingTransferAlreadyVoided => pb::RefusalCode::PendingTransferAlreadyVoided,
        RefusalCode::LimitDecreasing => pb::RefusalCode::LimitDecreasing,
        RefusalCode::InDebt => pb::RefusalCode::InDebt,
        RefusalCode::Abandoned => pb::RefusalCode::Abandoned,
        // Only a layer says so, and hubs apply chains below theirs.
        RefusalCode::NotAsked => pb::RefusalCode::Unspecified,
    }
}

fn read_code(code: pb::RefusalCode) -> Option<RefusalCode> {
    Some(match code {
        pb::RefusalCode::ExceedsCredits => RefusalCode::ExceedsCredits,
        pb::RefusalCode::IdAlreadyFailed => RefusalCode::IdAlreadyFailed,
        pb::RefusalCode::ExistsWithDifferentFields => RefusalCode::ExistsWithDifferentFields,
        pb::RefusalCode::PendingTransferNotFound => RefusalCode::PendingTransferNotFound,
        pb::RefusalCode::PendingTransferExpired => RefusalCode::PendingTransferExpired,
        pb::RefusalCode::PendingTransferAlreadyVoided => RefusalCode::PendingTransferAlreadyVoided,
        pb::RefusalCode::LimitDecreasing => RefusalCode::LimitDecreasing,
        pb::RefusalCode::InDebt => RefusalCode::InDebt,
        pb::RefusalCode::Abandoned => RefusalCode::Abandoned,
        pb::RefusalCode::Unspecified => return None,
    })
}

pub(crate) fn failure(error: &LedgerError) -> What {
    let (code, text) = match error {
        // What is around it is said by whoever reads it.
        LedgerError::Unavailable(why) => (pb::FailureCode::Unavailable, why.clone()),
        LedgerError::TimedOut(_) => (pb::FailureCode::TimedOut, error.to_string()),
        LedgerError::QueueFull { .. } => (pb::FailureCode::QueueFull, error.to_string()),
        LedgerError::Full(_) => (pb::FailureCode::Full, error.to_string()),
    };
    let mut failure = pb::LedgerFailure { code: code.into(), text, ..Default::default() };
    match error {
        LedgerError::Unavailable(_) => {}
        LedgerError::TimedOut(ms) => failure.count = *ms,
        LedgerError::QueueFull { waiting, per_second } => {
            failure.count = *waiting as u64;
            failure.per_second = per_second.unwrap_or(0.0);
        }
        LedgerError::Full(most) => failure.count = *most as u64,
    }
    What::Failure(failure)
}

/// `hub` is whom to blame.
pub(crate) fn read_failure(failure: &pb::LedgerFailure, hub: &str) -> LedgerError {
    let count = usize::try_from(failure.count).unwrap_or(usize::MAX);
    match failure.code() {
        pb::FailureCode::TimedOut => LedgerError::TimedOut(failure.count),
        pb::FailureCode::QueueFull => {
            let per_second = Some(failure.per_second).filter(|rate| rate.is_finite() && *rate > 0.0);
            LedgerError::QueueFull { waiting: count, per_second }
        }
        pb::FailureCode::Full => LedgerError::Full(count),
        pb::FailureCode::Unavailable | pb::FailureCode::Invalid | pb::FailureCode::Unspecified => {
            let text: String = failure.text.chars().filter(|c| !c.is_control()).take(400).collect();
            LedgerError::Unavailable(format!("hub {hub}: {text}"))
        }
    }
}

/// Where there is more than a message should hold, some come back together, later.
pub(crate) fn schedule(schedule: Schedule) -> What {
    let now_ms = clock::monotonic_ms();
    let Schedule { used, releases, is_whole } = schedule.coarse(RELEASES_MAX);
    let release = |release: Release| pb::Release {
        in_ms: release.at_ms.saturating_sub(now_ms),
        amount: release.amount,
    };
    What::Schedule(pb::Schedule { used, releases: releases.into_iter().map(release).collect(), is_whole })
}

pub(crate) fn read_schedule(schedule: pb::Schedule) -> Schedule {
    let now_ms = clock::monotonic_ms();
    let release = |release: pb::Release| Release {
        at_ms: now_ms.saturating_add(release.in_ms),
        amount: release.amount,
    };
    let mut releases: Vec<Release> = schedule.releases.into_iter().map(release).collect();
    releases.sort_unstable();
    Schedule { used: schedule.used, releases, is_whole: schedule.is_whole }
}

/// One per want.
pub(crate) fn read_balances(balances: pb::Balances, count: usize) -> Result<Vec<Balance>, String> {
    let found = balances.balances.len();
    if found != count {
        return Err(format!("balances: {count} were asked for, and {found} came"));
    }
    let balance = |it: pb::Balance| Balance { capacity: it.capacity, used: it.used, debt: it.debt };
    Ok(balances.balances.into_iter().map(balance).collect())
}

/// The amounts that fit later, and when, on this side's clock.
pub(crate) fn read_repaid(repaid: &[pb::Release]) -> Vec<(u64, u64)> {
    let now_ms = clock::monotonic_ms();
    repaid.iter().take(REPAID_MAX).map(|it| (it.amount, now_ms.saturating_add(it.in_ms))).collect()
}
