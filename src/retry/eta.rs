//! How long work that waits will take: the estimate for a full queue, and the table by elapsed time.
//!
//! Pure arithmetic over a position and a drain rate, in milliseconds inside and whole seconds outside. Doesn't
//! know which queue it is about.

use super::policy::{ElapsedStep, Queue};
use super::window::SlidingCount;

/// How far a piece of work has come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Stage {
    /// `position` others are ahead of it in the queue (0-based).
    Queued { position: u64 },
    /// It waits for one of `concurrency` checks (a second each, as the formula has it), then joins `queue` others.
    Gated { position: u64, concurrency: u64, queue: u64 },
    /// Its check of `check_ms` runs, then it joins `queue` others.
    Checking { check_ms: u64, queue: u64 },
    /// It is out of the queue and being processed.
    InFlight,
}

/// `clamp(⌈(wait + P + T) × (1 + M)⌉, min, max)`. A queue that doesn't drain, or whose rate nobody knows yet,
/// answers the maximum.
pub fn eta_seconds(stage: Stage, drain_per_second: Option<f64>, policy: &Queue) -> u64 {
    let queue_ms = |ahead| waiting_ms(ahead, drain_per_second.unwrap_or(0.0));
    let processing_ms = policy.processing_ms as f64;
    let after_ms = processing_ms + policy.confirmation_ms as f64;
    let total_ms = match stage {
        Stage::Queued { position } => queue_ms(position) + after_ms,
        Stage::Gated { position, concurrency, queue } => {
            waiting_ms(position, concurrency as f64) + queue_ms(queue) + after_ms
        }
        Stage::Checking { check_ms, queue } => check_ms as f64 + queue_ms(queue) + after_ms,
        Stage::InFlight => processing_ms,
    };
    promise(total_ms, policy)
}

/// The same for what has to wait `wait_ms`, however that was found out.
pub fn after_ms(wait_ms: f64, policy: &Queue) -> u64 {
    promise(wait_ms + policy.processing_ms as f64 + policy.confirmation_ms as f64, policy)
}

fn promise(total_ms: f64, policy: &Queue) -> u64 {
    // Binary fractions put 5000 × 1.1 a hair above 5500; that is no reason to say a second more.
    const ROUNDING: f64 = 1e-9;
    let seconds = total_ms * (1.0 + policy.safety_margin) / 1000.0;
    whole((seconds - ROUNDING).ceil()).max(policy.min_seconds).min(policy.max_seconds)
}

/// B(E) where the policy has no table of its own.
const ELAPSED: [ElapsedStep; 5] = [
    ElapsedStep { below_seconds: Some(60), retry_after_seconds: 4 },
    ElapsedStep { below_seconds: Some(120), retry_after_seconds: 10 },
    ElapsedStep { below_seconds: Some(300), retry_after_seconds: 30 },
    ElapsedStep { below_seconds: Some(900), retry_after_seconds: 60 },
    ElapsedStep { below_seconds: None, retry_after_seconds: 300 },
];

/// B(E) for work whose time nobody can know.
pub fn elapsed_or_default(policy: &Queue, elapsed_ms: u64) -> u64 {
    let table = policy.elapsed.as_deref().unwrap_or(&ELAPSED);
    elapsed_seconds(table, elapsed_ms).unwrap_or(policy.max_seconds)
}

/// B(E): what the table says for something that has been going on for `elapsed_ms`.
pub fn elapsed_seconds(table: &[ElapsedStep], elapsed_ms: u64) -> Option<u64> {
    let holds = |row: &&ElapsedStep| row.below_seconds.is_none_or(|below| elapsed_ms < below * 1000);
    table.iter().find(holds).map(|row| row.retry_after_seconds)
}

fn waiting_ms(ahead: u64, per_second: f64) -> f64 {
    if per_second > 0.0 { ahead as f64 / per_second * 1000.0 } else { f64::INFINITY }
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and the clamp follows")]
fn whole(seconds: f64) -> u64 {
    seconds as u64
}

/// Longer than a batch takes, so that a bucket shows the rate and not single batches.
const DRAIN_BUCKET_MS: u64 = 500;
/// For this long a ledger that stands still is taken to be as fast as it was; after that its rate is not known.
const DRAIN_WINDOW_MS: u64 = 10_000;

/// How many events per second a queue was seen to drain while there was work.
#[derive(Debug)]
pub struct DrainRate {
    drained: SlidingCount,
}

impl DrainRate {
    pub fn new() -> Self {
        Self { drained: SlidingCount::new(DRAIN_WINDOW_MS, DRAIN_BUCKET_MS) }
    }

    /// `n` events have left the queue.
    pub fn record(&self, n: u32, now_ms: u64) {
        self.drained.add(n, now_ms);
    }

    /// The rate that the average event met: each bucket's rate, weighted by its events. A plain mean would
    /// count idle time as slowness and promise minutes to the first burst after a quiet spell.
    pub fn per_second(&self, now_ms: u64) -> Option<f64> {
        let add = |(events, squares), n: u64| (events + n as f64, squares + n as f64 * n as f64);
        let (events, squares) = self.drained.counts(now_ms, DRAIN_WINDOW_MS).fold((0.0, 0.0), add);
        (events > 0.0).then(|| squares / events * (1000.0 / DRAIN_BUCKET_MS as f64))
    }
}

impl Default for DrainRate {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::super::policy::RetryPolicy;
    use super::*;

    /// D = 10/s, C = 50, R = 2 s, T = 100 ms, M = 0.2; P is 2 s for a proof and 4 s for a decryption.
    fn eta(stage: Stage, processing_ms: u64) -> u64 {
        let defaults = RetryPolicy::default().queue;
        let policy = Queue { processing_ms, confirmation_ms: 100, ..defaults };
        eta_seconds(stage, Some(10.0), &policy)
    }

    const PROOF: u64 = 2000;
    const DECRYPT: u64 = 4000;

    #[test]
    fn the_four_tables_of_worked_examples() {
        let rows = [
            // ahead, proof queued, decryption gated, checking, decryption queued
            (0, 3, 5, 8, 5),
            (1, 3, 6, 8, 6),
            (10, 4, 7, 9, 7),
            (100, 15, 20, 20, 17),
            (1000, 123, 149, 128, 125),
        ];
        for (n, proof, gated, checking, decrypt) in rows {
            assert_eq!(eta(Stage::Queued { position: n }, PROOF), proof, "p = {n}");
            let stage = Stage::Gated { position: n, concurrency: 50, queue: n };
            assert_eq!(eta(stage, DECRYPT), gated, "p = Q = {n}");
            let stage = Stage::Checking { check_ms: 2000, queue: n };
            assert_eq!(eta(stage, DECRYPT), checking, "Q = {n}");
            assert_eq!(eta(Stage::Queued { position: n }, DECRYPT), decrypt, "p = {n}");
        }
        assert_eq!((eta(Stage::InFlight, PROOF), eta(Stage::InFlight, DECRYPT)), (3, 5));
    }

    #[test]
    fn the_default_policy_by_hand() {
        let policy = RetryPolicy::default().queue; // P + T = 6 ms, × 1.2, 1 to 300 s
        let rows = [
            (0, Some(10_000.0), 1),      // 7.2 ms, the floor
            (65_536, Some(10_000.0), 8), // (6553.6 + 6) × 1.2 = 7871.52
            (65_536, Some(50_000.0), 2), // (1310.72 + 6) × 1.2 = 1580.064
            (65_536, Some(100.0), 300),  // 786 s, the ceiling
            (u64::MAX, Some(0.001), 300),
            (0, Some(0.0), 300),
            (5, None, 300),
        ];
        for (position, drain, expected) in rows {
            assert_eq!(
                eta_seconds(Stage::Queued { position }, drain, &policy),
                expected,
                "{position} {drain:?}"
            );
        }
    }

    #[test]
    fn margin_and_floor_by_hand() {
        let policy = Queue { safety_margin: 0.0, min_seconds: 3, ..RetryPolicy::default().queue };
        let eta = |position| eta_seconds(Stage::Queued { position }, Some(10_000.0), &policy);
        assert_eq!((eta(65_536), eta(10)), (7, 3)); // 6559.6 ms and 7 ms
    }

    #[test]
    fn a_whole_result_is_not_rounded_up() {
        let bare = Queue { processing_ms: 0, confirmation_ms: 0, ..RetryPolicy::default().queue };
        for (margin, position, expected) in [(0.0, 100, 10), (0.1, 100, 11), (0.2, 50, 6), (0.2, 51, 7)] {
            let policy = Queue { safety_margin: margin, ..bare.clone() };
            assert_eq!(eta_seconds(Stage::Queued { position }, Some(10.0), &policy), expected, "{margin}");
        }
    }

    #[test]
    fn the_maximum_wins_over_the_minimum() {
        let policy = Queue { min_seconds: 10, max_seconds: 5, ..RetryPolicy::default().queue };
        assert_eq!(eta_seconds(Stage::InFlight, None, &policy), 5);
    }

    #[test]
    fn the_elapsed_table_row_by_row() {
        let rows = [
            (0, 4),
            (59_999, 4),
            (60_000, 10),
            (119_999, 10),
            (120_000, 30),
            (299_999, 30),
            (300_000, 60),
            (899_999, 60),
            (900_000, 300),
            (u64::MAX, 300),
        ];
        for (elapsed_ms, expected) in rows {
            assert_eq!(elapsed_seconds(&ELAPSED, elapsed_ms), Some(expected), "{elapsed_ms} ms");
            assert_eq!(elapsed_or_default(&RetryPolicy::default().queue, elapsed_ms), expected);
        }
    }

    /// Records `per_second` in batches of 20 ms over `from..to` milliseconds.
    fn drain(rate: &DrainRate, per_second: u32, from: u64, to: u64) {
        (from..to).step_by(20).for_each(|now_ms| rate.record(per_second / 50, now_ms));
    }

    #[test]
    fn a_steady_drain_is_measured_exactly() {
        let rate = DrainRate::new();
        assert_eq!(rate.per_second(0), None);
        drain(&rate, 50_000, 0, 30_000);
        assert_eq!(rate.per_second(29_999), Some(50_000.0));
    }

    #[test]
    fn a_burst_after_a_quiet_spell_is_not_taken_for_a_slow_queue() {
        let rate = DrainRate::new();
        drain(&rate, 50, 0, 10_000); // one event every 20 ms
        drain(&rate, 50_000, 10_000, 10_500);
        // 19 buckets of 25 and one of 25,000: (19 × 625 + 625,000,000) / 25,475 × 2; a mean would say 2547.5.
        let measured = rate.per_second(10_499).unwrap();
        assert!((measured - 49_068.6).abs() < 0.1, "{measured}");
    }

    #[test]
    fn a_pause_does_not_lower_the_rate_and_a_long_one_forgets_it() {
        let rate = DrainRate::new();
        drain(&rate, 1_000, 0, 10_000);
        assert_eq!(rate.per_second(13_000), Some(1_000.0));
        assert_eq!(rate.per_second(19_499), Some(1_000.0));
        assert_eq!(rate.per_second(19_500), None);
    }
}
