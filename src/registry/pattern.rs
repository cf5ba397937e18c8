//! Values with `*`: a set of patterns that is asked for the first one, in file order, that matches.
//!
//! Indexed by what stands before the first `*` and after the last one, so that the time of a look-up grows with the
//! number of different lengths of those ends, not with the number of patterns.

use hashbrown::HashTable;

/// A value with at least one `*`, which stands for any run of characters, also none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pattern {
    text: Box<str>,
    first_star: usize,
    last_star: usize,
}

impl Pattern {
    /// `None` if there is no `*` in it.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let first_star = text.find('*')?;
        let last_star = text.rfind('*')?;
        Some(Self { text: text.into(), first_star, last_star })
    }

    pub(super) fn as_str(&self) -> &str {
        &self.text
    }

    fn prefix(&self) -> &[u8] {
        &self.text.as_bytes()[..self.first_star]
    }

    fn suffix(&self) -> &[u8] {
        &self.text.as_bytes()[self.last_star + 1..]
    }

    pub(super) fn matches(&self, value: &str) -> bool {
        let (value, prefix, suffix) = (value.as_bytes(), self.prefix(), self.suffix());
        value.len() >= prefix.len() + suffix.len()
            && value.starts_with(prefix)
            && value.ends_with(suffix)
            && self.middle_matches(&value[prefix.len()..value.len() - suffix.len()])
    }

    /// What stands between stars must occur in order; taking each as early as possible never misses a match.
    fn middle_matches(&self, mut rest: &[u8]) -> bool {
        let middle = &self.text[self.first_star..=self.last_star];
        middle.split('*').filter(|part| !part.is_empty()).all(|part| match find(rest, part.as_bytes()) {
            Some(at) => {
                rest = &rest[at + part.len()..];
                true
            }
            None => false,
        })
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

/// Patterns in file order, each with what it leads to.
#[derive(Debug)]
pub(super) struct PatternSet<T> {
    list: Vec<(Pattern, T)>,
    /// Indexes into `list` by text: a file may have many, and each is looked for before it is added.
    by_text: HashTable<u32>,
    /// One table per pair of (prefix length, suffix length).
    by_ends: Vec<Ends>,
    hasher: ahash::RandomState,
}

#[derive(Debug)]
struct Ends {
    prefix_len: usize,
    suffix_len: usize,
    /// Indexes into `list` of the patterns that share these ends, in file order.
    table: HashTable<Vec<u32>>,
}

impl<T> Default for PatternSet<T> {
    fn default() -> Self {
        Self {
            list: Vec::new(),
            by_text: HashTable::new(),
            by_ends: Vec::new(),
            hasher: ahash::RandomState::new(),
        }
    }
}

impl<T> PatternSet<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&Pattern, &T)> {
        self.list.iter().map(|(pattern, item)| (pattern, item))
    }

    pub(super) fn contains(&self, text: &str) -> bool {
        let hash = self.hasher.hash_one(text);
        self.by_text.find(hash, |&index| self.list[index as usize].0.as_str() == text).is_some()
    }

    pub(super) fn push(&mut self, pattern: Pattern, item: T) {
        let (prefix_len, suffix_len) = (pattern.prefix().len(), pattern.suffix().len());
        let place = self
            .by_ends
            .iter()
            .position(|ends| ends.prefix_len == prefix_len && ends.suffix_len == suffix_len)
            .unwrap_or_else(|| {
                self.by_ends.push(Ends { prefix_len, suffix_len, table: HashTable::new() });
                self.by_ends.len() - 1
            });
        let index = u32::try_from(self.list.len()).expect("a file of patterns must fit in 32 bits");
        let hash = self.hasher.hash_one((pattern.prefix(), pattern.suffix()));
        let (list, hasher) = (&self.list, &self.hasher);
        let ends_of = |group: &Vec<u32>| {
            let first = &list[group[0] as usize].0;
            (first.prefix(), first.suffix())
        };
        self.by_ends[place]
            .table
            .entry(
                hash,
                |group| ends_of(group) == (pattern.prefix(), pattern.suffix()),
                |group| hasher.hash_one(ends_of(group)),
            )
            .and_modify(|group| group.push(index))
            .or_insert_with(|| vec![index]);
        let hash = self.hasher.hash_one(pattern.as_str());
        self.by_text.insert_unique(hash, index, |&index| hasher.hash_one(list[index as usize].0.as_str()));
        self.list.push((pattern, item));
    }

    /// The first in file order that matches.
    pub(super) fn find(&self, value: &str) -> Option<(&Pattern, &T)> {
        let bytes = value.as_bytes();
        let mut best: Option<u32> = None;
        for ends in &self.by_ends {
            if bytes.len() < ends.prefix_len + ends.suffix_len {
                continue;
            }
            let prefix = &bytes[..ends.prefix_len];
            let suffix = &bytes[bytes.len() - ends.suffix_len..];
            let hash = self.hasher.hash_one((prefix, suffix));
            let group = ends.table.find(hash, |group| {
                let first = &self.list[group[0] as usize].0;
                first.prefix() == prefix && first.suffix() == suffix
            });
            let first = group.and_then(|group| {
                group.iter().copied().find(|&index| self.list[index as usize].0.matches(value))
            });
            best = match (best, first) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        best.map(|index| {
            let (pattern, item) = &self.list[index as usize];
            (pattern, item)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rows() {
        for (pattern, value, expected) in [
            ("*", "", true),
            ("*", "anything", true),
            ("a*", "a", true),
            ("a*", "abc", true),
            ("a*", "ba", false),
            ("*a", "a", true),
            ("*a", "cba", true),
            ("*a", "ab", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "axxbyyc", true),
            ("a*b*c", "acb", false),
            ("a**c", "ac", true),
            ("*ab*ab*", "abab", true),
            ("*ab*ab*", "aba", false),
            ("/api/*/users", "/api/v1/users", true),
            ("/api/*/users", "/api/users", false),
            ("é*", "éa", true),
        ] {
            assert_eq!(Pattern::parse(pattern).unwrap().matches(value), expected, "{pattern} on {value}");
        }
        assert_eq!(Pattern::parse("plain"), None);
    }

    #[test]
    fn the_first_in_file_order_wins() {
        let mut set = PatternSet::default();
        for (n, text) in ["*z", "ab*", "a*", "*"].iter().enumerate() {
            set.push(Pattern::parse(text).unwrap(), n);
        }
        for (value, n) in [("abz", 0), ("abc", 1), ("ac", 2), ("q", 3), ("", 3)] {
            assert_eq!(set.find(value).unwrap().1, &n, "{value}");
        }
    }

    proptest! {
        /// The index answers as a walk through the list does.
        #[test]
        fn index_agrees_with_the_list(
            patterns in prop::collection::vec("[ab]{0,3}\\*[ab*]{0,3}", 1..12),
            value in "[ab*]{0,7}",
        ) {
            let mut set = PatternSet::default();
            for (n, text) in patterns.iter().enumerate() {
                set.push(Pattern::parse(text).unwrap(), n);
            }
            let walked = patterns.iter().position(|text| Pattern::parse(text).unwrap().matches(&value));
            prop_assert_eq!(set.find(&value).map(|(_, &n)| n), walked);
            prop_assert!(patterns.iter().all(|text| set.contains(text)));
            prop_assert_eq!(set.contains(&value), patterns.contains(&value));
        }
    }
}
