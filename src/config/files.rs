//! Reading the files of a configuration directory. The only place here that touches a disk.
//!
//! Refuses to know what is in them.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::problem::Problem;
use super::source::{Content, Document};
use super::yaml::FILE_BYTES_MAX;

/// The hot files of a directory as they are now.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Files {
    pub content: Arc<Content>,
    /// There is no `limits/`, which is not the same as an empty one: a mount may have been lost.
    pub limits_missing: bool,
}

impl Files {
    /// Reads `limits/*.yaml`, `limits/*.yml` and `retry_policy.yaml` of `dir`. Each may be missing; `dir` may not.
    pub fn read(dir: &Path) -> Self {
        let mut content = Content::default();
        if let Err(problem) = check_dir(dir) {
            content.problems.push(problem);
            return Self { content: Arc::new(content), limits_missing: false };
        }
        let limits_missing = fs::symlink_metadata(dir.join("limits")).is_err();
        match list_limits(&dir.join("limits")) {
            Ok(paths) => {
                for path in paths {
                    match read_file(&path) {
                        Ok(file) => content.limits.extend(file),
                        Err(problem) => content.problems.push(problem),
                    }
                }
            }
            Err(problem) => content.problems.push(problem),
        }
        match read_file(&dir.join("retry_policy.yaml")) {
            Ok(file) => content.retry_policy = file,
            Err(problem) => content.problems.push(problem),
        }
        Self { content: Arc::new(content), limits_missing }
    }
}

/// `sluice.yaml` of `dir`, if there is one.
pub(crate) fn read_settings(dir: &Path) -> Result<Option<Document>, Problem> {
    check_dir(dir)?;
    read_file(&dir.join("sluice.yaml"))
}

/// A configuration directory has to be one.
pub(crate) fn check_dir(dir: &Path) -> Result<(), Problem> {
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(problem(dir, "is no directory")),
        Err(error) => Err(problem(dir, format!("is no directory that can be read: {error}"))),
    }
}

/// The files of `limits/` that count, by name. Names that start with a dot are how Kubernetes swaps a whole directory.
fn list_limits(dir: &Path) -> Result<Vec<PathBuf>, Problem> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(problem(dir, "must be a directory of limits files"));
        }
        Err(error) => return Err(problem(dir, format!("can't be listed: {error}"))),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let name = entry.map_err(|error| problem(dir, format!("can't be listed: {error}")))?.file_name();
        let is_yaml =
            Path::new(&name).extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
        if is_yaml && !name.as_encoded_bytes().starts_with(b".") {
            paths.push(dir.join(name));
        }
    }
    paths.retain(|path| !path.is_dir());
    paths.sort();
    Ok(paths)
}

/// A file as text; `None` if it isn't there.
fn read_file(path: &Path) -> Result<Option<Document>, Problem> {
    let cannot = |error| problem(path, format!("can't be read: {error}"));
    let found = match fs::metadata(path) {
        // A link that leads nowhere is there, and a mistake.
        Err(error) if error.kind() == ErrorKind::NotFound && fs::symlink_metadata(path).is_err() => {
            return Ok(None);
        }
        found => found.map_err(cannot)?,
    };
    // A pipe would be waited for, forever.
    if !found.is_file() {
        return Err(problem(path, "is no regular file"));
    }
    let mut bytes = Vec::new();
    let one_too_many = FILE_BYTES_MAX as u64 + 1;
    File::open(path).and_then(|file| file.take(one_too_many).read_to_end(&mut bytes)).map_err(cannot)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(problem(path, format!("is longer than {FILE_BYTES_MAX} bytes")));
    }
    let text = String::from_utf8(bytes).map_err(|error| not_utf8(path, &error))?;
    Ok(Some(Document { name: path.display().to_string(), text }))
}

fn not_utf8(path: &Path, error: &std::string::FromUtf8Error) -> Problem {
    let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
    let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
    Problem { line: u32::try_from(line).unwrap_or(u32::MAX), ..problem(path, "is not UTF-8 text") }
}

fn problem(path: &Path, message: impl Into<String>) -> Problem {
    Problem::of_file(&path.display().to_string(), message)
}
