//! What the holder of a place is told: its position and when its turn comes, or when it would come if there were a place.
//!
//! Only reads what is known. The one thing it changes is the note of the first estimate.

use super::super::place::{JobId, Need, PlaceState, PlaceStatus, QueueFull, TimedOut};
use super::super::share::Share;
use super::Places;
use super::kept::open_bytes_max;
use crate::ledger::Account;
use crate::limit::LimitSpec;
use crate::retry::eta::{self, Stage};
use crate::retry::forecast::Forecast;
use crate::retry::policy::Queue as Policy;

impl Places {
    /// What the holder of a place is told. The first estimate is noted, to be compared with what comes of it.
    pub fn status(
        &mut self,
        id: JobId,
        policy: &Policy,
        share: &Share,
        now_ms: u64,
        now_unix_ms: u64,
    ) -> Option<PlaceStatus> {
        let position = self.order.position(id);
        let place = self.places.get(&id)?;
        let elapsed_ms = now_ms.saturating_sub(place.since_ms);
        let estimate = match (&place.state, &position) {
            (PlaceState::Queued, Some(at)) => {
                let limit = self.limits.get(at.limit)?;
                let forecast = self.forecast(&limit.account, &limit.spec, share);
                let wait_ms = forecast.wait_ms(at.amount_before, at.own, now_ms);
                wait_ms
                    .filter(|_| limit.account.decreasing_since_ms().is_none())
                    .map(|ms| eta::after_ms(ms, policy))
            }
            (PlaceState::Processing, _) => Some(eta::eta_seconds(Stage::InFlight, None, policy)),
            _ => None,
        };
        if place.state == PlaceState::Queued && place.promised_seconds.is_none() && place.is_placed {
            self.places.get_mut(&id)?.promised_seconds = estimate;
        }
        let place = self.places.get(&id)?;
        let state = match &place.state {
            PlaceState::Reserved(held) if held.ends_at_unix_ms <= now_unix_ms => {
                PlaceState::TimedOut(TimedOut::LeaseEnded)
            }
            state => state.clone(),
        };
        let eta_seconds = match &state {
            state if state.is_last() => 0,
            _ => estimate.unwrap_or_else(|| eta::elapsed_or_default(policy, elapsed_ms)),
        };
        Some(PlaceStatus {
            id: place.id.clone(),
            job_id: place.job_id.clone(),
            state,
            wants: place.wants.clone(),
            position: position.map(|at| at.jobs_before),
            eta_seconds,
            elapsed_seconds: elapsed_ms / 1000,
        })
    }

    /// Whether there is a place for one more job that takes so many bytes.
    pub(super) fn check_full(
        &self,
        needs: &[Need],
        bytes: usize,
        policy: &Policy,
        share: &Share,
        now_ms: u64,
    ) -> Result<(), QueueFull> {
        let per_key_max = usize::try_from(policy.places_per_key_max).unwrap_or(usize::MAX);
        let crowded = needs.iter().find(|need| self.order.waiting_at(need.account.id) >= per_key_max);
        let too_many = (self.order.len() + self.unclaimed) as u64 >= policy.places_max;
        let all_taken = too_many || self.open_bytes + bytes > open_bytes_max(policy);
        if crowded.is_none() && !all_taken {
            return Ok(());
        }
        let need = crowded.unwrap_or(&needs[0]);
        let limit = need.account.id;
        let forecast = self.forecast(&need.account, &need.spec, share);
        let wait_ms = forecast.wait_ms(self.order.demand_at(limit), need.amount, now_ms);
        let eta_seconds =
            wait_ms.map_or_else(|| eta::elapsed_or_default(policy, 0), |ms| eta::after_ms(ms, policy));
        Err(QueueFull { limit: crowded.map(|need| need.account.clone()), eta_seconds })
    }

    fn forecast<'a>(&'a self, account: &Account, spec: &LimitSpec, share: &Share) -> Forecast<'a> {
        Forecast {
            kind: spec.kind,
            capacity: spec.capacity,
            schedule: self.limits.get(account.id).and_then(|limit| limit.schedule.as_ref()),
            mean_hold_ms: account.hints.mean_hold_ms(),
            part: share.queue_part(account.id),
        }
    }
}
