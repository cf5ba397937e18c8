//! When something happened, as logs write it: seconds since 1970, or RFC 3339. In milliseconds here, which is what limits go by.

use crate::clock::calendar::days_until;

/// The end of the year 9999: whatever is later was not meant as seconds.
const LATEST_MS: u64 = 253_402_300_800_000;

pub(super) const WHAT: &str = "must be a time: seconds since 1970, or RFC 3339 as 2026-11-16T04:58:04.123Z";

/// Less than a float can tell apart from the next millisecond, in this century.
const FLOAT_ERROR_MS: f64 = 0.0005;

/// A part of a millisecond is dropped, as a clock of milliseconds does.
pub(super) fn of_seconds(seconds: f64) -> Option<u64> {
    let ms = (seconds * 1000.0 + FLOAT_ERROR_MS).floor();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "within the years")]
    (0.0..LATEST_MS as f64).contains(&ms).then_some(ms as u64)
}

/// Either form.
pub(super) fn of_text(text: &str) -> Option<u64> {
    of_rfc3339(text.as_bytes()).or_else(|| {
        let is_decimal = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
        text.parse().ok().filter(|_| is_decimal).and_then(of_seconds)
    })
}

/// `2026-11-16T04:58:04.123Z`; also with `/` in the date, with a space, and with an offset.
fn of_rfc3339(text: &[u8]) -> Option<u64> {
    let number = |from: usize, digits: usize| {
        let part = text.get(from..from + digits)?;
        part.iter().try_fold(0i64, |number, byte| {
            byte.is_ascii_digit().then(|| number * 10 + i64::from(byte - b'0'))
        })
    };
    let is = |at: usize, bytes: &[u8]| text.get(at).is_some_and(|byte| bytes.contains(byte));
    let is_punctuated = is(4, b"-/") && is(7, b"-/") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let is_clock = hour < 24 && minute < 60 && second <= 60;
    if !is_punctuated || !is_clock || !(1..=12).contains(&month) || !(1..=days_of(year, month)).contains(&day)
    {
        return None;
    }
    let mut at = 19;
    let mut ms = 0;
    if is(at, b".,") {
        let digits = text[at + 1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits == 0 {
            return None;
        }
        ms = number(at + 1, digits.min(3))? * [0, 100, 10, 1][digits.min(3)];
        at += 1 + digits;
    }
    let offset_minutes = match text.get(at..)? {
        b"Z" | b"z" => 0,
        rest => {
            let sign = match rest.first()? {
                b'+' => 1,
                b'-' => -1,
                _ => return None,
            };
            let minutes_at = match rest.len() {
                6 if rest[3] == b':' => at + 4,
                5 => at + 3,
                _ => return None,
            };
            sign * (number(at + 1, 2)? * 60 + number(minutes_at, 2)?)
        }
    };
    let seconds =
        days_until(year, month, day) * 86_400 + hour * 3600 + (minute - offset_minutes) * 60 + second;
    u64::try_from(seconds * 1000 + ms).ok()
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        for (text, expected) in [
            ("0", Some(0)),
            ("1.5", Some(1_500)),
            ("1763269084.123", Some(1_763_269_084_123)),
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2025-11-16T04:58:04.123Z", Some(1_763_269_084_123)),
            ("2025-11-16T04:58:04.123456Z", Some(1_763_269_084_123)),
            ("2025-11-16T05:58:04.1+01:00", Some(1_763_269_084_100)),
            ("2025/11/16T04:58:04+0000", Some(1_763_269_084_000)),
            ("2025-11-15 23:58:04-05:00", Some(1_763_269_084_000)),
            ("2000-02-29T00:00:00Z", Some(951_782_400_000)),
            ("2001-02-29T00:00:00Z", None),
            ("2025-13-01T00:00:00Z", None),
            ("2025-11-16T24:00:00Z", None),
            ("2025-11-16T04:58:04", None),
            ("2025-11-16T04:58:04.Z", None),
            ("2025-11-16", None),
            ("1763269084123", None),
            ("-1", None),
            ("1e3", None),
            ("soon", None),
            ("", None),
        ] {
            assert_eq!(of_text(text), expected, "{text}");
        }
    }

    #[test]
    fn a_part_of_a_millisecond_is_dropped() {
        assert_eq!(of_seconds(1.001), Some(1_001));
        assert_eq!(of_seconds(1.001_9), Some(1_001));
        assert_eq!(of_seconds(1_763_269_084.123), Some(1_763_269_084_123));
        assert_eq!(of_seconds(1_763_269_084.123_999), Some(1_763_269_084_123));
        assert_eq!(of_seconds(0.0004), Some(0));
        assert_eq!(of_seconds(-0.001), None);
        assert_eq!(of_seconds(f64::NAN), None);
        assert_eq!(of_seconds(f64::INFINITY), None);
    }
}
