//! The only file that reads the time. Everything else is handed `now`.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Milliseconds that never go back, from an arbitrary start: for expiry, streaks and budgets.
#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
pub fn monotonic_ms() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    let start = *START.get_or_init(Instant::now);
    // An hour ahead, so that "a while ago" can be subtracted from it.
    millis(start.elapsed()) + 3_600_000
}

/// Milliseconds since 1970: for lease ids and whatever other machines read.
#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
pub fn unix_ms() -> u64 {
    millis(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO))
}

/// For how long something took.
#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
pub fn instant() -> Instant {
    Instant::now()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
