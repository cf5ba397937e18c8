//! The state files as JSON. Every one has a version, and an unknown one is refused: it was written by another Sluice.
//!
//! Definitions are read by `config`, so that what could not be put can't come back either.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::LimitState;
use crate::config::{Problem, limit_from_json};
use crate::limit::{Definition, LimitKey, LimitSpec, Origin};

const VERSION: u64 = 1;

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsFile<L> {
    version: u64,
    limits: Vec<L>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitEntry<D> {
    definition: D,
    status: Status,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pending_decrease_to: Option<u64>,
    owner: Owner,
}

#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Active,
    Decreasing,
}

/// Who says what the limit should be: the admin API, so that this file does, or a limits file.
#[derive(Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Owner {
    Api,
    File,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideFile {
    version: u64,
    retry_policy: Value,
}

pub(super) fn write_limits(limits: &BTreeMap<LimitKey, LimitState>) -> io::Result<String> {
    let limits = limits.iter().map(|(key, limit)| entry(key, limit)).collect();
    let file: LimitsFile<LimitEntry<Definition<'_>>> = LimitsFile { version: VERSION, limits };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

/// While a limit is decreasing, its definition has the capacity that still holds.
fn entry<'l>(key: &'l LimitKey, limit: &'l LimitState) -> LimitEntry<Definition<'l>> {
    let (status, pending_decrease_to) = match limit.decreasing_from {
        None => (Status::Active, None),
        Some(_) => (Status::Decreasing, Some(limit.spec.capacity)),
    };
    let capacity = limit.decreasing_from.unwrap_or(limit.spec.capacity);
    let definition = Definition::new(key, &limit.spec, capacity);
    let owner = if limit.is_api() { Owner::Api } else { Owner::File };
    LimitEntry { definition, status, pending_decrease_to, owner }
}

pub(super) fn parse_limits(text: &str) -> Result<BTreeMap<LimitKey, LimitState>, String> {
    check_version(text)?;
    let file: LimitsFile<LimitEntry<Value>> = from_json(text)?;
    let mut limits = BTreeMap::new();
    for (index, entry) in file.limits.into_iter().enumerate() {
        let at = format!("limits[{index}]");
        let (key, limit) = limit_of(entry).map_err(|what| format!("{at}: {what}"))?;
        if limits.insert(key.clone(), limit).is_some() {
            return Err(format!("{at}: {key} is there twice"));
        }
    }
    Ok(limits)
}

fn limit_of(entry: LimitEntry<Value>) -> Result<(LimitKey, LimitState), String> {
    let LimitEntry { definition, status, pending_decrease_to, owner } = entry;
    let (key, spec) = match owner {
        Owner::Api => limit_from_json(&definition, "definition"),
        Owner::File => file_limit(&definition),
    }
    .map_err(|problems| words(&problems))?;
    let from = spec.capacity;
    let limit = match (status, pending_decrease_to) {
        (Status::Active, None) => LimitState { spec: Arc::new(spec), decreasing_from: None },
        (Status::Decreasing, Some(capacity)) => {
            LimitState { spec: Arc::new(LimitSpec { capacity, ..spec }), decreasing_from: Some(from) }
        }
        _ => return Err(format!("{key}: `pending_decrease_to` goes with `decreasing`, and only with it")),
    };
    Ok((key, limit))
}

/// A limit that a file owns may have any key, also one that Sluice makes. What it should be is read from the file anew.
fn file_limit(definition: &Value) -> Result<(LimitKey, LimitSpec), Vec<Problem>> {
    let key = definition.get("key").and_then(Value::as_str).unwrap_or_default().to_owned();
    let mut named = definition.clone();
    if !key.is_empty() {
        named["key"] = Value::from("file");
    }
    let (_, spec) = limit_from_json(&named, "definition")?;
    let origin = Origin::File { path: Arc::from("state"), line: 0 };
    Ok((LimitKey::new(&key), LimitSpec { origin, ..spec }))
}

/// A line of the journal: what has changed since the file with this digest.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChangesLine<D> {
    version: u64,
    goes_with: String,
    changes: Vec<ChangeEntry<D>>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ChangeEntry<D> {
    Put(LimitEntry<D>),
    Remove(String),
}

pub(super) fn write_changes<'l>(
    goes_with: &str,
    changes: impl Iterator<Item = (&'l LimitKey, Option<&'l LimitState>)>,
) -> io::Result<String> {
    let change = |(key, limit): (&'l LimitKey, Option<&'l LimitState>)| match limit {
        Some(limit) => ChangeEntry::Put(entry(key, limit)),
        None => ChangeEntry::Remove(key.as_str().to_owned()),
    };
    let changes = changes.map(change).collect();
    let line: ChangesLine<Definition<'_>> =
        ChangesLine { version: VERSION, goes_with: goes_with.to_owned(), changes };
    Ok(serde_json::to_string(&line)?)
}

/// A limit as it is, or `None` if it is gone.
type Change = (LimitKey, Option<LimitState>);

/// The digest of the file that a line goes with, and what it changes.
pub(super) fn parse_changes(json: &str) -> Result<(String, Vec<Change>), String> {
    check_version(json)?;
    let line: ChangesLine<Value> = from_json(json)?;
    let change = |change| match change {
        ChangeEntry::Put(entry) => limit_of(entry).map(|(key, limit)| (key, Some(limit))),
        ChangeEntry::Remove(key) => Ok((LimitKey::new(&key), None)),
    };
    let changes = line.changes.into_iter().map(change).collect::<Result<_, String>>()?;
    Ok((line.goes_with, changes))
}

pub(super) fn write_override(patch: &Value) -> io::Result<String> {
    let file = OverrideFile { version: VERSION, retry_policy: patch.clone() };
    Ok(serde_json::to_string_pretty(&file)? + "\n")
}

pub(super) fn parse_override(text: &str) -> Result<Value, String> {
    check_version(text)?;
    from_json::<OverrideFile>(text).map(|file| file.retry_policy)
}

/// Before anything else is looked at: what another version has in it can't be known.
fn check_version(text: &str) -> Result<(), String> {
    let file: Value = from_json(text)?;
    match file.get("version") {
        Some(version) if *version == VERSION => Ok(()),
        Some(version) => Err(format!(
            "has the version {version}, and this Sluice knows only {VERSION}: another Sluice wrote it"
        )),
        None => Err("has no version in it: it is not a file that Sluice wrote".to_owned()),
    }
}

fn from_json<'t, T: Deserialize<'t>>(text: &'t str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("is broken: {error}"))
}

fn words(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
