//! Environment variables as programs in Go read them, whose place Sluice takes, or beside which it runs: an empty variable counts
//! as one that isn't set, and flags and numbers are written as in Go.
//!
//! Every complaint names its variable. Refuses to know any particular one.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

/// A variable that can't be understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {what}")]
pub(super) struct Bad {
    variable: &'static str,
    what: String,
}

impl Bad {
    pub(super) fn new(variable: &'static str, what: impl Into<String>) -> Self {
        Self { variable, what: what.into() }
    }
}

/// All variables that are set and not empty.
#[derive(Debug, Default)]
pub(super) struct Env(BTreeMap<String, String>);

impl<'a> FromIterator<(&'a str, &'a str)> for Env {
    fn from_iter<I: IntoIterator<Item = (&'a str, &'a str)>>(variables: I) -> Self {
        let set = variables.into_iter().filter(|(_, value)| !value.is_empty());
        Self(set.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }
}

impl Env {
    /// A name that is not UTF-8 is none of ours. A value that isn't is not left out, or it would seem not to be set.
    pub(super) fn of_process() -> Self {
        let texts = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        Self(texts.filter(|(_, value)| !value.is_empty()).collect())
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    pub(super) fn text(&self, variable: &str) -> Option<&str> {
        self.0.get(variable).map(String::as_str)
    }

    /// As Go reads a bool.
    pub(super) fn flag(&self, variable: &'static str, default: bool) -> Result<bool, Bad> {
        match self.text(variable) {
            None => Ok(default),
            Some("1" | "t" | "T" | "true" | "TRUE" | "True") => Ok(true),
            Some("0" | "f" | "F" | "false" | "FALSE" | "False") => Ok(false),
            Some(other) => Err(Bad::new(variable, format!("must be true or false, not `{other}`"))),
        }
    }

    pub(super) fn number(
        &self,
        variable: &'static str,
        default: f64,
        range: RangeInclusive<f64>,
    ) -> Result<f64, Bad> {
        let Some(text) = self.text(variable) else { return Ok(default) };
        let number = text.parse::<f64>().ok().filter(|number| range.contains(number));
        let (least, most) = (range.start(), range.end());
        number.ok_or_else(|| {
            Bad::new(variable, format!("must be a number from {least} to {most}, not `{text}`"))
        })
    }

    /// As Go writes one: `24h`, `1h30m`, `500ms`; 0 is without end, as gRPC there has it.
    pub(super) fn duration(&self, variable: &'static str, default: Duration) -> Result<Duration, Bad> {
        let Some(text) = self.text(variable) else { return Ok(default) };
        match duration(text).filter(|duration| *duration <= DURATION_MAX) {
            Some(Duration::ZERO) => Ok(DURATION_MAX),
            Some(duration) => Ok(duration),
            None => Err(Bad::new(variable, format!("must be a time, as in 24h or 30m, not `{text}`"))),
        }
    }

    /// A value whose own error says what would be right.
    pub(super) fn parsed<T: FromStr<Err: fmt::Display>>(
        &self,
        variable: &'static str,
    ) -> Result<Option<T>, Bad> {
        let parsed = self.text(variable).map(str::parse).transpose();
        parsed.map_err(|error: T::Err| Bad::new(variable, error.to_string()))
    }

    /// A value of which `right` says what it must be.
    pub(super) fn parsed_as<T: FromStr>(
        &self,
        variable: &'static str,
        right: &str,
    ) -> Result<Option<T>, Bad> {
        let Some(text) = self.text(variable) else { return Ok(None) };
        text.parse().map(Some).map_err(|_| Bad::new(variable, format!("{right}, not `{text}`")))
    }
}

/// The longest that Go can say: 292 years.
const DURATION_MAX: Duration = Duration::from_nanos(i64::MAX as u64);

fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut seconds = 0.0;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let end = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = match unit {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 1e-3,
            "us" | "µs" => 1e-6,
            "ns" => 1e-9,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * unit;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).ok()
}
