//! Whether the peer of an HTTP/1 connection has read the answers that tell of leases.
//!
//! A socket takes bytes also for a peer that has closed it, so that an answer was written says little. What the kernels
//! say to each other says more: a peer that closes with something unread, or gets something after it has closed, resets the
//! connection; one that has read it all only ends it. So the leases of an answer are sent when the peer asks for something
//! else or ends the connection, and are given back when the connection is reset. HTTP/2 needs none of this: there a caller
//! that leaves resets its stream, and what was queued for it is dropped.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Sleep;

use crate::api::delivery::TakenLeases;
use crate::clock;

/// How long a reset may take from there to here when the end of the connection has come already.
const RESET_WITHIN: Duration = Duration::from_millis(100);

/// A connection that is reset after this long was in use: its peer has read the last answer, and closes hard.
const UNREAD_AT_MOST_MS: u64 = 1000;

/// A stream that knows when it was reset.
pub(crate) trait MayBeReset {
    fn is_reset(&self) -> bool;
}

impl MayBeReset for TcpStream {
    fn is_reset(&self) -> bool {
        !matches!(self.take_error(), Ok(None))
    }
}

impl MayBeReset for UnixStream {
    fn is_reset(&self) -> bool {
        !matches!(self.take_error(), Ok(None))
    }
}

/// The stream of a connection, and the leases of answers that it has taken and that its peer may not have read.
#[derive(Debug)]
pub(crate) struct PeerStream<S: MayBeReset> {
    stream: S,
    taken: Arc<TakenLeases>,
    /// The peer has ended the connection: until then a reset may come.
    ended: Option<Pin<Box<Sleep>>>,
}

impl<S: MayBeReset> PeerStream<S> {
    pub(crate) fn new(stream: S, taken: Arc<TakenLeases>) -> Self {
        Self { stream, taken, ended: None }
    }

    fn was_reset(&self) {
        self.taken.was_reset(clock::monotonic_ms().saturating_sub(UNREAD_AT_MOST_MS));
    }
}

impl<S: MayBeReset> Drop for PeerStream<S> {
    fn drop(&mut self) {
        if self.stream.is_reset() {
            self.was_reset();
        }
        self.taken.were_read();
    }
}

impl<S: AsyncRead + MayBeReset + Unpin> AsyncRead for PeerStream<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(ended) = &mut this.ended {
            ready!(ended.as_mut().poll(cx));
            if this.stream.is_reset() {
                this.was_reset();
            }
            this.taken.were_read();
            this.ended = None;
            return Poll::Ready(Ok(()));
        }
        let before = out.filled().len();
        match ready!(Pin::new(&mut this.stream).poll_read(cx, out)) {
            Ok(()) if this.taken.is_empty() => Poll::Ready(Ok(())),
            Ok(()) if out.filled().len() > before => {
                this.taken.were_read();
                Poll::Ready(Ok(()))
            }
            Ok(()) => {
                this.ended = Some(Box::pin(tokio::time::sleep(RESET_WITHIN)));
                Pin::new(this).poll_read(cx, out)
            }
            Err(error) => {
                this.was_reset();
                Poll::Ready(Err(error))
            }
        }
    }
}

impl<S: AsyncWrite + MayBeReset + Unpin> AsyncWrite for PeerStream<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        Pin::new(&mut this.stream).poll_write(cx, bytes).map_err(|error| {
            this.was_reset();
            error
        })
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        Pin::new(&mut this.stream).poll_write_vectored(cx, parts).map_err(|error| {
            this.was_reset();
            error
        })
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
