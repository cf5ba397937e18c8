//! The line of a fleet: jobs, places and leases as a sidecar and the hub that keeps its line say them, in both directions.
//!
//! Hubs keep the places of their sidecars' callers ([`crate::ledger::hub::FleetLine`]). What comes from the other side is checked
//! here like any input. No I/O; what is done about it is in `service/line.rs` and `hub/line.rs`.

use std::sync::Arc;

use super::place::{
    Failure, Need, NewPlace, PlaceState, PlaceStatus, QueueFull, Reserved, Terms, TimedOut, Wants,
};
use crate::lease::{Held, Lease};
use crate::ledger::Account;
use crate::ledger::hub::pb::{LineResult, PlaceState as State};
use crate::ledger::hub::{pb, wire};
use crate::limit::{Kind, LeaseId, LimitKey, LimitSpec, REQUIREMENTS_MAX};
use crate::retry::policy::{Queue as Policy, WAIT_SECONDS_MAX};

/// As long as a caller may write them.
const KEY_BYTES_MAX: usize = 4096;
const JOB_ID_BYTES_MAX: usize = 256;

/// Whether a place may be called so.
pub(crate) fn is_name(id: &str) -> bool {
    wire::read_lease(id).is_ok()
}

/// A job that asks for a place, as a sidecar with this policy sends it.
pub(crate) fn join(new: &NewPlace, policy: &Policy) -> pb::JoinLine {
    let need = |need: &Need| pb::Need {
        key: need.account.key.to_string(),
        amount: need.amount,
        capacity: need.spec.capacity,
        kind: kind(need.spec.kind).into(),
        lifetime_seconds: need.spec.kind.lifetime_seconds().get(),
        overage: wire::overage(need.spec.overage).into(),
        mean_hold_ms: need.account.hints.mean_hold_ms().unwrap_or(0),
    };
    pb::JoinLine {
        lease: new.id.to_string(),
        job_id: new.job_id.clone(),
        needs: new.needs.iter().map(need).collect(),
        deadline_seconds: policy.deadline_seconds,
        pickup_seconds: policy.pickup_seconds,
    }
}

/// The same as the hub reads it.
pub(crate) fn read_join(
    join: pb::JoinLine,
    account: impl Fn(&str) -> Arc<Account>,
) -> Result<NewPlace, String> {
    let id = wire::read_lease(&join.lease).map_err(|what| format!("join.{what}"))?;
    if join.job_id.len() > JOB_ID_BYTES_MAX {
        return Err(format!("join.job_id: must have at most {JOB_ID_BYTES_MAX} bytes"));
    }
    let terms = Terms {
        deadline_seconds: read_seconds("deadline_seconds", join.deadline_seconds)?,
        pickup_seconds: read_seconds("pickup_seconds", join.pickup_seconds)?,
    };
    check_count("join.needs", join.needs.len())?;
    let mut needs: Vec<Need> = Vec::with_capacity(join.needs.len());
    for (index, message) in join.needs.iter().enumerate() {
        let wrong = |what: String| format!("join.needs[{index}].{what}");
        let (kind, amount) = read_need(message).map_err(wrong)?;
        let overage = wire::read_overage(message.overage).map_err(wrong)?;
        let capacity = wire::read_capacity(message.capacity).map_err(wrong)?;
        let account = account(&message.key);
        if needs.iter().any(|there| there.account.id == account.id) {
            return Err(wrong("key: is there twice".to_owned()));
        }
        // Completions are seen by sidecars: what they saw is what the estimate has.
        if message.mean_hold_ms > 0 && kind.is_concurrency() {
            account.hints.saw_hold(message.mean_hold_ms.min(WAIT_SECONDS_MAX * 1000));
        }
        let spec = Arc::new(LimitSpec::of_another(kind, capacity, overage));
        needs.push(Need { account, spec, amount });
    }
    let wants = join.needs.into_iter().map(|need| (Arc::from(need.key), need.amount)).collect();
    Ok(NewPlace { id, job_id: join.job_id, wants, needs, refused_by: None, terms: Some(terms) })
}

fn read_need(need: &pb::Need) -> Result<(Kind, u64), String> {
    if need.amount == 0 {
        return Err("amount: must be at least 1".to_owned());
    }
    Ok((read_limit(&need.key, need.kind, need.lifetime_seconds)?, need.amount))
}

/// The kind of a limit, if both that and its key can be.
fn read_limit(key: &str, kind: i32, lifetime_seconds: u32) -> Result<Kind, String> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(format!("key: must have 1 to {KEY_BYTES_MAX} bytes, and has {}", key.len()));
    }
    let seconds = wire::read_lifetime(lifetime_seconds)?;
    match pb::LimitKind::try_from(kind) {
        Ok(pb::LimitKind::Rolling) => Ok(Kind::Rolling { window_seconds: seconds }),
        Ok(pb::LimitKind::Concurrency) => Ok(Kind::Concurrency { timeout_seconds: seconds }),
        Ok(pb::LimitKind::Unspecified) | Err(_) => Err(format!("kind: {kind} is none that is known here")),
    }
}

fn kind(kind: Kind) -> pb::LimitKind {
    match kind {
        Kind::Rolling { .. } => pb::LimitKind::Rolling,
        Kind::Concurrency { .. } => pb::LimitKind::Concurrency,
    }
}

fn read_seconds(name: &str, seconds: u64) -> Result<u64, String> {
    match seconds {
        1..=WAIT_SECONDS_MAX => Ok(seconds),
        _ => Err(format!("join.{name}: must be 1 to {WAIT_SECONDS_MAX}, and is {seconds}")),
    }
}

fn check_count(name: &str, count: usize) -> Result<(), String> {
    match count {
        1..=REQUIREMENTS_MAX => Ok(()),
        _ => Err(format!("{name}: there must be 1 to {REQUIREMENTS_MAX}, not {count}")),
    }
}

/// What a hub says of a place; `picked_up_now` if this answer picks it up.
pub(crate) fn place(status: &PlaceStatus, picked_up_now: bool) -> pb::LineAnswer {
    let want = |(key, amount): &(Arc<str>, u64)| pb::PlaceWant { key: key.to_string(), amount: *amount };
    let mut place = pb::Place {
        lease: status.id.to_string(),
        job_id: status.job_id.clone(),
        wants: status.wants.iter().map(want).collect(),
        position: status.position,
        eta_seconds: status.eta_seconds,
        elapsed_seconds: status.elapsed_seconds,
        picked_up_now,
        ..Default::default()
    };
    let state = match &status.state {
        PlaceState::Queued => State::Queued,
        PlaceState::Processing => State::Processing,
        PlaceState::Reserved(reserved) => {
            place.held = reserved.for_another.as_ref().map(|lease| held_lease(lease));
            State::Reserved
        }
        PlaceState::Completed => State::Completed,
        PlaceState::Cancelled => State::Cancelled,
        PlaceState::TimedOut(TimedOut::Deadline) => State::TimedOutWaiting,
        PlaceState::TimedOut(TimedOut::NotPickedUp) => State::TimedOutPickup,
        PlaceState::TimedOut(TimedOut::LeaseEnded) => State::TimedOutLease,
        PlaceState::Failed(Failure::NameUsed) => State::FailedNameUsed,
        PlaceState::Failed(Failure::Stopping) => State::FailedStopping,
        PlaceState::Failed(Failure::UnknownLimit(key)) => {
            place.failed_limit.clone_from(key);
            State::FailedUnknownLimit
        }
        PlaceState::Failed(Failure::NeverFits(key)) => {
            place.failed_limit.clone_from(key);
            State::FailedNeverFits
        }
    };
    place.state = state.into();
    pb::LineAnswer { result: LineResult::Place.into(), place: Some(place), ..Default::default() }
}

/// A place as a sidecar hears of it.
#[derive(Debug)]
pub(crate) struct PlaceNews {
    pub(crate) status: PlaceStatus,
    /// What was reserved for it. Its token is not made yet.
    pub(crate) lease: Option<Lease>,
    /// The answer has picked that up.
    pub(crate) picked_up_now: bool,
}

pub(crate) fn read_place(place: pb::Place) -> Result<PlaceNews, String> {
    let id = wire::read_lease(&place.lease)?;
    check_count("place.wants", place.wants.len())?;
    let wants: Wants = place.wants.iter().map(|want| (Arc::from(want.key.as_str()), want.amount)).collect();
    let lease = place.held.as_ref().map(read_held_lease).transpose()?;
    let state = match place.state() {
        State::Queued => PlaceState::Queued,
        State::Processing => PlaceState::Processing,
        State::Reserved => PlaceState::Reserved(Box::new(reserved(&id, lease.as_ref()))),
        State::Completed => PlaceState::Completed,
        State::Cancelled => PlaceState::Cancelled,
        State::TimedOutWaiting => PlaceState::TimedOut(TimedOut::Deadline),
        State::TimedOutPickup => PlaceState::TimedOut(TimedOut::NotPickedUp),
        State::TimedOutLease => PlaceState::TimedOut(TimedOut::LeaseEnded),
        State::FailedUnknownLimit => PlaceState::Failed(Failure::UnknownLimit(place.failed_limit)),
        State::FailedNeverFits => PlaceState::Failed(Failure::NeverFits(place.failed_limit)),
        State::FailedNameUsed => PlaceState::Failed(Failure::NameUsed),
        State::FailedStopping => PlaceState::Failed(Failure::Stopping),
        State::Unspecified => return Err(format!("place.state: {} is not known here", place.state)),
    };
    let status = PlaceStatus {
        id,
        job_id: place.job_id,
        state,
        wants,
        position: place.position,
        eta_seconds: place.eta_seconds,
        elapsed_seconds: place.elapsed_seconds,
    };
    Ok(PlaceNews { status, lease, picked_up_now: place.picked_up_now })
}

/// What was reserved for a place elsewhere; without a lease nothing is held.
fn reserved(id: &LeaseId, lease: Option<&Lease>) -> Reserved {
    Reserved {
        lease: lease.map_or_else(|| id.clone(), |lease| lease.id.clone()),
        token: None,
        reserved_at_unix_ms: lease.map_or_else(crate::clock::unix_ms, |lease| lease.reserved_at_unix_ms),
        ends_at_unix_ms: lease.map_or(u64::MAX, Lease::ends_at_unix_ms),
        unclaimed: None,
        is_picked_up: true,
        for_another: None,
    }
}

/// What a hub says to a job that it served without a place.
pub(crate) fn at_once(lease: Option<&Lease>) -> pb::LineAnswer {
    let held = lease.map(held_lease);
    pb::LineAnswer { result: LineResult::AtOnce.into(), held, ..Default::default() }
}

/// What a hub says where there is nothing to tell but this.
pub(crate) fn only(result: LineResult) -> pb::LineAnswer {
    pb::LineAnswer { result: result.into(), ..Default::default() }
}

pub(crate) fn full(full: &QueueFull) -> pb::LineAnswer {
    let full_limit = full.limit.as_ref().map(|account| account.key.to_string()).unwrap_or_default();
    let eta_seconds = full.eta_seconds;
    pb::LineAnswer { result: LineResult::Full.into(), full_limit, eta_seconds, ..Default::default() }
}

pub(crate) fn read_full(answer: &pb::LineAnswer, account: impl Fn(&str) -> Arc<Account>) -> QueueFull {
    let limit = Some(answer.full_limit.as_str()).filter(|key| !key.is_empty()).map(account);
    QueueFull { limit, eta_seconds: answer.eta_seconds }
}

/// Every lease of the lease API holds limits by their keys, and can be completed with what was used of them.
fn held_lease(lease: &Lease) -> pb::HeldLease {
    let held = |held: &Held| pb::Held {
        key: held.key.to_string(),
        amount: held.amount,
        kind: kind(held.kind).into(),
        lifetime_seconds: held.kind.lifetime_seconds().get(),
        overage: wire::overage(held.overage).into(),
    };
    let (id, reserved_at_unix_ms) = (lease.id.to_string(), lease.reserved_at_unix_ms);
    pb::HeldLease { lease: id, reserved_at_unix_ms, held: lease.held.iter().map(held).collect() }
}

pub(crate) fn read_held_lease(lease: &pb::HeldLease) -> Result<Lease, String> {
    let id = wire::read_lease(&lease.lease)?;
    check_count("held", lease.held.len())?;
    let held = lease.held.iter().map(|held| {
        Ok(Held {
            key: LimitKey::new(&held.key),
            amount: held.amount,
            kind: read_limit(&held.key, held.kind, held.lifetime_seconds)?,
            overage: wire::read_overage(held.overage)?,
            costs_hits: true,
            is_named: true,
        })
    });
    let held = held.collect::<Result<_, String>>()?;
    Ok(Lease { id, reserved_at_unix_ms: lease.reserved_at_unix_ms, held })
}
