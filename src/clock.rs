//! The only file that reads the time. Everything else is handed `now`.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

pub const NS_PER_MS: u64 = 1_000_000;

/// Milliseconds that never go back and do not stand still while the machine sleeps, from an arbitrary start: for whatever
/// expires.
pub fn monotonic_ms() -> u64 {
    monotonic_ns() / NS_PER_MS
}

/// The same in nanoseconds: for how long something took as well.
pub fn monotonic_ns() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    let now = since_boot_ns();
    let start = *START.get_or_init(|| now);
    // An hour ahead, so that "a while ago" can be subtracted from it.
    now.saturating_sub(start) + 3_600_000 * NS_PER_MS
}

/// Includes the time that the machine slept, which an [`Instant`] does not. 64 bits hold 584 years.
#[cfg(target_os = "linux")]
fn since_boot_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec.cast_unsigned() * 1000 * NS_PER_MS + now.tv_nsec.cast_unsigned()
}

/// Elsewhere an [`Instant`] has to do.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "this is the file that may")]
fn since_boot_ns() -> u64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    u64::try_from(FIRST.get_or_init(Instant::now).elapsed().as_nanos()).unwrap_or(u64::MAX)
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
