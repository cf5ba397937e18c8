//! The ledger is brought to what is live: new limits before they count, changed ones right after, and the decreasing ones
//! of an earlier run again.
//!
//! Every reserve carries its capacity, so that none of this is needed for an answer to be right: it only makes changes
//! begin without a request.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use super::{Control, saved};
use crate::ledger::{CapacityEvent, Ledger, LedgerError, Want};
use crate::limit::LimitKey;
use crate::registry::{NamedLimit, Registry};
use crate::retry::backoff::Backoff;
use crate::state::State;

/// How long new limits wait for the ledger before they count without it. Far below the two seconds of a reload.
const DEADLINE: Duration = Duration::from_millis(500);

/// Changes of capacity that are gathered for one write.
const EVENTS_PER_WRITE: usize = 4096;
const WRITE_INTERVAL: Duration = Duration::from_millis(100);

impl Control {
    /// Makes the accounts of limits that weren't there before.
    pub(super) async fn provision_new(&self, registry: &Registry, live: &Registry) {
        let new = registry.named().filter(|limit| live.get_named(limit.account.key.as_str()).is_none());
        let wants: Vec<Want> = new.map(|limit| limit.want()).collect();
        let ledger = &self.service.admission.ledger;
        if wants.is_empty() || ledger.ready().is_err() {
            return;
        }
        match tokio::time::timeout(DEADLINE, ledger.provision(wants)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "new limits count before the ledger has them"),
            Err(_) => tracing::warn!("new limits count before the ledger has them: it is slow"),
        }
    }

    /// Gives a change that was just made a moment to reach the ledger, so that who asks next sees it.
    pub(super) async fn provision_soon(&self) {
        if self.service.admission.ledger.ready().is_ok() {
            // What isn't done now is done in the background.
            drop(tokio::time::timeout(DEADLINE, self.provision()).await);
        }
    }

    /// Brings the ledger to what is live, whenever that has changed, and for as long as it takes.
    pub(crate) async fn keep_provisioned(self: Arc<Self>) {
        loop {
            self.unprovisioned.notified().await;
            let mut backoff = Backoff::default();
            while let Err(error) = self.provision().await {
                tracing::debug!(%error, "limits could not be brought to their capacity yet");
                tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
            }
        }
    }

    async fn provision(&self) -> Result<(), LedgerError> {
        let ledger = &self.service.admission.ledger;
        ledger.ready().map_err(LedgerError::Unavailable)?;
        let live = self.live();
        let remembered: Vec<LimitKey> = self.owned.lock().await.state.decreasing().cloned().collect();
        let remembered = remembered.iter().filter_map(|key| self.resolve(key)).map(|limit| limit.want());
        let mut wants: Vec<Want> =
            live.registry.named().map(|limit| limit.want()).chain(remembered).collect();
        wants.sort_by_key(|want| want.account.id);
        wants.dedup_by_key(|want| want.account.id);
        if !wants.is_empty() {
            ledger.provision(wants).await?;
        }
        self.look_at_decreasing().await
    }

    fn resolve(&self, key: &LimitKey) -> Option<Arc<NamedLimit>> {
        self.live().registry.resolve(key.as_str(), &self.service.admission.accounts)
    }

    /// Forgets those that have arrived, and those that nothing defines any more.
    async fn look_at_decreasing(&self) -> Result<(), LedgerError> {
        let state = &mut self.owned.lock().await.state;
        let keys: Vec<LimitKey> = state.decreasing().cloned().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let limits: Vec<Option<Arc<NamedLimit>>> = keys.iter().map(|key| self.resolve(key)).collect();
        let wants = limits.iter().flatten().map(|limit| limit.want()).collect();
        let mut balances = self.service.admission.ledger.balances(wants).await?.into_iter();
        let mut next = state.clone();
        let mut different = false;
        for (key, limit) in keys.iter().zip(&limits) {
            let still = limit.as_ref().filter(|limit| {
                balances.next().is_some_and(|balance| balance.capacity > limit.spec.capacity)
            });
            different |= match still {
                Some(limit) => next.refresh(key, &limit.spec),
                None => next.settled(key),
            };
        }
        if different {
            self.remember(state, next).await;
        }
        Ok(())
    }

    /// Keeps what the ledger says about decreasing limits over a restart.
    pub(crate) async fn remember_capacity(
        self: Arc<Self>,
        mut events: mpsc::UnboundedReceiver<CapacityEvent>,
    ) {
        let mut gathered = Vec::new();
        while events.recv_many(&mut gathered, EVENTS_PER_WRITE).await > 0 {
            let mut owned = self.owned.lock().await;
            let mut next = owned.state.clone();
            let mut different = false;
            for event in gathered.drain(..) {
                let (CapacityEvent::Decreasing { key, .. } | CapacityEvent::Settled { key, .. }) = &event;
                let limit = self.resolve(key);
                different |= next.note(&event, limit.as_ref().map(|limit| &limit.spec));
            }
            if different {
                self.remember(&mut owned.state, next).await;
            }
            drop(owned);
            tokio::time::sleep(WRITE_INTERVAL).await;
        }
        // This ledger changes capacities at once, so there will never be an event.
        std::future::pending().await
    }

    /// Nobody waits for this: if it can't be saved, a restart begins the change anew when it is next asked for.
    async fn remember(&self, state: &mut State, next: State) {
        match saved(next.clone(), State::save_limits).await {
            Ok(next) => *state = next,
            Err(error) => {
                tracing::error!(%error, "the limits that are decreasing could not be saved");
                *state = next;
            }
        }
    }
}
