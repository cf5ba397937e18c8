//! A lease as few bytes: what tokens carry and the lease table keeps. Reading takes nothing for granted.
//!
//! The keys of one request have most of their text in common, so each is written as what it adds to the one before.
//! Numbers are in groups of seven bits, lowest first. No secrets, no base64: see [`super::token`].
//!
//! ```text
//! lease  = id reserved_at_unix_ms count held…
//! id     = 0 <16 bytes of a ULID> | length <text>
//! held   = shared length <text> flags lifetime_seconds amount
//! ```

use std::num::NonZeroU32;

use super::{Held, Lease};
use crate::limit::{Kind, LeaseId, LimitKey, Overage, REQUIREMENTS_MAX};

const CONCURRENCY: u8 = 1;
const DEBT: u8 = 2;
const COSTS_HITS: u8 = 4;
const NAMED: u8 = 8;
const REPAY: u8 = 16;
const FLAGS: u8 = CONCURRENCY | DEBT | COSTS_HITS | NAMED | REPAY;

/// Appends a lease.
pub(crate) fn write(out: &mut Vec<u8>, lease: &Lease) {
    match &lease.id {
        LeaseId::Ulid(ulid) => {
            out.push(0);
            out.extend(ulid.0.to_be_bytes());
        }
        LeaseId::Name(text) => write_text(out, text),
    }
    write_number(out, lease.reserved_at_unix_ms);
    write_number(out, lease.held.len() as u64);
    let mut before = "";
    for held in &lease.held {
        write_held(out, held, before);
        before = held.key.as_str();
    }
}

fn write_held(out: &mut Vec<u8>, held: &Held, before: &str) {
    let key = held.key.as_str();
    let shared = shared_bytes(before, key);
    write_number(out, shared as u64);
    write_text(out, &key[shared..]);
    let flag = |set: bool, flag: u8| if set { flag } else { 0 };
    out.push(
        flag(held.kind.is_concurrency(), CONCURRENCY)
            | flag(held.overage == Overage::Debt, DEBT)
            | flag(held.overage == Overage::Repay, REPAY)
            | flag(held.costs_hits, COSTS_HITS)
            | flag(held.is_named, NAMED),
    );
    write_number(out, u64::from(held.kind.lifetime_seconds().get()));
    write_number(out, held.amount);
}

/// How many bytes two texts have in common from the start, in whole characters.
fn shared_bytes(a: &str, b: &str) -> usize {
    let mut shared = a.bytes().zip(b.bytes()).take_while(|(a, b)| a == b).count();
    while !b.is_char_boundary(shared) {
        shared -= 1;
    }
    shared
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    write_number(out, text.len() as u64);
    out.extend(text.as_bytes());
}

fn write_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.push((number & 0x7f) as u8);
}

/// Reads a lease from the start of `bytes`, and leaves them at what follows it.
pub(crate) fn read(bytes: &mut &[u8]) -> Option<Lease> {
    let id = match usize::try_from(read_number(bytes)?).ok()? {
        0 => LeaseId::Ulid(ulid::Ulid(u128::from_be_bytes(take(bytes, 16)?.try_into().ok()?))),
        length => LeaseId::parse(std::str::from_utf8(take(bytes, length)?).ok()?),
    };
    let reserved_at_unix_ms = read_number(bytes)?;
    let count = usize::try_from(read_number(bytes)?).ok()?;
    if count > REQUIREMENTS_MAX {
        return None;
    }
    let mut held: Vec<Held> = Vec::with_capacity(count);
    for _ in 0..count {
        let next = read_held(bytes, held.last().map_or("", |before| before.key.as_str()))?;
        held.push(next);
    }
    Some(Lease { id, reserved_at_unix_ms, held })
}

fn read_held(bytes: &mut &[u8], before: &str) -> Option<Held> {
    let shared = usize::try_from(read_number(bytes)?).ok()?;
    let length = usize::try_from(read_number(bytes)?).ok()?;
    let added = std::str::from_utf8(take(bytes, length)?).ok()?;
    let key = LimitKey::new(&[before.get(..shared)?, added].concat());
    let flags = *take(bytes, 1)?.first()?;
    if flags & !FLAGS != 0 {
        return None;
    }
    let overage = match flags & (DEBT | REPAY) {
        0 => Overage::Deny,
        DEBT => Overage::Debt,
        REPAY => Overage::Repay,
        _ => return None,
    };
    let seconds = u32::try_from(read_number(bytes)?).ok().and_then(NonZeroU32::new)?;
    let kind = if flags & CONCURRENCY != 0 {
        Kind::Concurrency { timeout_seconds: seconds }
    } else {
        Kind::Rolling { window_seconds: seconds }
    };
    Some(Held {
        key,
        amount: read_number(bytes)?,
        kind,
        overage,
        costs_hits: flags & COSTS_HITS != 0,
        is_named: flags & NAMED != 0,
    })
}

fn take<'b>(bytes: &mut &'b [u8], count: usize) -> Option<&'b [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *take(bytes, 1)?.first()?;
        let group = u64::from(byte & 0x7f);
        if group << shift >> shift != group {
            return None;
        }
        number |= group << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(crate) fn held(key: &str, amount: u64, kind: Kind) -> Held {
        Held {
            key: LimitKey::new(key),
            amount,
            kind,
            overage: Overage::Debt,
            costs_hits: true,
            is_named: false,
        }
    }

    prop_compose! {
        pub(crate) fn any_held()(
            key in "(d:)?[a-zé%:=]{0,12}",
            amount in any::<u64>(),
            seconds in 1..=u32::MAX,
            flags in any::<[bool; 3]>(),
            overage in prop::sample::select(&[Overage::Deny, Overage::Debt, Overage::Repay]),
        ) -> Held {
            let seconds = NonZeroU32::new(seconds).unwrap();
            let kind = if flags[0] {
                Kind::Concurrency { timeout_seconds: seconds }
            } else {
                Kind::Rolling { window_seconds: seconds }
            };
            Held { overage, costs_hits: flags[1], is_named: flags[2], ..held(&key, amount, kind) }
        }
    }

    prop_compose! {
        pub(crate) fn any_lease()(
            id in prop_oneof![any::<u128>().prop_map(|n| ulid::Ulid(n).to_string()), ".{1,20}".prop_map(String::from)],
            reserved_at_unix_ms in any::<u64>(),
            held in prop::collection::vec(any_held(), 0..=REQUIREMENTS_MAX),
        ) -> Lease {
            Lease { id: LeaseId::parse(&id), reserved_at_unix_ms, held }
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(lease in any_lease(), more in any::<[u8; 3]>()) {
            let mut bytes = Vec::new();
            write(&mut bytes, &lease);
            bytes.extend(more);
            let mut rest = bytes.as_slice();
            prop_assert_eq!(read(&mut rest), Some(lease));
            prop_assert_eq!(rest, more);
        }

        #[test]
        fn cut_short_it_is_refused(lease in any_lease(), keep in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            write(&mut bytes, &lease);
            prop_assert_eq!(read(&mut &bytes[..keep.index(bytes.len())]), None);
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&mut bytes.as_slice());
        }
    }
}
