//! What two configurations decide differently. Requests of a log meet both at once; those of clients that come whatever they are
//! answered meet each when its turn comes, and are compared by their first try.

use ahash::AHashMap;

use super::decisions::{code, key, seconds};
use super::report::{Difference, Differences};
use crate::admission::Denial;

/// Requests that are listed; the others are counted.
const LISTED_MAX: usize = 1_000;

#[derive(Debug, Default)]
pub(super) struct Compare {
    differences: Differences,
    /// First tries that one side has decided and the other has not: few, because both come at the same time.
    waiting: AHashMap<(usize, u64), Option<Denial>>,
}

impl Compare {
    /// What both said of the same request.
    pub(super) fn both(
        &mut self,
        at: impl FnOnce() -> String,
        time_ms: u64,
        here: Option<&Denial>,
        against: Option<&Denial>,
    ) {
        let said_no = match (here, against) {
            (Some(denial), None) => {
                self.differences.denied_only_here += 1;
                denial
            }
            (None, Some(denial)) => {
                self.differences.denied_only_against += 1;
                denial
            }
            _ => return,
        };
        if self.differences.requests.len() < LISTED_MAX {
            self.differences.requests.push(Difference {
                at: at(),
                time: seconds(time_ms),
                code: code(here),
                against: code(against),
                key: key(said_no).map(str::to_owned),
            });
        }
    }

    /// What one side said of the first try of a client.
    pub(super) fn one(
        &mut self,
        (population, number): (usize, u64),
        at: impl FnOnce() -> String,
        time_ms: u64,
        is_here: bool,
        denial: Option<&Denial>,
    ) {
        match self.waiting.remove(&(population, number)) {
            None => drop(self.waiting.insert((population, number), denial.cloned())),
            Some(other) if is_here => self.both(at, time_ms, denial, other.as_ref()),
            Some(other) => self.both(at, time_ms, other.as_ref(), denial),
        }
    }

    pub(super) fn finish(self) -> Differences {
        self.differences
    }
}
