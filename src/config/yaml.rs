//! YAML text to a [tree](super::tree), with bounds on its size and depth that hold for every file.
//!
//! Built from parser events without recursion: aliases are copied, `<<` is merged, and both are charged to one budget.
//! Refuses to know any key, and stops at the first thing that isn't YAML.

use std::borrow::Cow;

use ahash::{AHashMap, AHashSet};
use granit_parser::{ErrorKind, Event, Options, Parser, ScalarStyle, ScanError, Span, Tag};

use super::tree::{Data, MappingEntry, Value};

/// 100,000 ordinary limits are about 12 MB.
pub(crate) const FILE_BYTES_MAX: usize = 16 << 20;

/// A value weighs its text and this much for itself.
const VALUE_WEIGHT: usize = 16;

/// Two million values, or less with long texts. 100,000 ordinary limits weigh about 15 million. What aliases and
/// merges copy counts each time.
const WEIGHT_MAX: usize = 32 << 20;

/// Lists and mappings inside one another. 32 levels of descriptors are 64, and a limit in the last a few more.
const DEPTH_MAX: usize = 96;

const TOO_DEEP: &str = "is nested too deep";

/// Why a text could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) line: u32,
    pub(crate) message: String,
}

/// The tree of `text`, or `None` if there is nothing in it.
pub(crate) fn parse(text: &str) -> Result<Option<Value<'_>>, Fault> {
    if text.len() > FILE_BYTES_MAX {
        return Err(Fault {
            line: 1,
            message: format!("is {} bytes long; a file may have {FILE_BYTES_MAX}", text.len()),
        });
    }
    let mut options = Options::default();
    options.set_emit_comments(false);
    let mut builder = Builder::default();
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| syntax(text, &error))?;
        builder.take(event, &span)?;
    }
    Ok(builder.root)
}

fn syntax(text: &str, error: &ScanError) -> Fault {
    let (line, column) = (error.marker().line(), error.marker().col() + 1);
    // The parser points at the word before a tab, which may be lines above it.
    let tab = text.lines().enumerate().skip(line.saturating_sub(1)).find(|(_, text)| starts_with_tab(text));
    match (error.info(), tab) {
        _ if matches!(error.kind(), ErrorKind::RecursionLimitExceeded) => {
            Fault { line: to_u32(line), message: TOO_DEEP.into() }
        }
        (info, Some((index, _))) if info.contains("tab") => Fault {
            line: to_u32(index + 1),
            message: "is not YAML: indent with spaces, not with tabs".into(),
        },
        (info, _) => Fault { line: to_u32(line), message: format!("is not YAML: {info} (column {column})") },
    }
}

fn starts_with_tab(line: &str) -> bool {
    line.trim_start_matches(' ').starts_with('\t')
}

fn to_u32(line: usize) -> u32 {
    u32::try_from(line).unwrap_or(u32::MAX)
}

/// The tree under construction.
#[derive(Default)]
struct Builder<'t> {
    documents: usize,
    open: Vec<Open<'t>>,
    anchored: AHashMap<usize, Built<'t>>,
    weight: usize,
    root: Option<Value<'t>>,
}

/// A list or mapping whose end hasn't come yet.
struct Open<'t> {
    line: u32,
    anchor: usize,
    weight: usize,
    depth: usize,
    content: Content<'t>,
}

enum Content<'t> {
    List(Vec<Value<'t>>),
    Map { entries: Vec<MappingEntry<'t>>, merged: Vec<Value<'t>>, key: Option<Key<'t>> },
}

struct Key<'t> {
    text: Cow<'t, str>,
    plain: bool,
    line: u32,
}

/// A finished value and what it takes to copy it.
#[derive(Clone)]
struct Built<'t> {
    value: Value<'t>,
    weight: usize,
    depth: usize,
}

impl<'t> Builder<'t> {
    fn take(&mut self, event: Event<'t>, span: &Span) -> Result<(), Fault> {
        let line = to_u32(span.start.line());
        match event {
            Event::DocumentStart(..) => self.documents += 1,
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !is_text_tag(tag.as_deref(), line)?;
                // For a value that isn't there the parser has a word of its own.
                let text =
                    if style == ScalarStyle::Plain && span.is_empty() { Cow::Borrowed("") } else { text };
                let weight = VALUE_WEIGHT + text.len();
                self.charge(weight, line)?;
                let value = Value { line, data: Data::Scalar { text, plain } };
                self.finish(Built { value, weight, depth: 0 }, anchor)?;
            }
            Event::SequenceStart(_, anchor, tag) => {
                self.start(Content::List(Vec::new()), anchor, tag.as_deref(), line)?;
            }
            Event::MappingStart(_, anchor, tag) => {
                let content = Content::Map { entries: Vec::new(), merged: Vec::new(), key: None };
                self.start(content, anchor, tag.as_deref(), line)?;
            }
            Event::SequenceEnd | Event::MappingEnd => self.end()?,
            Event::Alias(anchor) => {
                let Some(built) = self.anchored.get(&anchor).cloned() else {
                    return fault(line, "is an alias inside of what it stands for");
                };
                self.charge(built.weight, line)?;
                self.finish(built, 0)?;
            }
            _ => {}
        }
        Ok(())
    }

    fn charge(&mut self, weight: usize, line: u32) -> Result<(), Fault> {
        self.weight = self.weight.saturating_add(weight);
        if self.weight > WEIGHT_MAX {
            return fault(line, "is where the file grows too large, what its aliases stand for included");
        }
        Ok(())
    }

    fn start(
        &mut self,
        content: Content<'t>,
        anchor: usize,
        tag: Option<&Tag>,
        line: u32,
    ) -> Result<(), Fault> {
        is_text_tag(tag, line)?;
        self.charge(VALUE_WEIGHT, line)?;
        self.open.push(Open { line, anchor, weight: VALUE_WEIGHT, depth: 0, content });
        self.check_depth(0, line)
    }

    fn check_depth(&self, below: usize, line: u32) -> Result<(), Fault> {
        if self.open.len() + below > DEPTH_MAX {
            return fault(line, TOO_DEEP);
        }
        Ok(())
    }

    fn end(&mut self) -> Result<(), Fault> {
        let open = self.open.pop().expect("the parser must start what it ends");
        let data = match open.content {
            Content::List(items) => Data::List(items),
            Content::Map { entries, merged, .. } if merged.is_empty() => Data::Map(entries),
            Content::Map { entries, merged, .. } => Data::Map(merge(entries, merged)?),
        };
        let value = Value { line: open.line, data };
        self.finish(Built { value, weight: open.weight, depth: open.depth + 1 }, open.anchor)
    }

    /// Puts a finished value where it belongs.
    fn finish(&mut self, built: Built<'t>, anchor: usize) -> Result<(), Fault> {
        let line = built.value.line;
        self.check_depth(built.depth, line)?;
        if anchor != 0 {
            self.charge(built.weight, line)?;
            self.anchored.insert(anchor, built.clone());
        }
        let Some(open) = self.open.last_mut() else {
            return self.finish_document(built.value);
        };
        open.weight += built.weight;
        open.depth = open.depth.max(built.depth);
        match &mut open.content {
            Content::List(items) => items.push(built.value),
            Content::Map { key, .. } if key.is_none() => *key = Some(as_key(built.value)?),
            Content::Map { entries, merged, key } => match key.take() {
                Some(Key { text, plain: true, .. }) if text == "<<" => merged.push(built.value),
                Some(Key { text, line, .. }) => {
                    entries.push(MappingEntry { key: text, line, value: built.value })
                }
                None => {}
            },
        }
        Ok(())
    }

    fn finish_document(&mut self, value: Value<'t>) -> Result<(), Fault> {
        match () {
            () if value.is_null() => {}
            () if self.documents > 1 => {
                return fault(value.line, "is in a second document after `---`; one file holds one");
            }
            () => self.root = Some(value),
        }
        Ok(())
    }
}

fn fault<T>(line: u32, message: &str) -> Result<T, Fault> {
    Err(Fault { line, message: message.to_owned() })
}

fn as_key(value: Value<'_>) -> Result<Key<'_>, Fault> {
    match value.data {
        Data::Scalar { text, plain } => Ok(Key { text, plain, line: value.line }),
        Data::List(_) | Data::Map(_) => fault(value.line, "is a key that is no plain word"),
    }
}

/// Whether a tag says that a scalar is text whatever it looks like. Only YAML's own tags are known.
fn is_text_tag(tag: Option<&Tag>, line: u32) -> Result<bool, Fault> {
    match tag.map(|tag| (tag.core_suffix(), tag)) {
        None => Ok(false),
        Some((Some(core), _)) => Ok(core == "str"),
        Some((None, tag)) if tag.original() == "!" => Ok(true),
        Some((None, tag)) => {
            fault(line, &format!("has the tag `{}`, which means nothing here", tag.original()))
        }
    }
}

/// `<<`: entries of other mappings where this one has none. Of several the first that has it counts.
fn merge<'t>(
    mut entries: Vec<MappingEntry<'t>>,
    merged: Vec<Value<'t>>,
) -> Result<Vec<MappingEntry<'t>>, Fault> {
    let mut present: AHashSet<Cow<'t, str>> = entries.iter().map(|entry| entry.key.clone()).collect();
    let sources = merged.into_iter().flat_map(|value| match value.data {
        Data::List(items) => items,
        _ => vec![value],
    });
    for source in sources {
        let Data::Map(others) = source.data else {
            return fault(source.line, "is merged with `<<` but is no mapping");
        };
        entries.extend(others.into_iter().filter(|other| present.insert(other.key.clone())));
    }
    Ok(entries)
}

#[cfg(test)]
mod tests;
