//! When an account gets back what it holds, and so when something fits. Pure: knows neither ledger nor clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// When an account gets back by itself what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    pub used: u64,
    /// In the order of time.
    pub releases: Vec<Release>,
    /// Nothing of what is used is missing in `releases`.
    pub is_whole: bool,
}

/// An amount that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// On the monotonic clock.
    pub at_ms: u64,
    pub amount: u64,
}

impl Schedule {
    /// When an amount fits into a capacity if nobody else takes any: now if that is so already, `None` if that
    /// can't be told.
    pub fn fits_at_ms(&self, amount: u64, capacity: u64, now_ms: u64) -> Option<u64> {
        let room = capacity.checked_sub(amount)?;
        let mut lacking = self.used.saturating_sub(room);
        if lacking == 0 {
            return Some(now_ms);
        }
        let enough = |release: &&Release| {
            lacking = lacking.saturating_sub(release.amount);
            lacking == 0
        };
        self.releases.iter().find(enough).map(|release| release.at_ms)
    }

    /// The same in at most so many steps. Where some are made one, all of it comes back at the end of them.
    pub(crate) fn coarse(mut self, steps_max: usize) -> Self {
        let size = self.releases.len().div_ceil(steps_max.max(1)).max(1);
        let one = |some: &[Release]| Release {
            at_ms: some.iter().map(|release| release.at_ms).max().unwrap_or(0),
            amount: some.iter().fold(0, |sum, release| sum.saturating_add(release.amount)),
        };
        self.releases = self.releases.chunks(size).map(one).collect();
        self
    }

    /// What is left for others if `owed` is paid first: whatever is free now or comes back is taken for another window,
    /// until all is paid. What is free at that moment comes back then.
    pub(crate) fn after_debt(self, owed: u64, capacity: u64, window_ms: u64, now_ms: u64) -> Self {
        if owed == 0 || !self.is_whole {
            return self;
        }
        let mut paying = Paying { used: self.used, releases: BinaryHeap::new(), owed, capacity, window_ms };
        paying.releases.extend(self.releases.into_iter().map(Reverse));
        paying.pay(now_ms);
        let mut paid_at_ms = now_ms;
        // With nothing free every unit comes back within a window and pays for another one. So a whole capacity is paid in
        // every window, and then all is as it was, a window later.
        let windows = paying.owed.saturating_sub(1).checked_div(capacity).unwrap_or(0);
        paying.owed -= windows * capacity;
        while paying.owed > 0 {
            let Some(Reverse(release)) = paying.releases.pop() else {
                // Nothing comes back that could pay.
                return Self { used: u64::MAX, releases: Vec::new(), is_whole: true };
            };
            paying.used = paying.used.saturating_sub(release.amount);
            paying.pay(release.at_ms);
            paid_at_ms = release.at_ms;
        }
        let later = |at_ms: u64| at_ms.saturating_add(windows.saturating_mul(window_ms));
        let free = Release { at_ms: later(paid_at_ms), amount: capacity.saturating_sub(paying.used) };
        let mut releases = vec![free];
        while let Some(Reverse(release)) = paying.releases.pop() {
            releases.push(Release { at_ms: later(release.at_ms), ..release });
        }
        Self { used: capacity.max(paying.used), releases, is_whole: true }
    }
}

/// In how long a debt is paid, if nothing is known of what the limit holds: a whole capacity in every window. `None` if
/// nothing can ever be paid.
pub(crate) fn paid_in_ms(owed: u64, capacity: u64, window_ms: u64) -> Option<u64> {
    let ms = (u128::from(owed) * u128::from(window_ms)).checked_div(u128::from(capacity))?;
    Some(u64::try_from(ms).unwrap_or(u64::MAX))
}

/// An account while it pays.
struct Paying {
    used: u64,
    releases: BinaryHeap<Reverse<Release>>,
    owed: u64,
    capacity: u64,
    window_ms: u64,
}

impl Paying {
    /// Pays with what is free.
    fn pay(&mut self, at_ms: u64) {
        let amount = self.owed.min(self.capacity.saturating_sub(self.used));
        if amount > 0 {
            self.used += amount;
            self.owed -= amount;
            self.releases.push(Reverse(Release { at_ms: at_ms.saturating_add(self.window_ms), amount }));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    fn schedule(releases: &[(u64, u64)]) -> Schedule {
        let releases: Vec<_> = releases.iter().map(|&(at_ms, amount)| Release { at_ms, amount }).collect();
        Schedule { used: releases.iter().map(|release| release.amount).sum(), releases, is_whole: true }
    }

    /// Of a capacity of 10 in a window of 60.
    fn fits(releases: &[(u64, u64)], owed: u64, amount: u64) -> Option<u64> {
        schedule(releases).after_debt(owed, 10, 60, 5).fits_at_ms(amount, 10, 5)
    }

    #[test]
    fn what_is_owed_is_paid_before_anything_fits() {
        // 1 is used until 60. 9 of 19 are paid at once, 1 at 60, 9 at 65: those are back at 120 and 125.
        for (amount, at) in [(1, 120), (2, 125), (10, 125)] {
            assert_eq!(fits(&[(60, 1)], 19, amount), Some(at), "{amount}");
        }
        // 3 of 4 are paid at once and 1 of the 7 that come back at 20.
        for (amount, at) in [(1, 20), (6, 20), (7, 65), (9, 65), (10, 80)] {
            assert_eq!(fits(&[(20, 7)], 4, amount), Some(at), "{amount}");
        }
        assert_eq!(fits(&[(20, 7)], 3, 1), Some(20), "all is paid at once");
        assert_eq!(fits(&[(20, 7)], 2, 1), Some(5), "and one is left");
        assert_eq!(fits(&[], 10, 1), Some(65));
        assert_eq!(fits(&[(20, 7)], 4, 11), None);
        assert_eq!(fits(&[(20, 7)], 0, 3), Some(5));
    }

    #[test]
    fn a_debt_of_many_windows_is_told_at_once() {
        // As the first of those above, and a window more for every 10.
        assert_eq!(fits(&[(60, 1)], 19 + 10 * 1000, 1), Some(120 + 60 * 1000));
        assert!(fits(&[(60, 1)], u64::MAX, 1).is_some_and(|at_ms| at_ms > u64::MAX / 2));
        for owed in 1..=200 {
            assert_eq!(fits(&[(60, 1), (65, 9)], owed, 1), Some(step_by_step(owed)), "{owed}");
        }
    }

    /// When something is left of what comes back, if 1 does at 60 and 9 at 65.
    fn step_by_step(mut owed: u64) -> u64 {
        let mut releases = VecDeque::from([(60, 1), (65, 9)]);
        while let Some((at, amount)) = releases.pop_front().filter(|(_, amount)| *amount <= owed) {
            owed -= amount;
            releases.push_back((at + 60, amount));
            if owed < releases[0].1 {
                return releases[0].0;
            }
        }
        60
    }

    #[test]
    fn a_coarse_schedule_is_never_early() {
        let fine = schedule(&[(10, 1), (20, 1), (30, 1), (40, 1), (50, 1)]);
        let coarse = fine.clone().coarse(2);
        assert_eq!(coarse.releases, [Release { at_ms: 30, amount: 3 }, Release { at_ms: 50, amount: 2 }]);
        assert_eq!(fine.clone().coarse(5), fine);
        for amount in 1..=5 {
            assert!(coarse.fits_at_ms(amount, 5, 0) >= fine.fits_at_ms(amount, 5, 0), "{amount}");
        }
    }

    #[test]
    fn where_nothing_can_be_paid_nothing_ever_fits() {
        assert_eq!(schedule(&[]).after_debt(4, 0, 60, 5).fits_at_ms(0, 0, 5), None);
        let unknown = Schedule { is_whole: false, ..schedule(&[(20, 7)]) };
        assert_eq!(unknown.clone().after_debt(4, 10, 60, 5), unknown);
    }
}
