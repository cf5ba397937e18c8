//! What metrics are labelled with: enums whose values have a word each, and sets of labels.
//!
//! Refuses to know what is counted.

use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue, LabelValueEncoder};

/// An enum whose values have a word each, in the order of their counters.
macro_rules! words {
    ($(#[$doc:meta])* $visible:vis enum $name:ident { $($(#[$item_doc:meta])* $item:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        $visible enum $name { $($(#[$item_doc])* $item,)* }

        impl $name {
            pub(super) const COUNT: usize = [$($word,)*].len();
            pub(crate) const ALL: [Self; Self::COUNT] = [$(Self::$item,)*];

            pub(crate) fn name(self) -> &'static str {
                match self { $(Self::$item => $word,)* }
            }
        }
    };
}
pub(super) use words;

words! {
    /// Why a request was answered as it was; as in the header `x-sluice-reason`.
    pub enum Reason {
        /// It was allowed.
        Allowed = "",
        OverLimit = "over_limit",
        /// The limit owes something, and pays that first.
        Debt = "debt",
        LimitDecreasing = "limit_decreasing",
        RetryBudget = "retry_budget",
        QueueFull = "queue_full",
        NeverFits = "never_fits",
        /// The ledger failed and `on_failure` decided.
        BackendError = "backend_error",
    }
}

words! {
    /// What became of a lease.
    pub(crate) enum LeaseEvent {
        Reserved = "reserved",
        Completed = "completed",
        ExpiredUnseen = "expired_unseen",
        VoidedOnCancel = "voided_on_cancel",
        Forged = "forged",
    }
}

words! {
    /// What became of those who wait for a limit.
    pub(crate) enum QueueEvent {
        Joined = "joined",
        /// There was no place.
        Full = "queue_full",
        Served = "reserved",
        Cancelled = "cancelled",
        /// Waited as long as a job may.
        TimedOut = "timed_out",
        Failed = "failed",
        /// It did not pick up what was reserved for it, or its caller left before it heard of its place.
        Abandoned = "abandoned",
    }
}

words! {
    /// How the ledger failed to answer.
    pub(crate) enum LedgerFailure {
        Unavailable = "unavailable",
        TimedOut = "timed_out",
        QueueFull = "queue_full",
        Full = "full",
    }
}

impl EncodeLabelValue for Reason {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&self.name(), encoder)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DecisionLabels {
    pub(super) domain: String,
    pub(super) code: &'static str,
    pub(super) reason: Reason,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct DomainLabel {
    pub(super) domain: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(crate) struct LimitLabel {
    pub(crate) limit: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct EventLabel {
    pub(super) event: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct ResultLabel {
    pub(super) result: &'static str,
}

impl ResultLabel {
    pub(super) fn of(ok: bool) -> Self {
        Self { result: if ok { "ok" } else { "error" } }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct KindLabel {
    pub(super) kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct FromLabel {
    pub(super) from: &'static str,
}
