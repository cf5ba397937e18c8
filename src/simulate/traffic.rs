//! Traffic that was written down: requests from files, in the order of their times, a batch at a time.
//!
//! Files are read as streams, so that memory doesn't grow with them. What can't be read is named with file and line, and left
//! out. Refuses to know what is done with a request.

pub(crate) mod batch;
mod format;
mod json;
mod lines;
mod log;
pub(crate) mod map;
mod merge;
mod scalar;
mod source;
mod time;

pub(super) use self::lines::text_of;
pub(crate) use self::merge::{Part, Stream};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::map::Map;

/// Files that are read side by side at most: each has a buffer.
pub(super) const FILES_MAX: usize = 128;

/// Files of the same form.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) paths: Vec<PathBuf>,
    /// How their lines are read; `None` if they are requests already.
    pub(super) map: Option<Arc<Map>>,
}

/// Standard input, in the place of a file.
pub(super) const STDIN: &str = "-";

/// What a file is called in messages.
pub(super) fn name_of(path: &Path) -> String {
    match path.to_str() {
        Some(STDIN) => "standard input".to_owned(),
        _ => path.display().to_string(),
    }
}

/// Something that is wrong with a line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wrong {
    /// Empty if it is about no field.
    pub(super) field: String,
    pub(super) message: String,
}

impl Wrong {
    pub(super) fn line(message: impl Into<String>) -> Self {
        Self { field: String::new(), message: message.into() }
    }

    pub(super) fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}
