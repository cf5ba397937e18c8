//! `leases`: what signs their tokens, and how many can be completed without one.

use std::path::PathBuf;

use super::secret::{BYTES_MIN, Secret};
use super::{FAMILY, REMEMBERED_MAX, count, path, set};
use crate::config::decode::Fields;
use crate::config::shape::Shape;
use crate::config::tree::Data;

pub(super) static LEASES: Shape =
    Shape { name: "`leases`", keys: &["secrets", "secrets_file", "book_max"], family: FAMILY };

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leases {
    /// The first signs, all verify. None, and no file: one is made up at start.
    pub secrets: Vec<Secret>,
    /// The same, one a line.
    pub secrets_file: Option<PathBuf>,
    /// Leases that can be completed by their plain id.
    pub book_max: usize,
}

impl Default for Leases {
    fn default() -> Self {
        Self { secrets: Vec::new(), secrets_file: None, book_max: 1_000_000 }
    }
}

pub(super) fn fill(leases: &mut Leases, fields: &Fields<'_>) {
    for (value, at) in fields.list("secrets").iter() {
        // What was written is never repeated in a complaint.
        match &value.data {
            Data::Scalar { text, .. } if !text.is_empty() && !value.is_null() => {
                leases.secrets.push(Secret::new(text));
                if text.len() < BYTES_MIN {
                    let message = format!("is short: {} bytes or more can't be guessed", BYTES_MIN);
                    fields.sink.warn(value.line, at, message);
                }
            }
            _ => fields.sink.mistake(value.line, &at, || "must be a text that isn't empty"),
        }
    }
    leases.secrets_file = path(fields, "secrets_file");
    if leases.secrets_file.is_some() && !leases.secrets.is_empty() {
        fields.mistake("secrets_file", || "can't stand beside `secrets`: it isn't clear which would sign");
    }
    set(&mut leases.book_max, count(fields, "book_max", REMEMBERED_MAX));
}
