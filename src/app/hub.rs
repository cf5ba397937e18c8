//! The hub port, if this instance has one, and the name that sidecars know it by. It is bound together with the other ports, and
//! closed before the ledger is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::ledger::lending;
use super::{StartError, bind, token_of};
use crate::config::settings;
use crate::config::settings::secret::check_hub_exposure;
use crate::config::settings::value::Listen;
use crate::hub::{self, Hub};
use crate::ledger::{Backend, Rotation};
use crate::listen::Listener;
use crate::listen::token::Token;
use crate::service::Service;
use crate::tasks::Tasks;
use crate::tls;

/// The port, before it serves.
#[derive(Debug)]
pub(super) struct HubSocket {
    listener: Listener,
    address: SocketAddr,
    token: Option<Token>,
}

/// The port while it serves.
#[derive(Debug)]
pub(super) struct HubPort {
    pub(super) address: SocketAddr,
    hub: Arc<Hub>,
    stop: CancellationToken,
}

impl HubSocket {
    /// `None` if this instance is no hub.
    pub(super) async fn bind(
        settings: &settings::Hub,
        tls: Option<Arc<tls::ServerTls>>,
    ) -> Result<Option<Self>, StartError> {
        let Some(wish) = settings.listen else { return Ok(None) };
        let token = token_of(settings.token.as_ref(), settings.token_file.as_deref())?;
        let knows_its_clients = settings.tls.as_ref().is_some_and(|tls| tls.client_ca_file.is_some());
        check_hub_exposure(wish, token.is_some() || knows_its_clients).map_err(StartError::Token)?;
        let listener = bind("hub", &Listen::Tcp(wish), tls).await?;
        let address = match listener.address() {
            Ok(Listen::Tcp(address)) => address,
            Ok(Listen::Unix(_)) | Err(_) => wish,
        };
        Ok(Some(Self { listener, address, token: token.as_ref().map(Token::new) }))
    }

    pub(super) fn serve(
        self,
        ledger: Arc<Rotation<Backend>>,
        settings: &settings::Ledger,
        service: Arc<Service>,
        connections_max: usize,
        tasks: &Tasks,
    ) -> HubPort {
        let Self { listener, address, token } = self;
        let lending = lending(&ledger, settings, &service);
        let port = hub::port(connections_max, &service.metrics);
        let hub = Hub::new(ledger, lending, service, instance_name(&address.port().to_string()), token);
        let stop = CancellationToken::new();
        let serving = hub::serve(listener, port, Arc::clone(&hub), stop.clone());
        tasks.run_until("the hub port", stop.clone(), async {
            serving.await;
            Ok::<(), String>(())
        });
        HubPort { address, hub, stop }
    }
}

impl HubPort {
    pub(super) fn hub(&self) -> Arc<Hub> {
        Arc::clone(&self.hub)
    }

    /// Sidecars are sent elsewhere, what they asked is answered, and what was lent and not spent is given back.
    pub(super) async fn leave(&self, within: Duration) {
        self.hub.leave(within).await;
        self.stop.cancel();
    }
}

/// What others call this instance: its machine, and where on it.
pub(super) fn instance_name(place: &str) -> String {
    let machine = rustix::system::uname();
    format!("{}:{place}", machine.nodename().to_string_lossy())
}
