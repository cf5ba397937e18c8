//! How long clients waited: every wait is counted, in a bounded number of places. To the millisecond below two seconds, and to
//! a thousandth above.

use super::report::WaitMs;

/// Places for each power of two.
const PLACES_BITS: u32 = 11;
const PLACES: u64 = 1 << PLACES_BITS;

#[derive(Debug, Default)]
pub(super) struct WaitTimes {
    counts: Vec<u64>,
    count: u64,
    sum_ms: u128,
    max_ms: u64,
}

impl WaitTimes {
    pub(super) fn add(&mut self, ms: u64) {
        let place = place(ms);
        if self.counts.len() <= place {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] += 1;
        self.count += 1;
        self.sum_ms += u128::from(ms);
        self.max_ms = self.max_ms.max(ms);
    }

    pub(super) fn summary(&self) -> WaitMs {
        let mean = self.sum_ms as f64 / self.count.max(1) as f64;
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(|part| self.at(part));
        WaitMs { mean, p50, p90, p99, max: self.max_ms }
    }

    /// What this part of the waits did not exceed, to a thousandth.
    fn at(&self, part: f64) -> u64 {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the count")]
        let mut left = (self.count as f64 * part).ceil().max(1.0) as u64;
        for (place, count) in self.counts.iter().enumerate() {
            if *count >= left {
                return first_in(place);
            }
            left -= count;
        }
        self.max_ms
    }
}

/// Where a wait is counted: each power of two from the second on has half of the places of the first.
fn place(ms: u64) -> usize {
    let shift = (u64::BITS - ms.leading_zeros()).saturating_sub(PLACES_BITS);
    let place = u64::from(shift) * (PLACES / 2) + (ms >> shift);
    usize::try_from(place).unwrap_or(usize::MAX)
}

/// The shortest wait that is counted there.
fn first_in(place: usize) -> u64 {
    let (place, half) = (place as u64, PLACES / 2);
    let shift = (place / half).saturating_sub(1);
    (place - shift * half) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_wait_is_found_again_to_a_thousandth() {
        for ms in (0..5_000).chain((0..40).map(|bits| (1u64 << bits) + 7)).chain([u64::from(u32::MAX)]) {
            let first = first_in(place(ms));
            assert!(first <= ms && (ms - first) as f64 <= ms as f64 / 1000.0, "{ms} {first}");
        }
        assert!((0..100_000).map(place).is_sorted());
    }

    #[test]
    fn a_summary_of_few() {
        let mut waits = WaitTimes::default();
        assert_eq!(waits.summary(), WaitMs::default());
        (1..=100).for_each(|ms| waits.add(ms));
        assert_eq!(waits.summary(), WaitMs { mean: 50.5, p50: 50, p90: 90, p99: 99, max: 100 });
    }
}
