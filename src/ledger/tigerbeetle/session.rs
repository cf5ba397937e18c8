//! One session with a TigerBeetle cluster, with deadlines: the client library itself waits for ever.
//!
//! Host names are resolved here. A session that was evicted is dropped and made again: every later call on it would
//! hang. A call that ran into its deadline may still be applied.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use tb::error::{
    CreateAccountErrorKind, CreateAccountsError, CreateTransferErrorKind, CreateTransfersError, SendErrorKind,
};
use tigerbeetle_unofficial as tb;

use crate::ledger::options::Cluster;

/// In production mode; one with a single replica in development mode takes fewer.
pub const EVENTS_MAX: usize = 8189;
pub const EVENTS_MAX_DEVELOPMENT: usize = 253;

/// TigerBeetle's client takes no more addresses.
const ADDRESSES_MAX: usize = 6;

const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Debug, Clone, thiserror::Error)]
pub enum SessionError {
    #[error("could not resolve {address}: {reason}")]
    Resolve { address: String, reason: String },
    #[error("the client library did not start: {0}")]
    Start(String),
    #[error(
        "no answer from cluster {cluster} at {addresses} yet (is it running, is the cluster id right, does it have a free connection?)"
    )]
    NoAnswer { cluster: u128, addresses: String },
    #[error("the session was evicted")]
    Evicted,
    #[error(
        "this program was built with TigerBeetle's client 0.16.78 and the cluster runs another release: {0}"
    )]
    Release(String),
    #[error("TigerBeetle refused the request: {0}")]
    Refused(String),
}

/// A client that can be replaced.
pub struct Session {
    cluster: Cluster,
    client: RwLock<Option<Connected>>,
}

/// A client and the addresses it was given.
#[derive(Clone)]
struct Connected {
    client: Arc<tb::Client>,
    addresses: String,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.cluster)
    }
}

type Failures = Vec<(usize, CreateTransferErrorKind)>;

impl Session {
    pub fn new(cluster: Cluster) -> Self {
        Self { cluster, client: RwLock::new(None) }
    }

    pub fn no_answer(&self) -> SessionError {
        SessionError::NoAnswer { cluster: self.cluster.id, addresses: self.cluster.addresses.join(",") }
    }

    async fn client(&self) -> Result<Arc<tb::Client>, SessionError> {
        if let Some(connected) = self.client.read().as_ref() {
            return Ok(Arc::clone(&connected.client));
        }
        let addresses = self.resolve().await?;
        let client = tb::Client::new(self.cluster.id, &addresses);
        let client = Arc::new(client.map_err(|error| SessionError::Start(error.to_string()))?);
        let connected = Connected { client, addresses };
        Ok(Arc::clone(&self.client.write().get_or_insert(connected).client))
    }

    async fn resolve(&self) -> Result<String, SessionError> {
        let mut resolved = Vec::new();
        for address in self.cluster.addresses.iter().take(ADDRESSES_MAX) {
            resolved.push(resolve(address).await?);
        }
        Ok(resolved.join(","))
    }

    /// Whether the names lead elsewhere now. The client library never looks again.
    pub async fn has_moved(&self) -> bool {
        let Some(old) = self.client.read().as_ref().map(|connected| connected.addresses.clone()) else {
            return false;
        };
        tokio::time::timeout(RESOLVE_TIMEOUT, self.resolve())
            .await
            .is_ok_and(|new| new.is_ok_and(|new| new != old))
    }

    /// The next call starts a new session. Dropping a client blocks for some milliseconds, so it is done elsewhere.
    pub fn renew(&self) {
        if let Some(connected) = self.client.write().take() {
            tokio::task::spawn_blocking(move || drop(connected));
        }
    }

    fn failed(&self, kind: SendErrorKind) -> SessionError {
        match kind {
            SendErrorKind::ClientEvicted => {
                self.renew();
                SessionError::Evicted
            }
            SendErrorKind::ClientReleaseTooLow | SendErrorKind::ClientReleaseTooHigh => {
                self.renew();
                SessionError::Release(format!("{kind:?}"))
            }
            SendErrorKind::ClientShutdown => {
                self.renew();
                SessionError::Evicted
            }
            other => SessionError::Refused(format!("{other:?}")),
        }
    }

    /// The failures, in order; none means that everything was done.
    pub async fn create_transfers(&self, transfers: Vec<tb::Transfer>) -> Result<Failures, SessionError> {
        let client = self.client().await?;
        match client.create_transfers(transfers).await {
            Ok(()) => Ok(Vec::new()),
            Err(CreateTransfersError::Api(failures)) => Ok(failures
                .as_slice()
                .iter()
                .map(|failure| (failure.index() as usize, failure.kind()))
                .collect()),
            Err(CreateTransfersError::Send(error)) => Err(self.failed(error.kind())),
            Err(other) => Err(SessionError::Refused(other.to_string())),
        }
    }

    pub async fn create_accounts(
        &self,
        accounts: Vec<tb::Account>,
    ) -> Result<Vec<(usize, CreateAccountErrorKind)>, SessionError> {
        let client = self.client().await?;
        match client.create_accounts(accounts).await {
            Ok(()) => Ok(Vec::new()),
            Err(CreateAccountsError::Api(failures)) => Ok(failures
                .as_slice()
                .iter()
                .map(|failure| (failure.index() as usize, failure.kind()))
                .collect()),
            Err(CreateAccountsError::Send(error)) => Err(self.failed(error.kind())),
            Err(other) => Err(SessionError::Refused(other.to_string())),
        }
    }

    pub async fn lookup_accounts(&self, ids: Vec<u128>) -> Result<Vec<tb::Account>, SessionError> {
        let client = self.client().await?;
        client.lookup_accounts(ids).await.map_err(|error| self.failed(error.kind()))
    }

    /// Transfers out of an account since a time, the oldest first.
    pub async fn debits_since(
        &self,
        account: u128,
        since: SystemTime,
        most: u32,
    ) -> Result<Vec<tb::Transfer>, SessionError> {
        let client = self.client().await?;
        let filter = tb::account::Filter::new(account, most)
            .with_flags(tb::account::FilterFlags::DEBITS)
            .with_timestamp_min(since);
        client.get_account_transfers(Box::new(filter)).await.map_err(|error| self.failed(error.kind()))
    }

    /// How many events a request may have. One transfer more than a development server takes tells which mode it is in;
    /// they lack their accounts, so nothing is done and nothing is remembered of them.
    pub async fn events_max(&self) -> Result<usize, SessionError> {
        let client = self.client().await?;
        let probe = vec![tb::Transfer::new(1); EVENTS_MAX_DEVELOPMENT + 1];
        match client.create_transfers(probe).await {
            Err(CreateTransfersError::Send(error)) if matches!(error.kind(), SendErrorKind::TooMuchData) => {
                Ok(EVENTS_MAX_DEVELOPMENT)
            }
            Err(CreateTransfersError::Send(error)) => Err(self.failed(error.kind())),
            _ => Ok(EVENTS_MAX),
        }
    }
}

async fn resolve(address: &str) -> Result<String, SessionError> {
    let failed = |reason: String| SessionError::Resolve { address: address.to_owned(), reason };
    let mut found = tokio::net::lookup_host(address).await.map_err(|error| failed(error.to_string()))?;
    // The client library reads IPv4 and IPv6 literals; the first answer is the resolver's choice.
    found.next().map(|address| address.to_string()).ok_or_else(|| failed("no address".to_owned()))
}
