//! Which keys a mapping may have, and what to say of one that it may not.
//!
//! A typo in a limit must not mean "no limit", so an unknown key is a mistake that teaches: where the key belongs, or
//! which one was probably meant.

use super::scalar::shown;

/// The keys of one kind of mapping.
#[derive(Debug)]
pub(crate) struct Shape {
    /// As in "a key of …".
    pub(crate) name: &'static str,
    pub(crate) keys: &'static [&'static str],
    /// All shapes of the same file.
    pub(crate) family: &'static [&'static Shape],
}

/// Words longer than this are not compared: nobody mistypes that much, and the comparison is quadratic.
const WORD_MAX: usize = 40;

impl Shape {
    pub(crate) fn has(&self, key: &str) -> bool {
        self.keys.contains(&key)
    }

    /// Why `key` is wrong here.
    pub(crate) fn refusal(&self, key: &str) -> String {
        if let Some(home) = self.family.iter().find(|shape| shape.has(key)) {
            return format!("is a key of {}, not of {}", home.name, self.name);
        }
        match nearest(key, self.keys) {
            Some(meant) => format!("is not a key of {}; did you mean `{meant}`?", self.name),
            None => format!("is not a key of {}; its keys are {}", self.name, self.keys.join(", ")),
        }
    }
}

/// What to say of a word that is none of `words`.
pub(crate) fn one_of(typed: &str, words: &[&str]) -> String {
    let list = format!("must be one of {}, not `{}`", words.join(", "), shown(typed));
    match nearest(typed, words) {
        Some(meant) => format!("{list}; did you mean `{meant}`?"),
        None => list,
    }
}

/// The word that `typed` was probably meant to be.
pub(crate) fn nearest<'w>(typed: &str, words: &[&'w str]) -> Option<&'w str> {
    if typed.chars().count() > WORD_MAX {
        return None;
    }
    let letters = letters_of(typed);
    let (word, distance) = words
        .iter()
        .map(|&word| (word, strsim::osa_distance(&letters, &letters_of(word))))
        .min_by_key(|&(_, distance)| distance)?;
    (distance <= letters.chars().count().min(word.len()) / 3).then_some(word)
}

/// `rateLimit`, `rate-limit` and `rate_limit` are one word.
fn letters_of(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_meant() {
        let words = ["rate_limit", "descriptors", "value", "key", "requests_per_unit", "name", "unit"];
        for (typed, meant) in [
            ("ratelimit", Some("rate_limit")),
            ("rateLimit", Some("rate_limit")),
            ("rate-limits", Some("rate_limit")),
            ("descripters", Some("descriptors")),
            ("requestsPerUnit", Some("requests_per_unit")),
            ("request_per_unit", Some("requests_per_unit")),
            ("vlaue", Some("value")),
            ("Key", Some("key")),
            ("kye", Some("key")),
            ("colour", None),
            ("", None),
            ("🦀", None),
        ] {
            assert_eq!(nearest(typed, &words), meant, "{typed}");
        }
        assert_eq!(nearest(&"x".repeat(1 << 20), &words), None);
    }

    #[test]
    fn a_key_that_lives_elsewhere_is_sent_home() {
        static LIMIT: Shape = Shape { name: "a `rate_limit`", keys: &["unit"], family: FAMILY };
        static DESCRIPTOR: Shape = Shape { name: "a descriptor", keys: &["key", "value"], family: FAMILY };
        static FAMILY: &[&Shape] = &[&DESCRIPTOR, &LIMIT];
        for (key, refusal) in [
            ("unit", "is a key of a `rate_limit`, not of a descriptor"),
            ("vaule", "is not a key of a descriptor; did you mean `value`?"),
            ("x", "is not a key of a descriptor; its keys are key, value"),
        ] {
            assert_eq!(DESCRIPTOR.refusal(key), refusal);
        }
    }
}
