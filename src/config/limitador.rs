//! Limitador's limits file as limits files of ours, one for each of its namespaces.
//!
//! In Limitador a limit holds if all its conditions do, whatever else a request says. Here a descriptor leads to it, entry by
//! entry. So a limit becomes a descriptor with an entry for each of its conditions, in their order, and then one for each of its
//! variables. A limit that can't be written that way is left out, and the reason is named: a limit without one of its conditions
//! would limit other requests too. Pure; refuses to know directories.

mod term;

use std::collections::BTreeMap;
use std::fmt::Write;

use super::decode::{At, Fields, Sink};
use super::problem::{Problem, Problems};
use super::shape::Shape;
use super::source::Document;
use super::tree::{Data, Value};
use super::yaml;
use crate::limit::key::encode;

static LIMIT: Shape = Shape {
    name: "a limit of Limitador",
    keys: &["id", "namespace", "max_value", "seconds", "name", "conditions", "variables"],
    family: &[&LIMIT],
};

/// What a file became.
#[derive(Debug)]
pub(crate) struct Imported {
    /// Each namespace that has limits, and its file.
    pub(crate) files: Vec<(String, String)>,
    /// What could not be said, by line.
    pub(crate) left_out: Vec<Problem>,
}

/// The descriptors of a level, in the order in which they were first met.
#[derive(Debug, Default, Clone)]
struct Level(Vec<(PathEntry, Node)>);

#[derive(Debug, Default, Clone)]
struct Node {
    limits: Vec<Limit>,
    below: Level,
}

/// One entry of a descriptor; without a value it stands for any.
#[derive(Debug, Clone, PartialEq, Eq)]
struct PathEntry {
    key: String,
    value: Option<String>,
}

#[derive(Debug, Clone)]
struct Limit {
    name: String,
    capacity: u64,
    window_seconds: u64,
}

/// Reads all files together: limits of a namespace may be in several.
pub(crate) fn import(files: &[Document]) -> Imported {
    let mut namespaces: BTreeMap<String, Level> = BTreeMap::new();
    let mut problems = Problems::default();
    for file in files {
        let sink = Sink::new(&file.name);
        match yaml::parse(&file.text) {
            Ok(Some(Value { data: Data::List(items), .. })) => {
                for (index, item) in items.iter().enumerate() {
                    read(item, At::ROOT.index(index), &sink, &mut namespaces);
                }
            }
            Ok(Some(other)) => {
                sink.mistake(other.line, &At::ROOT, || {
                    format!("must be a list of limits, not {}", other.sort())
                });
            }
            Ok(None) => sink.mistake(1, &At::ROOT, || "is empty"),
            Err(fault) => sink.mistake(fault.line, &At::ROOT, || fault.message),
        }
        problems.absorb(sink.into_problems());
    }
    let files = namespaces.into_iter().filter(|(_, level)| !level.0.is_empty());
    let files = files.map(|(namespace, mut level)| {
        level.inherit();
        let text = written(&namespace, &level);
        (namespace, text)
    });
    Imported { files: files.collect(), left_out: problems.finish().err().unwrap_or_default() }
}

fn read(item: &Value<'_>, at: At<'_>, sink: &Sink, namespaces: &mut BTreeMap<String, Level>) {
    let Some(fields) = Fields::of(item, at, sink, &LIMIT) else { return };
    fields.need("namespace", "what Envoy's filter has as its `domain`");
    fields.need("max_value", "how many hits in `seconds`");
    fields.need("seconds", "the length of the window");
    let capacity = fields.whole("max_value", 0..=(1 << 63) - 1);
    let window_seconds = fields.whole("seconds", 1..=u64::from(u32::MAX));
    let path = path(&fields);
    let (Some(namespace), Some(capacity), Some(window_seconds), Some(path)) =
        (fields.text("namespace"), capacity, window_seconds, path)
    else {
        return;
    };
    let name = fields.text("name").filter(|name| !name.is_empty());
    let name = name.map_or_else(|| format!("per-{window_seconds}s"), str::to_owned);
    let node = namespaces.entry(namespace.to_owned()).or_default().at(&path);
    node.push(Limit { name, capacity, window_seconds });
}

/// The entries that lead to a limit; `None` if there are none that would.
fn path(fields: &Fields<'_>) -> Option<Vec<PathEntry>> {
    let (mut path, mut of, mut good): (Vec<PathEntry>, Option<u64>, bool) = (Vec::new(), None, true);
    for (list, read) in [("conditions", term::condition as term::Read), ("variables", term::variable)] {
        for (value, at) in fields.list(list).iter() {
            let word = match &value.data {
                Data::Scalar { text, .. } => &**text,
                Data::List(_) | Data::Map(_) => "",
            };
            let term = read(word).and_then(|term| match of.replace(term.descriptor) {
                Some(other) if other != term.descriptor => {
                    Err("speaks of another descriptor than the rest of this limit".to_owned())
                }
                _ if path.iter().any(|entry| entry.key == term.key) => {
                    Err("speaks of an entry that this limit speaks of already".to_owned())
                }
                _ => Ok(PathEntry { key: term.key, value: term.value }),
            });
            match term {
                Ok(entry) => path.push(entry),
                Err(why) => {
                    fields.sink.mistake(value.line, &at, || format!("`{word}` {why}; the limit is left out"));
                    good = false;
                }
            }
        }
    }
    if good && path.is_empty() {
        fields.sink.mistake(fields.line, &fields.at, || {
            "has neither conditions nor variables, so that it holds for every request of the namespace: let Envoy send a \
             `generic_key` with each, and give that a limit; it is left out"
        });
    }
    (good && !path.is_empty()).then_some(path)
}

impl Level {
    fn at(&mut self, path: &[PathEntry]) -> &mut Node {
        let (first, rest) = path.split_first().expect("a limit must have a path");
        let place = self.0.iter().position(|(entry, _)| entry == first).unwrap_or_else(|| {
            self.0.push((first.clone(), Node::default()));
            self.0.len() - 1
        });
        let node = &mut self.0[place].1;
        if rest.is_empty() { node } else { node.below.at(rest) }
    }
}

impl Level {
    /// In Limitador every limit that holds counts. Here a request meets the descriptor with its value, and then not the one without
    /// a value. So the first gets the limits of the second too.
    fn inherit(&mut self) {
        let any: Vec<(PathEntry, Node)> =
            self.0.iter().filter(|(entry, _)| entry.value.is_none()).cloned().collect();
        for (entry, node) in &mut self.0 {
            for (_, from) in any.iter().filter(|(any, _)| any.key == entry.key && any != entry) {
                node.merge(from);
            }
            node.below.inherit();
        }
    }
}

impl Node {
    /// Names differ within a descriptor.
    fn push(&mut self, mut limit: Limit) {
        let name = limit.name.clone();
        let mut count = 1;
        while self.limits.iter().any(|other| other.name == limit.name) {
            count += 1;
            limit.name = format!("{name}-{count}");
        }
        self.limits.push(limit);
    }

    fn merge(&mut self, from: &Node) {
        from.limits.iter().for_each(|limit| self.push(limit.clone()));
        for (entry, node) in &from.below.0 {
            self.below.at(std::slice::from_ref(entry)).merge(node);
        }
    }
}

fn written(namespace: &str, level: &Level) -> String {
    let mut text = format!("domain: {}\ndescriptors:\n", quoted(namespace));
    level.write(&mut text, 1);
    text
}

impl Level {
    /// As deep as a limit has conditions, which its reader has bounded.
    fn write(&self, text: &mut String, depth: usize) {
        let indent = "  ".repeat(2 * depth - 1);
        for (PathEntry { key, value }, node) in &self.0 {
            // Writing to a String can't fail.
            let _ = writeln!(text, "{indent}- key: {}", quoted(key));
            if let Some(value) = value {
                let _ = writeln!(text, "{indent}  value: {}", quoted(value));
            }
            if !node.limits.is_empty() {
                let _ = writeln!(text, "{indent}  limits:");
            }
            for Limit { name, capacity, window_seconds } in &node.limits {
                let name = quoted(name);
                let _ = writeln!(
                    text,
                    "{indent}    - {{name: {name}, kind: rolling, capacity: {capacity}, window_seconds: {window_seconds}}}"
                );
            }
            if !node.below.0.is_empty() {
                let _ = writeln!(text, "{indent}  descriptors:");
                node.below.write(text, depth + 1);
            }
        }
    }
}

/// A word that needs no quotes, or a JSON string, which is one of YAML.
fn quoted(text: &str) -> String {
    let plain = !text.is_empty()
        && text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/'))
        && super::scalar::flag(text, true).is_err()
        && !text.eq_ignore_ascii_case("null");
    if plain { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}

/// The name of the file that a namespace has.
pub(crate) fn file_name(namespace: &str) -> String {
    let mut name = String::new();
    encode(&mut name, namespace);
    format!("limits/{}.yaml", name.replace('/', "%2F"))
}

#[cfg(test)]
mod tests;
