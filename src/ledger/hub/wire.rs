//! What a sidecar and a hub say to each other, and what it means: both directions in one place. No I/O.
//!
//! What comes from the other side is checked here like any input: nothing of it is believed to be as it has to be.

mod answers;

use std::num::NonZeroU32;
use std::sync::Arc;

pub(crate) use self::answers::{
    failure, full, lent, outcome, read_balances, read_failure, read_loan, read_outcome, read_repaid,
    read_schedule, schedule,
};
use super::pb;
use crate::ledger::{Account, Action, Chain, Hold, Keep, LoanEnd, Transfer, Want};
use crate::limit::{BitSet, LeaseBits, LeaseId, LimitId, LimitKey, Overage};

/// Of the protocol. A side of another major version can't be understood; of another minor version it can.
pub(crate) const MAJOR: u32 = 1;
pub(crate) const MINOR: u32 = 3;

/// What one ask may be long, encoded: less than a message, so that it fits into one with others.
pub(crate) const ASK_BYTES_MAX: usize = 768 << 10;

/// Asks in one message at most.
pub(crate) const ASKS_MAX: usize = 4096;

/// Limits in one ask at most.
pub(crate) const WANTS_MAX: usize = 1024;

/// Loans in one message that are over, at most.
pub(crate) const LOAN_ENDS_MAX: usize = 4096;

/// Slabs in one report, and the keys that are in it.
pub(crate) const SLABS_MAX: usize = 64;
pub(crate) const SLAB_KEY_BYTES_MAX: usize = 1024;

/// The name of an instance, or of its release.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// As long as callers may name leases.
const LEASE_BYTES_MAX: usize = 128;

/// A header of Envoy, which has at most 60 KiB, with every byte percent-encoded, and what stands around it.
const KEY_BYTES_MAX: usize = 256 << 10;

/// Half of 64 bits, so that sums and debts can't overflow.
const CAPACITY_MAX: u64 = u64::MAX / 2;

/// What this side says first.
pub(crate) fn hello(name: &str) -> pb::Hello {
    let (name, version) = (name.to_owned(), env!("CARGO_PKG_VERSION").to_owned());
    pb::Hello { version, name, major: MAJOR, minor: MINOR }
}

/// Whether the other side, which is a `who`, can be understood; what to do if not.
pub(crate) fn check_hello(hello: &pb::Hello, who: &str) -> Result<(), String> {
    if hello.major != MAJOR {
        return Err(format!(
            "the {who} (Sluice {}) speaks version {}.{} of LedgerService and this Sluice {} speaks {MAJOR}.{MINOR}: both \
             need the same major version",
            shown(&hello.version),
            hello.major,
            hello.minor,
            env!("CARGO_PKG_VERSION")
        ));
    }
    if hello.name.len() > NAME_BYTES_MAX || hello.version.len() > NAME_BYTES_MAX {
        return Err(format!("hello: name and version of the {who} may have {NAME_BYTES_MAX} bytes each"));
    }
    Ok(())
}

/// What somebody else wrote, short enough for a log.
fn shown(text: &str) -> String {
    text.chars().filter(|c| !c.is_control()).take(40).collect()
}

pub(crate) fn chain(chain: &Chain) -> pb::Chain {
    let transfer = |transfer: &Transfer| {
        let (action, hold) = match transfer.action {
            Action::Reserve(hold) => (pb::Action::Reserve, Some(hold)),
            Action::TakeUpTo(hold) => (pb::Action::TakeUpTo, Some(hold)),
            Action::Rereserve(hold) => (pb::Action::Rereserve, Some(hold)),
            Action::Debt(hold) => (pb::Action::Debt, Some(hold)),
            Action::Void => (pb::Action::Void, None),
            Action::VoidTaken => (pb::Action::VoidTaken, None),
            Action::VoidRereserved => (pb::Action::VoidRereserved, None),
        };
        let key = transfer.account.key.as_str().to_owned();
        let mut message = pb::Transfer { key, action: action.into(), ..Default::default() };
        if let Some(hold) = hold {
            message.amount = hold.amount;
            message.lifetime_seconds = hold.lifetime_seconds.get();
            message.capacity = hold.capacity;
            message.overage = overage(hold.overage).into();
        }
        message
    };
    let keep = match chain.keep {
        Keep::Nothing => pb::Keep::Nothing,
        Keep::ForUndo => pb::Keep::ForUndo,
        Keep::ForCompletion => pb::Keep::ForCompletion,
        Keep::Name => pb::Keep::Name,
        Keep::ForRetries => pb::Keep::ForRetries,
    };
    let transfers = chain.transfers.iter().map(transfer).collect();
    pb::Chain { lease: chain.lease.to_string(), keep: keep.into(), transfers, slab_window_seconds: 0 }
}

/// A chain that takes a slab of a limit with this window.
pub(crate) fn slab_chain(slab: &Chain, window_seconds: NonZeroU32) -> pb::Chain {
    pb::Chain { slab_window_seconds: window_seconds.get(), ..chain(slab) }
}

pub(crate) fn loan_end(end: &LoanEnd, now_ms: u64) -> pb::LoanEnd {
    pb::LoanEnd {
        lease: end.name.to_string(),
        key: end.account.key.as_str().to_owned(),
        spent: end.spent,
        last_ago_ms: now_ms.saturating_sub(end.last_ms),
    }
}

/// The limit, and the name of the loan.
pub(crate) fn read_loan_end(end: &pb::LoanEnd) -> Result<(LimitId, LeaseBits), String> {
    check_key(&end.key)?;
    Ok((LimitId::of(&LimitKey::new(&end.key)), read_lease(&end.lease)?.bits()))
}

pub(crate) fn read_chain(
    chain: &pb::Chain,
    account: &impl Fn(&str) -> Arc<Account>,
) -> Result<Chain, String> {
    let lease = read_lease(&chain.lease).map_err(|what| format!("chain.{what}"))?;
    let keep = match chain.keep() {
        pb::Keep::Nothing => Keep::Nothing,
        pb::Keep::ForUndo => Keep::ForUndo,
        pb::Keep::ForCompletion => Keep::ForCompletion,
        pb::Keep::Name => Keep::Name,
        pb::Keep::ForRetries => Keep::ForRetries,
        pb::Keep::Unspecified => {
            return Err(format!("chain.keep: {} is none of those that this hub knows", chain.keep));
        }
    };
    let count = chain.transfers.len();
    if count == 0 || count > BitSet::SIZE {
        return Err(format!("chain.transfers: there must be 1 to {}, not {count}", BitSet::SIZE));
    }
    let transfers = chain.transfers.iter().enumerate().map(|(n, transfer)| {
        read_transfer(transfer, account).map_err(|what| format!("chain.transfers[{n}].{what}"))
    });
    Ok(Chain { lease, keep, transfers: transfers.collect::<Result<_, _>>()? })
}

fn read_transfer(
    transfer: &pb::Transfer,
    account: &impl Fn(&str) -> Arc<Account>,
) -> Result<Transfer, String> {
    check_key(&transfer.key)?;
    let hold = || {
        Ok::<_, String>(Hold {
            amount: transfer.amount,
            lifetime_seconds: read_lifetime(transfer.lifetime_seconds)?,
            capacity: read_capacity(transfer.capacity)?,
            is_exact: true,
            overage: read_overage(transfer.overage)?,
        })
    };
    let action = match transfer.action() {
        pb::Action::Reserve => Action::Reserve(hold()?),
        pb::Action::TakeUpTo => Action::TakeUpTo(hold()?),
        pb::Action::Rereserve => Action::Rereserve(hold()?),
        pb::Action::Debt => Action::Debt(hold()?),
        pb::Action::Void => Action::Void,
        pb::Action::VoidTaken => Action::VoidTaken,
        pb::Action::VoidRereserved => Action::VoidRereserved,
        pb::Action::Unspecified => {
            return Err(format!("action: {} is none of those that this hub knows", transfer.action));
        }
    };
    Ok(Transfer { account: account(&transfer.key), action })
}

pub(crate) fn want(want: &Want) -> pb::Want {
    pb::Want {
        key: want.account.key.as_str().to_owned(),
        capacity: want.capacity,
        overage: overage(want.overage).into(),
        lifetime_seconds: want.lifetime_seconds.get(),
    }
}

pub(crate) fn read_want(want: &pb::Want, account: &impl Fn(&str) -> Arc<Account>) -> Result<Want, String> {
    check_key(&want.key)?;
    Ok(Want {
        account: account(&want.key),
        capacity: read_capacity(want.capacity)?,
        overage: read_overage(want.overage)?,
        lifetime_seconds: read_lifetime(want.lifetime_seconds)?,
    })
}

pub(crate) fn read_wants(
    wants: &pb::Wants,
    account: &impl Fn(&str) -> Arc<Account>,
) -> Result<Vec<Want>, String> {
    let count = wants.wants.len();
    if count > WANTS_MAX {
        return Err(format!("wants: there may be {WANTS_MAX}, and there are {count}"));
    }
    let wants = wants.wants.iter().enumerate();
    wants.map(|(n, want)| read_want(want, account).map_err(|what| format!("wants[{n}].{what}"))).collect()
}

/// The name of a lease.
pub(crate) fn read_lease(lease: &str) -> Result<LeaseId, String> {
    if lease.is_empty() || lease.len() > LEASE_BYTES_MAX {
        return Err(format!("lease: must have 1 to {LEASE_BYTES_MAX} bytes, and has {}", lease.len()));
    }
    Ok(LeaseId::parse(lease))
}

fn check_key(key: &str) -> Result<(), String> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(format!("key: must have 1 to {KEY_BYTES_MAX} bytes, and has {}", key.len()));
    }
    Ok(())
}

/// As large as files may say.
pub(crate) fn read_capacity(capacity: u64) -> Result<u64, String> {
    if capacity > CAPACITY_MAX {
        return Err(format!("capacity: may be {CAPACITY_MAX}, and is {capacity}"));
    }
    Ok(capacity)
}

pub(crate) fn read_lifetime(seconds: u32) -> Result<NonZeroU32, String> {
    NonZeroU32::new(seconds).ok_or_else(|| "lifetime_seconds: must be at least 1".to_owned())
}

pub(crate) fn overage(overage: Overage) -> pb::Overage {
    match overage {
        Overage::Deny => pb::Overage::Deny,
        Overage::Debt => pb::Overage::Debt,
        Overage::Repay => pb::Overage::Repay,
    }
}

pub(crate) fn read_overage(overage: i32) -> Result<Overage, String> {
    match pb::Overage::try_from(overage) {
        Ok(pb::Overage::Deny) => Ok(Overage::Deny),
        Ok(pb::Overage::Debt) => Ok(Overage::Debt),
        Ok(pb::Overage::Repay) => Ok(Overage::Repay),
        Err(_) => Err(format!("overage: {overage} is none of those that this hub knows")),
    }
}

#[cfg(test)]
mod tests;
