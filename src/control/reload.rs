//! A source has changed: all of it goes live, or everything that is wrong with it is said and nothing changes.

use std::sync::Arc;

use super::compose::{Composed, compose};
use super::sources::SourceName;
use super::{Control, Health, Owned};
use crate::activity::Event;
use crate::clock;
use crate::config::{Content, Problem};
use crate::registry::changes::{self, ConfigChange};
use crate::snapshot::Snapshot;

/// Changes that one log line names. The rest are counted; `GET /v1/config/limits` has all.
const CHANGES_LOGGED_MAX: usize = 100;

/// Problems that one event names; `GET /v1/config` has all.
const PROBLEMS_TOLD_MAX: usize = 100;

impl Control {
    /// What a source says now, all of it, goes live together with what is live of the others; or, if anything is wrong,
    /// every problem is reported and nothing changes.
    pub async fn update(&self, source: SourceName, content: Arc<Content>) -> Result<(), Vec<Problem>> {
        let mut owned = self.owned.lock().await;
        self.try_update(&mut owned, source, content).await?;
        // It may have stood in the way of another source.
        self.retry_rejected(&mut owned).await;
        Ok(())
    }

    /// What stood in the way of those that were rejected has changed: they may go live now.
    pub(super) async fn retry_rejected(&self, owned: &mut Owned) {
        for (source, content) in owned.sources.rejected() {
            // What is wrong with it has been told.
            drop(self.try_update(owned, source, content).await);
        }
    }

    async fn try_update(
        &self,
        owned: &mut Owned,
        source: SourceName,
        content: Arc<Content>,
    ) -> Result<(), Vec<Problem>> {
        let contents = owned.sources.with(source, &content);
        let (live, state) = (self.live(), owned.state.clone());
        // Tens of milliseconds for ten thousand limits: not on a thread that answers.
        let composing = tokio::task::spawn_blocking(move || compose(&contents, &state, &live));
        let composed = composing.await.unwrap_or_else(|error| {
            Err(vec![Problem::of_file("the configuration", format!("reading it failed: {error}"))])
        });
        match composed {
            Ok((composed, changes)) => {
                owned.sources.accept(source, content);
                let taken_over = composed.taken_over.clone();
                self.go_live(composed, &changes, owned.sources.problems()).await;
                self.forget(&mut owned.state, &taken_over).await;
                Ok(())
            }
            Err(problems) => {
                owned.sources.reject(source, content, problems.clone());
                self.failed(source, owned.sources.problems());
                Err(problems)
            }
        }
    }

    /// `problems` are those of other sources.
    async fn go_live(&self, composed: Composed, changes: &[ConfigChange], problems: Vec<Problem>) {
        let Composed { hot, retry_override, .. } = composed;
        let live = self.live();
        let was_failing = self.health.lock().failing_since_unix_ms;
        let recovered = was_failing.is_some() && problems.is_empty();
        let failing_since_unix_ms = was_failing.filter(|_| !recovered);
        self.set_health(Health { problems, failing_since_unix_ms });
        let metrics = &self.service.metrics;
        let (version, loaded_at) = match changes.is_empty() {
            // Only the lines of limits may have moved. The new lines are shown, but it is no new version.
            true => (live.version, live.loaded_at_unix_ms),
            false => (live.version + 1, clock::unix_ms()),
        };
        self.provision_new(&hot.registry, &live.registry).await;
        hot.warnings
            .iter()
            .filter(|warning| !live.warnings.iter().any(|known| known.says_the_same(warning)))
            .for_each(|warning| tracing::warn!("{warning}"));
        self.swap(Snapshot::new(version, loaded_at, hot, retry_override, metrics, Some(&live)));
        if !changes.is_empty() {
            tracing::info!(version, "reloaded, {}: {}", changes::summary(changes), listed(changes));
        } else if recovered {
            tracing::info!(version, "the configuration is good again, and says what is live");
        }
        if recovered || !changes.is_empty() {
            metrics.reloaded(true);
            self.tell_of_reload(version, &[]);
        }
    }

    /// Says what is wrong, once.
    fn failed(&self, source: SourceName, problems: Vec<Problem>) {
        self.service.metrics.reloaded(false);
        let before = self.health();
        let since = before.failing_since_unix_ms.unwrap_or_else(clock::unix_ms);
        self.set_health(Health { problems: problems.clone(), failing_since_unix_ms: Some(since) });
        if before.problems == problems {
            return;
        }
        let version = self.live().version;
        let what = match source {
            super::xds::SOURCE => "limits of the xDS server",
            _ => "files",
        };
        tracing::error!(version, problems = problems.len(), "the {what} are wrong: what was live stays live");
        problems.iter().for_each(|problem| tracing::error!("{problem}"));
        self.tell_of_reload(version, &problems);
    }

    fn set_health(&self, health: Health) {
        let problems = i64::try_from(health.problems.len()).unwrap_or(i64::MAX);
        self.service.metrics.config_problems.set(problems);
        *self.health.lock() = health;
    }

    /// Tells those who watch.
    fn tell_of_reload(&self, version: u64, problems: &[Problem]) {
        let told = problems.iter().take(PROBLEMS_TOLD_MAX).map(serde_json::to_value);
        let problems: Vec<serde_json::Value> = told.filter_map(Result::ok).collect();
        let (time_unix_ms, is_live) = (clock::unix_ms(), problems.is_empty());
        self.service.admission.activity.tell(Event::Reload { time_unix_ms, is_live, version, problems });
    }
}

fn listed(changes: &[ConfigChange]) -> String {
    let named = changes.iter().take(CHANGES_LOGGED_MAX).map(ToString::to_string);
    let mut text = named.collect::<Vec<_>>().join("; ");
    if let Some(more) = changes.len().checked_sub(CHANGES_LOGGED_MAX).filter(|more| *more > 0) {
        text.push_str(&format!("; and {more} more"));
    }
    text
}
