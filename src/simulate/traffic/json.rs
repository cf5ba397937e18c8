//! A line that is a request already: `{time, domain, descriptors, hits?, status?, duration_ms?}`, with the descriptors of `/json`.
//!
//! Read straight into a batch, without a tree in between. Fields of other names are not read; inside a descriptor there are
//! none. A descriptor that completes a lease is left out: how long a request took is its `duration_ms`.

use std::borrow::Cow;
use std::fmt;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::Wrong;
use super::batch::{Batch, Request, Span};
use super::scalar::Scalar;
use crate::api::check::{DESCRIPTORS_MAX, ENTRIES_MAX};
use crate::limit::{COMPLETION_ENTRY, Unit};
use crate::registry::OverrideLimit;

/// What a denied request was answered.
pub(super) const TOO_MANY_REQUESTS: u64 = 429;

/// Reads a line into `batch`; what is there already stays. `Ok(false)`: it asks nothing.
pub(super) fn read(line: &[u8], file: u32, number: u64, batch: &mut Batch) -> Result<bool, Wrong> {
    let mark = batch.mark();
    let mut json = serde_json::Deserializer::from_slice(line);
    let read = LineReader { batch: &mut *batch }.deserialize(&mut json);
    let read = read.and_then(|read| json.end().map(|()| read)).map_err(|error| in_words(&error));
    let checked = read.and_then(|read| {
        let (domain, request) = read.checked()?;
        Ok((domain, Request { file, line: number, ..request }))
    });
    match checked {
        Ok((domain, request)) if batch.descriptors_since(mark) > 0 => {
            batch.request(mark, domain, request);
            Ok(true)
        }
        Ok(_) => {
            batch.back_to(mark);
            Ok(false)
        }
        Err(wrong) => {
            batch.back_to(mark);
            Err(wrong)
        }
    }
}

/// Begins the text of an error that is about a field: what follows is `field: message`.
const FIELD: &str = "\u{1}";

/// The parser's own words, with the place of the line that they are about.
fn in_words(error: &serde_json::Error) -> Wrong {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let text = text.replace(&place, "");
    match text.rsplit_once(FIELD) {
        Some((_, about)) => {
            let (field, message) = about.split_once(": ").unwrap_or(("", about));
            // An error inside the field says where it is as well.
            let message = message.split(" at line 1 column").next().unwrap_or(message);
            Wrong::field(field, message)
        }
        None if error.column() == 0 => Wrong::line(format!("is not a request in JSON: {text}")),
        None => Wrong::line(format!("is not a request in JSON: {text} (column {})", error.column())),
    }
}

fn wrong<E: Error>(field: impl fmt::Display, message: impl fmt::Display) -> E {
    E::custom(format_args!("{FIELD}{field}: {message}"))
}

/// Names the field in an error that doesn't.
fn named<T, E: Error>(field: &str, read: Result<T, E>) -> Result<T, E> {
    read.map_err(|error| {
        let text = error.to_string();
        if text.contains(FIELD) { E::custom(text) } else { wrong(field, text) }
    })
}

/// What was read of a line beside its descriptors.
#[derive(Default)]
struct Read<'l> {
    time: Scalar<'l>,
    domain: Option<Span>,
    has_descriptors: bool,
    hits: Scalar<'l>,
    status: Scalar<'l>,
    duration_ms: Scalar<'l>,
}

impl Read<'_> {
    fn checked(&self) -> Result<(Span, Request), Wrong> {
        let field = |name: &'static str| move |message| Wrong::field(name, message);
        let time_ms = self.time.time_ms().map_err(field("time"))?;
        let domain = self.domain.ok_or_else(|| Wrong::field("domain", "is missing"))?;
        if !self.has_descriptors {
            return Err(Wrong::field("descriptors", "is missing: a list, as /json takes it"));
        }
        let status = self.status.whole().map_err(field("status"))?;
        let request = Request {
            time_ms,
            hits: self.hits.whole().map_err(field("hits"))?.unwrap_or(1),
            was_denied: status.map(|status| status == TOO_MANY_REQUESTS),
            duration_ms: self.duration_ms.ms().map_err(field("duration_ms"))?,
            ..Request::default()
        };
        Ok((domain, request))
    }
}

#[derive(Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    Time,
    Domain,
    Descriptors,
    Hits,
    Status,
    DurationMs,
    #[serde(other)]
    Other,
}

struct LineReader<'b> {
    batch: &'b mut Batch,
}

/// A word, borrowed from the line unless it has escapes.
#[derive(Deserialize)]
pub(super) struct Text<'l>(#[serde(borrow)] pub(super) Cow<'l, str>);

impl<'de> DeserializeSeed<'de> for LineReader<'_> {
    type Value = Read<'de>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for LineReader<'_> {
    type Value = Read<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with time, domain and descriptors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut read = Read::default();
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::Time => read.time = map.next_value()?,
                Key::Hits => read.hits = map.next_value()?,
                Key::Status => read.status = map.next_value()?,
                Key::DurationMs => read.duration_ms = map.next_value()?,
                Key::Domain => {
                    let Text(domain) = named("domain", map.next_value())?;
                    if domain.is_empty() {
                        return Err(wrong("domain", "must not be empty"));
                    }
                    read.domain = Some(self.batch.word(&domain));
                }
                Key::Descriptors if read.has_descriptors => {
                    return Err(wrong("descriptors", "is there twice"));
                }
                Key::Descriptors => {
                    named("descriptors", map.next_value_seed(Descriptors { batch: &mut *self.batch }))?;
                    read.has_descriptors = true;
                }
                Key::Other => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(read)
    }
}

struct Descriptors<'b> {
    batch: &'b mut Batch,
}

impl<'de> DeserializeSeed<'de> for Descriptors<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Descriptors<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of descriptors")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<(), A::Error> {
        let mut count = 0;
        while items.next_element_seed(Descriptor { batch: &mut *self.batch, index: count })?.is_some() {
            count += 1;
            if count > DESCRIPTORS_MAX {
                return Err(wrong("descriptors", format_args!("at most {DESCRIPTORS_MAX} are read")));
            }
        }
        match count {
            0 => Err(wrong("descriptors", "at least one is needed")),
            _ => Ok(()),
        }
    }
}

struct Descriptor<'b> {
    batch: &'b mut Batch,
    index: usize,
}

/// The names of proto3 JSON, and those of the .proto.
#[derive(Deserialize)]
#[serde(field_identifier)]
enum DescriptorKey {
    #[serde(rename = "entries")]
    Entries,
    #[serde(rename = "limit")]
    Limit,
    #[serde(rename = "hitsAddend", alias = "hits_addend")]
    HitsAddend,
    #[serde(rename = "isNegativeHits", alias = "is_negative_hits")]
    IsNegativeHits,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireLimit<'l> {
    #[serde(borrow, default, rename = "requestsPerUnit", alias = "requests_per_unit")]
    requests_per_unit: Scalar<'l>,
    #[serde(borrow, default)]
    unit: Scalar<'l>,
}

impl WireLimit<'_> {
    fn checked<E: Error>(&self, index: usize) -> Result<OverrideLimit, E> {
        let requests = self.requests_per_unit.whole().ok().and_then(|n| u32::try_from(n.unwrap_or(0)).ok());
        let requests_per_unit = requests.ok_or_else(|| {
            wrong(
                format_args!("descriptors[{index}].limit.requestsPerUnit"),
                "must be a whole number of 32 bits",
            )
        })?;
        let unit = self.unit.text().ok().flatten().and_then(|unit| Unit::parse(&unit));
        let unit = unit.ok_or_else(|| {
            let words = "must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR";
            wrong(format_args!("descriptors[{index}].limit.unit"), words)
        })?;
        Ok(OverrideLimit { requests_per_unit, unit })
    }
}

impl<'de> DeserializeSeed<'de> for Descriptor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Descriptor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a descriptor: {\"entries\": [{\"key\": …, \"value\": …}]}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { batch, index } = self;
        let from = batch.entries_len();
        let (mut hits, mut limit, mut is_completion) = (None, None, false);
        let in_this = |error: A::Error| wrong::<A::Error>(format_args!("descriptors[{index}]"), error);
        while let Some(key) = map.next_key::<DescriptorKey>().map_err(in_this)? {
            match key {
                DescriptorKey::Entries => {
                    is_completion |= map.next_value_seed(Entries { batch: &mut *batch, index })?;
                }
                DescriptorKey::Limit => {
                    limit = map.next_value::<Option<WireLimit<'_>>>()?;
                }
                DescriptorKey::HitsAddend => {
                    let scalar: Scalar<'_> = map.next_value()?;
                    let field = || format!("descriptors[{index}].hitsAddend");
                    hits = scalar.whole().map_err(|message| wrong(field(), message))?;
                }
                DescriptorKey::IsNegativeHits => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        if is_completion {
            batch.forget_entries(from);
            return Ok(());
        }
        match batch.entries_since(from) {
            0 => Err(wrong(format_args!("descriptors[{index}].entries"), "at least one is needed")),
            count if count > ENTRIES_MAX => {
                let words = format!("{count} given, at most {ENTRIES_MAX} are read");
                Err(wrong(format_args!("descriptors[{index}].entries"), words))
            }
            _ => {
                let limit = limit.map(|limit| limit.checked(index)).transpose()?;
                batch.descriptor(from, hits, limit);
                Ok(())
            }
        }
    }
}

struct Entries<'b> {
    batch: &'b mut Batch,
    index: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireEntry<'l> {
    #[serde(borrow)]
    key: Cow<'l, str>,
    #[serde(borrow, default)]
    value: Cow<'l, str>,
}

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    /// Whether one of them names a lease.
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of entries: {\"key\": …, \"value\": …}")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<bool, A::Error> {
        let Self { batch, index } = self;
        let (from, mut is_completion) = (batch.entries_len(), false);
        let place = |batch: &Batch| format!("descriptors[{index}].entries[{}]", batch.entries_since(from));
        loop {
            let next = items.next_element::<WireEntry<'_>>();
            let next = next.map_err(|error| wrong::<A::Error>(place(batch), error))?;
            let Some(WireEntry { key, value }) = next else { return Ok(is_completion) };
            if key.is_empty() {
                return Err(wrong(format_args!("{}.key", place(batch)), "must not be empty"));
            }
            is_completion |= key == COMPLETION_ENTRY;
            batch.entry(&key, &value);
        }
    }
}
