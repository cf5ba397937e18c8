//! How often a limit that is full asks the ledger. Pure.
//!
//! A full limit is asked for again after a pause that depends on its window. With short windows that alone could be more than a
//! hundred requests a second: what was taken is given back too, and a refusal of several units says nothing about fewer. So
//! requests are counted, and where there were too many the pause is longer.

/// The mean time between requests that is allowed in the long run: 58 a second, so that a rush stays below a hundred.
const REQUEST_MS: u64 = 17;

/// How far ahead of that mean a limit may be before its pause is made longer: 2 requests.
const AHEAD_MS_MAX: u64 = 34;

/// How much further ahead a rush can put it. The rest of a rush is forgotten.
const DEBT_MS_MAX: u64 = 1_000;

/// How far the requests for one limit are ahead of the mean that is allowed.
#[derive(Debug, Default)]
pub struct Pace {
    paid_until_ms: u64,
}

impl Pace {
    pub fn count(&mut self, requests: u64, now_ms: u64) {
        let paid_until_ms = self.paid_until_ms.max(now_ms) + requests * REQUEST_MS;
        self.paid_until_ms = paid_until_ms.min(now_ms + AHEAD_MS_MAX + DEBT_MS_MAX);
    }

    /// For how long a limit that was found full now is not asked for: for `least_ms`, or longer if it was asked too often,
    /// but no longer than `most_ms`.
    pub fn pause_ms(&self, least_ms: u64, most_ms: u64, now_ms: u64) -> u64 {
        let too_early_ms = self.paid_until_ms.saturating_sub(now_ms + AHEAD_MS_MAX);
        too_early_ms.min(most_ms).max(least_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_requests_change_nothing() {
        let mut pace = Pace::default();
        for n in 1..=100 {
            pace.count(2, n * 40);
            assert_eq!(pace.pause_ms(10, 45, n * 40), 10, "{n}");
        }
    }

    #[test]
    fn many_make_pauses_longer_but_not_for_ever() {
        let mut pace = Pace::default();
        pace.count(50, 5_000);
        assert_eq!((pace.pause_ms(10, 45, 5_000), pace.pause_ms(500, 995, 5_000)), (45, 816));
        assert_eq!(pace.pause_ms(10, 45, 5_796), 20);
        assert_eq!(pace.pause_ms(10, 45, 5_816), 10);
        pace.count(1_000_000, 5_816);
        assert_eq!(pace.pause_ms(10, 45, 6_816), 10, "a rush is forgotten");
    }

    /// Some requests after each pause.
    #[test]
    fn whoever_never_stops_is_held_to_the_rate() {
        for requests in [1, 2] {
            let mut pace = Pace::default();
            let (mut now_ms, mut sent) = (1_000, 0);
            while now_ms < 11_000 {
                pace.count(requests, now_ms);
                sent += requests;
                now_ms += pace.pause_ms(10, 45, now_ms);
            }
            assert!((550..=600).contains(&sent), "{sent} in 10 s, {requests} at a time");
        }
    }
}
