//! What is wrong with a file, and where. Every mistake of every file is gathered before anything is refused.
//!
//! Refuses to know what the files are about.

use std::fmt;
use std::sync::Arc;

/// Kept in full per file; the rest are counted. Nobody reads more, and a broken file must not fill memory.
const MISTAKES_MAX: usize = 1_000;

/// Kept over all files: an xDS server may send thousands of broken ones.
const ALL_MAX: usize = 10 * MISTAKES_MAX;

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
pub struct Problem {
    /// The path as the user gave it.
    pub file: Arc<str>,
    /// From 1; 0 when it is about the file as a whole or there are no lines.
    pub line: u32,
    /// `descriptors[0].rate_limit.unit`; empty when it is about no field.
    pub field: String,
    pub message: String,
}

impl Problem {
    /// A problem with the file as a whole.
    pub(crate) fn of_file(file: &str, message: impl Into<String>) -> Self {
        Self { file: Arc::from(file), line: 0, field: String::new(), message: message.into() }
    }

    /// Whether both say the same, whatever their lines: a line moves when something above it is edited.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        (&self.file, &self.field, &self.message) == (&other.file, &other.field, &other.message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.message)
    }
}

/// Mistakes, which reject, and warnings, which don't.
#[derive(Debug, Default)]
pub(crate) struct Problems {
    mistakes: Vec<Problem>,
    /// Mistakes beyond those kept, and the file of the last of them.
    more: Option<(usize, Arc<str>)>,
    warnings: Vec<Problem>,
}

impl Problems {
    /// No further mistake would be kept: a caller may spare itself the wording.
    pub(crate) fn is_full(&self) -> bool {
        self.mistakes.len() >= MISTAKES_MAX
    }

    pub(crate) fn mistake(&mut self, problem: Problem) {
        if self.is_full() {
            self.count_more(1, problem.file);
        } else {
            self.mistakes.push(problem);
        }
    }

    /// A mistake of `file` that isn't worded, because the list [is full](Self::is_full).
    pub(crate) fn count_more(&mut self, count: usize, file: Arc<str>) {
        let before = self.more.take().map_or(0, |(before, _)| before);
        self.more = Some((before + count, file));
    }

    /// Something that is probably not meant, but can be served.
    pub(crate) fn warn(&mut self, problem: Problem) {
        if self.warnings.len() < MISTAKES_MAX {
            self.warnings.push(problem);
        }
    }

    /// Takes over what another file had.
    pub(crate) fn absorb(&mut self, mut other: Problems) {
        let room = ALL_MAX.saturating_sub(self.mistakes.len()).min(other.mistakes.len());
        let beyond = other.mistakes.split_off(room);
        if let Some(last) = beyond.last() {
            self.count_more(beyond.len(), Arc::clone(&last.file));
        }
        self.mistakes.extend(other.mistakes);
        let room = ALL_MAX.saturating_sub(self.warnings.len());
        self.warnings.extend(other.warnings.into_iter().take(room));
        if let Some((count, file)) = other.more {
            self.count_more(count, file);
        }
    }

    /// The warnings if there is no mistake, else the mistakes; by file and line.
    pub(crate) fn finish(mut self) -> Result<Vec<Problem>, Vec<Problem>> {
        if self.mistakes.is_empty() {
            self.warnings.sort();
            return Ok(self.warnings);
        }
        self.mistakes.sort();
        // A field that is read in two places complains in both.
        self.mistakes.dedup();
        if let Some((count, file)) = self.more {
            self.mistakes.push(Problem::of_file(&file, format!("and {count} more mistakes")));
        }
        Err(self.mistakes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problem(file: &str, line: u32, field: &str) -> Problem {
        Problem { file: Arc::from(file), line, field: field.into(), message: "is wrong".into() }
    }

    #[test]
    fn written_so_that_an_editor_can_jump_there() {
        assert_eq!(problem("a.yaml", 3, "b[0].c").to_string(), "a.yaml:3: b[0].c: is wrong");
        assert_eq!(problem("a.yaml", 3, "").to_string(), "a.yaml:3: is wrong");
        assert_eq!(problem("body", 0, "c").to_string(), "body: c: is wrong");
        assert_eq!(Problem::of_file("a.yaml", "is gone").to_string(), "a.yaml: is gone");
    }

    #[test]
    fn ordered_by_file_and_line() {
        let mut all = Problems::default();
        for (file, line) in [("b", 1), ("a", 10), ("a", 9)] {
            all.mistake(problem(file, line, ""));
        }
        let lines: Vec<u32> = all.finish().unwrap_err().iter().map(|problem| problem.line).collect();
        assert_eq!(lines, [9, 10, 1]);
    }

    #[test]
    fn a_warning_rejects_nothing() {
        let mut all = Problems::default();
        all.warn(problem("a", 1, ""));
        assert_eq!(all.finish(), Ok(vec![problem("a", 1, "")]));
    }

    #[test]
    fn the_lists_of_many_files_together_are_bounded_too() {
        let mut all = Problems::default();
        for file in 0..15 {
            let mut one = Problems::default();
            for line in 1..=1_001 {
                one.mistake(problem(&format!("f{file:02}"), line, ""));
                one.warn(problem("w", line, ""));
            }
            all.absorb(one);
        }
        assert_eq!(all.warnings.len(), ALL_MAX);
        let listed = all.finish().unwrap_err();
        assert_eq!(listed.len(), ALL_MAX + 1);
        assert_eq!(listed.last().unwrap().to_string(), "f14: and 5015 more mistakes");
    }

    #[test]
    fn the_list_is_bounded_and_says_so() {
        let mut all = Problems::default();
        for line in 1..=1_007 {
            all.mistake(problem("a", line, ""));
        }
        let listed = all.finish().unwrap_err();
        assert_eq!(listed.len(), MISTAKES_MAX + 1);
        assert_eq!(listed.last().unwrap().message, "and 7 more mistakes");
    }
}
