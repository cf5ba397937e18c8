//! Configuration: read, checked as a whole, turned into what the rest of Sluice works with.
//!
//! Every problem of every document is gathered before anything is refused. Refuses to know when a source says something
//! new, and what is done with what it says.

pub(crate) mod limitador;
mod limits;
mod retry;
pub mod settings;

mod files;
pub(crate) mod problem;
mod source;

pub(crate) mod decode;
mod scalar;
pub(crate) mod shape;
pub(crate) mod tree;
pub(crate) mod yaml;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use self::files::{Files, Layout, LimitsIn, Runtime};
pub(crate) use self::limits::limit_from_json;
pub use self::limits::{LoadedLimits, load_limits};
pub use self::problem::Problem;
use self::problem::Problems;
pub use self::retry::load_retry_policy;
pub(crate) use self::retry::retry_policy_from_json;
pub use self::settings::Settings;
#[cfg(test)]
use self::settings::load_settings;
pub use self::source::{Content, Document, Resource};
use crate::limit::{COMPLETION_ENTRY, Origin};
use crate::registry::{Level, Registry};
use crate::retry::policy::RetryPolicy;

/// The directory when none is named.
pub(crate) const DEFAULT_DIR: &str = "config";

/// The whole of a configuration directory.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub hot: Hot,
    /// What `hot` was made of, so that whoever watches the files knows what is live already.
    pub files: Files,
}

/// What can change without a restart: all that the sources say, as one.
#[derive(Debug, Clone)]
pub struct Hot {
    pub registry: Registry,
    pub retry_policy: RetryPolicy,
    /// The names of the documents, in order.
    pub files: Vec<String>,
    /// What is valid, but was probably not meant.
    pub warnings: Vec<Problem>,
    /// Of the texts; equal at instances whose files are equal.
    pub hash: String,
}

impl Hot {
    /// Nobody expects limits files: it is no surprise that there are none.
    pub(crate) fn need_no_files(&mut self) {
        self.warnings.retain(|warning| warning.message != NO_LIMITS);
    }
}

const NO_LIMITS: &str = "there is no limits/*.yaml or limits/*.yml: without limits every request is allowed";

/// Reads and checks everything. A directory that is named has to exist; [`DEFAULT_DIR`] doesn't, and then all is default.
pub fn load(named: Option<&Path>) -> Result<Loaded, Vec<Problem>> {
    let dir = named.unwrap_or(Path::new(DEFAULT_DIR));
    if named.is_none() && !dir.exists() {
        return check(None, Files::default());
    }
    load_layout(&Layout::from(dir.to_owned()))
}

/// Reads and checks what lies elsewhere than in one directory. Without any, all is default.
pub(crate) fn load_layout(layout: &Layout) -> Result<Loaded, Vec<Problem>> {
    let mut files = layout.read();
    let settings = layout.dir.as_deref().map_or(Ok(None), files::read_settings).unwrap_or_else(|problem| {
        Arc::make_mut(&mut files.content).problems.push(problem);
        None
    });
    check(settings.as_ref(), files)
}

/// Checks what all sources say, together. A named limit that `previous` has too keeps its account.
pub(crate) fn load_hot(contents: &[&Content], previous: Option<&Registry>) -> Result<Hot, Vec<Problem>> {
    let mut problems = Problems::default();
    let hot = read_hot(contents, previous, &mut problems);
    problems.finish().map(|warnings| Hot { warnings, ..hot })
}

fn check(settings: Option<&Document>, files: Files) -> Result<Loaded, Vec<Problem>> {
    let mut problems = Problems::default();
    let settings = settings::read(settings, &mut problems);
    let hot = read_hot(&[&files.content], None, &mut problems);
    problems.finish().map(|warnings| Loaded { settings, hot: Hot { warnings, ..hot }, files })
}

/// Entries that Sluice takes for itself never reach the descriptors: a limit there would never apply.
fn warn_of_reserved_keys(level: &Level, retry_key: &str, problems: &mut Problems) {
    for (key, _, node) in level.nodes() {
        if let (true, Some(rule)) = (key == retry_key || key == COMPLETION_ENTRY, node.rules.first()) {
            let (file, line) = match &rule.spec.origin {
                Origin::File { path, line } => (Arc::clone(path), *line),
                Origin::Xds(resource) => (Arc::clone(resource), 0),
                Origin::Api | Origin::Override => continue,
            };
            let message = format!("a descriptor `{key}` never applies: Sluice takes that entry for itself");
            problems.warn(Problem { file, line, field: "key".to_owned(), message });
        }
        warn_of_reserved_keys(&node.children, retry_key, problems);
    }
}

fn read_hot(contents: &[&Content], previous: Option<&Registry>, problems: &mut Problems) -> Hot {
    let unreadable = contents.iter().flat_map(|content| &content.problems);
    unreadable.for_each(|problem| problems.mistake(problem.clone()));
    let limits: Vec<&Document> = contents.iter().flat_map(|content| &content.limits).collect();
    let resources: Vec<&Resource> = contents.iter().flat_map(|content| &content.resources).collect();
    if limits.is_empty() && resources.is_empty() {
        problems.warn(Problem::of_file("limits", NO_LIMITS));
    }
    contents.iter().flat_map(|content| &content.ignored).for_each(|ignored| problems.warn(ignored.clone()));
    let registry = limits::read(&limits, &resources, previous, problems);
    let retry_policy = retry::read(only_policy(contents, problems), problems);
    for name in registry.domain_names().map(str::to_owned).collect::<Vec<_>>() {
        if let Some(level) = registry.domain(&name) {
            warn_of_reserved_keys(level, &retry_policy.budget.descriptor_key, problems);
        }
    }
    let names = contents.iter().flat_map(|content| content.names()).map(str::to_owned);
    let hash = source::hash(contents);
    Hot { registry, retry_policy, files: names.collect(), warnings: Vec::new(), hash }
}

/// The one retry policy that all sources have together.
fn only_policy<'c>(contents: &[&'c Content], problems: &mut Problems) -> Option<&'c Document> {
    let mut policies = contents.iter().filter_map(|content| content.retry_policy.as_ref());
    let first = policies.next()?;
    for other in policies {
        let text = format!("there is another retry policy in {}; there can be one", first.name);
        problems.mistake(Problem::of_file(&other.name, text));
    }
    Some(first)
}
