//! Whether the callers of one limit wait as they are told. Pure.
//!
//! A caller that obeys is refused once, and admitted when it comes back. So the number of refusals of callers that were not told to come
//! now is about the number of admissions. Many callers may come at once and then wait, which is fine. But if there are far more refusals
//! in one period after the other, then callers don't wait.

/// How long refusals and admissions are counted before they are compared.
pub(in crate::retry) const PERIOD_MS: u64 = 10_000;

/// After the first number of such periods in a row callers count as not waiting. At most the second number is remembered.
const UNRULY: u8 = 3;
const UNRULY_MAX: u8 = 5;

#[derive(Debug, Default)]
pub(super) struct Crowd {
    since_ms: u64,
    refused: u64,
    admitted: u64,
    /// Periods with too many refusals, less those without.
    unruly: u8,
}

impl Crowd {
    pub(super) fn is_quiet(&self) -> bool {
        self.refused == 0 && self.unruly == 0
    }

    pub(super) fn is_unruly(&self) -> bool {
        self.unruly >= UNRULY
    }

    /// `usual` is what the limit gives in a period.
    pub(super) fn refused(&mut self, amount: u64, usual: u64, now_ms: u64) {
        self.turn(usual, now_ms);
        self.refused = self.refused.saturating_add(amount);
    }

    pub(super) fn admitted(&mut self, amount: u64, usual: u64, now_ms: u64) {
        self.turn(usual, now_ms);
        self.admitted = self.admitted.saturating_add(amount);
    }

    /// Compares when a period is over.
    fn turn(&mut self, usual: u64, now_ms: u64) {
        let age_ms = now_ms.saturating_sub(self.since_ms);
        if age_ms < PERIOD_MS {
            return;
        }
        let few = self.admitted.saturating_add(usual.max(2));
        self.unruly =
            if self.refused > few { UNRULY_MAX.min(self.unruly + 1) } else { self.unruly.saturating_sub(1) };
        // Nothing happened in the periods between.
        let quiet = u8::try_from(age_ms / PERIOD_MS - 1).unwrap_or(u8::MAX);
        self.unruly = self.unruly.saturating_sub(quiet);
        (self.since_ms, self.refused, self.admitted) = (now_ms, 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A limit of 20 in a period.
    fn after(periods: &[(u64, u64)]) -> Crowd {
        let mut crowd = Crowd::default();
        for (n, (refused, admitted)) in periods.iter().enumerate() {
            let now_ms = (n as u64 + 1) * PERIOD_MS;
            crowd.refused(*refused, 20, now_ms);
            crowd.admitted(*admitted, 20, now_ms + 1);
        }
        crowd.refused(0, 20, (periods.len() as u64 + 1) * PERIOD_MS);
        crowd
    }

    #[test]
    fn many_at_once_are_no_sign() {
        assert!(!after(&[(1_000_000, 20), (20, 20), (20, 20)]).is_unruly());
        assert!(!after(&[(40, 20); 20]).is_unruly(), "twice what is admitted may be new");
    }

    #[test]
    fn many_again_and_again_are_those_who_do_not_wait() {
        assert!(!after(&[(41, 20); 2]).is_unruly());
        assert!(after(&[(41, 20); 3]).is_unruly());
        let better = [(41, 20); 9].into_iter().chain([(20, 20); 2]);
        assert!(after(&better.collect::<Vec<_>>()).is_unruly());
        let better = [(41, 20); 9].into_iter().chain([(20, 20); 3]);
        assert!(!after(&better.collect::<Vec<_>>()).is_unruly());
    }

    #[test]
    fn quiet_is_forgotten() {
        let mut crowd = after(&[(41, 20); 9]);
        crowd.refused(1, 20, 10 * PERIOD_MS + 9 * PERIOD_MS);
        assert!(!crowd.is_unruly());
    }
}
