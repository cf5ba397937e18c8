//! The times of a slab, all of them derived from the window of its limit. Pure arithmetic.

use std::num::NonZeroU32;

/// A slab lives for this part of the window, and no longer or shorter than these.
const LIVES_PER_WINDOW: u64 = 50;
const LIFE_MS_MIN: u64 = 50;
const LIFE_MS_MAX: u64 = 1_000;

/// A limit that was found full is not asked again for this part of the window.
const FULL_PARTS_PER_WINDOW: u64 = 100;
const FULL_MS_MIN: u64 = 10;
const FULL_MS_MAX: u64 = 500;

/// The longest pause ends this much before a life is over. The next slab is as large as what was admitted in the last life, and
/// after a longer pause nothing would have been admitted in it.
const PAUSE_ENDS_EARLIER_MS: u64 = 5;

/// The ledger gives back by itself what nobody gave back, this much after the last moment at which it may be needed. It
/// must be longer than the longest life, because the ledger's clock may start at T and the last hand-out is at T + L.
const BACKSTOP_SECONDS: u32 = 2;
const _: () = assert!(BACKSTOP_SECONDS as u64 * 1_000 > LIFE_MS_MAX);

/// What a hub lends goes back as early as a slab of its sidecar's own would: a quarter of a life to lend it, half a life to hand
/// it out, and a quarter to tell the hub what became of it.
const LENDS_FOR_PARTS: u64 = 4;
const LOAN_PARTS: u64 = 2;
const TELLS_WITHIN_PARTS: u64 = 4;

/// A sidecar that has not told a hub by then what became of a loan, this much later than it should, has spent all of it.
const OVERDUE_MS: u64 = 250;

/// A hub lends where it is asked for so many slabs of a limit in a life. Four slabs of its own in a life cost the ledger 16 transfers, and
/// sixteen slabs of sidecars 64. With four or fewer, lending would save nothing; with sixteen it is worth what it adds.
pub const LENDS_FROM: u32 = 16;

/// And where a loan is at least so long: a shorter one is over before it has paid for its way.
const LOAN_MS_MIN: u64 = 50;

/// The times of the slabs of one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    pub window_ms: u64,
    /// L, over which it is counted what slabs are sized by.
    pub demand_ms: u64,
    /// How long units are handed out of a slab: L, or less where a hub lends them.
    pub life_ms: u64,
    pub full_ms: u64,
    pub pause_ms_max: u64,
    /// What the ledger is told when a slab is taken.
    pub timeout_seconds: NonZeroU32,
    /// Only where slabs are not handed out here, but lent: so many asks in a life make that worth it.
    pub lends_from: Option<NonZeroU32>,
}

impl Times {
    /// `None` if the ledger can't hold anything for longer than this window.
    pub fn of(window_seconds: NonZeroU32) -> Option<Self> {
        let window_ms = u64::from(window_seconds.get()) * 1_000;
        let life_ms = (window_ms / LIVES_PER_WINDOW).clamp(LIFE_MS_MIN, LIFE_MS_MAX);
        Some(Self {
            window_ms,
            demand_ms: life_ms,
            life_ms,
            pause_ms_max: life_ms - PAUSE_ENDS_EARLIER_MS,
            full_ms: (window_ms / FULL_PARTS_PER_WINDOW).clamp(FULL_MS_MIN, FULL_MS_MAX),
            timeout_seconds: window_seconds.checked_add(BACKSTOP_SECONDS)?,
            lends_from: None,
        })
    }

    /// Those of the slabs that a hub lends parts of.
    pub fn of_lender(window_seconds: NonZeroU32, lends_from: u32) -> Option<Self> {
        let own = Self::of(window_seconds)?;
        let lends_from = NonZeroU32::new(lends_from.max(1));
        Some(Self { life_ms: own.life_ms / LENDS_FOR_PARTS, lends_from, ..own })
    }

    /// For how long a sidecar hands out what it was lent, counted from before it asked.
    pub fn loan_ms(&self) -> u64 {
        self.demand_ms / LOAN_PARTS
    }

    /// Whether loans are long enough to be worth it.
    pub fn may_lend(&self) -> bool {
        self.loan_ms() >= LOAN_MS_MIN
    }

    /// After the end of a slab: by then everything that was lent of it has been spent, or its sidecar has told.
    pub fn overdue_ms(&self) -> u64 {
        self.loan_ms() + self.tell_within_ms() + OVERDUE_MS
    }

    /// How long a sidecar may wait before it tells a hub what became of a loan, so that it goes with something else.
    pub fn tell_within_ms(&self) -> u64 {
        self.demand_ms / TELLS_WITHIN_PARTS
    }

    /// When a unit that was handed out at `last_ms` may be given back. The clock shows whole milliseconds, so the
    /// hand-out may have been almost one later than it says.
    pub fn free_at_ms(&self, last_ms: u64) -> u64 {
        last_ms + self.window_ms + 1
    }
}

/// What the ledger is told when a reservation that is sent at `now_ms` must hold until `free_at_ms`.
pub fn backstop_seconds(free_at_ms: u64, now_ms: u64) -> NonZeroU32 {
    let seconds = free_at_ms.saturating_sub(now_ms).div_ceil(1_000);
    let seconds = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_add(BACKSTOP_SECONDS);
    NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(window_seconds: u32) -> Times {
        Times::of(NonZeroU32::new(window_seconds).unwrap()).unwrap()
    }

    #[test]
    fn lives_and_pauses_by_window() {
        let rows = [
            (1, 50, 10),
            (2, 50, 20),
            (3, 60, 30),
            (10, 200, 100),
            (50, 1_000, 500),
            (60, 1_000, 500),
            (86_400, 1_000, 500),
        ];
        for (window, life_ms, full_ms) in rows {
            let times = times(window);
            assert_eq!((times.life_ms, times.full_ms), (life_ms, full_ms), "{window} s");
            assert!((full_ms..life_ms).contains(&times.pause_ms_max), "{window} s");
            assert_eq!(times.timeout_seconds.get(), window + 2);
        }
        assert_eq!(Times::of(NonZeroU32::MAX), None, "its reservations could not outlast it");
    }

    #[test]
    fn what_is_lent_is_back_within_one_life() {
        for (window, life_ms, lends_for_ms, loan_ms) in
            [(1, 50, 12, 25), (10, 200, 50, 100), (60, 1_000, 250, 500), (86_400, 1_000, 250, 500)]
        {
            let own = times(window);
            let lender = Times::of_lender(NonZeroU32::new(window).unwrap(), 16).unwrap();
            assert_eq!((own.life_ms, lender.life_ms, lender.loan_ms()), (life_ms, lends_for_ms, loan_ms));
            assert_eq!(lender.may_lend(), window >= 5);
            assert!(lender.life_ms + loan_ms + own.tell_within_ms() <= life_ms, "{window} s");
            assert_eq!(Times { life_ms, lends_from: None, ..lender }, own, "all else is the same");
            // Asked at T, applied at once, lent in the last millisecond, and handed out in the last one of the loan.
            let timeout_ms = u64::from(lender.timeout_seconds.get()) * 1_000;
            assert!(timeout_ms >= lender.free_at_ms(lender.life_ms - 1 + loan_ms) + 1_000);
            // One of which nothing was told is taken to be spent later than it can have been.
            assert!(timeout_ms >= lender.free_at_ms(lender.life_ms + lender.overdue_ms()) + 500);
        }
    }

    #[test]
    fn the_ledger_holds_longer_than_anybody_needs() {
        for window in [1, 3, 60, 86_400] {
            let times = times(window);
            // Asked at T, applied at once, handed out in the last millisecond.
            let free_at_ms = times.free_at_ms(times.life_ms - 1);
            assert!(u64::from(times.timeout_seconds.get()) * 1_000 >= free_at_ms + 1_000);
            for sent_ms in [0, 1, 499, 999, 1_000, free_at_ms - 1, free_at_ms, free_at_ms + 5_000] {
                let held_ms = u64::from(backstop_seconds(free_at_ms, sent_ms).get()) * 1_000;
                assert!(sent_ms + held_ms >= free_at_ms + 2_000);
            }
        }
    }
}
