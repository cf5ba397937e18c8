//! The settings of `retry_policy.yaml`, their defaults, and the values that they must not have.
//!
//! Plain data. Doesn't know YAML, files or lines: whoever decodes a policy maps the field names of
//! [`RetryPolicy::validate`] back to where they were written. A policy without mistakes can't make any
//! formula of this module overflow.

mod mistakes;

use serde::Serialize;

/// No wait is longer than a day: 24 × 60 × 60 × 1000. Ten times that (a streak's quiet time) fits 32 bits.
pub const WAIT_MS_MAX: u64 = 86_400_000;
/// The same day in seconds.
pub const WAIT_SECONDS_MAX: u64 = WAIT_MS_MAX / 1000;
/// Beyond this the first denial is already told to wait `max_ms`: a slip of the keyboard.
pub const FACTOR_MAX: f64 = 100.0;
/// A hundred retries for each original is no budget any more.
pub const BUDGET_RATIO_MAX: f64 = 100.0;
/// Five minutes: the budget keeps ten buckets for each second of it.
pub const BUDGET_WINDOW_SECONDS_MAX: u64 = 300;
/// A floor above what one server decides in a second is no limit.
pub const BUDGET_FLOOR_MAX: u64 = 1_000_000;
/// Jobs that may wait: a million of under a kilobyte each are a gigabyte.
pub const PLACES_MAX: u64 = 1_000_000;
/// What callers are told to wait at most, unless the policy says otherwise: beyond a minute most give up.
pub const INFORMED_MAX_MS: u64 = 60_000;
/// Bounds the walk over the table; people write about five rows.
pub const ELAPSED_ROWS_MAX: usize = 64;

/// What the refused are told, and how many retries are let in.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RetryPolicy {
    pub concurrency: ConcurrencyHint,
    pub rolling: RollingHint,
    /// The hint of a limit that is decreasing, unless `queue.elapsed` is given.
    pub decreasing_ms: u64,
    pub queue: Queue,
    pub budget: Budget,
}

/// `base × factor^streak`, at most `max_ms` and the limit's timeout.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ConcurrencyHint {
    pub base_ms: u64,
    pub max_ms: u64,
    pub factor: f64,
    /// 0 to this many milliseconds are added at random.
    pub jitter_ms: u64,
}

/// The same from a base that is at least `window_fraction` of the limit's window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RollingHint {
    pub base_ms: u64,
    pub max_ms: u64,
    pub factor: f64,
    pub jitter_ms: u64,
    pub window_fraction: f64,
    /// Where it is known when enough of a limit comes back, the hint is that time. For concurrency limits too.
    pub informed: bool,
    /// The longest hint of those, jitter included.
    pub informed_max_ms: u64,
}

/// Work that waits: how long it will take, and how much of it may.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Queue {
    pub min_seconds: u64,
    pub max_seconds: u64,
    /// 0.2 answers 20 % more than was computed.
    pub safety_margin: f64,
    pub processing_ms: u64,
    pub confirmation_ms: u64,
    /// How long a reservation is kept for one who waited for it and does not come.
    pub pickup_seconds: u64,
    /// How long one may wait.
    pub deadline_seconds: u64,
    /// How many may wait, in all and for one limit.
    pub places_max: u64,
    pub places_per_key_max: u64,
    /// The part of a limit that those who wait for it get, whoever else comes.
    pub reserved_share: f64,
    /// B(E): what is answered where the time can't be known. Absent, a limit that is decreasing answers `decreasing_ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed: Option<Vec<ElapsedStep>>,
}

/// One row: below this much elapsed time, come back after so long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ElapsedStep {
    /// Absent in the last row only, which holds from there on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub below_seconds: Option<u64>,
    pub retry_after_seconds: u64,
}

/// How many retries are let in for the originals of a window.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Budget {
    pub ratio: f64,
    pub window_seconds: u64,
    /// Retries that are let in however few originals there are.
    pub min_retries_per_second: u64,
    /// The descriptor entry that marks a retry.
    pub descriptor_key: String,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            concurrency: ConcurrencyHint { base_ms: 50, max_ms: 2000, factor: 2.0, jitter_ms: 25 },
            rolling: RollingHint {
                base_ms: 100,
                max_ms: 5000,
                factor: 1.5,
                jitter_ms: 50,
                window_fraction: 0.1,
                informed: false,
                informed_max_ms: INFORMED_MAX_MS,
            },
            decreasing_ms: 10_000,
            queue: Queue {
                min_seconds: 1,
                max_seconds: 300,
                safety_margin: 0.2,
                processing_ms: 5,
                confirmation_ms: 1,
                pickup_seconds: 30,
                deadline_seconds: 900,
                places_max: 10_000,
                places_per_key_max: 1_000,
                reserved_share: 0.5,
                elapsed: None,
            },
            budget: Budget {
                ratio: 0.3,
                window_seconds: 10,
                min_retries_per_second: 10,
                descriptor_key: "retry_attempt".to_owned(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_has_the_names_of_the_file_and_only_what_is_set() {
        let json = serde_json::to_value(RetryPolicy::default()).unwrap();
        let expected = serde_json::json!({
            "concurrency": {"base_ms": 50, "max_ms": 2000, "factor": 2.0, "jitter_ms": 25},
            "rolling": {"base_ms": 100, "max_ms": 5000, "factor": 1.5, "jitter_ms": 50, "window_fraction": 0.1,
                        "informed": false, "informed_max_ms": 60000},
            "decreasing_ms": 10000,
            "queue": {"min_seconds": 1, "max_seconds": 300, "safety_margin": 0.2, "processing_ms": 5,
                      "confirmation_ms": 1, "pickup_seconds": 30, "deadline_seconds": 900,
                      "places_max": 10000, "places_per_key_max": 1000, "reserved_share": 0.5},
            "budget": {"ratio": 0.3, "window_seconds": 10, "min_retries_per_second": 10,
                       "descriptor_key": "retry_attempt"},
        });
        assert_eq!(json, expected);
        let open =
            serde_json::to_string(&ElapsedStep { below_seconds: None, retry_after_seconds: 300 }).unwrap();
        assert_eq!(open, r#"{"retry_after_seconds":300}"#);
    }
}
