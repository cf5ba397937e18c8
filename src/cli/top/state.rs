//! What `sluice top` knows: the last answer, the last events, and whether the server is there. Pure.

use std::collections::VecDeque;

use serde::Deserialize;

use crate::activity::By;

/// More than any terminal shows.
const EVENTS_MAX: usize = 200;

#[derive(Debug)]
pub(super) struct TopState {
    pub(super) server: String,
    pub(super) by: By,
    /// `None` until there is an answer about `by`.
    pub(super) heaviest: Option<Heaviest>,
    /// The latest first.
    pub(super) events: VecDeque<Happened>,
    /// Why the last question was not answered.
    pub(super) away: Option<String>,
    pub(super) is_done: bool,
}

/// The answer of `/v1/top`.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Heaviest {
    pub(super) by: String,
    pub(super) window_seconds: u64,
    pub(super) keys: Vec<Heavy>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Heavy {
    pub(super) key: String,
    pub(super) domain: String,
    pub(super) count: u64,
    pub(super) error: u64,
}

/// An event of `/v1/events`.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Happened {
    Denied { time: u64, key: String, reason: String, retry_after_ms: Option<u64>, denials: u64 },
    Reload { time: u64, result: String, version: u64 },
    Ledger { time: u64, up: bool },
}

/// What changes the state.
#[derive(Debug)]
pub(super) enum Input {
    Heaviest(Result<Heaviest, String>),
    Happened(Happened),
    Count(By),
    Redraw,
    Quit,
}

impl TopState {
    pub(super) fn new(server: &str, by: By) -> Self {
        let (server, events) = (server.to_owned(), VecDeque::new());
        Self { server, by, heaviest: None, events, away: None, is_done: false }
    }

    pub(super) fn take(&mut self, input: Input) {
        match input {
            Input::Heaviest(Ok(answer)) => {
                self.away = None;
                // An answer to what was asked before the last key is of no use.
                if answer.by == self.by.name() {
                    self.heaviest = Some(answer);
                }
            }
            // What was known stays on the screen.
            Input::Heaviest(Err(why)) => self.away = Some(why),
            Input::Happened(event) => {
                self.events.push_front(event);
                self.events.truncate(EVENTS_MAX);
            }
            Input::Count(by) if by != self.by => {
                self.by = by;
                self.heaviest = None;
            }
            Input::Count(_) | Input::Redraw => {}
            Input::Quit => self.is_done = true,
        }
    }
}
