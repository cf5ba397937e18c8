//! The files in `config/`: read, checked as a whole, turned into what the rest of Sluice works with.
//!
//! Every problem of every file is gathered before anything is refused. Refuses to know when files change, and what is
//! done with what they say.

pub mod limits;
pub mod retry;
pub mod settings;

pub mod files;
pub mod problem;

pub mod decode;
pub mod scalar;
pub mod shape;
pub mod tree;
pub mod yaml;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use self::files::{SourceFile, Sources};
pub use self::limits::{LoadedLimits, limit_from_json, load_limits};
pub use self::problem::Problem;
use self::problem::Problems;
pub use self::retry::{load_retry_policy, retry_policy_from_json};
pub use self::settings::{Settings, load_settings};
use crate::limit::Origin;
use crate::registry::{Level, Registry};
use crate::retry::policy::RetryPolicy;

/// The entry that makes a descriptor a completion.
const COMPLETION_KEY: &str = "lease_id";

/// The directory when none is named.
pub const DEFAULT_DIR: &str = "config";

/// The whole of a configuration directory.
#[derive(Debug)]
pub struct Loaded {
    pub settings: Settings,
    pub hot: Hot,
    /// What `hot` was made of, so that whoever watches the files knows what is live already.
    pub sources: Sources,
}

/// What can change without a restart: one snapshot of all hot files.
#[derive(Debug, Clone)]
pub struct Hot {
    pub registry: Registry,
    pub retry_policy: RetryPolicy,
    /// The names of the files, in order.
    pub files: Vec<String>,
    /// What is probably not meant.
    pub warnings: Vec<Problem>,
}

/// Reads and checks everything. A directory that is named has to exist; [`DEFAULT_DIR`] doesn't, and then all is default.
pub fn load(named: Option<&Path>) -> Result<Loaded, Vec<Problem>> {
    let dir = named.unwrap_or(Path::new(DEFAULT_DIR));
    if named.is_none() && !dir.exists() {
        return check(None, Sources::default());
    }
    let mut sources = Sources::read(dir);
    let settings = files::read_settings(dir).unwrap_or_else(|problem| {
        sources.problems.push(problem);
        None
    });
    check(settings.as_ref(), sources)
}

/// Checks hot files. A named limit that `previous` has too keeps its account.
pub fn load_hot(sources: &Sources, previous: Option<&Registry>) -> Result<Hot, Vec<Problem>> {
    let mut problems = Problems::default();
    let hot = read_hot(sources, previous, &mut problems);
    problems.finish().map(|warnings| Hot { warnings, ..hot })
}

fn check(settings: Option<&SourceFile>, sources: Sources) -> Result<Loaded, Vec<Problem>> {
    let mut problems = Problems::default();
    let settings = settings::read(settings, &mut problems);
    let hot = read_hot(&sources, None, &mut problems);
    problems.finish().map(|warnings| Loaded { settings, hot: Hot { warnings, ..hot }, sources })
}

/// Entries that Sluice takes for itself never reach the descriptors: a limit there would never apply.
fn warn_of_reserved_keys(level: &Level, retry_key: &str, problems: &mut Problems) {
    for (key, _, node) in level.nodes() {
        if let (true, Some(rule)) = (key == retry_key || key == COMPLETION_KEY, node.rules.first()) {
            let (file, line) = match &rule.spec.origin {
                Origin::File { path, line } => (Arc::clone(path), *line),
                Origin::Api | Origin::Override => continue,
            };
            let message = format!("a descriptor `{key}` never applies: Sluice takes that entry for itself");
            problems.warn(Problem { file, line, field: "key".to_owned(), message });
        }
        warn_of_reserved_keys(&node.children, retry_key, problems);
    }
}

fn read_hot(sources: &Sources, previous: Option<&Registry>, problems: &mut Problems) -> Hot {
    sources.problems.iter().for_each(|problem| problems.mistake(problem.clone()));
    if sources.limits.is_empty() {
        let text = "there is no limits/*.yaml or limits/*.yml: without limits every request is allowed";
        problems.warn(Problem::of_file("limits", text));
    }
    let registry = limits::read(&sources.limits, previous, problems);
    let retry_policy = retry::read(sources.retry_policy.as_ref(), problems);
    for name in registry.domain_names().map(str::to_owned).collect::<Vec<_>>() {
        if let Some(level) = registry.domain(&name) {
            warn_of_reserved_keys(level, &retry_policy.budget.descriptor_key, problems);
        }
    }
    Hot { registry, retry_policy, files: sources.names(), warnings: Vec::new() }
}
