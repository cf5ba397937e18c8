//! How long until a job is served: arithmetic over what a limit will get back by itself. Pure.
//!
//! A rolling limit gets back what it holds when the windows end, and what the queue takes then comes back a window later.
//! So the times at which it gets something back repeat with the window. Where they are not known, the rate is
//! capacity / window. A concurrency limit gets back what it holds as fast as its holders finish: capacity / mean hold.
//! Where neither is known, there is no estimate.

use crate::ledger::Schedule;
use crate::limit::Kind;

/// What is known of a limit that jobs wait at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Forecast<'a> {
    pub(super) kind: Kind,
    pub(super) capacity: u64,
    /// What the ledger said last.
    pub(super) schedule: Option<&'a Schedule>,
    /// How long its holders were seen to hold it.
    pub(super) mean_hold_ms: Option<u64>,
    /// The part of it that the queue gets; newcomers get the rest.
    pub(super) queue_part: f64,
}

impl Forecast<'_> {
    /// Milliseconds from `now_ms` until `before` and then `own` were served; `None` if nobody can know.
    pub(super) fn wait_ms(&self, before: u64, own: u64, now_ms: u64) -> Option<f64> {
        let used = self.schedule.map_or(self.capacity, |schedule| schedule.used);
        let wanted = (before as f64 + own as f64) / self.queue_part.clamp(0.01, 1.0);
        let lacking = used as f64 + wanted - self.capacity as f64;
        if lacking <= 0.0 {
            return Some(0.0);
        }
        if self.capacity == 0 {
            return None;
        }
        match self.kind {
            Kind::Concurrency { .. } => Some(lacking / self.capacity as f64 * self.mean_hold_ms? as f64),
            Kind::Rolling { window_seconds } => {
                let window_ms = f64::from(window_seconds.get()) * 1000.0;
                let even = lacking / self.capacity as f64 * window_ms;
                Some(self.by_schedule(lacking, window_ms, now_ms).unwrap_or(even))
            }
        }
    }

    /// By the times at which the limit gets something back, again in each window.
    fn by_schedule(&self, lacking: f64, window_ms: f64, now_ms: u64) -> Option<f64> {
        let schedule = self.schedule?;
        let known: u64 = schedule.releases.iter().map(|free| free.amount).sum();
        if known == 0 || (!schedule.is_whole && lacking > known as f64) {
            return None;
        }
        let rounds = (lacking / known as f64).ceil() - 1.0;
        let rest = lacking - rounds * known as f64;
        let mut sum = 0.0;
        let enough = |free: &&crate::ledger::Release| {
            sum += free.amount as f64;
            sum + 1e-9 >= rest
        };
        let at_ms = schedule.releases.iter().find(enough)?.at_ms;
        Some(rounds * window_ms + at_ms.saturating_sub(now_ms) as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::ledger::Release;

    const TEN_SECONDS: Kind = Kind::Rolling { window_seconds: NonZeroU32::new(10).unwrap() };
    const HELD: Kind = Kind::Concurrency { timeout_seconds: NonZeroU32::new(300).unwrap() };
    const NOW_MS: u64 = 50_000;

    fn schedule(used: u64, releases: &[(u64, u64)], is_whole: bool) -> Schedule {
        let free = |&(in_ms, amount): &(u64, u64)| Release { at_ms: NOW_MS + in_ms, amount };
        Schedule { used, releases: releases.iter().map(free).collect(), is_whole }
    }

    fn wait(
        kind: Kind,
        capacity: u64,
        schedule: Option<&Schedule>,
        hold: Option<u64>,
        before: u64,
    ) -> Option<f64> {
        let forecast = Forecast { kind, capacity, schedule, mean_hold_ms: hold, queue_part: 1.0 };
        forecast.wait_ms(before, 1, NOW_MS)
    }

    #[test]
    fn a_rolling_limit_by_its_calendar() {
        // 10 in 10 s, all used: 4 come back in 2 s, 6 in 9 s, and again 10 s later each.
        let there = schedule(10, &[(2000, 4), (9000, 6)], true);
        let rows = [
            (0, 2000.0),
            (3, 2000.0),
            (4, 9000.0),
            (9, 9000.0),
            (10, 12_000.0),
            (13, 12_000.0),
            (14, 19_000.0),
            (25, 29_000.0),
        ];
        for (before, expected) in rows {
            assert_eq!(wait(TEN_SECONDS, 10, Some(&there), None, before), Some(expected), "{before} before");
        }
        let half = schedule(5, &[(3000, 5)], true);
        assert_eq!(wait(TEN_SECONDS, 10, Some(&half), None, 4), Some(0.0));
        assert_eq!(wait(TEN_SECONDS, 10, Some(&half), None, 5), Some(3000.0));
    }

    #[test]
    fn a_rolling_limit_without_a_calendar_drains_evenly() {
        // 10 in 10 s are 1 a second.
        assert_eq!(wait(TEN_SECONDS, 10, None, None, 0), Some(1000.0));
        assert_eq!(wait(TEN_SECONDS, 10, None, None, 24), Some(25_000.0));
        let in_part = schedule(10, &[(2000, 4)], false);
        assert_eq!(wait(TEN_SECONDS, 10, Some(&in_part), None, 3), Some(2000.0));
        assert_eq!(wait(TEN_SECONDS, 10, Some(&in_part), None, 4), Some(5000.0));
    }

    #[test]
    fn a_concurrency_limit_by_the_mean_hold() {
        // 20 at a time for 4 s each: 5 a second.
        assert_eq!(wait(HELD, 20, None, Some(4000), 0), Some(200.0));
        assert_eq!(wait(HELD, 20, None, Some(4000), 99), Some(20_000.0));
        assert_eq!(wait(HELD, 20, None, None, 0), None);
    }

    #[test]
    fn what_newcomers_take_makes_it_longer() {
        let forecast =
            Forecast { kind: TEN_SECONDS, capacity: 10, schedule: None, mean_hold_ms: None, queue_part: 0.5 };
        assert_eq!(forecast.wait_ms(4, 1, NOW_MS), Some(10_000.0));
    }

    #[test]
    fn what_never_comes_is_not_promised() {
        assert_eq!(wait(TEN_SECONDS, 0, None, None, 0), None);
        assert_eq!(wait(HELD, 0, None, Some(10), 0), None);
    }
}
