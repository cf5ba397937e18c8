//! The only file that reads the time. Everything else is handed `now`.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

/// When this process first looked: since boot, and by the wall clock.
static START: OnceLock<(Duration, u64)> = OnceLock::new();

/// What the monotonic clock begins with: an hour, so that "a while ago" can be subtracted from it.
const AHEAD_NS: u64 = 3_600_000_000_000;

/// Milliseconds that never go back and do not stand still while the machine sleeps, from an arbitrary start: for whatever
/// expires.
pub fn monotonic_ms() -> u64 {
    monotonic_ns() / 1_000_000
}

/// The same clock in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let now = since_boot();
    let (start, _) = *START.get_or_init(|| (now, unix_ms()));
    u64::try_from(now.saturating_sub(start).as_nanos()).map_or(u64::MAX, |ns| ns + AHEAD_NS)
}

/// When a time of [`monotonic_ns`] was, in nanoseconds since 1970, by the wall clock as it was when this process began. A
/// millisecond of the one is a millisecond of the other, also if the wall clock was set since.
pub(crate) fn unix_ns_of(monotonic_ns: u64) -> u64 {
    let began_unix_ms = START.get().map_or(0, |(_, unix_ms)| *unix_ms);
    began_unix_ms * 1_000_000 + monotonic_ns.saturating_sub(AHEAD_NS)
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
