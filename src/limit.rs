//! What a limit is: its kind, capacity, cost and where it was written.
//!
//! Plain data that is valid once it exists. Knows nothing of descriptors, ledgers or the wire.

mod bit_set;
mod definition;
pub mod id;
pub mod key;
pub mod unit;

use std::num::NonZeroU32;
use std::sync::Arc;

pub use bit_set::BitSet;
pub use definition::Definition;
pub use id::{LeaseBits, LeaseId, LimitId};
pub use key::LimitKey;
pub use unit::Unit;

use crate::telemetry::MetricNames;

/// At most this many requirements in one request: one linked chain stays small.
pub const REQUIREMENTS_MAX: usize = 32;

/// The entry that makes a descriptor a completion, and the metadata that it comes from. Sluice takes that entry for itself:
/// it matches no limit and marks no retry.
pub const COMPLETION_ENTRY: &str = "lease_id";

/// Some of the requirements of a request, by their places in it.
pub type RequirementSet = BitSet;

/// How a reservation gives its capacity back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Each hit comes back one window after it was spent.
    Rolling { window_seconds: NonZeroU32 },
    /// A hold comes back when it is completed, at the latest after the timeout.
    Concurrency { timeout_seconds: NonZeroU32 },
}

impl Kind {
    /// The life of a reservation of this kind.
    pub fn lifetime_seconds(self) -> NonZeroU32 {
        match self {
            Kind::Rolling { window_seconds } => window_seconds,
            Kind::Concurrency { timeout_seconds } => timeout_seconds,
        }
    }

    pub fn is_concurrency(self) -> bool {
        matches!(self, Kind::Concurrency { .. })
    }

    pub fn name(self) -> &'static str {
        match self {
            Kind::Rolling { .. } => "rolling",
            Kind::Concurrency { .. } => "concurrency",
        }
    }
}

/// What happens to the part of an actual cost that no longer fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overage {
    /// What is left of the limit is taken, and the rest is let go.
    #[default]
    Deny,
    /// It is recorded as a debt, which stops nobody.
    Debt,
    /// It is recorded as a debt, which is paid before anybody gets more.
    Repay,
}

impl Overage {
    pub fn name(self) -> &'static str {
        match self {
            Overage::Deny => "deny",
            Overage::Debt => "debt",
            Overage::Repay => "repay",
        }
    }
}

/// Whom a limit charges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Charge {
    /// Requests that are admitted.
    #[default]
    Admitted,
    /// Also requests that are refused, if they have more than one hit: they report what was used already, and take what is left.
    Always,
}

impl Charge {
    pub fn name(self) -> &'static str {
        match self {
            Charge::Admitted => "admitted",
            Charge::Always => "always",
        }
    }
}

/// Where a limit was written, for errors and for the admin API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    File {
        path: Arc<str>,
        line: u32,
    },
    /// Sent by an xDS server. The name of the resource, which begins with `xds:`.
    Xds(Arc<str>),
    /// Created through the admin API.
    Api,
    /// Sent by Envoy with the descriptor.
    Override,
}

impl Origin {
    /// Another place defines it, so that the admin API can't.
    pub(crate) fn is_source(&self) -> bool {
        matches!(self, Origin::File { .. } | Origin::Xds(_))
    }
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{path}:{line}"),
            Origin::Xds(resource) => f.write_str(resource),
            Origin::Api => f.write_str("api"),
            Origin::Override => f.write_str("override"),
        }
    }
}

/// What one rule says about a limit. Every value of a key-only descriptor shares it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitSpec {
    pub kind: Kind,
    /// 0 blocks.
    pub capacity: u64,
    pub overage: Overage,
    /// Every request is decided by the ledger itself, never from a slab.
    pub is_exact: bool,
    pub charge: Charge,
    /// What is counted: `requests`, `tokens`. For people.
    pub unit: String,
    pub description: String,
    pub origin: Origin,
    /// Of a limit that one descriptor has for itself.
    pub metric: Option<Arc<MetricNames>>,
}

impl LimitSpec {
    /// A limit of another instance, of which only this is known here.
    pub(crate) fn of_another(kind: Kind, capacity: u64, overage: Overage) -> Self {
        Self {
            kind,
            capacity,
            overage,
            is_exact: true,
            charge: Charge::Admitted,
            unit: String::new(),
            description: String::new(),
            origin: Origin::Api,
            metric: None,
        }
    }

    /// Only the ledger decides, whatever is asked: somebody wants it so, a completion names what it gives back, or only the
    /// ledger knows what is owed.
    pub fn is_never_in_slabs(&self) -> bool {
        self.is_exact || self.kind.is_concurrency() || self.overage == Overage::Repay
    }
}

/// What one request costs a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Cost {
    /// The hits of the descriptor.
    #[default]
    Hits,
    Fixed(u64),
}

impl Cost {
    pub fn amount(self, hits: u64) -> u64 {
        match self {
            Cost::Hits => hits,
            Cost::Fixed(amount) => amount,
        }
    }
}
