//! A line of an access log as a request, as a [`Map`] says.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use smallvec::{SmallVec, smallvec};

use super::Wrong;
use super::batch::{Batch, Request};
use super::json::TOO_MANY_REQUESTS;
use super::map::{EntryValue, Hits, LinesAre, Map};
use super::scalar::Scalar;

/// The fields that the map names, in its order.
type Values<'l> = SmallVec<[Scalar<'l>; 16]>;

/// Reads a line into `batch`; what is there already stays.
pub(super) fn read(map: &Map, line: &[u8], file: u32, number: u64, batch: &mut Batch) -> Result<(), Wrong> {
    let mark = batch.mark();
    let values = values(map, line)?;
    let added = add(map, &values, batch).map(|request| Request { file, line: number, ..request });
    match added {
        Ok(request) => {
            let domain = batch.word(&map.domain);
            batch.request(mark, domain, request);
            Ok(())
        }
        Err(wrong) => {
            batch.back_to(mark);
            Err(wrong)
        }
    }
}

fn values<'l>(map: &Map, line: &'l [u8]) -> Result<Values<'l>, Wrong> {
    match &map.lines {
        LinesAre::Json => {
            let mut values: Values<'l> = smallvec![Scalar::Absent; map.names.len()];
            let wanted = map.names.iter().map(String::as_str).enumerate().collect();
            let mut json = serde_json::Deserializer::from_slice(line);
            let read = Picked { wanted, values: &mut values }.deserialize(&mut json);
            let read = read.and_then(|()| json.end());
            read.map_err(|error| Wrong::line(format!("is not an object in JSON: {error}")))?;
            Ok(values)
        }
        LinesAre::Text(format, places) => {
            let line = std::str::from_utf8(line).map_err(|_| Wrong::line("is not UTF-8 text"))?;
            let mut all = format.read(line)?;
            Ok(places.iter().map(|&place| std::mem::take(&mut all[place])).collect())
        }
    }
}

/// Adds the descriptors that have all their fields; the rest of the request is returned.
fn add(map: &Map, values: &[Scalar<'_>], batch: &mut Batch) -> Result<Request, Wrong> {
    let wrong = |place: usize| move |message: String| Wrong::field(map.names[place].clone(), message);
    for descriptor in &map.descriptors {
        let from = batch.entries_len();
        let mut is_whole = true;
        for entry in descriptor {
            match &entry.value {
                EntryValue::Fixed(value) => batch.entry(&entry.key, value),
                EntryValue::Field(place) => match values[*place].text().map_err(wrong(*place))? {
                    Some(value) => batch.entry(&entry.key, &value),
                    None => is_whole = false,
                },
            }
        }
        match is_whole {
            true => batch.descriptor(from, None, None),
            false => batch.forget_entries(from),
        }
    }
    let hits = match map.hits {
        Hits::Fixed(hits) => hits,
        Hits::Field(place) => values[place].whole().map_err(wrong(place))?.unwrap_or(1),
    };
    let status = map.status.map(|place| values[place].whole().map_err(wrong(place))).transpose()?.flatten();
    let duration_ms = map.duration_ms.map(|place| values[place].ms().map_err(wrong(place))).transpose()?;
    Ok(Request {
        time_ms: values[map.time].time_ms().map_err(wrong(map.time))?,
        hits,
        was_denied: status.map(|status| status == TOO_MANY_REQUESTS),
        duration_ms: duration_ms.flatten(),
        ..Request::default()
    })
}

/// Picks some fields out of an object. `a.b` is the field `b` of the object `a`, or one that is called so.
struct Picked<'v, 'l> {
    /// The place of each among the values, and the rest of its name from here on.
    wanted: SmallVec<[(usize, &'v str); 16]>,
    values: &'v mut Values<'l>,
}

impl<'l> DeserializeSeed<'l> for Picked<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'l> Visitor<'l> for Picked<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'l>>(self, mut map: A) -> Result<(), A::Error> {
        let Self { wanted, values } = self;
        while let Some(super::json::Text(key)) = map.next_key()? {
            if let Some(&(place, _)) = wanted.iter().find(|(_, name)| *name == key) {
                values[place] = map.next_value()?;
                continue;
            }
            let below = wanted.iter().map(|&(place, name)| (place, rest_of(name, &key)));
            let below: SmallVec<[(usize, &str); 16]> =
                below.filter_map(|(place, rest)| Some((place, rest?))).collect();
            match below.is_empty() {
                true => drop(map.next_value::<IgnoredAny>()?),
                false => map.next_value_seed(Below(Picked { wanted: below, values: &mut *values }))?,
            }
        }
        Ok(())
    }
}

/// The name of a field inside the object that is called `key`.
fn rest_of<'n>(name: &'n str, key: &str) -> Option<&'n str> {
    name.strip_prefix(key)?.strip_prefix('.')
}

/// What is inside an object, if it is one: otherwise the fields are not there.
struct Below<'v, 'l>(Picked<'v, 'l>);

impl<'l> DeserializeSeed<'l> for Below<'_, 'l> {
    type Value = ();

    fn deserialize<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_option(self)
    }
}

impl<'l> Visitor<'l> for Below<'_, 'l> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object or null")
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_some<D: Deserializer<'l>>(self, deserializer: D) -> Result<(), D::Error> {
        self.0.deserialize(deserializer)
    }
}
