//! The only file that reads the time. Everything else is handed `now`.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// Milliseconds that never go back and do not stand still while the machine sleeps, from an arbitrary start: for whatever
/// expires.
pub fn monotonic_ms() -> u64 {
    static START: OnceLock<Duration> = OnceLock::new();
    let now = since_boot();
    let start = *START.get_or_init(|| now);
    // An hour ahead, so that "a while ago" can be subtracted from it.
    millis(now.saturating_sub(start)) + 3_600_000
}

/// Includes the time that the machine slept, which an [`Instant`] does not.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(now.tv_nsec).unwrap_or(0))
}

/// Elsewhere an [`Instant`] has to do.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
fn since_boot() -> Duration {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

/// Milliseconds since 1970: for lease ids and whatever other machines read.
pub fn unix_ms() -> u64 {
    millis(since_1970())
}

/// Nanoseconds since 1970, until the year 2554: for traces.
pub(crate) fn unix_ns() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX)
}

#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// For how long something took.
#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
pub fn instant() -> Instant {
    Instant::now()
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_goes_on() {
        let before_ms = monotonic_ms();
        std::thread::sleep(Duration::from_millis(20));
        let passed_ms = monotonic_ms() - before_ms;
        assert!((19..20_000).contains(&passed_ms), "{passed_ms}");
    }
}
