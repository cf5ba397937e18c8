//! One session with a TigerBeetle cluster that can be replaced by a new one.
//!
//! The client library waits for ever, and what is handed to it after an eviction is swallowed without an answer. So every
//! session has a number, and every call ends when its session is replaced, with [`SessionError::Renewed`]. A call that
//! ended so may have been applied, or may be later.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::SystemTime;

use parking_lot::RwLock;
use tb::error::{
    CreateAccountErrorKind, CreateAccountsError, CreateTransferErrorKind, CreateTransfersError, SendError,
    SendErrorKind,
};
use tigerbeetle_unofficial as tb;
use tokio::sync::watch;

use super::{Cluster, addresses};
use crate::clock;

/// Events of one request in production mode. A single replica in development mode takes fewer.
pub(super) const EVENTS_MAX: usize = 8189;
pub(super) const EVENTS_MAX_DEVELOPMENT: usize = 253;

#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum SessionError {
    #[error("could not resolve {address}: {reason}")]
    Resolve { address: String, reason: String },
    #[error("the addresses of the cluster are {count} replicas; TigerBeetle's client takes {most} at most")]
    TooManyAddresses { count: usize, most: usize },
    #[error("the client library did not start: {0}")]
    Start(String),
    #[error(
        "no answer from cluster {cluster} at {addresses} yet (is it running, is the cluster id right, does it have a free connection?)"
    )]
    NoAnswer { cluster: u128, addresses: String },
    #[error("this cluster has no connection left (32, two per Sluice): use hubs")]
    NoConnection,
    #[error("the session was evicted")]
    Evicted,
    #[error("the session was replaced by a new one")]
    Renewed,
    #[error(
        "this program was built with TigerBeetle's client 0.16.78 and the cluster runs another release: {0}"
    )]
    Release(String),
    #[error("TigerBeetle refused the request: {0}")]
    Refused(String),
    #[error("a task of the ledger failed and is started again")]
    TaskFailed,
}

impl SessionError {
    /// The session has gone, and nothing is known of what it was asked. A new one is there.
    pub(super) fn is_lost(&self) -> bool {
        matches!(self, Self::Evicted | Self::Renewed)
    }
}

/// A client that can be replaced.
pub(super) struct Session {
    cluster: Cluster,
    connected: RwLock<Option<Connected>>,
    /// The number of the session that is in use, or that the next call starts.
    number: watch::Sender<u64>,
    answered_at_ms: AtomicU64,
    /// The number of the session that last answered, and one more; 0 if none has.
    answered: AtomicU64,
}

/// A client, the addresses it was given, and the number of its session.
#[derive(Clone)]
struct Connected {
    client: Arc<Client>,
    addresses: Vec<SocketAddr>,
    number: u64,
}

/// Closes itself on another thread, because that blocks for some milliseconds.
struct Client(Option<tb::Client>);

impl Drop for Client {
    fn drop(&mut self) {
        let client = self.0.take();
        // Without a runtime nobody is held up.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn_blocking(move || drop(client));
        }
    }
}

impl Client {
    fn get(&self) -> &tb::Client {
        self.0.as_ref().expect("a client must be there until it is dropped")
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({:?})", self.cluster)
    }
}

type Failures<K> = Vec<(usize, K)>;

/// Why the client library has no results.
enum CallError {
    Send(SendErrorKind),
    Other(String),
}

impl From<SendError> for CallError {
    fn from(error: SendError) -> Self {
        Self::Send(error.kind())
    }
}

impl Session {
    pub(super) fn new(cluster: Cluster) -> Self {
        let number = watch::Sender::new(0);
        Self {
            cluster,
            connected: RwLock::new(None),
            number,
            answered_at_ms: AtomicU64::new(0),
            answered: AtomicU64::new(0),
        }
    }

    pub(super) fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub(super) fn no_answer(&self) -> SessionError {
        SessionError::NoAnswer { cluster: self.cluster.id, addresses: self.cluster.addresses.join(",") }
    }

    /// Rises with every new session.
    pub(super) fn number(&self) -> u64 {
        *self.number.borrow()
    }

    /// Returns when the session with this number has been replaced.
    pub(super) async fn replaced(&self, number: u64) {
        // The sender is ours, so it is there.
        drop(self.number.subscribe().wait_for(|now| *now != number).await);
    }

    /// When the cluster last answered anything.
    pub(super) fn answered_at_ms(&self) -> u64 {
        self.answered_at_ms.load(Ordering::Relaxed)
    }

    /// Whether the session in use has answered anything.
    pub(super) fn has_answered(&self) -> bool {
        self.answered.load(Ordering::Relaxed) == self.number() + 1
    }

    /// Where the client was told to look; nothing if there is none.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        self.connected.read().as_ref().map(|connected| connected.addresses.clone()).unwrap_or_default()
    }

    async fn connected(&self) -> Result<Connected, SessionError> {
        if let Some(connected) = self.connected.read().as_ref() {
            return Ok(connected.clone());
        }
        let addresses = addresses::resolve(&self.cluster).await?;
        let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let client = tb::Client::new(self.cluster.id, text.join(","));
        let client = client.map_err(|error| SessionError::Start(error.to_string()))?;
        let client = Arc::new(Client(Some(client)));
        let mut there = self.connected.write();
        // Somebody else may have been faster.
        Ok(there.get_or_insert_with(|| Connected { client, addresses, number: self.number() }).clone())
    }

    /// Gives the session with this number up; the next call starts a new one. Calls that are under way end.
    pub(super) fn renew(&self, number: u64) {
        let old = {
            let mut connected = self.connected.write();
            let is_current = self.number.send_if_modified(|now| {
                let is_current = *now == number;
                *now += u64::from(is_current);
                is_current
            });
            if is_current { connected.take() } else { None }
        };
        drop(old);
    }

    /// Sends something and waits for its results, or until the session is replaced.
    async fn call<T, F>(&self, send: impl FnOnce(Arc<Client>) -> F) -> Result<T, SessionError>
    where
        F: Future<Output = Result<T, CallError>>,
    {
        let Connected { client, number, .. } = self.connected().await?;
        let answer = tokio::select! {
            biased;
            answer = send(client) => answer,
            () = self.replaced(number) => return Err(SessionError::Renewed),
        };
        match answer {
            Ok(answer) => {
                self.answered.store(number + 1, Ordering::Relaxed);
                self.answered_at_ms.store(clock::monotonic_ms(), Ordering::Relaxed);
                Ok(answer)
            }
            Err(CallError::Other(text)) => Err(SessionError::Refused(text)),
            Err(CallError::Send(kind)) => {
                let error = match kind {
                    SendErrorKind::ClientEvicted | SendErrorKind::ClientShutdown => SessionError::Evicted,
                    SendErrorKind::ClientReleaseTooLow | SendErrorKind::ClientReleaseTooHigh => {
                        SessionError::Release(format!("{kind:?}"))
                    }
                    // The client is as good as before.
                    other => return Err(SessionError::Refused(format!("{other:?}"))),
                };
                self.renew(number);
                Err(error)
            }
        }
    }

    /// The failures, in order; none means that everything was done.
    pub(super) async fn create_transfers(
        &self,
        transfers: Arc<[tb::Transfer]>,
    ) -> Result<Failures<CreateTransferErrorKind>, SessionError> {
        self.call(|client| async move {
            match client.get().create_transfers(transfers).await {
                Ok(()) => Ok(Vec::new()),
                Err(CreateTransfersError::Api(failures)) => {
                    let failures = failures.as_slice().iter();
                    Ok(failures.map(|failure| (failure.index() as usize, failure.kind())).collect())
                }
                Err(CreateTransfersError::Send(error)) => Err(error.into()),
                Err(other) => Err(CallError::Other(other.to_string())),
            }
        })
        .await
    }

    pub(super) async fn create_accounts(
        &self,
        accounts: Vec<tb::Account>,
    ) -> Result<Failures<CreateAccountErrorKind>, SessionError> {
        self.call(|client| async move {
            match client.get().create_accounts(accounts).await {
                Ok(()) => Ok(Vec::new()),
                Err(CreateAccountsError::Api(failures)) => {
                    let failures = failures.as_slice().iter();
                    Ok(failures.map(|failure| (failure.index() as usize, failure.kind())).collect())
                }
                Err(CreateAccountsError::Send(error)) => Err(error.into()),
                Err(other) => Err(CallError::Other(other.to_string())),
            }
        })
        .await
    }

    pub(super) async fn lookup_accounts(&self, ids: Vec<u128>) -> Result<Vec<tb::Account>, SessionError> {
        self.call(|client| async move { Ok(client.get().lookup_accounts(ids).await?) }).await
    }

    /// The transfers that there are of these.
    pub(super) async fn lookup_transfers(&self, ids: Vec<u128>) -> Result<Vec<tb::Transfer>, SessionError> {
        self.call(|client| async move { Ok(client.get().lookup_transfers(ids).await?) }).await
    }

    /// Transfers out of an account since a time, the oldest first.
    pub(super) async fn debits_since(
        &self,
        account: u128,
        since: SystemTime,
        most: u32,
    ) -> Result<Vec<tb::Transfer>, SessionError> {
        let filter = tb::account::Filter::new(account, most)
            .with_flags(tb::account::FilterFlags::DEBITS)
            .with_timestamp_min(since);
        self.call(|client| async move { Ok(client.get().get_account_transfers(Box::new(filter)).await?) })
            .await
    }

    /// How many events a request may have. One transfer more than a development server takes tells which mode it is in;
    /// they lack their accounts, so nothing is done and nothing is remembered of them.
    pub(super) async fn events_max(&self) -> Result<usize, SessionError> {
        self.call(|client| async move {
            let probe = vec![tb::Transfer::new(1); EVENTS_MAX_DEVELOPMENT + 1];
            match client.get().create_transfers(probe).await {
                Err(CreateTransfersError::Send(error))
                    if matches!(error.kind(), SendErrorKind::TooMuchData) =>
                {
                    Ok(EVENTS_MAX_DEVELOPMENT)
                }
                Err(CreateTransfersError::Send(error)) => Err(error.into()),
                _ => Ok(EVENTS_MAX),
            }
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// What is handed to the library after an eviction is never answered.
    #[tokio::test]
    async fn a_call_that_is_swallowed_ends_with_its_session() {
        let session = Session::new(Cluster { id: 0, addresses: vec!["127.0.0.1:1".to_owned()] });
        let swallowed = |_| std::future::pending::<Result<(), CallError>>();
        let renewing = async {
            while session.addresses().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            session.renew(0);
        };
        let both = async { tokio::join!(session.call(swallowed), renewing).0 };
        let ended = tokio::time::timeout(Duration::from_secs(10), both).await.expect("it must end");
        assert!(matches!(ended, Err(SessionError::Renewed)), "{ended:?}");
        assert_eq!(session.number(), 1);
    }
}
