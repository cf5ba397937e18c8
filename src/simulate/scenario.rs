//! A scenario: populations of clients, what they ask, how often, and what they make of a denial. Every mistake is named with its
//! line.
//!
//! Refuses to know what becomes of their requests.

use std::path::Path;

use super::document;
use crate::config::Problem;
use crate::config::decode::{At, Fields, Sink, read_scalar};
use crate::config::shape::{Shape, one_of};
use crate::config::tree::{Data, Value};

static SCENARIO: Shape = Shape {
    name: "a scenario",
    keys: &["seed", "seconds", "populations"],
    family: &[&SCENARIO, &POPULATION],
};
static POPULATION: Shape = Shape {
    name: "a population",
    keys: &[
        "name",
        "domain",
        "descriptors",
        "tenants",
        "rate",
        "clients",
        "think_seconds",
        "cost",
        "hold_ms",
        "retry",
        "attempts_max",
    ],
    family: &[&SCENARIO, &POPULATION],
};

/// A year.
const SECONDS_MAX: u64 = 31_536_000;
/// Each client is some bytes.
const CLIENTS_MAX: u64 = 100_000;
const RATE_MAX: f64 = 10_000_000.0;
const POPULATIONS_MAX: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scenario {
    pub(super) seed: Option<u64>,
    pub(super) seconds: u64,
    pub(super) populations: Vec<Population>,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) struct Population {
    pub(super) name: String,
    pub(super) domain: String,
    pub(super) descriptors: Vec<Vec<EntryTemplate>>,
    pub(super) tenants: u64,
    pub(super) arrivals: Arrivals,
    pub(super) cost: u64,
    pub(super) hold_ms: u64,
    pub(super) retry: Retry,
    /// `None`: it never gives up.
    pub(super) attempts_max: Option<u64>,
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Arrivals {
    /// So many a second on average, whatever becomes of them.
    Rate(f64),
    /// Each client thinks, asks until it is admitted or gives up, and thinks again.
    Clients { count: u64, think_seconds: f64 },
}

/// What a client makes of a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Retry {
    /// It comes back when it was told to.
    Obey,
    /// It comes back a second later.
    Ignore,
    /// It comes back after a random time, of at most 300 ms at first, then twice that, up to 3 s.
    Backoff,
    Never,
}

impl Retry {
    const ALL: [(&str, Retry); 4] = [
        ("obey", Retry::Obey),
        ("ignore", Retry::Ignore),
        ("backoff", Retry::Backoff),
        ("never", Retry::Never),
    ];
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EntryTemplate {
    pub(super) key: String,
    pub(super) value: Vec<Piece>,
}

/// A part of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    /// `{tenant}`: its number, from 0.
    Tenant,
    /// `{attempt}`: how often this request was tried before.
    Attempt,
}

impl Scenario {
    pub(super) fn load(path: &Path) -> Result<Self, Vec<Problem>> {
        document::load(path, read)
    }

    #[cfg(test)]
    fn parse(name: &str, text: &str) -> Result<Self, Vec<Problem>> {
        document::parse(name, text, read)
    }
}

fn read(tree: &Value<'_>, sink: &Sink) -> Option<Scenario> {
    let fields = Fields::of(tree, At::ROOT, sink, &SCENARIO)?;
    fields.need("seconds", "how long it lasts");
    let list = fields.list("populations");
    if list.items.is_empty() {
        fields.mistake("populations", || "is missing: a list of clients that are alike");
    }
    if list.items.len() > POPULATIONS_MAX {
        fields
            .mistake("populations", || format!("may have {POPULATIONS_MAX} items, not {}", list.items.len()));
        return None;
    }
    let mut populations: Vec<Population> = Vec::new();
    for (item, at) in list.iter() {
        let Some(fields) = Fields::of(item, at, sink, &POPULATION) else { continue };
        let Some(population) = population(&fields) else { continue };
        if populations.iter().any(|there| there.name == population.name) {
            fields.mistake("name", || format!("`{}` is there twice", population.name));
        }
        populations.push(population);
    }
    let seed = fields.whole("seed", 0..=u64::MAX);
    let seconds = fields.whole("seconds", 1..=SECONDS_MAX)?;
    Some(Scenario { seed, seconds, populations })
}

fn population(fields: &Fields<'_>) -> Option<Population> {
    fields.need("name", "what it is called in the report");
    fields.need("domain", "the domain of the rate-limit filter");
    for key in ["name", "domain"] {
        if fields.text(key).is_some_and(str::is_empty) {
            fields.mistake(key, || "must not be empty");
        }
    }
    let descriptors = descriptors(fields);
    let tenants = fields.get("tenants").map_or(Some(1), |_| fields.whole("tenants", 1..=u64::MAX));
    let cost = fields.get("cost").map_or(Some(1), |_| fields.whole("cost", 0..=u64::MAX));
    let hold_ms = fields.get("hold_ms").map_or(Some(0), |_| fields.whole("hold_ms", 0..=SECONDS_MAX * 1000));
    let attempts_max = fields.whole("attempts_max", 1..=u64::from(u32::MAX));
    let retry = match fields.text("retry") {
        None => Some(Retry::Obey),
        Some(text) => {
            let found = Retry::ALL.iter().find(|(name, _)| *name == text).map(|(_, retry)| *retry);
            if found.is_none() {
                fields.mistake("retry", || one_of(text, &Retry::ALL.map(|(name, _)| name)));
            }
            found
        }
    };
    let arrivals = arrivals(fields);
    Some(Population {
        name: fields.text("name")?.to_owned(),
        domain: fields.text("domain")?.to_owned(),
        descriptors,
        tenants: tenants?,
        arrivals: arrivals?,
        cost: cost?,
        hold_ms: hold_ms?,
        retry: retry?,
        attempts_max,
    })
}

fn arrivals(fields: &Fields<'_>) -> Option<Arrivals> {
    match (fields.has("rate"), fields.has("clients") || fields.has("think_seconds")) {
        (true, true) => {
            fields.mistake(
                "rate",
                || "is there beside `clients` or `think_seconds`; a population has one or the other",
            );
            None
        }
        (false, false) => {
            fields.mistake("rate", || "is missing: requests a second, or else `clients` and `think_seconds`");
            None
        }
        (true, false) => {
            let rate = fields.number("rate")?;
            if !(rate > 0.0 && rate <= RATE_MAX) {
                fields.mistake("rate", || format!("is {rate}, must be above 0 and at most {RATE_MAX}"));
                return None;
            }
            Some(Arrivals::Rate(rate))
        }
        (false, true) => {
            fields.need("clients", "how many there are");
            fields.need("think_seconds", "how long each waits after a request, on average, before the next");
            let (count, think_seconds) =
                (fields.whole("clients", 1..=CLIENTS_MAX), fields.number("think_seconds"));
            let (count, think_seconds) = (count?, think_seconds?);
            // Who never thinks and is never denied would ask for ever within one moment.
            if !(0.001..=SECONDS_MAX as f64).contains(&think_seconds) {
                let words = || format!("is {think_seconds}, must be 0.001 to {SECONDS_MAX}");
                fields.mistake("think_seconds", words);
                return None;
            }
            Some(Arrivals::Clients { count, think_seconds })
        }
    }
}

fn descriptors(fields: &Fields<'_>) -> Vec<Vec<EntryTemplate>> {
    let list = fields.list("descriptors");
    if list.items.is_empty() {
        let words = "is missing: a list of descriptors, each a list of entries as `tenant=t{tenant}`";
        fields.mistake("descriptors", || words);
    }
    let mut descriptors = Vec::new();
    for (item, at) in list.iter() {
        let Data::List(items) = &item.data else {
            let words = || format!("must be a list of entries as `tenant=t{{tenant}}`, not {}", item.sort());
            fields.sink.mistake(item.line, &at, words);
            continue;
        };
        if items.is_empty() {
            fields.sink.mistake(item.line, &at, || "must have at least one entry");
        }
        let mut entries = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match read_scalar(item, |text, _| entry(text)) {
                Ok(entry) => entries.push(entry),
                Err(message) => fields.sink.mistake(item.line, &at.index(index), || message),
            }
        }
        descriptors.push(entries);
    }
    descriptors
}

fn entry(text: &str) -> Result<EntryTemplate, String> {
    let (key, mut rest) = match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => (key.to_owned(), value),
        _ => return Err(format!("must be written key=value, not `{text}`")),
    };
    let mut value = Vec::new();
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        let known = [("{tenant}", Piece::Tenant), ("{attempt}", Piece::Attempt)];
        let Some((name, piece)) = known.into_iter().find(|(name, _)| after.starts_with(name)) else {
            return Err(format!("`{after}`: what can stand in braces is {{tenant}} and {{attempt}}"));
        };
        if !before.is_empty() {
            value.push(Piece::Text(before.to_owned()));
        }
        value.push(piece);
        rest = &after[name.len()..];
    }
    if !rest.is_empty() {
        value.push(Piece::Text(rest.to_owned()));
    }
    Ok(EntryTemplate { key, value })
}

#[cfg(test)]
mod tests;
