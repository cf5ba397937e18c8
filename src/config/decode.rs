//! Reading fields out of a [tree](super::tree): each reader says what is wrong with its field and goes on.
//!
//! A value of null counts as absent, as in envoyproxy/ratelimit. Refuses to know any particular file.

use std::cell::RefCell;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::sync::Arc;

use ahash::AHashMap;

use super::problem::{Problem, Problems};
use super::scalar;
use super::shape::Shape;
use super::tree::{Data, MappingEntry, Value};

/// Up to this many keys, looking at all pairs is the fastest way to find one that is there twice.
const PAIRS_MAX: usize = 16;

/// Where the complaints about one file go. A cell, so that every reader can complain without being handed a list.
#[derive(Debug)]
pub(crate) struct Sink {
    pub(crate) file: Arc<str>,
    /// It is no file: it was sent, and has no lines.
    pub(crate) is_resource: bool,
    problems: RefCell<Problems>,
}

impl Sink {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: Arc::from(file), is_resource: false, problems: RefCell::default() }
    }

    pub(crate) fn of_resource(name: &str) -> Self {
        Self { is_resource: true, ..Self::new(name) }
    }

    pub(crate) fn into_problems(self) -> Problems {
        self.problems.into_inner()
    }

    /// Says that a field is wrong. The words are asked for only if there is room for them.
    pub(crate) fn mistake<M: Into<String>>(&self, line: u32, at: &At<'_>, message: impl FnOnce() -> M) {
        let mut problems = self.problems.borrow_mut();
        if problems.is_full() {
            problems.count_more(1, Arc::clone(&self.file));
        } else {
            let problem = self.problem(line, at.to_string(), message().into());
            problems.mistake(problem);
        }
    }

    pub(crate) fn warn(&self, line: u32, field: impl fmt::Display, message: impl Into<String>) {
        let problem = self.problem(line, field.to_string(), message.into());
        self.problems.borrow_mut().warn(problem);
    }

    fn problem(&self, line: u32, field: String, message: String) -> Problem {
        Problem { file: Arc::clone(&self.file), line, field, message }
    }
}

/// The path to a field. A list through the callers' stack frames: it is written out only for a complaint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At<'p> {
    parent: Option<&'p At<'p>>,
    step: PathStep<'p>,
}

#[derive(Debug, Clone, Copy)]
enum PathStep<'p> {
    Root,
    Key(&'p str),
    Index(usize),
}

impl<'p> At<'p> {
    pub(crate) const ROOT: At<'static> = At { parent: None, step: PathStep::Root };

    pub(crate) fn key(&'p self, key: &'p str) -> At<'p> {
        At { parent: Some(self), step: PathStep::Key(key) }
    }

    pub(crate) fn index(&'p self, index: usize) -> At<'p> {
        At { parent: Some(self), step: PathStep::Index(index) }
    }
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(parent) = self.parent {
            write!(f, "{parent}")?;
        }
        match self.step {
            PathStep::Root => Ok(()),
            PathStep::Index(index) => write!(f, "[{index}]"),
            PathStep::Key(key) => {
                let dot = self.parent.is_some_and(|parent| !matches!(parent.step, PathStep::Root));
                write!(f, "{}{}", if dot { "." } else { "" }, scalar::shown(key))
            }
        }
    }
}

/// The entries of one mapping.
#[derive(Debug)]
pub(crate) struct Fields<'v> {
    entries: &'v [MappingEntry<'v>],
    pub(crate) line: u32,
    pub(crate) at: At<'v>,
    pub(crate) sink: &'v Sink,
}

impl<'v> Fields<'v> {
    /// The fields of `value`, with a complaint about every key that isn't of its shape or is there twice.
    pub(crate) fn of(value: &'v Value<'v>, at: At<'v>, sink: &'v Sink, shape: &Shape) -> Option<Self> {
        let Data::Map(entries) = &value.data else {
            sink.mistake(value.line, &at, || {
                format!("must be a mapping with the keys {}, not {}", shape.keys.join(", "), value.sort())
            });
            return None;
        };
        let fields = Self { entries, line: value.line, at, sink };
        for entry in entries.iter().filter(|entry| !shape.has(&entry.key)) {
            fields.wrong_key(entry, || shape.refusal(&entry.key));
        }
        fields.refuse_twins();
        Some(fields)
    }

    fn wrong_key<M: Into<String>>(&self, entry: &MappingEntry<'_>, message: impl FnOnce() -> M) {
        self.sink.mistake(entry.line, &self.at.key(&entry.key), message);
    }

    fn refuse_twins(&self) {
        let twin = |entry: &MappingEntry<'_>, first: u32| {
            self.wrong_key(entry, || format!("is there twice; the first is on line {first}"));
        };
        if self.entries.len() <= PAIRS_MAX {
            for (n, entry) in self.entries.iter().enumerate() {
                if let Some(first) = self.entries[..n].iter().find(|first| first.key == entry.key) {
                    twin(entry, first.line);
                }
            }
            return;
        }
        let mut seen: AHashMap<&str, u32> = AHashMap::new();
        for entry in self.entries {
            match seen.get(&*entry.key) {
                Some(&first) => twin(entry, first),
                None => drop(seen.insert(&entry.key, entry.line)),
            }
        }
    }

    /// The value of `key`, if it has one.
    pub(crate) fn get(&self, key: &str) -> Option<&'v Value<'v>> {
        let entry = self.entries.iter().find(|entry| entry.key == key)?;
        (!entry.value.is_null()).then_some(&entry.value)
    }

    pub(crate) fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// `key` is written, but there is nothing behind it.
    pub(crate) fn is_left_empty(&self, key: &str) -> bool {
        self.entries.iter().any(|entry| entry.key == key) && !self.has(key)
    }

    /// The line of `key`, or of the mapping that lacks it.
    pub(crate) fn line_of(&self, key: &str) -> u32 {
        self.entries.iter().find(|entry| entry.key == key).map_or(self.line, |entry| entry.line)
    }

    /// Says that `key` is wrong.
    pub(crate) fn mistake<M: Into<String>>(&self, key: &str, message: impl FnOnce() -> M) {
        self.sink.mistake(self.line_of(key), &self.at.key(key), message);
    }

    /// Says that `key` is probably not meant as it is.
    pub(crate) fn warn(&self, key: &str, message: &str) {
        self.sink.warn(self.line_of(key), self.at.key(key), message);
    }

    /// Says that `key` is missing, if it is.
    pub(crate) fn need(&self, key: &str, what: &str) -> bool {
        let there = self.has(key);
        if !there {
            self.mistake(key, || format!("is missing: {what}"));
        }
        there
    }

    /// Reads a scalar with `read`, whose error says what would be right.
    pub(crate) fn scalar<T>(
        &self,
        key: &str,
        read: impl FnOnce(&'v str, bool) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.get(key)?;
        read_scalar(value, read)
            .map_err(|message| self.sink.mistake(value.line, &self.at.key(key), || message))
            .ok()
    }

    /// The text as it was written, whatever it looks like.
    pub(crate) fn text(&self, key: &str) -> Option<&'v str> {
        self.scalar(key, |text, _| Ok(text))
    }

    pub(crate) fn parsed<T: FromStr<Err: fmt::Display>>(&self, key: &str) -> Option<T> {
        self.scalar(key, |text, _| text.parse().map_err(|error: T::Err| error.to_string()))
    }

    pub(crate) fn flag(&self, key: &str) -> bool {
        self.scalar(key, scalar::flag).unwrap_or(false)
    }

    pub(crate) fn whole(&self, key: &str, range: RangeInclusive<u64>) -> Option<u64> {
        self.scalar(key, |text, plain| scalar::whole(text, plain, &range))
    }

    pub(crate) fn number(&self, key: &str) -> Option<f64> {
        self.scalar(key, scalar::number)
    }

    /// The mapping under `key`.
    pub(crate) fn map<'s>(&'s self, key: &'s str, shape: &Shape) -> Option<Fields<'s>> {
        Fields::of(self.get(key)?, self.at.key(key), self.sink, shape)
    }

    /// The list under `key`; an empty one if there is none.
    pub(crate) fn list<'s>(&'s self, key: &'s str) -> List<'s> {
        let at = self.at.key(key);
        match self.get(key).map(|value| (&value.data, value)) {
            None => List { items: &[], at, given: false },
            Some((Data::List(items), _)) => List { items, at, given: true },
            Some((_, value)) => {
                self.sink.mistake(value.line, &at, || format!("must be a list, not {}", value.sort()));
                List { items: &[], at, given: false }
            }
        }
    }
}

/// The items of one list.
#[derive(Debug)]
pub(crate) struct List<'v> {
    pub(crate) items: &'v [Value<'v>],
    pub(crate) at: At<'v>,
    /// There is a list, even if an empty one.
    pub(crate) given: bool,
}

impl<'v> List<'v> {
    /// Each item and the path to it.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'v Value<'v>, At<'_>)> {
        self.items.iter().enumerate().map(|(index, item)| (item, self.at.index(index)))
    }
}

pub(crate) fn read_scalar<'v, T>(
    value: &'v Value<'v>,
    read: impl FnOnce(&'v str, bool) -> Result<T, String>,
) -> Result<T, String> {
    match &value.data {
        Data::Scalar { text, plain } => read(text, *plain),
        Data::List(_) | Data::Map(_) => Err(format!("must be one plain value, not {}", value.sort())),
    }
}
