//! Whether to try again, and when.
//!
//! Reasons to stop are checked in order, and then the wait is computed. Pure: the outcome and random numbers come as arguments.

use std::time::Duration;

use super::outcome::Outcome;

/// What a caller allows itself. The defaults are in the middle of what the retry matrix suggests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rules {
    /// The original and its retries.
    pub attempts_max: u32,
    /// The first backoff is a random time up to this, the next up to twice as much.
    pub base_ms: u64,
    pub cap_ms: u64,
    /// A hint beyond this is for the caller's caller to wait out.
    pub hint_max: Duration,
}

/// Whether a request may run twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Repeat {
    /// By its method, or because it carries an idempotency key.
    Safe,
    Unsafe,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Try again after this long.
    Wait(Duration),
    Stop(Stop),
}

/// Why there is no further attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// The answer stands: a success, or an error that a retry won't change.
    Answered,
    /// It may have run, and must not run twice.
    MayHaveRun,
    /// The limit is smaller than the request.
    NeverFits,
    AttemptsUsed,
    /// The hint is longer than the caller will wait.
    TooLong,
}

impl Default for Rules {
    fn default() -> Self {
        Self { attempts_max: 4, base_ms: 300, cap_ms: 3000, hint_max: Duration::from_secs(60) }
    }
}

impl From<&http::Method> for Repeat {
    fn from(method: &http::Method) -> Self {
        if method.is_idempotent() { Self::Safe } else { Self::Unsafe }
    }
}

impl Rules {
    /// After attempt number `attempt` (from 0) ended with `outcome`; `rand(n)` is a number in `0..=n`.
    pub fn next(
        &self,
        attempt: u32,
        outcome: Outcome,
        repeat: Repeat,
        rand: impl FnOnce(u64) -> u64,
    ) -> Next {
        let hint = match outcome {
            Outcome::NotSent => None,
            Outcome::Lost => return Next::Stop(Stop::MayHaveRun),
            Outcome::Answered { never_fits: true, .. } => return Next::Stop(Stop::NeverFits),
            // Refused at the door: it did not run.
            Outcome::Answered { status: 429, hint, .. } => hint,
            // Whoever is unavailable may be behind the one who did the work.
            Outcome::Answered { status: 503, hint, .. } if repeat == Repeat::Safe => hint,
            Outcome::Answered { status: 503, .. } => return Next::Stop(Stop::MayHaveRun),
            // 504 as well: it had its full time, and what timed out may still be running.
            Outcome::Answered { .. } => return Next::Stop(Stop::Answered),
        };
        if attempt.saturating_add(1) >= self.attempts_max {
            return Next::Stop(Stop::AttemptsUsed);
        }
        let hint = hint.unwrap_or_default();
        if hint > self.hint_max {
            return Next::Stop(Stop::TooLong);
        }
        Next::Wait(hint.max(self.backoff(attempt, rand)))
    }

    /// Full jitter: anything up to `base × 2^attempt`, at most the cap.
    fn backoff(&self, attempt: u32, rand: impl FnOnce(u64) -> u64) -> Duration {
        let doubled = 1u64.checked_shl(attempt).unwrap_or(u64::MAX);
        Duration::from_millis(rand(self.base_ms.saturating_mul(doubled).min(self.cap_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER_FITS: Outcome = Outcome::Answered { status: 429, hint: None, never_fits: true };

    fn ms(ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }

    fn wait(ms: u64) -> Next {
        Next::Wait(Duration::from_millis(ms))
    }

    #[test]
    fn the_retry_matrix_row_by_row() {
        let answered = Outcome::answered;
        let rows = [
            // outcome, what a repeatable request does, what another does; the dice show their most
            (answered(429, ms(5000)), wait(5000), wait(5000)),
            (answered(429, None), wait(300), wait(300)),
            (answered(503, ms(2000)), wait(2000), Next::Stop(Stop::MayHaveRun)),
            (answered(503, None), wait(300), Next::Stop(Stop::MayHaveRun)),
            (Outcome::NotSent, wait(300), wait(300)),
            (Outcome::Lost, Next::Stop(Stop::MayHaveRun), Next::Stop(Stop::MayHaveRun)),
            (NEVER_FITS, Next::Stop(Stop::NeverFits), Next::Stop(Stop::NeverFits)),
            (answered(429, ms(60_001)), Next::Stop(Stop::TooLong), Next::Stop(Stop::TooLong)),
        ];
        for (outcome, safe, other) in rows {
            assert_eq!(Rules::default().next(0, outcome, Repeat::Safe, |n| n), safe, "{outcome:?}");
            assert_eq!(Rules::default().next(0, outcome, Repeat::Unsafe, |n| n), other, "{outcome:?}");
        }
    }

    #[test]
    fn no_other_status_is_retried_whatever_it_hints() {
        for status in (100..600).filter(|status| ![429, 503].contains(status)) {
            let outcome = Outcome::answered(status, ms(100));
            let next = Rules::default().next(0, outcome, Repeat::Safe, |n| n);
            assert_eq!(next, Next::Stop(Stop::Answered), "{status}");
        }
    }

    #[test]
    fn four_attempts_at_most() {
        let next = |attempt| Rules::default().next(attempt, Outcome::NotSent, Repeat::Safe, |n| n);
        assert_eq!([next(0), next(1), next(2)], [wait(300), wait(600), wait(1200)]);
        for attempt in [3, 4, u32::MAX] {
            assert_eq!(next(attempt), Next::Stop(Stop::AttemptsUsed));
        }
    }

    #[test]
    fn the_larger_of_hint_and_backoff() {
        let next = |hint, dice: u64| {
            Rules::default().next(1, Outcome::answered(429, ms(hint)), Repeat::Safe, |_| dice)
        };
        assert_eq!(next(157, 600), wait(600));
        assert_eq!(next(157, 0), wait(157));
        assert_eq!(next(5000, 600), wait(5000));
    }

    #[test]
    fn the_backoff_doubles_up_to_its_cap() {
        let rules = Rules { attempts_max: u32::MAX, ..Rules::default() };
        let rows =
            [(0, 300), (1, 600), (2, 1200), (3, 2400), (4, 3000), (63, 3000), (64, 3000), (1000, 3000)];
        for (attempt, most) in rows {
            let next = |dice: fn(u64) -> u64| rules.next(attempt, Outcome::NotSent, Repeat::Safe, dice);
            assert_eq!((next(|_| 0), next(|n| n)), (wait(0), wait(most)), "{attempt}");
        }
    }

    #[test]
    fn methods_say_whether_they_may_run_twice() {
        use http::Method;
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS] {
            assert_eq!(Repeat::from(&method), Repeat::Safe, "{method}");
        }
        for method in [Method::POST, Method::PATCH] {
            assert_eq!(Repeat::from(&method), Repeat::Unsafe, "{method}");
        }
    }
}
