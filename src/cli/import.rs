//! `sluice import`: the limits of another program as ours, on standard output.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;

use super::check::print_problems;
use super::complain;
use crate::config::Document;
use crate::config::limitador::{Imported, file_name, import};

pub(super) fn limitador(paths: &[PathBuf]) -> ExitCode {
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| format!("{name}: can't be read"))?;
        Ok(Document { name, text })
    };
    let files = match paths.iter().map(read).collect::<anyhow::Result<Vec<Document>>>() {
        Ok(files) => files,
        Err(error) => return complain(&error),
    };
    let Imported { files, left_out } = import(&files);
    let documents: Vec<String> =
        files.iter().map(|(namespace, text)| format!("# {}\n{text}", file_name(namespace))).collect();
    // A reader that has closed the pipe wants no more.
    let _ = std::io::stdout().write_all(documents.join("---\n").as_bytes());
    if left_out.is_empty() {
        return ExitCode::SUCCESS;
    }
    print_problems(&left_out);
    ExitCode::FAILURE
}
