//! The bytes of a connection: those of its socket, or those that TLS makes of them.
//!
//! The handshake is the first thing that reading or writing does, so that it happens in the connection's own task and place,
//! and ends with them. Refuses to know what the bytes say.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::{FallibleAccept, TlsStream};

use super::port::Port;
use super::stream::Stream;

/// Two round trips and a signature. A peer that needs longer is in no state to be served.
const HANDSHAKE_WITHIN: Duration = Duration::from_secs(10);

/// How long a peer that was refused may take to read why. A socket that is closed while something is on its way to it is reset,
/// and many a client then reports the reset and not the reason.
const REFUSED_WITHIN: Duration = Duration::from_millis(500);

/// How many bytes it may send meanwhile: more than any client sends before it hears the first answer.
const REFUSED_BYTES_MAX: usize = 64 << 10;

#[derive(Debug)]
pub(crate) enum Transport {
    Plain(Stream),
    Handshake(Box<Handshake>),
    Tls(Box<TlsStream<Stream>>),
    /// The handshake failed, and the peer has been told.
    Refused(Box<Refused>),
    Failed,
}

/// A connection whose TLS has not begun yet.
pub(crate) struct Handshake {
    peer: Option<SocketAddr>,
    accept: FallibleAccept<Stream>,
    deadline: Pin<Box<Sleep>>,
    /// Counts a failure.
    port: Arc<Port>,
}

/// A connection that only waits for its peer to read why.
#[derive(Debug)]
pub(crate) struct Refused {
    error: Option<Error>,
    /// Absent if there is nothing to tell the peer.
    stream: Option<Stream>,
    deadline: Pin<Box<Sleep>>,
    is_shut: bool,
    heard_bytes: usize,
}

impl Transport {
    pub(super) fn tls(stream: Stream, config: Arc<ServerConfig>, port: Arc<Port>) -> Self {
        Self::within(HANDSHAKE_WITHIN, stream, config, port)
    }

    fn within(within: Duration, stream: Stream, config: Arc<ServerConfig>, port: Arc<Port>) -> Self {
        let peer = stream.peer_address();
        let accept = TlsAcceptor::from(config).accept(stream).into_fallible();
        let deadline = Box::pin(tokio::time::sleep(within));
        Self::Handshake(Box::new(Handshake { peer, accept, deadline, port }))
    }

    /// Who is at the other end, if that is known.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Plain(stream) => stream.peer_address(),
            Self::Tls(stream) => stream.get_ref().0.peer_address(),
            Self::Handshake(handshake) => handshake.peer,
            Self::Refused(_) | Self::Failed => None,
        }
    }

    /// Whether the peer has reset the connection.
    pub(crate) fn is_reset(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_reset(),
            Self::Tls(stream) => stream.get_ref().0.is_reset(),
            Self::Handshake(_) | Self::Refused(_) | Self::Failed => true,
        }
    }

    /// The connection, once the handshake is done.
    #[inline]
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<Result<Open<'_>>> {
        if !matches!(self, Self::Plain(_) | Self::Tls(_)) {
            ready!(self.poll_handshake(context))?;
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(Open::Plain(Pin::new(stream))),
            Self::Tls(stream) => Ok(Open::Tls(Pin::new(stream))),
            Self::Handshake(_) | Self::Refused(_) | Self::Failed => Err(ErrorKind::NotConnected.into()),
        })
    }

    #[cold]
    fn poll_handshake(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        if let Self::Handshake(handshake) = self {
            *self = match ready!(handshake.poll(context)) {
                Ok(stream) => Self::Tls(Box::new(stream)),
                Err(refused) => Self::Refused(Box::new(refused)),
            };
        }
        if let Self::Refused(refused) = self {
            let error = ready!(refused.poll(context));
            *self = Self::Failed;
            return Poll::Ready(Err(error));
        }
        Poll::Ready(Ok(()))
    }
}

impl Handshake {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<TlsStream<Stream>, Refused>> {
        let (error, stream) = match Pin::new(&mut self.accept).poll(context) {
            Poll::Ready(Ok(stream)) => return Poll::Ready(Ok(stream)),
            Poll::Ready(Err((error, stream))) => (error, Some(stream)),
            Poll::Pending => {
                ready!(self.deadline.as_mut().poll(context));
                (Error::new(ErrorKind::TimedOut, "no TLS handshake"), None)
            }
        };
        self.port.handshake_failed();
        tracing::debug!(%error, "a TLS handshake failed");
        let deadline = Box::pin(tokio::time::sleep(REFUSED_WITHIN));
        Poll::Ready(Err(Refused { error: Some(error), stream, deadline, is_shut: false, heard_bytes: 0 }))
    }
}

impl Refused {
    /// Why it was refused, once its peer has ended the connection too, or its time is over.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Error> {
        if self.deadline.as_mut().poll(context).is_pending()
            && let Some(stream) = &mut self.stream
        {
            let mut stream = Pin::new(stream);
            if !self.is_shut {
                // A peer that is gone already needs no goodbye.
                let _ = ready!(stream.as_mut().poll_shutdown(context));
                self.is_shut = true;
            }
            while self.heard_bytes < REFUSED_BYTES_MAX {
                let mut space = [0; 4096];
                let mut heard = ReadBuf::new(&mut space);
                let read = ready!(stream.as_mut().poll_read(context, &mut heard));
                if read.is_err() || heard.filled().is_empty() {
                    break;
                }
                self.heard_bytes += heard.filled().len();
            }
        }
        Poll::Ready(self.error.take().unwrap_or_else(|| ErrorKind::NotConnected.into()))
    }
}

impl std::fmt::Debug for Handshake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Handshake(…)")
    }
}

/// A connection that bytes can go through.
enum Open<'t> {
    Plain(Pin<&'t mut Stream>),
    Tls(Pin<&'t mut TlsStream<Stream>>),
}

impl AsyncRead for Transport {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match ready!(self.poll_open(context))? {
            Open::Plain(stream) => stream.poll_read(context, buffer),
            Open::Tls(stream) => match ready!(stream.poll_read(context, buffer)) {
                // Many clients don't say goodbye. HTTP has lengths of its own, so that nothing can be cut off unseen.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
                read => Poll::Ready(read),
            },
        }
    }
}

impl AsyncWrite for Transport {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        match ready!(self.poll_open(context))? {
            Open::Plain(stream) => stream.poll_write(context, bytes),
            Open::Tls(stream) => stream.poll_write(context, bytes),
        }
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        match ready!(self.poll_open(context))? {
            Open::Plain(stream) => stream.poll_write_vectored(context, slices),
            Open::Tls(stream) => stream.poll_write_vectored(context, slices),
        }
    }

    /// This is asked before the handshake is done. The answer is the same then as afterwards.
    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Handshake(_) | Self::Tls(_) | Self::Refused(_) | Self::Failed => true,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match ready!(self.poll_open(context))? {
            Open::Plain(stream) => stream.poll_flush(context),
            Open::Tls(stream) => stream.poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream.as_mut()).poll_shutdown(context),
            // Nothing was sent that has to arrive.
            Self::Handshake(_) | Self::Refused(_) | Self::Failed => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    use super::*;
    use crate::listen::port::Bounds;
    use crate::telemetry::Metrics;
    use crate::tls::tests::Authority;
    use crate::tls::{Alpn, Certificates};

    const WITHIN: Duration = Duration::from_millis(200);

    /// The kind of a record that says why.
    const ALERT: u8 = 21;

    /// What becomes of a connection whose peer says this and then waits.
    async fn after(said: &[u8]) -> (Error, String) {
        let metrics = Arc::new(Metrics::default());
        let bounds = Bounds { connections_max: 1, bytes_max: 0, connection_bytes_max: 0 };
        let port = Port::new(bounds, metrics.port("grpc"));
        let authority = Authority::new();
        let tls = Certificates::new(Arc::clone(&metrics));
        let tls = tls.server(&authority.server("server", None), Alpn::Http2).unwrap();
        let (mut client, server) = UnixStream::pair().unwrap();
        client.write_all(said).await.unwrap();
        let mut server = Transport::within(WITHIN, Stream::unix(server), tls.config(), port);
        let error = server.read_u8().await.unwrap_err();
        assert!(server.write_u8(0).await.is_err(), "nothing goes through it any more");
        server.shutdown().await.unwrap();
        drop(server);
        let mut heard = Vec::new();
        client.read_to_end(&mut heard).await.expect("it must not be reset");
        let is_told = heard.first() == Some(&ALERT);
        assert_eq!(is_told, error.kind() == ErrorKind::InvalidData, "{heard:?}");
        (error, metrics.encode().unwrap())
    }

    #[tokio::test]
    async fn who_does_not_get_through_the_handshake_is_closed_and_counted() {
        let long = [&b"\x16\x03\x01\xff\xff"[..], &[0; 5000]].concat();
        for (said, expected) in [
            (&b""[..], ErrorKind::TimedOut),
            (b"\x16\x03\x01\x02\x00\x01", ErrorKind::TimedOut),
            (b"GET / HTTP/1.1\r\n\r\n", ErrorKind::InvalidData),
            (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", ErrorKind::InvalidData),
            (&long, ErrorKind::InvalidData),
        ] {
            let (error, metrics) = after(said).await;
            assert_eq!(error.kind(), expected, "{error}");
            let line = "sluice_connections_closed_total{port=\"grpc\",reason=\"tls_handshake\"} 1\n";
            assert!(metrics.contains(line), "{metrics}");
        }
    }
}
