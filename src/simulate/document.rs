//! A YAML file that says how to simulate: it is read whole, and every mistake in it is named with its line.
//!
//! Refuses to know what such a file says.

use std::path::Path;

use super::traffic::{name_of, text_of};
use crate::config::Problem;
use crate::config::decode::{At, Sink};
use crate::config::problem::Problems;
use crate::config::tree::Value;
use crate::config::yaml;

/// What `read` makes of a file.
pub(super) fn load<T>(
    path: &Path,
    read: impl FnOnce(&Value<'_>, &Sink) -> Option<T>,
) -> Result<T, Vec<Problem>> {
    let name = name_of(path);
    let text =
        text_of(path).map_err(|error| vec![Problem::of_file(&name, format!("can't be read: {error}"))])?;
    parse(&name, &text, read)
}

/// What `read` makes of a text. If it makes nothing of it, it must have named a mistake.
pub(super) fn parse<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&Value<'_>, &Sink) -> Option<T>,
) -> Result<T, Vec<Problem>> {
    let sink = Sink::new(name);
    let made = match yaml::parse(text) {
        Ok(Some(tree)) => read(&tree, &sink),
        Ok(None) => {
            sink.mistake(1, &At::ROOT, || "is empty");
            None
        }
        Err(fault) => {
            sink.mistake(fault.line, &At::ROOT, || fault.message);
            None
        }
    };
    let mut problems = Problems::default();
    problems.absorb(sink.into_problems());
    problems.finish()?;
    Ok(made.expect("what can't be read must have a mistake"))
}
