//! `sluice simulate`: what these limits would have done to that traffic, on virtual time.
//!
//! The registry, the memory ledger, the hints, the retry budget and the settling of leases are those of a server. What is here
//! stands in the place of the sockets and of the clock: traffic comes from files or from made-up clients, and what is
//! answered is counted.

pub mod report;
pub mod series;
pub(crate) mod table;

pub(crate) mod page;
pub(crate) mod plot;
mod markup;

mod clients;
mod compare;
mod decisions;
mod document;
mod limits;
mod run;
mod scenario;
mod side;
mod suggest;
mod traffic;
mod waits;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

pub use self::run::run;
use crate::config::{Layout, Problem};

/// What to simulate.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// As `serve` takes it.
    pub config: Layout,
    /// Another configuration to compare with.
    pub against: Option<PathBuf>,
    /// Wins over that of a scenario.
    pub seed: Option<u64>,
    /// How lines of an access log are read. Without it they are requests already.
    pub map: Option<PathBuf>,
    /// Where to write a line for each decision.
    pub decisions: Option<PathBuf>,
    /// Suggest capacities that would have denied at most this part of the requests.
    pub suggest: Option<f64>,
    /// Scenarios end in `.yaml` or `.yml`, and `.gz` if they are packed; all else is a log.
    pub traffic: Vec<PathBuf>,
}

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Files that can't be read or are wrong.
    #[error("{} problems found", .0.len())]
    Problems(Vec<Problem>),
    #[error("{0}")]
    Other(String),
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Decided so far.
    pub requests: u64,
    /// The part of all that is done, if that can be told.
    pub part: Option<f64>,
}

/// Hears what happens meanwhile.
pub trait Watch {
    /// A line that can't be read; only the first thousand are told.
    fn broken(&mut self, problem: &Problem);
    /// Now and then.
    fn progress(&mut self, progress: Progress);
}
