//! Hints that say when there will be room, as far as the ledger knows that without being asked again.
//!
//! Knows the limits of one request and what callers were told before ([`promises`](super::promises)). What a limit holds, and when
//! that comes back, it asks through [`CapacityAhead`].

use smallvec::SmallVec;

use super::forecast::Forecast;
use super::hints::Hints;
use super::policy::RetryPolicy;
use super::promises::PERIOD_MS;
use super::schedule::{Release, Schedule};
use super::{RetryHint, denied};
use crate::limit::Kind;

/// A limit of a request that was refused.
#[derive(Debug, Clone, Copy)]
pub struct Need<'h> {
    pub hints: &'h Hints,
    pub kind: Kind,
    pub capacity: u64,
    pub amount: u64,
    /// It is known to have said no. Other limits of the same request may have said no too.
    pub has_failed: bool,
}

/// What is known of the limits of a request, by their place in it.
pub trait CapacityAhead {
    /// What it holds and when that comes back. `own` is what is known to have been taken here.
    fn schedule(&mut self, place: usize, own: &[Release]) -> Option<Schedule>;

    /// Whether it is known to have room for the request now.
    fn has_room(&mut self, place: usize) -> bool;

    /// What those who wait in line for it get before `amount` is left for others.
    fn queued_before(&mut self, place: usize, amount: u64) -> u64;
}

/// What the refused is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InformedHint {
    pub hint: RetryHint,
    /// How wrong the caller's last hint was, if it had been told one.
    pub error_ms: Option<u64>,
}

/// Rounds until a time is found at which all limits of a request have room.
const ROUNDS: usize = 4;

/// Some limits of a request said no. `None` if none did. Two that are refused at the same moment may be told the same.
pub fn on_denied(
    needs: &[Need<'_>],
    is_retry: bool,
    policy: &RetryPolicy,
    now_ms: u64,
    coming: &mut impl CapacityAhead,
    mut rand: impl FnMut(u64) -> u64,
) -> Option<InformedHint> {
    let max_ms = policy.rolling.informed_max_ms;
    // The streaks go on, so that the formula knows them when it is needed.
    let mut formula: SmallVec<[u64; 4]> = SmallVec::new();
    for need in needs {
        let ms =
            if need.has_failed { denied(need.hints, need.kind, policy, now_ms, &mut rand).ms } else { 0 };
        formula.push(ms);
    }
    let failed = || needs.iter().filter(|need| need.has_failed);
    let base_ms = failed().map(|need| base_and_jitter(need.kind, policy).0).max()?;
    let jitter_ms = failed().map(|need| base_and_jitter(need.kind, policy).1).max()?;
    let returning = returning(needs, is_retry, now_ms);
    if let Returning::Early { at_ms } = returning {
        let ms = at_ms.saturating_sub(now_ms).max(base_ms).min(max_ms);
        return Some(InformedHint { hint: RetryHint { ms }, error_ms: None });
    }
    let jitter_ms = rand(jitter_ms);
    let (mut at_ms, mut formula_ms) = (now_ms, 0);
    let mut is_known: SmallVec<[bool; 4]> = SmallVec::from_elem(true, needs.len());
    for _ in 0..ROUNDS {
        let from_ms = at_ms;
        for (place, need) in needs.iter().enumerate() {
            let fits = fits(need, place, at_ms, jitter_ms, now_ms, coming);
            is_known[place] = fits.is_some();
            match fits {
                Some(Fits { at_ms: fits_at_ms, are_kept }) => {
                    at_ms = at_ms.max(fits_at_ms);
                    // Callers don't come at the times that they are told, so the formula's wait is the least.
                    if !are_kept {
                        formula_ms = formula_ms.max(formula[place]);
                    }
                }
                None => formula_ms = formula_ms.max(formula[place]),
            }
        }
        if at_ms == from_ms {
            break;
        }
    }
    let wait_ms = at_ms - now_ms;
    let error_ms = match returning {
        Returning::Due { told_ms } => Some(at_ms.saturating_sub(told_ms)),
        _ => None,
    };
    if wait_ms > max_ms {
        return Some(InformedHint {
            hint: RetryHint { ms: max_ms.saturating_sub(jitter_ms).max(1) },
            error_ms,
        });
    }
    // What the formula says has its jitter already.
    let ms = wait_ms.max(base_ms).saturating_add(jitter_ms).max(formula_ms).min(max_ms);
    for (need, _) in needs.iter().zip(is_known).filter(|(need, is_known)| *is_known && need.amount > 0) {
        need.hints.with_promises(|promises| {
            let is_wanted = need.has_failed || promises.has_promises();
            if is_wanted && promises.are_kept() {
                promises.add(now_ms + ms, at_ms, need.amount);
            }
        });
    }
    Some(InformedHint { hint: RetryHint { ms }, error_ms })
}

/// A limit admitted a request. `remembers`: the ledger can't tell when this comes back, so it has to be remembered here. Returns how wrong
/// the hint was that this caller followed, if it seems to have followed one.
pub fn on_admitted(need: &Need<'_>, is_retry: bool, remembers: bool, now_ms: u64) -> Option<u64> {
    let window_ms = window_ms(need.kind).filter(|_| remembers && need.amount > 0);
    if window_ms.is_none() && !need.hints.has_promises() {
        return None;
    }
    let told = need.hints.with_promises(|promises| {
        let told = promises.admitted(need.amount, is_retry, usual(need), now_ms);
        if let Some(window_ms) = window_ms {
            promises.took(need.amount, now_ms.saturating_add(window_ms), window_ms);
        }
        told
    });
    told.map(|(told_ms, fits_at_ms)| told_ms.saturating_sub(fits_at_ms))
}

/// Who it is that was refused.
enum Returning {
    /// It was told nothing yet.
    New,
    /// It was told to come later.
    Early { at_ms: u64 },
    /// It was told to come now.
    Due { told_ms: u64 },
}

/// Removes the promise that a caller was given from the limits that refused it now.
fn returning(needs: &[Need<'_>], is_retry: bool, now_ms: u64) -> Returning {
    let (mut due_ms, mut next_ms) = (None, Some(0));
    for need in needs.iter().filter(|need| need.has_failed) {
        need.hints.with_promises(|promises| {
            promises.forget(now_ms);
            if is_retry {
                promises.saw_mark();
            }
            let due = promises.end_due(now_ms);
            due_ms = due_ms.max(due.map(|(told_ms, _)| told_ms));
            let next = promises.next_ms(now_ms).filter(|_| is_retry);
            next_ms = next_ms.zip(next).map(|(a, b): (u64, u64)| a.max(b));
            if due.is_none() && next.is_none() {
                promises.saw_stranger(need.amount, usual(need), now_ms);
            }
        });
    }
    match (due_ms, next_ms) {
        (Some(told_ms), _) => Returning::Due { told_ms },
        (None, Some(at_ms)) if at_ms > 0 => Returning::Early { at_ms },
        _ => Returning::New,
    }
}

struct Fits {
    at_ms: u64,
    /// Callers seem to come when they are told.
    are_kept: bool,
}

/// When one limit has room for a request, not before `from_ms`.
fn fits(
    need: &Need<'_>,
    place: usize,
    from_ms: u64,
    late_ms: u64,
    now_ms: u64,
    coming: &mut impl CapacityAhead,
) -> Option<Fits> {
    if !need.has_failed && !need.hints.has_promises() && coming.has_room(place) {
        return Some(Fits { at_ms: from_ms, are_kept: true });
    }
    need.hints.with_promises(|promises| {
        promises.forget(now_ms);
        let asked =
            if promises.known(now_ms).is_none() { coming.schedule(place, promises.own()) } else { None };
        let own = need.amount.max(1);
        let are_kept = promises.are_kept();
        let ahead = coming.queued_before(place, promises.amount().saturating_add(own));
        let takers = promises.takers(ahead, now_ms);
        let forecast = Forecast {
            kind: need.kind,
            capacity: need.capacity,
            schedule: asked.as_ref().or(promises.known(now_ms)),
            mean_hold_ms: need.hints.mean_hold_ms(),
            part: 1.0,
        };
        let at_ms = forecast.fits_at_ms(&takers, own, from_ms, late_ms, now_ms);
        asked.into_iter().for_each(|schedule| promises.know(schedule, now_ms));
        Some(Fits { at_ms: at_ms?, are_kept })
    })
}

/// What a limit gives in a [`PERIOD_MS`].
fn usual(need: &Need<'_>) -> u64 {
    let lasts_ms = window_ms(need.kind).or(need.hints.mean_hold_ms()).unwrap_or(PERIOD_MS).max(1);
    let amount = u128::from(need.capacity) * u128::from(PERIOD_MS) / u128::from(lasts_ms);
    u64::try_from(amount).unwrap_or(u64::MAX)
}

fn window_ms(kind: Kind) -> Option<u64> {
    match kind {
        Kind::Rolling { window_seconds } => Some(u64::from(window_seconds.get()) * 1000),
        Kind::Concurrency { .. } => None,
    }
}

fn base_and_jitter(kind: Kind, policy: &RetryPolicy) -> (u64, u64) {
    if kind.is_concurrency() {
        (policy.concurrency.base_ms, policy.concurrency.jitter_ms)
    } else {
        (policy.rolling.base_ms, policy.rolling.jitter_ms)
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    const SECONDS_10: Kind = Kind::Rolling { window_seconds: NonZeroU32::new(10).unwrap() };
    const HELD: Kind = Kind::Concurrency { timeout_seconds: NonZeroU32::new(300).unwrap() };
    const NOW_MS: u64 = 50_000;

    /// What is known of each limit: when its only unit comes back.
    struct Fixed<'a>(&'a [Option<u64>], u64);

    impl CapacityAhead for Fixed<'_> {
        fn schedule(&mut self, place: usize, _: &[Release]) -> Option<Schedule> {
            let release = Release { at_ms: NOW_MS + self.0[place]?, amount: 1 };
            Some(Schedule { used: 1, releases: vec![release], is_whole: true })
        }

        fn has_room(&mut self, _: usize) -> bool {
            false
        }

        fn queued_before(&mut self, _: usize, _: u64) -> u64 {
            self.1
        }
    }

    fn policy() -> RetryPolicy {
        let mut policy = RetryPolicy::default();
        policy.rolling.informed = true;
        policy
    }

    fn need(hints: &Hints, kind: Kind, has_failed: bool) -> Need<'_> {
        Need { hints, kind, capacity: 1, amount: 1, has_failed }
    }

    fn told(needs: &[Need<'_>], known: &[Option<u64>], queued: u64) -> u64 {
        on_denied(needs, false, &policy(), NOW_MS, &mut Fixed(known, queued), |_| 0).unwrap().hint.ms
    }

    #[test]
    fn the_latest_of_all_limits_also_of_those_that_were_not_named() {
        let limits = [0; 2].map(|_| Hints::default());
        let needs = [need(&limits[0], SECONDS_10, true), need(&limits[1], SECONDS_10, false)];
        assert_eq!(told(&needs, &[Some(3_000), Some(8_000)], 0), 8_000);
        // The first is promised at both.
        assert_eq!(told(&needs[..1], &[Some(3_000)], 0), 8_000 + 10_025);
    }

    #[test]
    fn what_is_not_known_is_told_by_the_formula() {
        let limits = [0; 2].map(|_| Hints::default());
        let needs = [need(&limits[0], SECONDS_10, true), need(&limits[1], SECONDS_10, true)];
        assert_eq!(told(&needs[..1], &[None], 0), 1_500);
        assert_eq!(told(&needs, &[None, Some(700)], 0), 2_250, "the second denial of the first");
        assert!(!limits[0].has_promises() || limits[0].with_promises(|it| !it.has_promises()));
    }

    #[test]
    fn the_formula_has_its_jitter_once() {
        let hints = Hints::default();
        let need = need(&hints, SECONDS_10, true);
        let told = on_denied(&[need], false, &policy(), NOW_MS, &mut Fixed(&[None], 0), |n| n).unwrap();
        assert_eq!(told.hint.ms, 1_500 + 50);
    }

    #[test]
    fn it_is_at_least_the_base_and_at_most_the_longest_with_its_jitter() {
        for (back_ms, rand, expected) in
            [(3, 0, 100), (3, 50, 150), (59_980, 50, 60_000), (60_001, 0, 60_000), (90_000, 50, 59_950)]
        {
            let hints = Hints::default();
            let need = need(&hints, Kind::Rolling { window_seconds: NonZeroU32::new(3600).unwrap() }, true);
            let mut known = Fixed(&[Some(back_ms)], 0);
            let told = on_denied(&[need], false, &policy(), NOW_MS, &mut known, |_| rand).unwrap();
            assert_eq!(told.hint.ms, expected, "{back_ms} + {rand}");
        }
    }

    #[test]
    fn concurrency_by_the_mean_hold_and_those_who_were_told() {
        let hints = Hints::default();
        let need = Need { capacity: 20, ..need(&hints, HELD, true) };
        assert_eq!(told(&[need], &[None], 0), 100, "the formula, because nobody was seen to finish");
        hints.saw_hold(4_000);
        // 20 at a time for 4 s each: 5 a second.
        let all: Vec<u64> = (0..4).map(|_| told(&[need], &[None], 0)).collect();
        assert_eq!(all, [200, 400, 600, 800]);
    }

    #[test]
    fn those_in_line_are_served_first() {
        let hints = Hints::default();
        let need = need(&hints, SECONDS_10, true);
        assert_eq!(told(&[need], &[Some(3_000)], 1), 10_025, "when the one in line has given it back");
    }

    #[test]
    fn one_that_is_refused_at_its_time_says_by_how_much_it_was_wrong() {
        let hints = Hints::default();
        let need = need(&hints, SECONDS_10, true);
        let ask = |now_ms, back_ms| {
            let mut known = Fixed(&[Some(back_ms)], 0);
            on_denied(&[need], false, &policy(), now_ms, &mut known, |_| 0).unwrap()
        };
        assert_eq!(ask(NOW_MS, 1_000), InformedHint { hint: RetryHint { ms: 1_000 }, error_ms: None });
        let again = ask(NOW_MS + 1_010, 1_500);
        assert_eq!(again, InformedHint { hint: RetryHint { ms: 490 }, error_ms: Some(500) });
        let admitted = Need { has_failed: false, ..need };
        assert_eq!(on_admitted(&admitted, false, false, NOW_MS + 1_500), Some(0));
        assert_eq!(on_admitted(&admitted, false, false, NOW_MS + 1_500), None);
    }

    /// A limit that was denied once costs this much and one promise of 32 bytes, four times for the growth of a list.
    #[test]
    fn what_a_limit_remembers_is_small() {
        assert!(size_of::<Hints>() <= 48, "{}", size_of::<Hints>());
        assert!(size_of::<crate::retry::promises::Promises>() <= 200);
        let limits: Vec<Hints> = (0..100).map(|_| Hints::default()).collect();
        let first = need(&limits[0], SECONDS_10, false);
        assert_eq!(on_admitted(&first, false, false, NOW_MS), None);
        assert!(!limits[0].has_promises(), "who is admitted leaves nothing behind");
    }
}
