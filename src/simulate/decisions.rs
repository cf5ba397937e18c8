//! The file of `--decisions`: a line of JSON for each decision, in the order in which they were made.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use serde::Serialize;

use crate::admission::Denial;

#[derive(Debug)]
pub(super) struct Decisions(BufWriter<File>);

#[derive(Serialize)]
struct DecisionLine<'a> {
    at: &'a str,
    time: f64,
    code: &'static str,
    key: Option<&'a str>,
    reason: Option<&'static str>,
    retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    against: Option<&'static str>,
}

/// What Envoy would be told.
pub(super) fn code(denial: Option<&Denial>) -> &'static str {
    match denial {
        None => "OK",
        Some(_) => "OVER_LIMIT",
    }
}

pub(super) fn key(denial: &Denial) -> Option<&str> {
    denial.limit.as_ref().map(|limit| limit.as_str())
}

/// As in the traffic.
pub(super) fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

impl Decisions {
    pub(super) fn create(path: &Path) -> io::Result<Self> {
        Ok(Self(BufWriter::with_capacity(1 << 18, File::create(path)?)))
    }

    pub(super) fn write(
        &mut self,
        at: &str,
        time_ms: u64,
        denial: Option<&Denial>,
        against: Option<&'static str>,
    ) -> io::Result<()> {
        let line = DecisionLine {
            at,
            time: seconds(time_ms),
            code: code(denial),
            key: denial.and_then(key),
            reason: denial.map(|denial| denial.reason.name()),
            retry_after_ms: denial.and_then(|denial| denial.retry_after_ms),
            against,
        };
        serde_json::to_writer(&mut self.0, &line)?;
        self.0.write_all(b"\n")
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        self.0.flush()
    }
}
