//! What happened, for those who listen.

use std::sync::Arc;

use crate::telemetry::Reason;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Event {
    Denied(Denied),
    /// The files were read again.
    Reload {
        time_unix_ms: u64,
        is_live: bool,
        version: u64,
        /// As JSON, because what they are is decided elsewhere.
        problems: Vec<serde_json::Value>,
    },
    /// The ledger answers again, or does not any more.
    Ledger {
        time_unix_ms: u64,
        up: bool,
    },
}

/// Denials of one limit within a second.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Denied {
    /// Of the last of them.
    pub(crate) time_unix_ms: u64,
    pub(crate) domain: Arc<str>,
    pub(crate) key: Arc<str>,
    pub(crate) reason: Reason,
    pub(crate) retry_after_ms: Option<u64>,
    /// How many it stands for.
    pub(crate) denials: u64,
}

impl Denied {
    /// Takes a later one in.
    pub(super) fn merge(&mut self, later: &Denied) {
        let denials = self.denials.saturating_add(later.denials);
        *self = Denied { denials, ..later.clone() };
    }
}
