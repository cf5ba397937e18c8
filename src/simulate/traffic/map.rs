//! The mapping file: which field of a log is which part of a request. Every mistake is named with its line.

use std::path::Path;

use super::format::Format;
use crate::config::Problem;
use crate::config::decode::{At, Fields, List, Sink};
use crate::config::shape::Shape;
use crate::config::tree::{Data, Value};
use crate::simulate::document;

static MAP: Shape = Shape {
    name: "a map",
    keys: &["format", "time", "domain", "descriptors", "hits", "status", "duration_ms"],
    family: &[&MAP, &ENTRY, &HITS],
};
static ENTRY: Shape = Shape { name: "an entry", keys: &["key", "field", "value"], family: &[&MAP, &ENTRY] };
static HITS: Shape = Shape { name: "`hits`", keys: &["field"], family: &[&MAP, &HITS] };

/// How a line becomes a request. Fields are places in `names`.
#[derive(Debug)]
pub(crate) struct Map {
    pub(super) lines: LinesAre,
    /// The fields that are read, each once.
    pub(super) names: Vec<String>,
    pub(super) time: usize,
    pub(super) domain: String,
    pub(super) descriptors: Vec<Vec<MappedEntry>>,
    pub(super) hits: Hits,
    pub(super) status: Option<usize>,
    pub(super) duration_ms: Option<usize>,
}

#[derive(Debug)]
pub(super) enum LinesAre {
    Json,
    /// With the place in the format of each of the names.
    Text(Format, Vec<usize>),
}

#[derive(Debug)]
pub(super) struct MappedEntry {
    pub(super) key: String,
    pub(super) value: EntryValue,
}

#[derive(Debug)]
pub(super) enum EntryValue {
    Field(usize),
    Fixed(String),
}

#[derive(Debug)]
pub(super) enum Hits {
    Fixed(u64),
    Field(usize),
}

impl Map {
    pub(crate) fn load(path: &Path) -> Result<Self, Vec<Problem>> {
        document::load(path, |tree, sink| Reader::default().map(tree, sink))
    }
}

/// Gathers the names of fields while the file is read.
#[derive(Default)]
struct Reader {
    /// With the line of each, and what says it.
    names: Vec<(String, u32, String)>,
}

impl Reader {
    fn map(mut self, tree: &Value<'_>, sink: &Sink) -> Option<Map> {
        let fields = Fields::of(tree, At::ROOT, sink, &MAP)?;
        fields.need("format", "`json`, or the format string of Envoy's access log");
        fields.need("time", "the field that says when a request came");
        fields.need("domain", "the domain of the rate-limit filter");
        if fields.text("domain").is_some_and(str::is_empty) {
            fields.mistake("domain", || "must not be empty");
        }
        let time = self.field(&fields, "time");
        let status = self.field(&fields, "status");
        let duration_ms = self.field(&fields, "duration_ms");
        let hits = self.hits(&fields);
        let descriptors = self.descriptors(&fields);
        let lines = self.lines(&fields);
        let names = self.names.into_iter().map(|(name, ..)| name).collect();
        let domain = fields.text("domain")?.to_owned();
        Some(Map { lines: lines?, names, time: time?, domain, descriptors, hits: hits?, status, duration_ms })
    }

    /// The place of a field among the names.
    fn place(&mut self, name: &str, fields: &Fields<'_>, key: &str) -> usize {
        let there = self.names.iter().position(|(there, ..)| there == name);
        there.unwrap_or_else(|| {
            self.names.push((name.to_owned(), fields.line_of(key), fields.at.key(key).to_string()));
            self.names.len() - 1
        })
    }

    fn field(&mut self, fields: &Fields<'_>, key: &str) -> Option<usize> {
        let name = fields.text(key)?;
        if name.is_empty() {
            fields.mistake(key, || "must be the name of a field");
        }
        Some(self.place(name, fields, key))
    }

    fn hits(&mut self, fields: &Fields<'_>) -> Option<Hits> {
        match fields.get("hits").map(|value| &value.data) {
            None => Some(Hits::Fixed(1)),
            Some(Data::Map(_)) => {
                let hits = fields.map("hits", &HITS)?;
                hits.need("field", "the field that says how many hits");
                self.field(&hits, "field").map(Hits::Field)
            }
            Some(_) => fields.whole("hits", 0..=u64::MAX).map(Hits::Fixed),
        }
    }

    fn descriptors(&mut self, fields: &Fields<'_>) -> Vec<Vec<MappedEntry>> {
        let list = fields.list("descriptors");
        if list.items.is_empty() {
            fields.mistake("descriptors", || "is missing: a list of descriptors, each a list of entries");
        }
        let mut descriptors = Vec::new();
        for (item, at) in list.iter() {
            let Data::List(items) = &item.data else {
                let words = || format!("must be a list of entries, not {}", item.sort());
                fields.sink.mistake(item.line, &at, words);
                continue;
            };
            if items.is_empty() {
                fields.sink.mistake(item.line, &at, || "must have at least one entry");
            }
            let entries = List { items, at, given: true };
            let entry = |(item, at)| self.entry(&Fields::of(item, at, fields.sink, &ENTRY)?);
            descriptors.push(entries.iter().filter_map(entry).collect());
        }
        descriptors
    }

    fn entry(&mut self, fields: &Fields<'_>) -> Option<MappedEntry> {
        fields.need("key", "the name of an entry that Envoy sends, such as `path`");
        let value = match (fields.text("field"), fields.text("value")) {
            (Some(name), None) => EntryValue::Field(self.place(name, fields, "field")),
            (None, Some(value)) => EntryValue::Fixed(value.to_owned()),
            (Some(_), Some(_)) => {
                fields.mistake("value", || "is there beside `field`; an entry has one of them");
                return None;
            }
            (None, None) => {
                fields.mistake(
                    "field",
                    || "is missing: the field whose value it has, or a `value` that is always the same",
                );
                return None;
            }
        };
        let key = fields.text("key").filter(|key| !key.is_empty())?.to_owned();
        Some(MappedEntry { key, value })
    }

    /// Every name must be in the format.
    fn lines(&self, fields: &Fields<'_>) -> Option<LinesAre> {
        let text = fields.text("format")?;
        if text == "json" {
            return Some(LinesAre::Json);
        }
        let format = Format::parse(text).map_err(|message| fields.mistake("format", || message)).ok()?;
        let mut places = Vec::new();
        for (name, line, said_by) in &self.names {
            match format.find(name) {
                Some(place) => places.push(place),
                None => {
                    let there: Vec<&str> = format.names().collect();
                    let words = || format!("`{name}` is not in the format, which has {}", there.join(", "));
                    fields.sink.mistake(*line, &At::ROOT.key(said_by), words);
                }
            }
        }
        (places.len() == self.names.len()).then_some(LinesAre::Text(format, places))
    }
}
