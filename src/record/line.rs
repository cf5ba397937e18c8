//! A recorded request as it is written: the line that `sluice simulate` reads, and how it travels to the one who records.
//!
//! Refuses to know who is asked and who reads.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::clock::calendar;

/// One request, and what was decided.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordLine<'a> {
    /// RFC 3339 in UTC with nine digits, so that times in order are texts in order.
    pub(crate) time: String,
    pub(crate) domain: Cow<'a, str>,
    /// As in `/json`.
    pub(crate) descriptors: Vec<Descriptor<'a>>,
    /// 200 or 429.
    pub(crate) status: u16,
    /// How long it held what it was admitted to, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) duration_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor<'a> {
    pub(crate) entries: Vec<RecordEntry<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) limit: Option<Override<'a>>,
    /// A text, as proto3 JSON writes 64 bits. Absent: 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) hits_addend: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RecordEntry<'a> {
    pub(crate) key: Cow<'a, str>,
    pub(crate) value: Cow<'a, str>,
}

/// A limit that came with the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Override<'a> {
    pub(crate) requests_per_unit: u32,
    pub(crate) unit: Cow<'a, str>,
}

/// What the server tells those who record, one a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message<'a> {
    Asked {
        line: RecordLine<'a>,
        /// If it holds something until it is over.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lease: Option<Cow<'a, str>>,
    },
    /// What has this lease is over.
    Done { lease: Cow<'a, str>, duration_ms: u64 },
    /// So many requests since the last line are not told: the reader was too slow.
    Missed(u64),
}

const NS_PER_SECOND: u64 = 1_000_000_000;
const SECONDS_PER_DAY: u64 = 86_400;

/// A time since 1970 as people and `sluice simulate` read it.
pub(crate) fn time_text(unix_ns: u64) -> String {
    let (seconds, ns) = (unix_ns / NS_PER_SECOND, unix_ns % NS_PER_SECOND);
    let (day, second) = (seconds / SECONDS_PER_DAY, seconds % SECONDS_PER_DAY);
    // 64 bits of nanoseconds end in the year 2554.
    let (year, month, day) = calendar::date_of(i64::try_from(day).unwrap_or(0));
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{ns:09}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        for (unix_ns, text) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_399_999_999_999, "2000-02-28T23:59:59.999999999Z"),
            (951_782_400_000_000_000, "2000-02-29T00:00:00.000000000Z"),
            (951_868_800_000_000_001, "2000-03-01T00:00:00.000000001Z"),
            (1_709_164_800_000_000_000, "2024-02-29T00:00:00.000000000Z"),
            (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000000000Z"),
            (1_794_853_800_123_456_789, "2026-11-16T18:30:00.123456789Z"),
        ] {
            assert_eq!(time_text(unix_ns), text, "{unix_ns}");
        }
    }

    #[test]
    fn a_line_is_what_json_takes() {
        let line = RecordLine {
            time: time_text(0),
            domain: "d".into(),
            descriptors: vec![Descriptor {
                entries: vec![RecordEntry { key: "k".into(), value: "a\"\n".into() }],
                limit: Some(Override { requests_per_unit: 5, unit: "MINUTE".into() }),
                hits_addend: Some("3".to_owned()),
            }],
            status: 200,
            duration_ms: None,
        };
        let text = serde_json::to_string(&line).unwrap();
        assert_eq!(
            text,
            r#"{"time":"1970-01-01T00:00:00.000000000Z","domain":"d","descriptors":[{"entries":[{"key":"k","value":"a\"\n"}],"limit":{"requestsPerUnit":5,"unit":"MINUTE"},"hitsAddend":"3"}],"status":200}"#
        );
        assert_eq!(serde_json::from_str::<RecordLine<'static>>(&text).unwrap(), line);
    }
}
