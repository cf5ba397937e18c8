//! When to give up a session that does not answer. Pure.
//!
//! The client library never gives up by itself. It waits up to ten seconds before it tries a server again that has come
//! back, and it swallows whatever is handed to it after an eviction. A new session helps in both cases, and does harm if it
//! is made too often: each takes one of the cluster's 64 sessions.
//!
//! A server that has no connection left does not refuse the next one: the kernel connects it, and the server never takes it.
//! A server that stands still looks the same. The two can be told apart in two cases: another session of ours is answered, or
//! this session never had a connection, because it is new or the server has come back. A session that had a connection keeps it
//! while its server stands still.

use std::net::SocketAddr;

use super::addresses::AddressState;

/// The cluster answers our other session, but not this one for so long: then the fault is with this one.
const ALONE_MS: u64 = 1_500;

/// Somebody listens, but nobody answers for so long. A server that is only slow, or stopped, answers the old session.
const SILENT_MS: u64 = 5_000;

/// Connections are not taken for so long: then there is none left. One that has just started takes its first ones late.
const FULL_MS: u64 = 3_000;

/// Each new session that did not help doubles the wait for the next, up to 32 times.
const DOUBLINGS_MAX: u32 = 5;

/// What can be seen of a cluster from outside.
#[derive(Debug, Clone, Default)]
pub(super) struct Sight {
    /// Where its names lead now; `None` if they lead nowhere.
    pub addresses: Option<Vec<SocketAddr>>,
    /// What is at each address of the session.
    pub states: Vec<AddressState>,
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
    /// This session may never have had a connection.
    is_new: bool,
    /// Where somebody listened when it was last looked; empty before.
    listening: Vec<bool>,
    /// Since when connections have not been taken.
    not_taken_since_ms: Option<u64>,
    is_full: bool,
    /// New sessions that did not help.
    renewals: u32,
    renewed_at_ms: u64,
}

impl Outage {
    /// `is_new`: the session has not been answered yet.
    pub(super) fn new(started_at_ms: u64, is_new: bool) -> Self {
        Self { started_at_ms, is_new, ..Self::default() }
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
        self.look_for_connections(&sight, now_ms);
        let waited_ms = now_ms.saturating_sub(asked_at_ms.max(self.renewed_at_ms));
        let patience = |ms: u64| ms << self.renewals.min(DOUBLINGS_MAX);
        let listening: Vec<bool> = sight
            .states
            .iter()
            .map(|state| matches!(state, AddressState::NotTaken | AddressState::Open))
            .collect();
        let is_there = listening.contains(&true);
        let appeared = listening.iter().zip(&self.listening).any(|(now, before)| *now && !before);
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
        self.listening = listening;
        match reason {
            None => {}
            Some(Reason::Moved) => {
                self.listening.clear();
                self.is_new = true;
                self.renewed_at_ms = now_ms;
            }
            // A server has come back, so it doesn't matter any more that earlier sessions did not help.
            Some(Reason::ListensAgain) => {
                self.is_new = true;
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

    fn look_for_connections(&mut self, sight: &Sight, now_ms: u64) {
        let is_taken = sight.states.contains(&AddressState::Open);
        let is_waiting = sight.states.contains(&AddressState::NotTaken);
        let is_away = sight.states.iter().all(|state| *state == AddressState::Closed);
        if is_taken || is_away {
            (self.not_taken_since_ms, self.is_full) = (None, false);
        } else if is_waiting {
            let since_ms = *self.not_taken_since_ms.get_or_insert(now_ms);
            let is_sure = self.is_new || sight.answers_another;
            self.is_full |= is_sure && now_ms.saturating_sub(since_ms) >= FULL_MS;
        }
    }

    /// The cluster has no connection left for this session.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
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
            let states = vec![if listens { AddressState::Open } else { AddressState::Closed }];
            let sight = Sight { addresses: Some(addresses.to_vec()), states, answers_another };
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

    /// Looks after each of `(ms, the state of the address, answers another)`, and tells when it was sure that there is no
    /// connection left.
    fn full(is_new: bool, rows: &[(u64, AddressState, bool)]) -> Vec<u64> {
        let addresses = ["10.0.0.1:3000".parse().unwrap()];
        let mut outage = Outage::new(ASKED_MS, is_new);
        let mut found = Vec::new();
        for &(ms, state, answers_another) in rows {
            let sight = Sight { addresses: Some(addresses.to_vec()), states: vec![state], answers_another };
            outage.look(&addresses, sight, ASKED_MS, ASKED_MS + ms);
            found.extend(outage.is_full().then_some(ms));
        }
        found
    }

    #[test]
    fn a_new_session_whose_connection_is_not_taken_has_none() {
        let waiting: Vec<_> = (1..=5).map(|s| (s * 1_000, AddressState::NotTaken, false)).collect();
        assert_eq!(full(true, &waiting), [4_000, 5_000]);
        assert_eq!(full(false, &waiting), Vec::<u64>::new(), "its server may stand still");
        let beside: Vec<_> = waiting.iter().map(|(ms, state, _)| (*ms, *state, true)).collect();
        assert_eq!(full(false, &beside), [4_000, 5_000], "it does not: another is answered");
        let back = [&[(1, AddressState::Closed, false)], &waiting[..]].concat();
        assert_eq!(full(false, &back), [4_000, 5_000], "it has come back, and others were first");
    }

    #[test]
    fn it_stays_so_until_a_connection_is_taken_or_the_server_goes() {
        let until = |state| {
            let mut rows: Vec<_> = (1..=4).map(|s| (s * 1_000, AddressState::NotTaken, false)).collect();
            rows.extend([
                (5_000, AddressState::Unknown, false),
                (6_000, state, false),
                (7_000, AddressState::NotTaken, false),
            ]);
            full(true, &rows)
        };
        assert_eq!(until(AddressState::Open), [4_000, 5_000]);
        assert_eq!(until(AddressState::Closed), [4_000, 5_000]);
        assert_eq!(
            until(AddressState::Unknown),
            [4_000, 5_000, 6_000, 7_000],
            "more wait than the kernel keeps"
        );
    }
}
