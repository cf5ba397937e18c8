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

/// Where the hot files are.
#[derive(Debug, Clone, Default)]
pub struct Layout {
    /// With `retry_policy.yaml`, and `sluice.yaml`, which is read once.
    pub dir: Option<PathBuf>,
    pub limits: LimitsIn,
}

/// Where the limits files are.
#[derive(Debug, Clone, Default)]
pub enum LimitsIn {
    /// In `limits/` of the directory.
    #[default]
    Dir,
    /// Where envoyproxy/ratelimit has them.
    Runtime(Runtime),
    /// In no files at all.
    Nowhere,
}

/// A directory of envoyproxy/ratelimit: everything in it and below it is a limits file.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub root: PathBuf,
    /// If there is a directory of this name in it, only what is in that counts. Usually `config`.
    pub inner: String,
    /// Also what begins with a dot.
    pub dot_files: bool,
}

/// Directories below that one. Links to directories are not followed, so there is no way around in a circle.
const RUNTIME_DEPTH_MAX: usize = 8;

impl From<PathBuf> for Layout {
    fn from(dir: PathBuf) -> Self {
        Self { dir: Some(dir), limits: LimitsIn::Dir }
    }
}

impl Layout {
    /// Whether there is anything to watch.
    pub(crate) fn is_empty(&self) -> bool {
        self.dir.is_none() && !matches!(self.limits, LimitsIn::Runtime(_))
    }

    /// The directories whose changes matter.
    pub(crate) fn watched(&self) -> Vec<PathBuf> {
        let mut dirs: Vec<PathBuf> = self.dir.iter().cloned().collect();
        match &self.limits {
            LimitsIn::Dir => dirs.extend(self.dir.iter().map(|dir| dir.join("limits"))),
            LimitsIn::Runtime(runtime) => dirs.extend([runtime.root.clone(), runtime.dir()]),
            LimitsIn::Nowhere => {}
        }
        dirs
    }

    /// Whether any of it is there.
    pub(crate) fn exists(&self) -> bool {
        matches!(self.limits, LimitsIn::Runtime(_)) || self.dir.as_ref().is_some_and(|dir| dir.exists())
    }

    /// All files as they are now.
    pub(crate) fn read(&self) -> Files {
        let mut content = Content::default();
        match (&self.limits, &self.dir) {
            (LimitsIn::Dir, None) => return Files::default(),
            (LimitsIn::Dir, Some(dir)) => return Files::read(dir),
            (LimitsIn::Runtime(runtime), _) => read_limits(runtime.list(), &mut content),
            (LimitsIn::Nowhere, _) => {}
        }
        if let Some(dir) = &self.dir {
            match check_dir(dir) {
                Ok(()) => read_policy(dir, &mut content),
                Err(problem) => content.problems.push(problem),
            }
        }
        Files { content: Arc::new(content), limits_missing: false }
    }
}

impl Runtime {
    fn dir(&self) -> PathBuf {
        let inner = self.root.join(&self.inner);
        if inner.is_dir() { inner } else { self.root.clone() }
    }

    fn list(&self) -> Result<Listed, Problem> {
        let dir = self.dir();
        check_dir(&dir)?;
        let mut listed = Listed::default();
        self.gather(&dir, 0, &mut listed)?;
        Ok(listed)
    }

    fn gather(&self, dir: &Path, depth: usize, listed: &mut Listed) -> Result<(), Problem> {
        for entry in fs::read_dir(dir).map_err(|error| unlisted(dir, &error))? {
            let entry = entry.map_err(|error| unlisted(dir, &error))?;
            if !self.dot_files && entry.file_name().as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = entry.path();
            match entry.file_type().map_err(|error| unlisted(dir, &error))? {
                kind if kind.is_dir() && depth < RUNTIME_DEPTH_MAX => {
                    self.gather(&path, depth + 1, listed)?;
                }
                kind if kind.is_dir() => return Err(problem(&path, "lies too deep to be read")),
                _ if path.is_dir() => listed.ignore(&path, "is a link to a directory, and is not followed"),
                _ => listed.paths.push(path),
            }
        }
        Ok(())
    }
}

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
        read_limits(list_limits(&dir.join("limits")), &mut content);
        read_policy(dir, &mut content);
        Self { content: Arc::new(content), limits_missing }
    }
}

/// What is in a directory of limits files.
#[derive(Debug, Default)]
struct Listed {
    paths: Vec<PathBuf>,
    /// What nobody reads, and why.
    ignored: Vec<Problem>,
}

impl Listed {
    /// Whoever put it there probably thinks that it counts. Hidden files, and those that editors and file systems make, are
    /// nobody's mistake.
    fn ignore(&mut self, path: &Path, why: &str) {
        let name = path.file_name().unwrap_or_default().as_encoded_bytes();
        let is_made_by_a_program =
            name.starts_with(b".") || name.starts_with(b"#") || name.ends_with(b"~") || name == b"lost+found";
        if !is_made_by_a_program {
            self.ignored.push(problem(path, why));
        }
    }
}

fn read_limits(listed: Result<Listed, Problem>, content: &mut Content) {
    let Listed { mut paths, mut ignored } = match listed {
        Ok(listed) => listed,
        Err(problem) => return content.problems.push(problem),
    };
    // A directory lists its files in no order.
    paths.sort();
    ignored.sort();
    content.ignored = ignored;
    for path in &paths {
        match read_file(path) {
            Ok(file) => content.limits.extend(file),
            Err(problem) => content.problems.push(problem),
        }
    }
}

fn read_policy(dir: &Path, content: &mut Content) {
    match read_file(&dir.join("retry_policy.yaml")) {
        Ok(file) => content.retry_policy = file,
        Err(problem) => content.problems.push(problem),
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

/// The files of `limits/`. Names that start with a dot are how Kubernetes swaps a whole directory.
fn list_limits(dir: &Path) -> Result<Listed, Problem> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Listed::default()),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            return Err(problem(dir, "must be a directory of limits files"));
        }
        Err(error) => return Err(unlisted(dir, &error)),
    };
    let mut listed = Listed::default();
    for entry in entries {
        let name = entry.map_err(|error| unlisted(dir, &error))?.file_name();
        let path = dir.join(&name);
        if path.is_dir() {
            listed.ignore(&path, "is a directory, and is not read: limits files lie directly in limits/");
        } else if !path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml") {
            listed.ignore(&path, "is not read: the name of a limits file ends in .yaml or .yml");
        } else if !name.as_encoded_bytes().starts_with(b".") {
            listed.paths.push(path);
        }
    }
    Ok(listed)
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

fn unlisted(dir: &Path, error: &std::io::Error) -> Problem {
    problem(dir, format!("can't be listed: {error}"))
}

fn problem(path: &Path, message: impl Into<String>) -> Problem {
    Problem::of_file(&path.display().to_string(), message)
}
