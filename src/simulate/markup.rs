//! What SVG and HTML have in common: names that can't be anything but text, numbers that people read, and the colours.
//!
//! Refuses to know what is drawn.

use std::borrow::Cow;
use std::fmt;

/// Colours for light and dark, as the reader's system wants them. Every colour that is used is one of these.
pub(super) const COLOURS: &str = "\
:root{color-scheme:light dark;--paper:#fff;--ink:#1f2328;--soft:#59636e;--grid:#d1d9e0;--used:#0969da;--limit:#9a6700;\
--denied:#cf222e;--line0:#0969da;--line1:#8250df;--line2:#1a7f37;--line3:#bc4c00}\
@media(prefers-color-scheme:dark){:root{--paper:#0d1117;--ink:#e6edf3;--soft:#9198a1;--grid:#30363d;--used:#4493f8;\
--limit:#d29922;--denied:#f85149;--line0:#4493f8;--line1:#ab7df8;--line2:#3fb950;--line3:#f0883e}}";

/// A text inside an element or a quoted attribute, whatever is in it. What can't be in XML, and what would turn the text around
/// it, is shown as a replacement character.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || is_unfit(c) => out.push(char::REPLACEMENT_CHARACTER),
            c => out.push(c),
        }
    }
    out
}

/// No character in XML, or one that changes the direction of its neighbours.
fn is_unfit(c: char) -> bool {
    matches!(c, '\u{fffe}' | '\u{ffff}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A name that fits: its beginning, if it is long.
pub(super) fn shortened(name: &str, chars_max: usize) -> Cow<'_, str> {
    match name.char_indices().nth(chars_max) {
        None => name.into(),
        Some(_) => {
            let kept: String = name.chars().take(chars_max.saturating_sub(1)).collect();
            format!("{kept}\u{2026}").into()
        }
    }
}

/// A whole number with commas.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A part of a whole in percent; nothing of nothing is 0.
pub(super) fn percent(part: f64, whole: f64) -> String {
    let percent = if whole > 0.0 { part / whole * 100.0 } else { 0.0 };
    format!("{percent:.1} %")
}

/// A length of time in the unit that people would choose.
pub(super) fn duration(ms: f64) -> String {
    let (number, unit) = match ms {
        ms if ms < 1_000.0 => (ms, "ms"),
        ms if ms < 120_000.0 => (ms / 1_000.0, "s"),
        ms if ms < 7_200_000.0 => (ms / 60_000.0, "min"),
        ms if ms < 172_800_000.0 => (ms / 3_600_000.0, "h"),
        ms => (ms / 86_400_000.0, "d"),
    };
    format!("{} {unit}", Short(number))
}

/// A number with at most one digit behind the point, and none where that is 0.
#[derive(Debug, Clone, Copy)]
pub(super) struct Short(pub(super) f64);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round() / 10.0;
        if tenths.fract() == 0.0 { write!(f, "{tenths:.0}") } else { write!(f, "{tenths:.1}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_nothing_but_text() {
        assert_eq!(
            escaped("</text><script>alert('x')</script>\"&\u{1b}\u{202e}\n\u{ffff}\u{fc}"),
            "&lt;/text&gt;&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&quot;&amp;\u{fffd}\u{fffd}\u{fffd}\u{fffd}\u{fc}"
        );
    }

    #[test]
    fn long_names_are_cut_between_characters() {
        assert_eq!(shortened("\u{fc}\u{fc}\u{fc}", 3), "\u{fc}\u{fc}\u{fc}");
        assert_eq!(shortened("\u{fc}\u{fc}\u{fc}\u{fc}", 3), "\u{fc}\u{fc}\u{2026}");
        assert_eq!(shortened("", 3), "");
    }

    #[test]
    fn numbers_are_as_people_write_them() {
        let counts = [0, 999, 1_000, 1_234_567].map(count);
        assert_eq!(counts, ["0", "999", "1,000", "1,234,567"]);
        let durations = [0.0, 12.34, 1_500.0, 90_000.0, 150_000.0, 7_200_000.0, 200_000_000.0].map(duration);
        assert_eq!(durations, ["0 ms", "12.3 ms", "1.5 s", "90 s", "2.5 min", "2 h", "2.3 d"]);
        assert_eq!([percent(1.0, 8.0), percent(1.0, 0.0)], ["12.5 %", "0.0 %"]);
    }
}
