//! The descriptor tree of one domain: exact values first, then patterns in file order, then the bare key.
//!
//! One level per entry, no backtracking. Every level is a hash look-up, however many values it has.

use std::borrow::Cow;
use std::sync::Arc;

use ahash::AHashMap;

use super::NamedLimit;
use super::pattern::{Pattern, PatternSet};
use crate::limit::key::{self, Entry};
use crate::limit::{Cost, LimitSpec};

/// One limit that a descriptor asks for.
#[derive(Debug)]
pub struct Rule {
    pub target: Target,
    pub spec: Arc<LimitSpec>,
    /// The last part of the derived LimitKey.
    pub suffix: Arc<str>,
    /// What people call it: the given name, or the key of a named limit. Empty for an unnamed `rate_limit`.
    pub name: Arc<str>,
    pub cost: Cost,
    /// The real cost comes with the completion, so the answer carries a lease.
    pub reconcile: bool,
    /// Names of limits that don't count when this one was matched by the same request.
    pub replaces: Vec<Arc<str>>,
}

#[derive(Debug, Clone)]
pub enum Target {
    /// A limit of its own per value.
    Derived,
    Named(Arc<NamedLimit>),
}

/// A mapping of anything, with no meaning here.
pub type Metadata = serde_json::Map<String, serde_json::Value>;

/// What is found at the end of a descriptor.
#[derive(Debug, Default)]
pub struct Node {
    pub rules: Vec<Rule>,
    /// Answers OK with everything remaining, and counts nothing.
    pub unlimited: bool,
    /// What people call an unlimited node, which has no rule to carry it.
    pub name: Arc<str>,
    /// Names of limits that don't count when this unlimited node was matched by the same request.
    pub replaces: Vec<Arc<str>>,
    /// Counts, but never denies.
    pub shadow: bool,
    /// Denies only when all quota descriptors of the request are over.
    pub quota: bool,
    /// All values that match this pattern share one limit.
    pub share: bool,
    /// Opted into a metric label of its own, value included.
    pub metric_per_value: bool,
    /// What the files say beside the limit, for those who are answered.
    pub metadata: Option<Arc<Metadata>>,
    pub children: Level,
}

/// The descriptors of one level, by key.
#[derive(Debug, Default)]
pub struct Level {
    by_key: AHashMap<Box<str>, Values>,
}

#[derive(Debug, Default)]
struct Values {
    exact: AHashMap<Box<str>, Node>,
    patterns: PatternSet<Node>,
    any: Option<Box<Node>>,
}

/// Why a node could not be placed.
#[derive(Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// The same key and value are already on this level.
    Duplicate,
    /// An earlier pattern matches the text of this shared pattern, so the key made of that text would name two limits.
    Shadowed { by: String },
}

impl Level {
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Places a node. A value with `*` is a pattern; no value stands for every value.
    pub fn insert(&mut self, key: &str, value: Option<&str>, node: Node) -> Result<(), PlaceError> {
        let values = self.by_key.entry(key.into()).or_default();
        match value.map(|value| (value, Pattern::parse(value))) {
            None if values.any.is_some() => return Err(PlaceError::Duplicate),
            None => values.any = Some(Box::new(node)),
            Some((text, Some(_))) if values.patterns.contains(text) => return Err(PlaceError::Duplicate),
            Some((text, Some(pattern))) => {
                if let Some((earlier, _)) = values.patterns.find(text).filter(|_| node.share) {
                    return Err(PlaceError::Shadowed { by: earlier.as_str().to_owned() });
                }
                values.patterns.push(pattern, node);
            }
            Some((text, None)) if values.exact.contains_key(text) => return Err(PlaceError::Duplicate),
            Some((text, None)) => {
                values.exact.insert(text.into(), node);
            }
        }
        Ok(())
    }

    /// Every node of this level: key, value as written (`None` for the bare key), node.
    pub fn nodes(&self) -> Vec<(&str, Option<&str>, &Node)> {
        let mut nodes = Vec::new();
        for (key, values) in &self.by_key {
            nodes.extend(values.exact.iter().map(|(value, node)| (&**key, Some(&**value), node)));
            nodes
                .extend(values.patterns.iter().map(|(pattern, node)| (&**key, Some(pattern.as_str()), node)));
            nodes.extend(values.any.iter().map(|node| (&**key, None, &**node)));
        }
        nodes
    }

    /// A value that leads where this entry leads, with `hidden` in the place of whatever no file mentions.
    fn mask<'v>(&self, entry: &Entry<'v>, hidden: impl FnOnce() -> String) -> Cow<'v, str> {
        let Some(values) = self.by_key.get(entry.key) else { return hidden().into() };
        if values.exact.contains_key(entry.value) {
            return entry.value.into();
        }
        match values.patterns.find(entry.value) {
            Some((pattern, _)) => pattern.as_str().replace('*', &hidden()).into(),
            None => hidden().into(),
        }
    }

    fn step(&self, entry: &Entry<'_>) -> Option<(&Node, Option<&Pattern>)> {
        let values = self.by_key.get(entry.key)?;
        if let Some(node) = values.exact.get(entry.value) {
            return Some((node, None));
        }
        if !values.patterns.is_empty()
            && let Some((pattern, node)) = values.patterns.find(entry.value)
        {
            return Some((node, node.share.then_some(pattern)));
        }
        values.any.as_deref().map(|node| (node, None))
    }
}

/// Where a descriptor ended, and which of its values count together.
#[derive(Debug)]
pub(crate) struct Found<'t> {
    pub node: &'t Node,
    /// For each entry that a shared pattern matched: its index and the pattern.
    shared: smallvec::SmallVec<[(usize, &'t Pattern); 2]>,
}

/// Walks the entries, one level each. `None` if they lead nowhere.
pub(crate) fn find<'t>(mut level: &'t Level, entries: &[Entry<'_>]) -> Option<Found<'t>> {
    let mut shared = smallvec::SmallVec::new();
    let mut last = None;
    for (index, entry) in entries.iter().enumerate() {
        let (node, pattern) = level.step(entry)?;
        shared.extend(pattern.map(|pattern| (index, pattern)));
        level = &node.children;
        last = Some(node);
    }
    Some(Found { node: last?, shared })
}

/// The value of each entry, so that they lead where they led, with `hide(value)` in the place of what no file mentions.
pub(super) fn masked<'v>(
    mut level: Option<&Level>,
    entries: &[Entry<'v>],
    hide: impl Fn(&str) -> String,
) -> Vec<Cow<'v, str>> {
    let mut values = Vec::with_capacity(entries.len());
    for entry in entries {
        let hidden = || hide(entry.value);
        values.push(level.map_or_else(|| hidden().into(), |level| level.mask(entry, hidden)));
        level = level.and_then(|level| level.step(entry)).map(|(node, _)| &node.children);
    }
    values
}

impl Found<'_> {
    /// Writes the LimitKey that `rule` has for these entries to the end of `out`.
    pub(super) fn write_key(&self, out: &mut String, domain: &str, entries: &[Entry<'_>], rule: &Rule) {
        self.write_prefix(out, domain, entries);
        key::write_name(out, &rule.suffix);
    }

    /// The part of it that all rules found here share.
    pub(super) fn write_prefix<'a>(&'a self, out: &mut String, domain: &str, entries: &[Entry<'a>]) {
        let as_counted = |(index, entry): (usize, &Entry<'a>)| {
            let shared = self.shared.iter().find(|(at, _)| *at == index);
            Entry { key: entry.key, value: shared.map_or(entry.value, |(_, pattern)| pattern.as_str()) }
        };
        key::write_prefix(out, domain, entries.iter().enumerate().map(as_counted));
    }
}
