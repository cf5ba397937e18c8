//! Text that clients have sent, made safe for a terminal.

use std::borrow::Cow;

/// `text` without characters that a terminal would obey: those that move, colour, clear or turn what is written.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_obeyed) {
        return Cow::Borrowed(text);
    }
    let written = |c: char| match is_obeyed(c) {
        true => c.escape_unicode().to_string(),
        false => c.to_string(),
    };
    Cow::Owned(text.chars().map(written).collect())
}

fn is_obeyed(c: char) -> bool {
    // The characters in the second line change the direction of writing, or are invisible.
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert!(matches!(plain("d:tenant=größe:rpm"), Cow::Borrowed(_)));
        assert_eq!(plain("a\u{1b}[31m\nb\u{202e}c"), r"a\u{1b}[31m\u{a}b\u{202e}c");
    }
}
