//! The only file that reads the time. Everything else is handed `now`.
//!
//! A thread that simulates has [`VirtualTime`] instead: what runs on it reads the time that was set.

pub(crate) mod calendar;

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

pub const NS_PER_MS: u64 = 1_000_000;

/// Expiry is rounded to a part of the window. For windows of the usual lengths a week is a multiple of that part: see
/// [`beginning_ns`].
const WEEK_NS: u64 = 7 * 24 * 3_600_000 * NS_PER_MS;

/// When this process first looked, in nanoseconds.
#[derive(Debug, Clone, Copy)]
struct Start {
    since_boot: u64,
    /// What the monotonic clock began with.
    beginning: u64,
    /// What is added to that for the time since 1970: whole weeks.
    to_unix: u64,
}

static START: OnceLock<Start> = OnceLock::new();

impl Start {
    fn now(since_boot: u64) -> Self {
        let unix_ns = nanos(since_1970());
        let beginning = beginning_ns(unix_ns);
        Self { since_boot, beginning, to_unix: unix_ns.saturating_sub(beginning) }
    }
}

/// Milliseconds that never go back and do not stand still while the machine sleeps, from a start of its own: for whatever
/// expires.
pub fn monotonic_ms() -> u64 {
    monotonic_ns() / NS_PER_MS
}

/// The same in nanoseconds: for how long something took as well.
pub fn monotonic_ns() -> u64 {
    if let Some(SetTime { first_ms, now_ms }) = VIRTUAL.get() {
        let passed_ns = (now_ms - first_ms).saturating_mul(NS_PER_MS);
        return passed_ns.saturating_add(beginning_ns(first_ms.saturating_mul(NS_PER_MS)));
    }
    let now = since_boot_ns();
    let start = START.get_or_init(|| Start::now(now));
    now.saturating_sub(start.since_boot) + start.beginning
}

/// When a time of [`monotonic_ns`] was, in nanoseconds since 1970, by the wall clock as it was when this process began. A
/// millisecond of the one is a millisecond of the other, also if the wall clock was set since.
pub(crate) fn unix_ns_of(monotonic_ns: u64) -> u64 {
    START.get().map_or(0, |start| start.to_unix).saturating_add(monotonic_ns)
}

/// The value that [`monotonic_ns`] begins with. It is as far into a week as the wall clock is then, so that what is rounded to a
/// part of its window is rounded alike when the same traffic is simulated later. A week is added, so that "a while ago" can be
/// subtracted from it.
fn beginning_ns(unix_ns: u64) -> u64 {
    WEEK_NS + unix_ns % WEEK_NS
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
    nanos(FIRST.get_or_init(Instant::now).elapsed())
}

/// Milliseconds since 1970: for lease ids and whatever other machines read.
pub fn unix_ms() -> u64 {
    VIRTUAL.get().map_or_else(|| millis(since_1970()), |time| time.now_ms)
}

/// Nanoseconds since 1970, until the year 2554: for traces.
pub(crate) fn unix_ns() -> u64 {
    VIRTUAL.get().map_or_else(|| nanos(since_1970()), |time| time.now_ms.saturating_mul(NS_PER_MS))
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

/// Both clocks of a thread that simulates, in milliseconds since 1970.
#[derive(Debug, Clone, Copy)]
struct SetTime {
    first_ms: u64,
    now_ms: u64,
}

thread_local! {
    static VIRTUAL: Cell<Option<SetTime>> = const { Cell::new(None) };
}

/// The time of this thread is what it is set to, until this is dropped. Other threads don't notice.
#[derive(Debug)]
pub(crate) struct VirtualTime {
    /// It is about the thread that made it.
    not_send: PhantomData<*const ()>,
}

impl VirtualTime {
    pub(crate) fn begin(first_ms: u64) -> Self {
        VIRTUAL.set(Some(SetTime { first_ms, now_ms: first_ms }));
        Self { not_send: PhantomData }
    }

    /// It is `now_ms`, which is not before the first. Whoever simulates several things, one after another, may go back from one
    /// to the next.
    pub(crate) fn set(&mut self, now_ms: u64) {
        let there = VIRTUAL.get();
        VIRTUAL.set(there.map(|time| SetTime { now_ms: time.first_ms.max(now_ms), ..time }));
    }
}

impl Drop for VirtualTime {
    fn drop(&mut self) {
        VIRTUAL.set(None);
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
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

    #[test]
    fn a_time_is_when_it_was() {
        let before_ns = unix_ms() * NS_PER_MS;
        let (now_ns, after_ns) = (unix_ns_of(monotonic_ns()), (unix_ms() + 1) * NS_PER_MS);
        // Both clocks were read one after the other when the process began.
        let near = before_ns - 50 * NS_PER_MS..=after_ns + 50 * NS_PER_MS;
        assert!(near.contains(&now_ns), "{before_ns} {now_ns} {after_ns}");
        let later_ns = monotonic_ns() + 1_234_567;
        assert_eq!(unix_ns_of(later_ns) % NS_PER_MS, later_ns % NS_PER_MS);
    }

    #[test]
    fn both_clocks_are_at_the_same_place_of_the_week() {
        const WEEK_MS: u64 = WEEK_NS / NS_PER_MS;
        let (monotonic, unix) = (monotonic_ms() % WEEK_MS, unix_ms() % WEEK_MS);
        assert!(monotonic.abs_diff(unix) < 5_000, "{monotonic} {unix}");
    }

    #[test]
    fn a_thread_that_simulates_has_its_own_time() {
        const WEEK_MS: u64 = WEEK_NS / NS_PER_MS;
        let mut time = VirtualTime::begin(5_000);
        assert_eq!((unix_ms(), monotonic_ms()), (5_000, WEEK_MS + 5_000));
        time.set(WEEK_MS + 7_000);
        assert_eq!((unix_ms(), monotonic_ms()), (WEEK_MS + 7_000, 2 * WEEK_MS + 7_000));
        time.set(0);
        assert_eq!(unix_ms(), 5_000, "it was never earlier");
        assert!(std::thread::spawn(unix_ms).join().unwrap() > 1_000_000_000_000);
        drop(time);
        assert!(unix_ms() > 1_000_000_000_000);
    }
}
