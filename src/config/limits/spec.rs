//! What a limit is, from its fields: kind, capacity, window. And Envoy's units of time.
//!
//! Refuses to know which descriptor the limit belongs to.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::config::decode::Fields;
use crate::config::scalar;
use crate::config::shape::one_of;
use crate::limit::{Charge, Cost, Kind, LimitSpec, Origin, Overage, Unit};

/// Half of 64 bits, so that neither a sum of reservations nor a debt can overflow.
pub(crate) const AMOUNT_MAX: u64 = (1 << 63) - 1;

/// A unit of time of `rate_limit`.
pub(crate) fn unit(fields: &Fields<'_>) -> Option<Unit> {
    fields.scalar("unit", |text, _| Unit::parse(text).ok_or_else(|| one_of(text, &Unit::ALL.map(Unit::name))))
}

/// The limit that `kind`, `capacity` and so on describe.
pub(crate) fn limit(fields: &Fields<'_>) -> Option<LimitSpec> {
    let kind = kind(fields);
    let capacity = capacity(fields);
    let overage = match fields.text("overage") {
        None | Some("deny") => Overage::Deny,
        Some("debt") => Overage::Debt,
        Some("repay") => Overage::Repay,
        Some(other) => {
            fields.mistake("overage", || one_of(other, &["deny", "debt", "repay"]));
            Overage::Deny
        }
    };
    let is_exact = fields.flag("exact");
    let charge = charge(fields);
    let (unit, description) = (fields.text("unit"), fields.text("description"));
    let kind = kind?;
    if kind.is_concurrency() && overage != Overage::Deny {
        fields.warn("overage", "has no effect: what a concurrency limit holds is given back whole");
    }
    if kind.is_concurrency() && is_exact {
        fields.warn("exact", "has no effect: a concurrency limit always is");
    }
    if kind.is_concurrency() && charge != Charge::Admitted {
        fields.warn("charge", "has no effect: who is refused holds nothing of a concurrency limit");
    }
    Some(LimitSpec {
        kind,
        capacity: capacity?,
        overage,
        is_exact,
        charge: if kind.is_concurrency() { Charge::Admitted } else { charge },
        unit: unit.unwrap_or_default().to_owned(),
        description: description.unwrap_or_default().to_owned(),
        origin: origin(fields),
        metric: None,
    })
}

/// Whom the limit charges.
pub(super) fn charge(fields: &Fields<'_>) -> Charge {
    match fields.text("charge") {
        None | Some("admitted") => Charge::Admitted,
        Some("always") => Charge::Always,
        Some(other) => {
            fields.mistake("charge", || one_of(other, &["admitted", "always"]));
            Charge::Admitted
        }
    }
}

/// The limit that a `rate_limit` describes.
pub(crate) fn requests_per(
    unit: Unit,
    requests: u64,
    is_exact: bool,
    charge: Charge,
    origin: Origin,
) -> LimitSpec {
    LimitSpec {
        kind: Kind::Rolling { window_seconds: unit.seconds() },
        capacity: requests,
        overage: Overage::Deny,
        is_exact,
        charge,
        unit: "requests".to_owned(),
        description: String::new(),
        origin,
        metric: None,
    }
}

pub(crate) fn origin(fields: &Fields<'_>) -> Origin {
    let name = Arc::clone(&fields.sink.file);
    if fields.sink.is_resource { Origin::Xds(name) } else { Origin::File { path: name, line: fields.line } }
}

fn capacity(fields: &Fields<'_>) -> Option<u64> {
    fields.need("capacity", "how much may be taken at a time; 0 blocks");
    fields.scalar("capacity", |text, plain| {
        scalar::whole(text, plain, &(0..=AMOUNT_MAX))
            .map_err(|refusal| format!("{refusal} (half of 64 bits, so that sums and debts can't overflow)"))
    })
}

fn kind(fields: &Fields<'_>) -> Option<Kind> {
    if !fields.need("kind", "`rolling` or `concurrency`") {
        return None;
    }
    let (name, given, other) = match fields.text("kind")? {
        "rolling" => ("rolling", "window_seconds", "timeout_seconds"),
        "concurrency" => ("concurrency", "timeout_seconds", "window_seconds"),
        word => {
            fields.mistake("kind", || one_of(word, &["rolling", "concurrency"]));
            return None;
        }
    };
    if fields.has(other) {
        fields.mistake(other, || format!("is not for a {name} limit, which has `{given}`"));
    }
    if !fields.need(given, "whole seconds after which what was taken comes back") {
        return None;
    }
    let seconds = fields.whole(given, 1..=u64::from(u32::MAX))?;
    let seconds = u32::try_from(seconds).ok().and_then(NonZeroU32::new)?;
    Some(match name {
        "rolling" => Kind::Rolling { window_seconds: seconds },
        _ => Kind::Concurrency { timeout_seconds: seconds },
    })
}

/// What a request costs, and whether that is settled at its end.
pub(crate) fn cost(fields: &Fields<'_>, kind: Kind) -> Option<(Cost, bool)> {
    let reconcile = fields.flag("reconcile");
    if reconcile && kind.is_concurrency() {
        fields.mistake("reconcile", || "is for rolling limits: a concurrency limit is released as a whole");
        return None;
    }
    let default = if kind.is_concurrency() { Cost::Fixed(1) } else { Cost::Hits };
    if !fields.has("cost") {
        return Some((default, reconcile));
    }
    let cost = fields.scalar("cost", |text, plain| match text {
        "hits" => Ok(Cost::Hits),
        _ => scalar::whole(text, plain, &(1..=AMOUNT_MAX))
            .map(Cost::Fixed)
            .map_err(|refusal| format!("{refusal}; or `hits`")),
    })?;
    Some((cost, reconcile))
}

/// A cost that no state of the limit has room for. A capacity of 0 is meant to block.
pub(crate) fn check_fit(fields: &Fields<'_>, cost: Cost, capacity: u64) {
    if let Cost::Fixed(cost) = cost
        && cost > capacity
        && capacity > 0
    {
        fields.warn("cost", &format!("is more than the capacity of {capacity}: every request is denied"));
    }
}
