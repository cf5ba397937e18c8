//! An accepted socket, of either kind, whose peer has to read: a write that makes no progress for a while ends the connection.
//!
//! Refuses to know what the bytes say.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;

/// A peer that reads nothing for so long is gone, or wants us to keep what it doesn't read.
const PROGRESS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(crate) struct Stream {
    socket: Socket,
    progress_within: Duration,
    /// While a write waits for the peer.
    stalled: Option<Pin<Box<Sleep>>>,
}

#[derive(Debug)]
enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub(crate) fn tcp(stream: TcpStream) -> Self {
        Self::new(Socket::Tcp(stream), PROGRESS_WITHIN)
    }

    pub(crate) fn unix(stream: UnixStream) -> Self {
        Self::new(Socket::Unix(stream), PROGRESS_WITHIN)
    }

    fn new(socket: Socket, progress_within: Duration) -> Self {
        Self { socket, progress_within, stalled: None }
    }

    /// Who is at the other end of a TCP connection.
    pub(crate) fn peer_address(&self) -> Option<SocketAddr> {
        match &self.socket {
            Socket::Tcp(stream) => stream.peer_addr().ok(),
            Socket::Unix(_) => None,
        }
    }

    /// Whether the peer has reset the connection.
    pub(crate) fn is_reset(&self) -> bool {
        let error = match &self.socket {
            Socket::Tcp(stream) => stream.take_error(),
            Socket::Unix(stream) => stream.take_error(),
        };
        !matches!(error, Ok(None))
    }

    /// What the socket says to a write, unless it has been waiting for too long.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        write: impl FnOnce(&mut Socket, &mut Context<'_>) -> Poll<Result<T>>,
    ) -> Poll<Result<T>> {
        let polled = write(&mut self.socket, context);
        if polled.is_ready() {
            self.stalled = None;
            return polled;
        }
        let within = self.progress_within;
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(within)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(Error::new(ErrorKind::TimedOut, "the peer reads nothing")))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        match &mut self.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        self.written(context, |socket, context| match socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
        })
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        self.written(context, |socket, context| match socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_write_vectored(context, slices),
            Socket::Unix(stream) => Pin::new(stream).poll_write_vectored(context, slices),
        })
    }

    fn is_write_vectored(&self) -> bool {
        match &self.socket {
            Socket::Tcp(stream) => stream.is_write_vectored(),
            Socket::Unix(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        match &mut self.socket {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const WITHIN: Duration = Duration::from_millis(200);

    fn pair() -> (UnixStream, Stream) {
        let (client, server) = UnixStream::pair().expect("a pair");
        (client, Stream::new(Socket::Unix(server), WITHIN))
    }

    #[tokio::test]
    async fn a_peer_that_reads_nothing_is_given_up() {
        let (_client, mut server) = pair();
        let ended = server.write_all(&vec![0; 16 << 20]).await;
        assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
    }

    #[tokio::test]
    async fn a_peer_that_reads_slowly_is_served() {
        let (mut client, mut server) = pair();
        let reading = tokio::spawn(async move {
            let mut buffer = vec![0; 256 << 10];
            let mut read = 0;
            while let Ok(count @ 1..) = client.read(&mut buffer).await {
                read += count;
                tokio::time::sleep(WITHIN / 10).await;
            }
            read
        });
        server.write_all(&vec![0; 8 << 20]).await.expect("it makes progress");
        drop(server);
        assert_eq!(reading.await.expect("it must end"), 8 << 20);
    }
}
