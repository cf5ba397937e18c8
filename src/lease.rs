//! Leases: what a request holds until it is completed, and how that is given back.
//!
//! A lease is written as a token that any instance can read ([`token`]), remembered in a bounded table for those who name
//! it by its plain id ([`table`]), and settled at its end ([`settle`], [`apply`]); [`leases`] has all of them. Knows
//! neither the wire nor how a reserve is decided.

mod bytes;
pub(crate) mod token;

pub(crate) mod table;

pub(crate) mod leases;

pub(crate) mod apply;
pub(crate) mod settle;

use crate::limit::key::encode;
use crate::limit::{Kind, LeaseId, LimitKey, Overage};

pub(crate) use leases::Leases;
pub(crate) use settle::{Report, Used};

/// One reserve that was allowed, and what of it a completion can give back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    pub id: LeaseId,
    pub reserved_at_unix_ms: u64,
    pub held: Vec<Held>,
}

/// What a lease holds of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    pub key: LimitKey,
    pub amount: u64,
    /// As it was when it was reserved: the ledger has been told this lifetime.
    pub kind: Kind,
    pub overage: Overage,
    /// The hits of a completion through Envoy are what was really used of it.
    pub costs_hits: bool,
    /// It is called by its whole key, not by the last part of it.
    pub is_named: bool,
}

impl Lease {
    /// When all that it holds has come back by itself.
    pub fn ends_at_unix_ms(&self) -> u64 {
        let lifetimes = self.held.iter().map(|held| held.lifetime_ms());
        self.reserved_at_unix_ms.saturating_add(lifetimes.max().unwrap_or(0))
    }

    /// Whether a completion that comes after its end may record a debt.
    pub(crate) fn may_owe(&self) -> bool {
        self.held.iter().any(Held::has_debts)
    }

    /// Whether a completion should say what was used of it.
    pub(crate) fn needs_report(&self) -> bool {
        self.held.iter().any(|held| held.costs_hits && !held.kind.is_concurrency())
    }

    /// Whether it may be one of the lease API, which holds limits by their keys.
    pub(crate) fn is_of_lease_api(&self) -> bool {
        self.held.iter().all(|held| held.costs_hits && held.is_named)
    }

    /// Whether nothing of it has ended by itself.
    pub(crate) fn all_held_at(&self, now_unix_ms: u64) -> bool {
        let age_ms = now_unix_ms.saturating_sub(self.reserved_at_unix_ms);
        self.held.iter().all(|held| age_ms < held.lifetime_ms())
    }

    /// Whether both hold as much of the same limits, in whatever order.
    pub(crate) fn holds_the_same(&self, other: &Lease) -> bool {
        let wants = other.held.iter().map(|held| (held.key.as_str(), held.amount));
        self.holds(wants)
    }

    /// Whether it holds this much of these limits, each of which is there once, and no more.
    pub(crate) fn holds<'a>(&self, wants: impl ExactSizeIterator<Item = (&'a str, u64)>) -> bool {
        let mut wants = wants;
        wants.len() == self.held.len()
            && wants.all(|(key, amount)| {
                self.held.iter().any(|held| held.key.as_str() == key && held.amount == amount)
            })
    }
}

impl Held {
    pub fn lifetime_ms(&self) -> u64 {
        u64::from(self.kind.lifetime_seconds().get()) * 1000
    }

    /// Whether what doesn't fit is owed.
    pub(crate) fn has_debts(&self) -> bool {
        self.overage != Overage::Deny && !self.kind.is_concurrency()
    }

    /// Whether people call it `name`: as it was written in the file, or by its LimitKey.
    pub fn is_called(&self, name: &str) -> bool {
        if self.key.as_str() == name {
            return true;
        }
        let last = self.key.as_str().rsplit(':').next().unwrap_or_default();
        let mut written = String::new();
        encode(&mut written, name);
        !self.is_named && written == last
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[test]
    fn a_limit_is_called_by_its_name_or_its_key() {
        let held = |key: &str, is_named| Held {
            key: LimitKey::new(key),
            amount: 1,
            kind: Kind::Rolling { window_seconds: NonZeroU32::MIN },
            overage: Overage::Deny,
            costs_hits: true,
            is_named,
        };
        let inline = held("llm:tenant=acme:tpm", false);
        assert!(inline.is_called("tpm") && inline.is_called("llm:tenant=acme:tpm"));
        assert!(!inline.is_called("tenant=acme") && !inline.is_called(""));
        assert!(held("d:k=v:a%3Ab", false).is_called("a:b"), "names are escaped in keys");
        let named = held("global:llm:rpm", true);
        assert!(named.is_called("global:llm:rpm") && !named.is_called("rpm"));
    }
}
