//! What is different between two configurations, limit by limit, in the words of the reload log and of `sluice check`.
//!
//! Pure. A limit that got another name is a new one.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use super::outline::{Outline, OutlineLine, shown};
use crate::limit::Origin;

/// One limit, or one setting of the retry policy, that has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigChange {
    pub sort: Sort,
    /// The limit, as it is called.
    pub name: String,
    /// From what to what.
    pub detail: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    Added,
    Removed,
    /// More capacity, whatever else is different.
    Raised,
    /// Less capacity.
    Lowered,
    /// The same capacity.
    Changed,
}

impl Sort {
    pub const ALL: [Sort; 5] = [Sort::Added, Sort::Removed, Sort::Raised, Sort::Lowered, Sort::Changed];

    pub fn name(self) -> &'static str {
        match self {
            Sort::Added => "added",
            Sort::Removed => "removed",
            Sort::Raised => "raised",
            Sort::Lowered => "lowered",
            Sort::Changed => "changed",
        }
    }
}

impl fmt::Display for ConfigChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.sort.name(), shown(&self.name))?;
        if self.detail.is_empty() { Ok(()) } else { write!(f, ": {}", self.detail) }
    }
}

/// How many there are of each sort, as in `2 added, 1 raised`.
pub fn summary(changes: &[ConfigChange]) -> String {
    let count = |sort| changes.iter().filter(|change| change.sort == sort).count();
    let counts = Sort::ALL.map(|sort| (sort, count(sort)));
    let words = counts.iter().filter(|(_, count)| *count > 0);
    words.map(|(sort, count)| format!("{count} {}", sort.name())).collect::<Vec<_>>().join(", ")
}

/// What became different, named limits first, each by name.
pub fn between(old: &Outline, new: &Outline) -> Vec<ConfigChange> {
    let mut changes = Vec::new();
    compare(&old.named, &new.named, &mut changes);
    compare(&old.rules, &new.rules, &mut changes);
    for (name, patterns) in &new.orders {
        if let Some(before) = old.orders.get(name)
            && is_reordered(before, patterns)
        {
            let detail = "its patterns are tried in another order".to_owned();
            changes.push(ConfigChange { sort: Sort::Changed, name: name.clone(), detail });
        }
    }
    changes
}

/// The settings in which two retry policies differ, both as JSON.
pub fn of_policy(old: &Value, new: &Value) -> Vec<ConfigChange> {
    let mut changes = Vec::new();
    walk("retry_policy", Some(old), Some(new), &mut changes);
    changes
}

fn compare(
    old: &BTreeMap<String, OutlineLine>,
    new: &BTreeMap<String, OutlineLine>,
    changes: &mut Vec<ConfigChange>,
) {
    let mut push =
        |sort, name: &str, detail| changes.push(ConfigChange { sort, name: name.to_owned(), detail });
    for (name, line) in new {
        match old.get(name) {
            None => push(Sort::Added, name, described(line)),
            Some(before) if before != line || is_taken_over(before, line) => {
                push(sort_of(before, line), name, difference(before, line));
            }
            Some(_) => {}
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        push(Sort::Removed, name, String::new());
    }
}

/// A limit that was made through the admin API is now in a file.
fn is_taken_over(old: &OutlineLine, new: &OutlineLine) -> bool {
    let api = Origin::Api.to_string();
    old.origin == api && new.origin != api
}

fn sort_of(old: &OutlineLine, new: &OutlineLine) -> Sort {
    match (old.capacity, new.capacity) {
        (Some(old), Some(new)) if new > old => Sort::Raised,
        (Some(old), Some(new)) if new < old => Sort::Lowered,
        _ => Sort::Changed,
    }
}

fn described(line: &OutlineLine) -> String {
    let capacity = line.capacity.map(|capacity| format!("capacity {capacity}"));
    let terms = line.terms.iter().map(|(name, value)| format!("{name} {value}"));
    capacity.into_iter().chain(terms).collect::<Vec<_>>().join(", ")
}

fn difference(old: &OutlineLine, new: &OutlineLine) -> String {
    let text = |capacity: Option<u64>| capacity.map(|capacity| capacity.to_string());
    let mut parts = Vec::new();
    if old.capacity != new.capacity {
        parts.push(from_to("capacity", text(old.capacity).as_deref(), text(new.capacity).as_deref()));
    }
    let only_old = old.terms.keys().filter(|name| !new.terms.contains_key(*name));
    for name in new.terms.keys().chain(only_old) {
        let (before, after) = (old.terms.get(name), new.terms.get(name));
        if before != after {
            parts.push(from_to(name, before.map(String::as_str), after.map(String::as_str)));
        }
    }
    if is_taken_over(old, new) {
        parts.push(from_to("owner", Some(&old.origin), Some(&new.origin)));
    }
    parts.join(", ")
}

fn from_to(name: &str, old: Option<&str>, new: Option<&str>) -> String {
    format!("{name} {} -> {}", old.unwrap_or("none"), new.unwrap_or("none"))
}

/// Only those that are in both: what was added or removed has been named.
fn is_reordered(old: &[String], new: &[String]) -> bool {
    let places: BTreeMap<&str, usize> = new.iter().enumerate().map(|(n, text)| (text.as_str(), n)).collect();
    !old.iter().filter_map(|text| places.get(text.as_str())).is_sorted()
}

fn walk(path: &str, old: Option<&Value>, new: Option<&Value>, changes: &mut Vec<ConfigChange>) {
    if old == new {
        return;
    }
    if let (Some(Value::Object(before)), Some(Value::Object(after))) = (old, new) {
        let only_old = before.keys().filter(|key| !after.contains_key(*key));
        for key in after.keys().chain(only_old) {
            walk(&format!("{path}.{key}"), before.get(key), after.get(key), changes);
        }
        return;
    }
    let text = |value: Option<&Value>| value.map_or_else(|| "none".to_owned(), Value::to_string);
    let detail = format!("{} -> {}", text(old), text(new));
    changes.push(ConfigChange { sort: Sort::Changed, name: path.to_owned(), detail });
}
