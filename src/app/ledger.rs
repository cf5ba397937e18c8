//! The ledger of a server: opened by its settings, and put below its layers.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tonic::metadata::AsciiMetadataValue;

use super::{StartError, token_of};
use crate::config::settings;
use crate::config::settings::secret::Secret;
use crate::config::settings::value::LedgerUri;
use crate::ledger::hub::{Hub, Options as HubOptions};
use crate::ledger::memory::Memory;
use crate::ledger::tigerbeetle::{Cluster, Options as TigerBeetleOptions, TigerBeetle};
use crate::ledger::{Backend, CapacityEvent, Failover, Lending, LiveLedger, Rotation, Slabs};
use crate::service::Service;
use crate::telemetry::Metrics;
use crate::tls;

/// What opening it needs.
pub(super) struct Opening<'a> {
    pub(super) ledger: &'a settings::Ledger,
    /// What hubs call this instance.
    pub(super) name: String,
    pub(super) hub_tls: Option<Arc<tls::ClientTls>>,
    pub(super) metrics: &'a Arc<Metrics>,
    pub(super) events: mpsc::UnboundedSender<CapacityEvent>,
}

impl Opening<'_> {
    /// The one that the settings name, or both while one replaces the other.
    pub(super) fn open(self) -> Result<Arc<Rotation<Backend>>, StartError> {
        let old = &self.ledger.uri;
        let rotation = match &self.ledger.successor {
            None => Rotation::one(self.backend(old)?),
            Some(new) => {
                let named = |uri: &LedgerUri| self.backend(uri).map(|backend| (backend, uri.to_string()));
                Rotation::both(named(old)?, named(new)?, self.timeout())
            }
        };
        Ok(Arc::new(rotation))
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(self.ledger.timeout_ms)
    }

    fn backend(&self, uri: &LedgerUri) -> Result<Backend, StartError> {
        let (timeout, queue_max, events) = (self.timeout(), self.ledger.queue_max, Some(self.events.clone()));
        match uri {
            LedgerUri::Memory => Ok(Backend::Memory(Memory::default())),
            LedgerUri::TigerBeetle { cluster, addresses } => {
                let options = TigerBeetleOptions {
                    cluster: Cluster { id: *cluster, addresses: addresses.clone() },
                    transfer_ids: self.ledger.transfer_ids,
                    timeout,
                    queue_max,
                    sums: true,
                    events,
                };
                let started = TigerBeetle::start(options, Arc::clone(self.metrics));
                started.map(Backend::TigerBeetle).map_err(StartError::Ledger)
            }
            LedgerUri::Hub { addresses } => {
                let token = token_of(self.ledger.token.as_ref(), self.ledger.token_file.as_deref())?;
                let options = HubOptions {
                    addresses: addresses.clone(),
                    name: self.name.clone(),
                    tls: self.hub_tls.clone(),
                    authorization: token.as_ref().map(authorization).transpose()?,
                    timeout,
                    queue_max,
                    events,
                };
                Ok(Backend::Hub(Hub::start(options, Arc::clone(self.metrics))))
            }
        }
    }
}

/// The header that carries a token, which is never shown.
fn authorization(token: &Secret) -> Result<AsciiMetadataValue, StartError> {
    let text = format!("Bearer {}", token.expose());
    let unfit = |_| StartError::Token("the token for hubs must be printable ASCII".to_owned());
    let mut value: AsciiMetadataValue = text.parse().map_err(unfit)?;
    value.set_sensitive(true);
    Ok(value)
}

/// What a hub lends of the same ledger. What it gives back is handed on to those who wait in line.
pub(super) fn lending(
    ledger: &Arc<Rotation<Backend>>,
    settings: &settings::Ledger,
    service: &Arc<Service>,
) -> Lending<Arc<Rotation<Backend>>> {
    let timeout = Duration::from_millis(settings.timeout_ms);
    let (waiting, metrics) = (Arc::clone(service), Arc::clone(&service.metrics));
    let gave_back = move |limit| waiting.queue.freed(std::iter::once(limit));
    Lending::start(Arc::clone(ledger), has_slabs(settings), timeout, metrics, gave_back)
}

fn has_slabs(settings: &settings::Ledger) -> bool {
    settings.slabs == settings::value::Slabs::On
}

/// The ledger with its layers.
pub(crate) fn layered(
    ledger: Arc<Rotation<Backend>>,
    settings: &settings::Ledger,
    metrics: &Arc<Metrics>,
) -> LiveLedger {
    let timeout = Duration::from_millis(settings.timeout_ms);
    let slabs = Slabs::start(ledger, has_slabs(settings), timeout, Arc::clone(metrics));
    Failover::new(slabs, settings.on_failure, settings.local_share.get(), Arc::clone(metrics))
}
