//! When something fits into a limit: arithmetic over what the limit will get back by itself. Pure. The queue uses it to tell jobs
//! when their turn comes, and hints use it to tell the refused when to come back.
//!
//! A rolling limit gets back what it holds when the windows end, and what is taken then comes back a window later.
//! So the times at which it gets something back repeat with the window. Where they are not known, the rate is
//! capacity / window. A concurrency limit gets back what it holds as fast as its holders finish: capacity / mean hold.
//! Where neither is known, there is no estimate.

use super::schedule::Schedule;
use crate::limit::Kind;

/// What is known of a limit that somebody waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Forecast<'a> {
    pub(crate) kind: Kind,
    pub(crate) capacity: u64,
    /// What the ledger said last.
    pub(crate) schedule: Option<&'a Schedule>,
    /// How long its holders were seen to hold it.
    pub(crate) mean_hold_ms: Option<u64>,
    /// The part of the limit that goes to those whom the forecast is for; others get the rest.
    pub(crate) part: f64,
}

/// A caller that was told a time, and will take this much then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Taker {
    pub(crate) at_ms: u64,
    pub(crate) amount: u64,
}

/// Callers come a little late, and the memory ledger gives back what a busy limit holds up to a thousandth of the window late.
const LATE_MS: u64 = 15;
const GRAIN_MS_MIN: u64 = 10;
const GRAINS_PER_WINDOW: u64 = 1000;

/// From the time that somebody was told until what it took then is surely back.
pub(crate) fn held_ms(window_ms: u64) -> u64 {
    window_ms + (window_ms / GRAINS_PER_WINDOW).max(GRAIN_MS_MIN) + LATE_MS
}

impl Forecast<'_> {
    /// Milliseconds from `now_ms` until `before` and then `own` were served; `None` if nobody can know.
    pub(crate) fn wait_ms(&self, before: u64, own: u64, now_ms: u64) -> Option<f64> {
        let used = self.schedule.map_or(self.capacity, |schedule| schedule.used);
        let wanted = (before as f64 + own as f64) / self.part.clamp(0.01, 1.0);
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

    /// The first time, not before `from_ms`, at which `own` can be taken and all `takers`, which are sorted by time, still find what they
    /// were promised. The same holds up to `late_ms` later. `None` if that can't be known.
    pub(crate) fn fits_at_ms(
        &self,
        takers: &[Taker],
        own: u64,
        from_ms: u64,
        late_ms: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let from_ms = from_ms.max(now_ms);
        match self.kind {
            Kind::Concurrency { .. } => {
                let before = takers.iter().fold(0, |sum: u64, taker| sum.saturating_add(taker.amount));
                let wait_ms = self.wait_ms(before, own, now_ms)?.ceil();
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it saturates")]
                let at_ms = now_ms.saturating_add(wait_ms as u64);
                Some(at_ms.max(from_ms))
            }
            Kind::Rolling { window_seconds } => {
                let held_ms = held_ms(u64::from(window_seconds.get()) * 1000);
                self.among(takers, own, from_ms, held_ms, late_ms)
            }
        }
    }

    /// Goes through the times at which something comes back or is taken, and looks for a time from which on enough is
    /// free for as long as it would be held.
    fn among(&self, takers: &[Taker], own: u64, from_ms: u64, held_ms: u64, late_ms: u64) -> Option<u64> {
        let schedule = self.schedule?;
        let mut free = i128::from(self.capacity) - i128::from(schedule.used);
        let (mut back, mut taking, mut giving) =
            (schedule.releases.iter().peekable(), takers.iter().peekable(), takers.iter().peekable());
        let (mut at_ms, mut since_ms) = (0, None);
        loop {
            let gives_ms = |taker: &&Taker| taker.at_ms.saturating_add(held_ms);
            let next_ms = [
                back.peek().map(|release| release.at_ms),
                taking.peek().map(|taker| taker.at_ms),
                giving.peek().map(gives_ms),
            ];
            let next_ms = next_ms.into_iter().flatten().min();
            if next_ms.is_none_or(|next_ms| next_ms > from_ms) {
                let is_long = since_ms.is_some_and(|since: u64| at_ms >= since + held_ms + late_ms);
                if is_long {
                    return since_ms;
                }
                if free >= i128::from(own) {
                    since_ms = since_ms.or(Some(from_ms.max(at_ms)));
                } else {
                    since_ms = None;
                }
            }
            let Some(next_ms) = next_ms else { return since_ms };
            at_ms = next_ms;
            while let Some(release) = back.next_if(|release| release.at_ms <= at_ms) {
                free += i128::from(release.amount);
            }
            while let Some(taker) = giving.next_if(|taker| gives_ms(taker) <= at_ms) {
                free += i128::from(taker.amount);
            }
            while let Some(taker) = taking.next_if(|taker| taker.at_ms <= at_ms) {
                free -= i128::from(taker.amount);
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
        let enough = |free: &&super::schedule::Release| {
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
    use crate::retry::schedule::Release;

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
        let forecast = Forecast { kind, capacity, schedule, mean_hold_ms: hold, part: 1.0 };
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

    /// Of 10 in 10 s, which are held for 10,025 ms by those who were told.
    fn fits(there: &Schedule, takers: &[(u64, u64)], own: u64, from_ms: u64) -> Option<u64> {
        let taker = |&(in_ms, amount): &(u64, u64)| Taker { at_ms: NOW_MS + in_ms, amount };
        let takers: Vec<Taker> = takers.iter().map(taker).collect();
        let (kind, schedule) = (TEN_SECONDS, Some(there));
        let forecast = Forecast { kind, capacity: 10, schedule, mean_hold_ms: None, part: 1.0 };
        let at_ms = forecast.fits_at_ms(&takers, own, NOW_MS + from_ms, 0, NOW_MS)?;
        Some(at_ms - NOW_MS)
    }

    #[test]
    fn who_was_told_a_time_takes_then_and_gives_back_a_window_later() {
        let there = schedule(10, &[(2000, 1), (9000, 9)], true);
        assert_eq!(fits(&there, &[], 1, 0), Some(2000));
        assert_eq!(fits(&there, &[], 2, 0), Some(9000));
        assert_eq!(fits(&there, &[], 1, 5000), Some(5000), "not before it is asked for");
        assert_eq!(fits(&there, &[(2030, 1)], 1, 0), Some(9000));
        assert_eq!(fits(&there, &[(2030, 1), (9010, 9)], 1, 0), Some(2030 + 10_025));
        assert_eq!(fits(&there, &[(2030, 1), (9010, 9)], 2, 0), Some(9010 + 10_025));
        assert_eq!(fits(&there, &[], 11, 0), None, "it never does");
    }

    #[test]
    fn a_small_request_may_go_before_a_large_one_only_if_that_one_still_fits() {
        // 3 are free, 7 come back in 4 s. All 10 are promised in 5 s, or in 20 s.
        let there = schedule(7, &[(4000, 7)], true);
        assert_eq!(fits(&there, &[(5000, 10)], 1, 0), Some(5000 + 10_025));
        assert_eq!(fits(&there, &[(20_000, 10)], 1, 0), Some(0));
    }

    #[test]
    fn what_is_known_in_part_is_used_as_far_as_it_goes() {
        let there = schedule(10, &[(2000, 4)], false);
        assert_eq!(fits(&there, &[], 4, 0), Some(2000));
        assert_eq!(fits(&there, &[], 5, 0), None);
    }

    #[test]
    fn what_newcomers_take_makes_it_longer() {
        let forecast =
            Forecast { kind: TEN_SECONDS, capacity: 10, schedule: None, mean_hold_ms: None, part: 0.5 };
        assert_eq!(forecast.wait_ms(4, 1, NOW_MS), Some(10_000.0));
    }

    #[test]
    fn what_never_comes_is_not_promised() {
        assert_eq!(wait(TEN_SECONDS, 0, None, None, 0), None);
        assert_eq!(wait(HELD, 0, None, Some(10), 0), None);
    }
}
