//! The ledgers that this process uses, and from when on each alone knows all that still counts.
//!
//! With two, whatever this instance has admitted since its start is in both. What it or another admitted before on the old one
//! alone has ended when the longest lifetime of any limit has passed. Nothing of this is remembered: a restart begins anew.

use std::fmt;
use std::num::NonZeroU32;

use super::Service;
use crate::ledger::Ledger;

/// What was in the settings, in that order, and since when it is in use.
#[derive(Debug)]
pub(crate) struct Ledgers {
    uris: Vec<String>,
    began_unix_ms: u64,
    /// Others use them through this instance, with limits that it doesn't know.
    is_hub: bool,
}

/// One of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LedgerView {
    pub(crate) uri: String,
    /// From then on it alone knows enough, as far as this instance goes.
    pub(crate) safe_after_unix_ms: u64,
}

impl Ledgers {
    pub(crate) fn new(
        uris: impl Iterator<Item = impl fmt::Display>,
        began_unix_ms: u64,
        is_hub: bool,
    ) -> Self {
        Self { uris: uris.map(|uri| uri.to_string()).collect(), began_unix_ms, is_hub }
    }

    /// The first has known enough all along; one that replaces it does when the `longest` lifetime has passed.
    fn views(&self, longest: Option<NonZeroU32>) -> Vec<LedgerView> {
        let longest_ms = longest.map_or(0, |seconds| u64::from(seconds.get()) * 1000);
        let view = |(place, uri): (usize, &String)| {
            let wait_ms = if place == 0 { 0 } else { longest_ms };
            LedgerView { uri: uri.clone(), safe_after_unix_ms: self.began_unix_ms + wait_ms }
        };
        self.uris.iter().enumerate().map(view).collect()
    }
}

impl Service {
    pub(crate) fn ledgers(&self) -> Vec<LedgerView> {
        let of_limits = self.live.load().registry.longest_lifetime_seconds();
        // Of the limits of its sidecars a hub sees only what is asked for.
        let asked_for = self.admission.ledger.longest_lifetime_seconds().filter(|_| self.ledgers.is_hub);
        self.ledgers.views(of_limits.max(asked_for))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_new_one_knows_enough_after_the_longest_lifetime() {
        let ledgers = |uris: &[&str]| Ledgers::new(uris.iter(), 5_000, false);
        let view = |uri: &str, safe_after_unix_ms| LedgerView { uri: uri.to_owned(), safe_after_unix_ms };
        let longest = NonZeroU32::new(60);
        assert_eq!(ledgers(&["a"]).views(longest), [view("a", 5_000)]);
        let both = [view("a", 5_000), view("b", 65_000)];
        assert_eq!(ledgers(&["a", "b"]).views(longest), both);
        assert_eq!(ledgers(&["a", "b"]).views(None), [view("a", 5_000), view("b", 5_000)]);
    }
}
