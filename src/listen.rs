//! Sockets: bound before anything is promised, with the address they really have, and one loop that accepts for every port.
//!
//! Refuses to know what is said on a connection.

pub mod descriptors;
pub(crate) mod port;
pub(crate) mod repoll;
pub(crate) mod seldom;
pub(crate) mod stream;
pub(crate) mod token;
pub(crate) mod transport;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, UnixListener};
use tokio_util::sync::CancellationToken;

use self::port::{Place, Port, SWEEP_INTERVAL};
use self::stream::Stream;
pub(crate) use self::transport::Transport;
use crate::config::settings::value::Listen;
use crate::{clock, tls};

/// After an accept that failed. Most often the process has no descriptor left: asking again at once would only keep a core busy.
const ACCEPT_AGAIN: Duration = Duration::from_millis(100);

/// A bound socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Tls(TcpListener, Arc<tls::ServerTls>),
    Unix(UnixListener),
}

impl Listener {
    pub async fn bind(address: &Listen) -> std::io::Result<Self> {
        match address {
            Listen::Tcp(address) => TcpListener::bind(address).await.map(Self::Tcp),
            Listen::Unix(path) => {
                remove_stale(path)?;
                UnixListener::bind(path).map(Self::Unix)
            }
        }
    }

    /// The same, with TLS. A Unix socket stays as it is: who may use it is decided by the rights of its file.
    pub(crate) fn secured(self, tls: Arc<tls::ServerTls>) -> Self {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => Self::Tls(listener, tls),
            Self::Unix(listener) => Self::Unix(listener),
        }
    }

    /// The address it really has: port 0 was only a wish.
    pub fn address(&self) -> std::io::Result<Listen> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => listener.local_addr().map(Listen::Tcp),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                Ok(Listen::Unix(address.as_pathname().map(PathBuf::from).unwrap_or_default()))
            }
        }
    }

    /// Accepts until `stop`, and hands each connection over once it has a place on the port.
    pub(crate) async fn serve(
        self,
        port: &Arc<Port>,
        stop: CancellationToken,
        connect: impl Fn(Transport, Place),
    ) {
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = sweep.tick() => port.close_unread(clock::monotonic_ms()),
                accepted = self.accept() => match accepted {
                    Ok(stream) => match stop.run_until_cancelled(port.admit()).await {
                        Some(place) => connect(self.transport(stream, port), place),
                        None => return,
                    },
                    Err(error) => {
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_AGAIN).await;
                    }
                },
            }
        }
    }

    async fn accept(&self) -> std::io::Result<Stream> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => {
                let (stream, _) = listener.accept().await?;
                // Small answers must not wait for an acknowledgement of the one before. A connection that is gone already fails later.
                let _ = stream.set_nodelay(true);
                Ok(Stream::tcp(stream))
            }
            Self::Unix(listener) => Ok(Stream::unix(listener.accept().await?.0)),
        }
    }

    /// What is spoken on a connection that has just got its place.
    fn transport(&self, stream: Stream, port: &Arc<Port>) -> Transport {
        match self {
            Self::Tls(_, tls) => Transport::tls(stream, tls.config(), Arc::clone(port)),
            Self::Tcp(_) | Self::Unix(_) => Transport::Plain(stream),
        }
    }
}

/// A socket file that nobody listens on is left over from a crash.
fn remove_stale(path: &std::path::Path) -> std::io::Result<()> {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::metadata(path).is_ok_and(|there| there.file_type().is_socket());
    if is_socket && std::os::unix::net::UnixStream::connect(path).is_err() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}
