//! What those who wait are told: where they stand and when their turn comes, or when it would if there were a place.
//!
//! Only asks what is known; changes nothing but the note of a first promise.

use std::sync::Arc;

use super::super::forecast::Known;
use super::super::lines::{JobId, LimitId};
use super::super::{Full, State, Status};
use super::Room;
use crate::ledger::Account;
use crate::limit::LimitSpec;
use crate::retry::eta::{self, Stage};
use crate::retry::policy::Queue;

impl Room {
    /// Where a ticket stands. The first time that a promise is made it is remembered, to be compared with what comes.
    pub fn status(
        &mut self,
        id: JobId,
        policy: &Queue,
        line_part: impl Fn(LimitId) -> f64,
        now_ms: u64,
    ) -> Option<Status> {
        let place = self.lines.place(id);
        let ticket = self.tickets.get(&id)?;
        let elapsed_ms = now_ms.saturating_sub(ticket.since_ms);
        let promise = match (&ticket.state, &place) {
            (State::Queued, Some(place)) => {
                let limit = self.limits.get(place.limit)?;
                let known = self.known(place.limit, &limit.spec, &limit.account, line_part(place.limit));
                let wait_ms = known.wait_ms(place.ahead, place.own, now_ms);
                wait_ms
                    .filter(|_| limit.account.decreasing_since_ms().is_none())
                    .map(|ms| eta::after_ms(ms, policy))
            }
            (State::Processing, _) => Some(eta::eta_seconds(Stage::InFlight, None, policy)),
            _ => None,
        };
        let eta_seconds = match &ticket.state {
            state if state.is_last() => 0,
            _ => promise.unwrap_or_else(|| eta::elapsed_or_default(policy, elapsed_ms)),
        };
        let elapsed_seconds = elapsed_ms / 1000;
        if ticket.state == State::Queued && ticket.promised_seconds.is_none() && ticket.is_placed {
            self.tickets.get_mut(&id)?.promised_seconds = promise;
        }
        Some(Status { place, eta_seconds, elapsed_seconds })
    }

    fn known<'a>(&'a self, limit: LimitId, spec: &LimitSpec, account: &Account, line_part: f64) -> Known<'a> {
        let schedule = self.limits.get(limit).and_then(|limit| limit.schedule.as_ref());
        let (kind, capacity) = (spec.kind, spec.capacity);
        Known { kind, capacity, schedule, mean_hold_ms: account.hints.mean_hold_ms(), line_part }
    }

    /// Whether there is a place for one more.
    pub(super) fn check_room(
        &self,
        limits: &[(Arc<Account>, Arc<LimitSpec>, u64)],
        policy: &Queue,
        line_part: &impl Fn(LimitId) -> f64,
        now_ms: u64,
    ) -> Result<(), Full> {
        let per_key_max = usize::try_from(policy.places_per_key_max).unwrap_or(usize::MAX);
        let crowded = limits.iter().find(|(account, ..)| self.lines.waiting_at(account.id) >= per_key_max);
        let all_taken = (self.lines.len() + self.unclaimed) as u64 >= policy.places_max;
        if crowded.is_none() && !all_taken {
            return Ok(());
        }
        let (account, spec, own) = crowded.unwrap_or(&limits[0]);
        let ahead = self.lines.ahead_at(account.id);
        let known = self.known(account.id, spec, account, line_part(account.id));
        let eta_seconds = known
            .wait_ms(ahead, *own, now_ms)
            .map_or_else(|| eta::elapsed_or_default(policy, 0), |ms| eta::after_ms(ms, policy));
        Err(Full { limit: crowded.map(|(account, ..)| Arc::clone(account)), eta_seconds })
    }
}
