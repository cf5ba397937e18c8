//! What a word means as a bool or a number, and how a word is shown in a complaint.
//!
//! Accepts what envoyproxy/ratelimit's YAML accepts, and refuses what different readers could read differently.

use std::ops::RangeInclusive;

/// As much of a word as is repeated in a complaint.
const SHOWN_CHARS_MAX: usize = 60;

/// `true` and `false`, and the older words for them that Go's YAML knows.
pub(crate) fn flag(text: &str, plain: bool) -> Result<bool, String> {
    match text {
        _ if !plain => {}
        "true" | "True" | "TRUE" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" | "y" | "Y" => return Ok(true),
        "false" | "False" | "FALSE" | "no" | "No" | "NO" | "off" | "Off" | "OFF" | "n" | "N" => {
            return Ok(false);
        }
        _ => {}
    }
    Err(format!("must be true or false, not {}", quoted(text, plain)))
}

/// A whole number in `range`: decimal, or with `0x`, `0o`, `0b`; `_` may stand between digits.
pub(crate) fn whole(text: &str, plain: bool, range: &RangeInclusive<u64>) -> Result<u64, String> {
    let (least, most) = (range.start(), range.end());
    let refusal = || format!("must be a whole number from {least} to {most}, not {}", quoted(text, plain));
    let digits = text.strip_prefix('+').unwrap_or(text);
    if plain
        && digits.len() > 1
        && digits.starts_with('0')
        && digits[1..].starts_with(|c: char| c.is_ascii_digit())
    {
        return Err(format!("{}: a leading 0 means octal to some readers, leave it out", refusal()));
    }
    let (radix, digits) = match digits.get(..2) {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        _ => (10, digits),
    };
    let well_formed =
        digits.split('_').all(|group| !group.is_empty() && group.chars().all(|c| c.is_digit(radix)));
    if !plain || !well_formed {
        return Err(refusal());
    }
    u64::from_str_radix(&digits.replace('_', ""), radix)
        .ok()
        .filter(|number| range.contains(number))
        .ok_or_else(refusal)
}

/// A decimal number, with or without fraction and exponent.
pub(crate) fn number(text: &str, plain: bool) -> Result<f64, String> {
    let decimal = text.chars().all(|c| c.is_ascii_digit() || matches!(c, '.' | '-' | '+' | 'e' | 'E'));
    text.parse()
        .ok()
        .filter(|number: &f64| plain && decimal && number.is_finite())
        .ok_or_else(|| format!("must be a number, not {}", quoted(text, plain)))
}

/// A word in a complaint: on one line, and no longer than one can read.
pub(crate) fn shown(text: &str) -> String {
    let mut shown = String::new();
    for c in text.chars().take(SHOWN_CHARS_MAX) {
        match c.is_control() {
            true => shown.extend(c.escape_default()),
            false => shown.push(c),
        }
    }
    if text.chars().nth(SHOWN_CHARS_MAX).is_some() {
        shown.push('…');
    }
    shown
}

fn quoted(text: &str, plain: bool) -> String {
    match plain {
        true => format!("`{}`", shown(text)),
        false => format!("the text \"{}\"", shown(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags() {
        for (text, expected) in
            [("true", Some(true)), ("NO", Some(false)), ("on", Some(true)), ("1", None), ("oN", None)]
        {
            assert_eq!(flag(text, true).ok(), expected, "{text}");
        }
        assert_eq!(flag("true", false).unwrap_err(), "must be true or false, not the text \"true\"");
    }

    #[test]
    fn whole_numbers() {
        for (text, expected) in [
            ("0", Some(0)),
            ("10", Some(10)),
            ("+10", Some(10)),
            ("1_000", Some(1_000)),
            ("0x10", Some(16)),
            ("0o17", Some(15)),
            ("0b11", Some(3)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("-1", None),
            ("1.0", None),
            ("1e3", None),
            ("010", None),
            ("1__0", None),
            ("_1", None),
            ("0x", None),
            ("++1", None),
            ("0x+1", None),
            ("١", None),
            ("é", None),
            ("", None),
        ] {
            assert_eq!(whole(text, true, &(0..=u64::MAX)).ok(), expected, "{text}");
        }
    }

    #[test]
    fn whole_numbers_say_what_would_be_right() {
        for (text, plain, expected) in [
            ("6", true, "must be a whole number from 1 to 5, not `6`"),
            ("3", false, "must be a whole number from 1 to 5, not the text \"3\""),
            (
                "03",
                true,
                "must be a whole number from 1 to 5, not `03`: a leading 0 means octal to some readers, leave it out",
            ),
        ] {
            assert_eq!(whole(text, plain, &(1..=5)).unwrap_err(), expected);
        }
    }

    #[test]
    fn numbers() {
        for (text, expected) in [
            ("0.5", Some(0.5)),
            ("2", Some(2.0)),
            ("-1e-3", Some(-0.001)),
            ("1e999", None),
            (".inf", None),
            ("inf", None),
            ("nan", None),
            ("1_0", None),
            ("", None),
        ] {
            assert_eq!(number(text, true).ok(), expected, "{text}");
        }
        assert_eq!(number("1", false).ok(), None);
    }

    #[test]
    fn a_complaint_stays_on_one_line() {
        assert_eq!(shown("a\n'b"), "a\\n'b");
        assert_eq!(shown(&"x".repeat(100)), format!("{}…", "x".repeat(60)));
    }
}
