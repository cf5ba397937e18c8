//! The files are different: they go live whole, or everything that is wrong with them is said and nothing changes.

use super::compose::{Composed, compose};
use super::{Control, Health};
use crate::clock;
use crate::config::{self, Problem, Sources};
use crate::registry::changes::{self, Change};
use crate::registry::outline::Outline;
use crate::retry::policy::RetryPolicy;
use crate::snapshot::Snapshot;
use crate::state::State;

/// Changes that one log line names. The rest are counted; `GET /v1/config/limits` has all.
const CHANGES_LOGGED_MAX: usize = 100;

/// Files that may go live.
struct Prepared {
    composed: Composed,
    changes: Vec<Change>,
}

impl Control {
    pub async fn reload(&self, sources: Sources) {
        let mut state = self.state.lock().await;
        let (live, known) = (self.live(), state.clone());
        // Tens of milliseconds for ten thousand limits: not on a thread that answers.
        let preparing = tokio::task::spawn_blocking(move || (prepare(&sources, &live, &known), sources));
        match preparing.await {
            Ok((Ok(prepared), _)) => {
                let taken_over = prepared.composed.taken_over.clone();
                self.go_live(prepared).await;
                self.forget(&mut state, &taken_over).await;
            }
            Ok((Err(problems), sources)) => {
                *self.rejected.lock() = Some(sources);
                self.failed(problems);
            }
            Err(error) => {
                let text = format!("reading it failed: {error}");
                self.failed(vec![Problem::of_file("the configuration", text)]);
            }
        }
    }

    /// What the files didn't go with is changed: they may go live now.
    pub(super) async fn reload_rejected(&self) {
        let rejected = self.rejected.lock().take();
        if let Some(sources) = rejected {
            self.reload(sources).await;
        }
    }

    async fn go_live(&self, prepared: Prepared) {
        let Prepared { composed: Composed { hot, retry_override, .. }, changes } = prepared;
        let live = self.live();
        *self.rejected.lock() = None;
        let recovered = std::mem::take(&mut *self.health.lock()).failing_since_unix_ms.is_some();
        let metrics = &self.service.metrics;
        let (version, loaded_at) = match changes.is_empty() {
            // Lines may have moved: where limits are written is shown right, and nobody hears of it.
            true => (live.version, live.loaded_at_unix_ms),
            false => (live.version + 1, clock::unix_ms()),
        };
        self.provision_new(&hot.registry, &live.registry).await;
        let new_warnings: Vec<Problem> =
            hot.warnings.iter().filter(|warning| !live.warnings.contains(warning)).cloned().collect();
        self.swap(Snapshot::new(version, loaded_at, hot, retry_override, metrics, Some(&live)));
        if !changes.is_empty() {
            new_warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
            tracing::info!(version, "reloaded, {}: {}", changes::summary(&changes), listed(&changes));
        } else if recovered {
            tracing::info!(version, "the files are good again, and say what is live");
        }
        if recovered || !changes.is_empty() {
            metrics.reloaded(true);
        }
    }

    /// Says what is wrong, once.
    fn failed(&self, problems: Vec<Problem>) {
        self.service.metrics.reloaded(false);
        let mut health = self.health.lock();
        let known = health.problems == problems;
        let since = health.failing_since_unix_ms.unwrap_or_else(clock::unix_ms);
        *health = Health { problems: problems.clone(), failing_since_unix_ms: Some(since) };
        drop(health);
        if known {
            return;
        }
        let version = self.live().version;
        tracing::error!(version, problems = problems.len(), "the files are wrong: what was live stays live");
        problems.iter().for_each(|problem| tracing::error!("{problem}"));
    }
}

fn prepare(sources: &Sources, live: &Snapshot, state: &State) -> Result<Prepared, Vec<Problem>> {
    let had_limits = live.registry.domain_names().next().is_some();
    if sources.limits_missing && sources.problems.is_empty() && had_limits {
        let text = "the directory is gone, which would allow everything: put it back, if only an empty one";
        return Err(vec![Problem::of_file("limits", text)]);
    }
    let hot = config::load_hot(sources, Some(&live.registry))?;
    let composed = compose(hot, state, Some(&live.registry))?;
    let registry = &composed.hot.registry;
    let mut changes = changes::between(&Outline::of(&live.registry), &Outline::of(registry));
    changes.extend(changes::of_policy(&as_json(&live.file_retry), &as_json(&composed.hot.retry_policy)));
    Ok(Prepared { composed, changes })
}

/// A policy for comparing and showing. It is plain data, so that this can't fail.
pub fn as_json(policy: &RetryPolicy) -> serde_json::Value {
    serde_json::to_value(policy).unwrap_or_default()
}

fn listed(changes: &[Change]) -> String {
    let named = changes.iter().take(CHANGES_LOGGED_MAX).map(ToString::to_string);
    let mut text = named.collect::<Vec<_>>().join("; ");
    if let Some(more) = changes.len().checked_sub(CHANGES_LOGGED_MAX).filter(|more| *more > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    text
}
