//! Control: the one place that changes what is live.
//!
//! Sources (`files`, `xds`) say what they have now, all of it; `compose` puts them and what the admin API made together. Both
//! end here, one change at a time, and each replaces the whole snapshot. The rules:
//!
//! * A source goes live whole or not at all, and a mistake in one holds up only that one.
//! * A limit that a file has is the file's. One of the admin API that a file later defines becomes the file's.
//! * References in files lead to limits of files only, so that a file means the same on every machine.
//! * What the API changes is on the disk before it is live, and live before it is answered.
//! * New limits are made in the ledger before they count, but a ledger that is away holds nothing up for long: they
//!   then count at once, and are made as soon as it is back.
//!
//! Refuses to know HTTP, and how a request is decided.

mod sources;
mod compose;
mod reload;

pub mod files;
pub mod xds;

mod write;
mod provision;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, Notify};

pub(crate) use self::compose::{Composed, as_json, with_api};
use self::sources::Sources;
pub(crate) use self::write::WriteError;
use crate::config::{Files, Problem};
use crate::ledger::{Account, Ledger};
use crate::limit::LimitKey;
use crate::service::Service;
use crate::snapshot::Snapshot;
use crate::state::State;
use crate::tasks::Tasks;

/// How long a snapshot that was replaced is kept. By then no request uses it any more, so freeing it delays none of them.
const RETIRED_FOR: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Control {
    service: Arc<Service>,
    /// Held by whoever changes what is live, also over awaits, because a change is saved before it is live.
    owned: Mutex<Owned>,
    /// A plain mutex, never held over an await: two fields are copied.
    health: parking_lot::Mutex<Health>,
    /// Some limit may not be in the ledger as it should.
    unprovisioned: Notify,
    tasks: Tasks,
}

/// What the live snapshot was composed of.
#[derive(Debug)]
struct Owned {
    sources: Sources,
    state: State,
}

/// How the sources are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Health {
    /// Why what they say now is not live.
    pub(crate) problems: Vec<Problem>,
    pub(crate) failing_since_unix_ms: Option<u64>,
}

impl Control {
    /// `files` and `state` are what the live snapshot was composed of.
    pub(crate) fn new(service: Arc<Service>, files: &Files, state: State, tasks: Tasks) -> Self {
        let mut sources = Sources::default();
        sources.accept(files::SOURCE, Arc::clone(&files.content));
        let control = Self {
            service,
            owned: Mutex::new(Owned { sources, state }),
            health: parking_lot::Mutex::default(),
            unprovisioned: Notify::new(),
            tasks,
        };
        control.unprovisioned.notify_one();
        control
    }

    /// What a caller is told whose change will be gone when this process ends; `None` if the change is kept.
    pub(crate) async fn until_exit(&self) -> Option<&'static str> {
        let is_kept = self.owned.lock().await.state.is_kept();
        (!is_kept).then_some("holds until this process exits: there is no state directory (SLUICE_STATE_DIR)")
    }

    pub(crate) fn health(&self) -> Health {
        self.health.lock().clone()
    }

    fn live(&self) -> Arc<Snapshot> {
        self.service.live.load_full()
    }

    /// Puts a snapshot in the place of the one that is live.
    fn swap(&self, snapshot: Snapshot) {
        let new = Arc::new(snapshot);
        let old = self.service.live.swap(Arc::clone(&new));
        self.service.metrics.config_live(&new.hash);
        self.service.queue.snapshot_changed(&new.retry.queue);
        let gone =
            old.registry.named().filter(|limit| new.registry.get_named(limit.account.key.as_str()).is_none());
        gone.for_each(|limit| self.service.metrics.forget_limit(limit.account.key.as_str()));
        let gone = old.registry.domain_names().filter(|domain| new.registry.domain(domain).is_none());
        gone.for_each(|domain| self.service.metrics.forget_domain(domain));
        self.unprovisioned.notify_one();
        self.give_slabs_back(new);
        // Nobody waits for it.
        drop(self.tasks.run_to_the_end(async move {
            tokio::time::sleep(RETIRED_FOR).await;
            // Tens of thousands of small pieces: not on a thread that answers.
            drop(tokio::task::spawn_blocking(move || drop(old)));
        }));
    }

    /// Gives back the slabs that this instance holds of limits that were lowered or are gone.
    fn give_slabs_back(&self, live: Arc<Snapshot>) {
        let service = Arc::clone(&self.service);
        let job = move || {
            let spec_of = |account: &Account| live.registry.spec_of(account.key.as_str()).cloned();
            service.admission.ledger.limits_changed(&spec_of);
        };
        // There may be many, each found by its key: not on a thread that answers. Nobody waits for it.
        drop(self.tasks.run_to_the_end(async move {
            if let Err(error) = tokio::task::spawn_blocking(job).await {
                tracing::error!(%error, "slabs of limits that changed were not given back; the ledger gets them back when they end");
            }
        }));
    }

    /// Forgets limits of the API that files have.
    pub(crate) async fn taken_over(&self, keys: &[LimitKey]) {
        self.forget(&mut self.owned.lock().await.state, keys).await;
    }

    /// Nothing changes any more: what is remembered is left in the one file of record.
    pub(crate) async fn close(&self) {
        let mut owned = self.owned.lock().await;
        match saved(owned.state.clone(), State::settle_limits).await {
            Ok(state) => owned.state = state,
            Err(error) => tracing::warn!(%error, "the journal of the limits is left beside limits.json"),
        }
    }

    async fn forget(&self, state: &mut State, keys: &[LimitKey]) {
        if keys.is_empty() {
            return;
        }
        let mut next = state.clone();
        for key in keys {
            next.remove(key.as_str());
        }
        match saved(next, State::save_limits).await {
            Ok(next) => {
                *state = next;
                let keys: Vec<&str> = keys.iter().map(LimitKey::as_str).collect();
                tracing::info!("files have taken over from the API: {}", keys.join(", "));
            }
            Err(error) => tracing::error!(%error, "what files took over from the API could not be forgotten"),
        }
    }
}

/// Writes it to the disk, off the threads that answer; it may take the place of the old one only after that.
async fn saved(mut next: State, save: fn(&mut State) -> std::io::Result<()>) -> std::io::Result<State> {
    tokio::task::spawn_blocking(move || save(&mut next).map(|()| next)).await?
}
