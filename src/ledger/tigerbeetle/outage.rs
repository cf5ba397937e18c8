//! When to give a session up that does not answer. Pure.
//!
//! The client library never gives up by itself. It waits up to ten seconds before it tries a server again that has come
//! back, and it swallows whatever is handed to it after an eviction. A new session helps in both cases, and does harm if it
//! is made too often: each takes one of the cluster's 64 sessions.

use std::net::SocketAddr;

/// The cluster answers our other session, but not this one for so long: then the fault is with this one.
const ALONE_MS: u64 = 1_500;

/// Somebody listens, but nobody answers for so long. A server that is only slow, or stopped, answers the old session.
const SILENT_MS: u64 = 5_000;

/// Each new session that did not help doubles the wait for the next, up to 32 times.
const DOUBLINGS_MAX: u32 = 5;

/// What can be seen of a cluster from outside.
#[derive(Debug, Clone, Default)]
pub(super) struct Sight {
    /// Where its names lead now; `None` if they lead nowhere.
    pub addresses: Option<Vec<SocketAddr>>,
    /// For each address of the session, whether somebody listens there.
    pub listening: Vec<bool>,
    /// Another session was answered after this one was asked.
    pub answers_another: bool,
}

/// Why a session is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reason {
    Moved,
    ListensAgain,
    AnswersAnother,
    Silent,
}

/// What was seen and tried since a session last answered.
#[derive(Debug, Clone, Default)]
pub(super) struct Outage {
    started_at_ms: u64,
    /// What was seen last; empty before.
    listening: Vec<bool>,
    /// New sessions that did not help.
    renewals: u32,
    renewed_at_ms: u64,
}

impl Outage {
    pub(super) fn new(started_at_ms: u64) -> Self {
        Self { started_at_ms, ..Self::default() }
    }

    pub(super) fn started_at_ms(&self) -> u64 {
        self.started_at_ms
    }

    /// Whether a session at `addresses` whose oldest question is from `asked_at_ms` is to be given up.
    pub(super) fn look(
        &mut self,
        addresses: &[SocketAddr],
        sight: Sight,
        asked_at_ms: u64,
        now_ms: u64,
    ) -> Option<Reason> {
        let waited_ms = now_ms.saturating_sub(asked_at_ms.max(self.renewed_at_ms));
        let patience = |ms: u64| ms << self.renewals.min(DOUBLINGS_MAX);
        let is_there = sight.listening.contains(&true);
        let appeared = sight.listening.iter().zip(&self.listening).any(|(now, before)| *now && !before);
        let reason = if sight.addresses.is_some_and(|now| now != addresses) {
            Some(Reason::Moved)
        } else if appeared {
            Some(Reason::ListensAgain)
        } else if sight.answers_another && waited_ms >= patience(ALONE_MS) {
            Some(Reason::AnswersAnother)
        } else if is_there && waited_ms >= patience(SILENT_MS) {
            Some(Reason::Silent)
        } else {
            None
        };
        self.listening = sight.listening;
        match reason {
            None => {}
            Some(Reason::Moved) => {
                self.listening.clear();
                self.renewed_at_ms = now_ms;
            }
            // Somebody came back: what did not help before says nothing any more.
            Some(Reason::ListensAgain) => {
                self.renewals = 0;
                self.renewed_at_ms = now_ms;
            }
            Some(Reason::AnswersAnother | Reason::Silent) => {
                self.renewals += 1;
                self.renewed_at_ms = now_ms;
            }
        }
        reason
    }

    /// Whether somebody listened everywhere when it was last looked.
    pub(super) fn all_listen(&self) -> bool {
        !self.listening.is_empty() && self.listening.iter().all(|listens| *listens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED_MS: u64 = 100_000;

    /// Looks at one address after each of `(ms, listens, answers another)`, and tells what was given up when.
    fn given_up(rows: &[(u64, bool, bool)]) -> Vec<(u64, Reason)> {
        let addresses = ["10.0.0.1:3000".parse().unwrap()];
        let mut outage = Outage::default();
        let look = |&(ms, listens, answers_another): &(u64, bool, bool)| {
            let sight =
                Sight { addresses: Some(addresses.to_vec()), listening: vec![listens], answers_another };
            outage.look(&addresses, sight, ASKED_MS, ASKED_MS + ms).map(|reason| (ms, reason))
        };
        rows.iter().filter_map(look).collect()
    }

    #[test]
    fn a_server_that_is_away_is_waited_for_and_taken_when_it_listens() {
        assert_eq!(given_up(&[(1_000, false, false), (90_000, false, false)]), []);
        let back = [(1_000, false, false), (1_250, true, false), (1_500, true, false), (2_000, true, false)];
        assert_eq!(given_up(&back), [(1_250, Reason::ListensAgain)]);
        let twice = [(1, false, false), (2, true, false), (3, false, false), (4, true, false)];
        assert_eq!(given_up(&twice), [(2, Reason::ListensAgain), (4, Reason::ListensAgain)]);
    }

    #[test]
    fn a_server_that_listens_and_is_silent_is_given_up_less_and_less_often() {
        let every_second: Vec<_> = (1..=200).map(|s| (s * 1_000, true, false)).collect();
        let expected = [5, 15, 35, 75, 155].map(|s| (s * 1_000, Reason::Silent));
        assert_eq!(given_up(&every_second), expected);
    }

    #[test]
    fn a_session_that_alone_has_no_answer_is_given_up_soon() {
        let every_half: Vec<_> = (1..=10).map(|n| (n * 500, true, true)).collect();
        let expected = [(1_500, Reason::AnswersAnother), (4_500, Reason::AnswersAnother)];
        assert_eq!(given_up(&every_half), expected);
    }

    #[test]
    fn names_that_lead_elsewhere_are_followed_at_once() {
        let old = ["10.0.0.1:3000".parse().unwrap()];
        let sight = |addresses| Sight { addresses, ..Sight::default() };
        let mut outage = Outage::default();
        assert_eq!(outage.look(&old, sight(Some(old.to_vec())), 0, 1), None);
        assert_eq!(outage.look(&old, sight(None), 0, 2), None, "a resolver that fails says nothing");
        let new = vec!["10.0.0.9:3000".parse().unwrap()];
        assert_eq!(outage.look(&old, sight(Some(new)), 0, 3), Some(Reason::Moved));
    }
}
