//! One plain value of a line, as it was written, and what it is taken for.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::time;

/// A value of a JSON line or of a text log. Borrowed where that can be.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) enum Scalar<'l> {
    /// Not there, null, or `-`.
    #[default]
    Absent,
    Whole(u64),
    Number(f64),
    Text(Cow<'l, str>),
    /// A list or a mapping.
    Nested,
}

impl<'l> Scalar<'l> {
    /// Envoy writes `-` for what it doesn't have.
    pub(super) fn of_text(text: &'l str) -> Self {
        match text {
            "-" => Scalar::Absent,
            text => Scalar::Text(Cow::Borrowed(text)),
        }
    }

    /// Its text, if it is one value.
    pub(super) fn text(&self) -> Result<Option<Cow<'_, str>>, String> {
        match self {
            Scalar::Absent => Ok(None),
            Scalar::Whole(number) => Ok(Some(number.to_string().into())),
            Scalar::Number(number) => Ok(Some(number.to_string().into())),
            Scalar::Text(text) => Ok(Some(Cow::Borrowed(text))),
            Scalar::Nested => Err("must be one plain value, not a list or a mapping".to_owned()),
        }
    }

    /// A whole number.
    pub(super) fn whole(&self) -> Result<Option<u64>, String> {
        let whole = match self {
            Scalar::Absent => return Ok(None),
            Scalar::Whole(number) => Some(*number),
            Scalar::Text(text) => {
                text.parse().ok().filter(|_| text.bytes().all(|byte| byte.is_ascii_digit()))
            }
            Scalar::Number(_) | Scalar::Nested => None,
        };
        whole.map(Some).ok_or_else(|| format!("must be a whole number, not {self}"))
    }

    /// Milliseconds, fractions of which are dropped.
    pub(super) fn ms(&self) -> Result<Option<u64>, String> {
        let number = match self {
            Scalar::Absent => return Ok(None),
            Scalar::Whole(number) => return Ok(Some(*number)),
            Scalar::Number(number) => Some(*number),
            Scalar::Text(text) => text.parse().ok(),
            Scalar::Nested => None,
        };
        let number = number.filter(|number: &f64| (0.0..1e15).contains(number));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it is in that range")]
        let ms = number.map(|number| Some(number as u64));
        ms.ok_or_else(|| format!("must be a number of milliseconds, not {self}"))
    }

    pub(super) fn time_ms(&self) -> Result<u64, String> {
        let time = match self {
            Scalar::Absent => return Err(format!("is missing: {}", time::WHAT)),
            #[expect(clippy::cast_precision_loss, reason = "what is so large is no time")]
            Scalar::Whole(seconds) => time::of_seconds(*seconds as f64),
            Scalar::Number(seconds) => time::of_seconds(*seconds),
            Scalar::Text(text) => time::of_text(text),
            Scalar::Nested => None,
        };
        time.ok_or_else(|| format!("{}, not {self}", time::WHAT))
    }
}

/// As much of a word as is repeated in a message.
const SHOWN_CHARS_MAX: usize = 60;

impl fmt::Display for Scalar<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scalar::Absent => f.write_str("nothing"),
            Scalar::Whole(number) => write!(f, "{number}"),
            Scalar::Number(number) => write!(f, "{number}"),
            Scalar::Text(text) => {
                let shown: String = text.chars().take(SHOWN_CHARS_MAX).collect();
                write!(f, "`{}`", shown.escape_debug())
            }
            Scalar::Nested => f.write_str("a list or a mapping"),
        }
    }
}

impl<'de: 'l, 'l> Deserialize<'de> for Scalar<'l> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Scalar<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Scalar::Absent)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Scalar::Text(Cow::Borrowed(if value { "true" } else { "false" })))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Scalar::Whole(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Self::Value, E> {
        #[expect(clippy::cast_precision_loss, reason = "only negative ones come here, which nothing takes")]
        Ok(Scalar::Number(value as f64))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Scalar::Number(value))
    }

    fn visit_borrowed_str<E: Error>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Scalar::of_text(value))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(match value {
            "-" => Scalar::Absent,
            text => Scalar::Text(Cow::Owned(text.to_owned())),
        })
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(Scalar::Nested)
    }
}
