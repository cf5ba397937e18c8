//! What callers of one limit were told, and what that says of the next one. Pure.
//!
//! Whoever was told a time is counted as one who takes then, until somebody is admitted at that time or it was not
//! seen for a while. Callers have no names here. So one that is refused at about a time that somebody was told
//! is taken for the one that was told it.
//!
//! Promises to callers that don't come as they were told would keep those waiting who do. Such callers are noticed in two ways:
//! their times pass and nobody comes, or the limit refuses again and again somebody who was not told to come ([`Crowd`]). Then
//! promises are not counted until callers come as they are told again.

mod crowd;

use self::crowd::Crowd;
pub(super) use self::crowd::PERIOD_MS;
use super::forecast::Taker;
use super::schedule::{Release, Schedule};

/// One who was told a time and isn't seen this long after it is forgotten.
const FORGOTTEN_AFTER_MS: u64 = 1_500;

/// A caller that obeys is as late as its network. So one that is admitted later than this after a time that somebody was told is
/// somebody else.
const ON_TIME_MS: u64 = 250;

/// Times that are kept for one limit: 32 bytes each. Beyond that two become one.
const PROMISES_MAX: usize = 1_024;

/// What the ledger said is used again for so long, unless somebody was admitted.
const KNOWN_MS: u64 = 100;

/// A schedule with fewer times than this is found so quickly that it is not kept.
const KNOWN_MIN: usize = 64;

/// What was taken here is remembered to the millisecond while there are few of them, and in so many steps of the window beyond that.
const OWN_EXACT_MAX: usize = 32;
const OWN_STEPS: u64 = 32;

/// A caller that did not come counts as much as three that did, so a quarter may stay away. Eight in a row are too many. Then promises
/// are not tried again before as many admissions as the second number.
const MISSING_WEIGHT: u64 = 3;
const MISSING_MAX: u64 = 24;

/// One who was told to come at a time.
#[derive(Debug, Clone, Copy)]
struct Promise {
    taker: Taker,
    /// When there should be room, so `at_ms` without jitter.
    fits_at_ms: u64,
    /// How many it stands for.
    count: u64,
}

/// What one limit remembers of the times that it told.
#[derive(Debug, Default)]
pub(super) struct Promises {
    /// In the order of time.
    list: Vec<Promise>,
    /// How often the precision of the times was halved, beginning with a millisecond.
    doublings: u8,
    crowd: Crowd,
    /// Callers that did not come, less those that came, by their weights.
    missing: u64,
    /// Some callers mark their retries, so one without the mark is new.
    sees_marks: bool,
    /// What the ledger said last, and when.
    known: Option<(Schedule, u64)>,
    /// What was admitted here, where the ledger can't tell when it comes back. In the order of time.
    own: Vec<Release>,
}

impl Promises {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.own.is_empty() && self.crowd.is_quiet() && self.missing == 0
    }

    pub(super) fn has_promises(&self) -> bool {
        !self.list.is_empty()
    }

    /// Those who did not come are forgotten, and so is what has come back.
    pub(super) fn forget(&mut self, now_ms: u64) {
        let is_over = |promise: &Promise| promise.taker.at_ms.saturating_add(FORGOTTEN_AFTER_MS) < now_ms;
        let over = self.list.partition_point(is_over);
        let missing = self.list.drain(..over).map(|promise| promise.count).sum();
        self.count_missing(missing, 0);
        let back = self.own.partition_point(|release| release.at_ms <= now_ms);
        self.own.drain(..back);
    }

    fn count_missing(&mut self, missing: u64, came: u64) {
        let more = self.missing.saturating_add(missing.saturating_mul(MISSING_WEIGHT));
        self.missing = more.saturating_sub(came);
        if missing > 0 && self.missing > MISSING_MAX {
            self.missing = 2 * MISSING_MAX;
            self.list = Vec::new();
        }
    }

    /// Those who will take something, for a [`Forecast`](super::forecast::Forecast). `ahead` is taken by others before.
    pub(super) fn takers(&self, ahead: u64, now_ms: u64) -> Vec<Taker> {
        let first = (ahead > 0).then_some(Taker { at_ms: now_ms, amount: ahead });
        let due = |promise: &Promise| Taker { at_ms: promise.taker.at_ms.max(now_ms), ..promise.taker };
        first.into_iter().chain(self.list.iter().map(due)).collect()
    }

    /// What is promised in all.
    pub(super) fn amount(&self) -> u64 {
        self.list.iter().fold(0, |sum: u64, promise| sum.saturating_add(promise.taker.amount))
    }

    /// Ends the promise that is due first; when that one was told to come, and when there should have been room.
    pub(super) fn end_due(&mut self, now_ms: u64) -> Option<(u64, u64)> {
        let first = self.list.first_mut().filter(|first| first.taker.at_ms <= now_ms)?;
        let told = (first.taker.at_ms, first.fits_at_ms);
        let is_on_time = now_ms <= told.0.saturating_add(ON_TIME_MS);
        if first.count > 1 {
            first.taker.amount -= first.taker.amount / first.count;
            first.count -= 1;
        } else {
            self.list.remove(0);
        }
        self.count_missing(u64::from(!is_on_time), u64::from(is_on_time));
        Some(told)
    }

    /// The time of the earliest promise that is not due yet.
    pub(super) fn next_ms(&self, now_ms: u64) -> Option<u64> {
        let is_due = |promise: &Promise| promise.taker.at_ms <= now_ms;
        self.list.get(self.list.partition_point(is_due)).map(|promise| promise.taker.at_ms)
    }

    pub(super) fn add(&mut self, at_ms: u64, fits_at_ms: u64, amount: u64) {
        if self.list.is_empty() {
            self.doublings = 0;
        }
        self.put(Promise { taker: Taker { at_ms, amount }, fits_at_ms, count: 1 });
        while self.list.len() > PROMISES_MAX {
            self.doublings += 1;
            std::mem::take(&mut self.list).into_iter().for_each(|promise| self.put(promise));
        }
    }

    /// Promises for the same time become one. When there are many, times are rounded up to coarser ones, never down.
    fn put(&mut self, mut promise: Promise) {
        if self.doublings > 0 {
            promise.taker.at_ms = promise.taker.at_ms.next_multiple_of(1 << self.doublings);
        }
        let place = self.list.partition_point(|other| other.taker.at_ms <= promise.taker.at_ms);
        let before = self.list[..place].last_mut().filter(|it| it.taker.at_ms == promise.taker.at_ms);
        match before {
            Some(same) => {
                same.taker.amount = same.taker.amount.saturating_add(promise.taker.amount);
                same.count += promise.count;
            }
            None => self.list.insert(place, promise),
        }
    }

    pub(super) fn saw_mark(&mut self) {
        self.sees_marks = true;
    }

    /// Somebody was refused who was not told to come now. `usual` is what the limit gives in a period.
    pub(super) fn saw_stranger(&mut self, amount: u64, usual: u64, now_ms: u64) {
        self.crowd.refused(amount, usual, now_ms);
        if self.crowd.is_unruly() {
            self.list = Vec::new();
        }
    }

    /// Whether callers seem to come when they are told.
    pub(super) fn are_kept(&self) -> bool {
        self.missing <= MISSING_MAX && !self.crowd.is_unruly()
    }

    /// Somebody was admitted. Returns the promise that this ends: its own, or that of a caller whose room it has taken.
    pub(super) fn admitted(
        &mut self,
        amount: u64,
        is_retry: bool,
        usual: u64,
        now_ms: u64,
    ) -> Option<(u64, u64)> {
        self.known = None;
        self.sees_marks |= is_retry;
        self.crowd.admitted(amount, usual, now_ms);
        self.forget(now_ms);
        if self.missing > MISSING_MAX {
            // No promises are made while too many are missing. Every admission brings it nearer to another try.
            self.missing -= 1;
        }
        // Where callers mark their retries, one without the mark was told nothing, so no promise ends.
        if is_retry || !self.sees_marks { self.end_due(now_ms) } else { None }
    }

    /// Remembers that something was taken here and when it comes back.
    pub(super) fn took(&mut self, amount: u64, back_at_ms: u64, window_ms: u64) {
        let step_ms = if self.own.len() < OWN_EXACT_MAX { 1 } else { (window_ms / OWN_STEPS).max(1) };
        let at_ms = back_at_ms.next_multiple_of(step_ms);
        match self.own.last_mut().filter(|last| last.at_ms >= at_ms) {
            Some(last) => last.amount = last.amount.saturating_add(amount),
            None => self.own.push(Release { at_ms, amount }),
        }
    }

    /// What was taken here and is not back yet.
    pub(super) fn own(&self) -> &[Release] {
        &self.own
    }

    /// What the ledger said last, unless that is old.
    pub(super) fn known(&self, now_ms: u64) -> Option<&Schedule> {
        let (schedule, at_ms) = self.known.as_ref()?;
        (now_ms < at_ms.saturating_add(KNOWN_MS)).then_some(schedule)
    }

    pub(super) fn know(&mut self, schedule: Schedule, now_ms: u64) {
        self.known = (schedule.releases.len() >= KNOWN_MIN).then_some((schedule, now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(times: &[u64]) -> Promises {
        let mut promises = Promises::default();
        times.iter().for_each(|&at_ms| promises.add(at_ms, at_ms, 1));
        promises
    }

    fn admit(promises: &mut Promises, is_retry: bool, now_ms: u64) -> Option<(u64, u64)> {
        promises.admitted(1, is_retry, 100, now_ms)
    }

    fn times(promises: &Promises) -> Vec<u64> {
        promises.list.iter().map(|promise| promise.taker.at_ms).collect()
    }

    #[test]
    fn an_admission_ends_the_promise_that_is_due_first() {
        let mut promises = with(&[3_000, 1_000, 2_000]);
        assert_eq!(admit(&mut promises, false, 999), None);
        assert_eq!(admit(&mut promises, false, 2_000), Some((1_000, 1_000)));
        assert_eq!(times(&promises), [2_000, 3_000]);
    }

    #[test]
    fn one_who_does_not_come_is_forgotten() {
        let mut promises = with(&[1_000, 2_000]);
        promises.forget(2_500);
        assert_eq!(times(&promises), [1_000, 2_000]);
        promises.forget(2_501);
        assert_eq!(times(&promises), [2_000]);
    }

    #[test]
    fn where_callers_mark_retries_a_newcomer_ends_nobodys_promise() {
        let mut promises = with(&[1_000]);
        promises.saw_mark();
        assert_eq!(admit(&mut promises, false, 1_010), None);
        assert_eq!(admit(&mut promises, true, 1_020), Some((1_000, 1_000)));
    }

    #[test]
    fn promises_that_nobody_keeps_are_not_counted_until_it_is_better() {
        let mut promises = Promises::default();
        for n in 0..8 {
            promises.add(n, n, 1);
        }
        promises.forget(2_000);
        assert!(promises.are_kept(), "eight may stay away");
        promises.add(3_000, 3_000, 1);
        promises.add(9_000, 9_000, 1);
        promises.forget(5_000);
        assert!(!promises.are_kept() && !promises.has_promises());
        for _ in 0..MISSING_MAX {
            assert!(!promises.are_kept());
            assert_eq!(admit(&mut promises, false, 6_000), None);
        }
        assert!(promises.are_kept());
    }

    #[test]
    fn one_who_comes_much_later_was_not_told() {
        let mut promises = with(&[0; 20]);
        (0..9).for_each(|_| assert!(admit(&mut promises, false, ON_TIME_MS).is_some()));
        assert!(promises.are_kept());
        (0..9).for_each(|_| assert!(admit(&mut promises, false, ON_TIME_MS + 1).is_some()));
        assert!(!promises.are_kept());
    }

    #[test]
    fn ten_thousand_promises_take_the_place_of_a_thousand() {
        let mut promises = Promises::default();
        (0..10_000).for_each(|n| promises.add(6 * n, 6 * n, 3));
        assert!(promises.list.len() <= PROMISES_MAX, "{}", promises.list.len());
        assert_eq!(promises.amount(), 30_000, "and nobody is left out");
        assert_eq!(promises.list.iter().map(|it| it.count).sum::<u64>(), 10_000);
        assert!(promises.list.is_sorted_by_key(|promise| promise.taker.at_ms));
        assert!(promises.list[0].taker.at_ms <= 64 && promises.list[1].taker.at_ms <= 128, "60 s by 1,024");
        (0..10).for_each(|_| assert!(promises.end_due(128).is_some()));
        assert_eq!(promises.amount(), 30_000 - 30);
    }

    #[test]
    fn what_was_taken_here_is_remembered_in_a_few_steps() {
        let mut promises = Promises::default();
        (0..60_000).for_each(|ms| promises.took(1, ms + 60_000, 60_000));
        assert!(promises.own().len() <= 65, "{}", promises.own().len());
        assert_eq!(promises.own()[31], Release { at_ms: 60_031, amount: 1 }, "the first ones exactly");
        assert_eq!(promises.own().iter().map(|it| it.amount).sum::<u64>(), 60_000);
        promises.forget(90_000);
        assert!(promises.own().iter().all(|release| release.at_ms > 90_000));
        promises.forget(130_000);
        assert!(promises.is_empty());
    }
}
