//! How large a limit would have to be: what was used of it at every request if it had denied nothing, and the capacity that only
//! some of these exceed.
//!
//! A request that finds no more than the capacity used, itself included, is admitted whatever became of those before it: a denial
//! takes nothing. So with that capacity at most those are denied that exceed it. With 0 % it is the peak, exactly.

use std::collections::BTreeMap;

use super::report::Suggestion;

/// Different values that are kept; then those next to one another are counted as the larger one.
const VALUES_MAX: usize = 256;

#[derive(Debug)]
pub(super) struct Demand {
    /// How often this much was used, rounded up to a multiple of `grain`.
    counts: BTreeMap<u64, u64>,
    grain: u64,
    count: u64,
    peak: u64,
}

impl Default for Demand {
    fn default() -> Self {
        Self { counts: BTreeMap::new(), grain: 1, count: 0, peak: 0 }
    }
}

impl Demand {
    pub(super) fn add(&mut self, used: u64) {
        self.count += 1;
        self.peak = self.peak.max(used);
        *self.counts.entry(rounded(used, self.grain)).or_default() += 1;
        while self.counts.len() > VALUES_MAX {
            self.grain = self.grain.saturating_mul(2);
            let grain = self.grain;
            for (value, count) in std::mem::take(&mut self.counts) {
                *self.counts.entry(rounded(value, grain)).or_default() += count;
            }
        }
    }

    /// `part`: of the requests, how many may be denied.
    pub(super) fn suggestion(&self, part: f64) -> Suggestion {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a part of the count")]
        let mut may_exceed = (self.count as f64 * part).floor() as u64;
        let mut is_needed = |(_, count): &(&u64, &u64)| {
            let is_needed = **count > may_exceed;
            may_exceed = may_exceed.saturating_sub(**count);
            is_needed
        };
        // The largest value that more requests have than may be denied.
        let capacity = self.counts.iter().rev().find(|there| is_needed(there)).map_or(0, |(value, _)| *value);
        Suggestion { capacity: capacity.min(self.peak), demand_peak: self.peak }
    }
}

fn rounded(value: u64, grain: u64) -> u64 {
    value.checked_next_multiple_of(grain).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(values: impl IntoIterator<Item = u64>) -> Demand {
        let mut demand = Demand::default();
        values.into_iter().for_each(|value| demand.add(value));
        demand
    }

    #[test]
    fn a_burst_of_ten() {
        for (part, expected) in [(0.0, 10), (0.05, 10), (0.1, 9), (0.5, 5), (0.95, 1), (1.0, 0)] {
            assert_eq!(
                of(1..=10).suggestion(part),
                Suggestion { capacity: expected, demand_peak: 10 },
                "{part}"
            );
        }
    }

    #[test]
    fn many_values_are_rounded_up_and_the_peak_is_exact() {
        let demand = of((1..=100_001).map(|n| n * 7));
        assert!(demand.counts.len() <= VALUES_MAX);
        assert_eq!(demand.suggestion(0.0).capacity, 700_007);
        let half = demand.suggestion(0.5).capacity;
        assert!((350_003..=350_003 + demand.grain).contains(&half), "{half}");
    }
}
