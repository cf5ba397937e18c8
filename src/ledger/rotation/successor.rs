//! The ledger that replaces another one, and what the two are called in messages.

use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Rotation;
use crate::ledger::hub::FleetLine;
use crate::ledger::{Backend, LedgerError};

#[derive(Debug)]
pub(super) struct Successor<L> {
    pub(super) ledger: L,
    /// What the two are called in messages, the old one first.
    pub(super) names: [String; 2],
    /// Bounds a call to both.
    pub(super) timeout: Duration,
    /// The longest lifetime of what was asked for so far; 0 before.
    pub(super) longest_seconds: AtomicU32,
}

impl<L> Successor<L> {
    /// Notes the lifetimes of what is asked for.
    pub(super) fn saw(&self, lifetimes: impl Iterator<Item = NonZeroU32>) {
        let longest = lifetimes.map(NonZeroU32::get).max().unwrap_or(0);
        self.longest_seconds.fetch_max(longest, Ordering::Relaxed);
    }

    pub(super) fn of_old(&self, error: LedgerError) -> LedgerError {
        named("old", &self.names[0], error)
    }

    pub(super) fn of_new(&self, error: LedgerError) -> LedgerError {
        named("new", &self.names[1], error)
    }
}

impl Rotation<Backend> {
    /// Where places in line are kept, if that is not here. What a hub reserves for them it takes from its own ledger alone, so
    /// with two ledgers places are kept here.
    pub(crate) fn line(&self) -> Option<FleetLine> {
        if self.new.is_some() { None } else { self.old.line() }
    }
}

/// Says which of the two did not answer.
fn named(which: &str, name: &str, error: LedgerError) -> LedgerError {
    match error {
        LedgerError::Unavailable(why) => {
            LedgerError::Unavailable(format!("the {which} one, {name}: {}", bare(&why)))
        }
        other => other,
    }
}

/// The reason alone, without the words that say what failed.
pub(super) fn bare(why: &str) -> &str {
    why.strip_prefix("ledger: ").unwrap_or(why)
}
