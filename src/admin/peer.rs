//! Whether the peer of an HTTP/1 connection has read the answers that tell of leases.
//!
//! A socket accepts bytes even if its peer has closed it, so a write that succeeded does not mean that the answer was read. The
//! end of the connection says more. If a peer closes the connection with something unread, or gets something after it has
//! closed, its kernel resets the connection. If it has read everything, the connection just ends. So an answer counts as read
//! when the peer asks for something else, ends the connection, or lets a second pass. If the connection is reset before
//! that, the leases of the answer are given back.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

use crate::api::delivery::TakenLeases;
use crate::listen::Transport;

/// How long a reset may take from there to here when the end of the connection has come already.
const RESET_WITHIN: Duration = Duration::from_millis(100);

/// A peer that has not reset the connection by then has read its answer.
const UNREAD_AT_MOST: Duration = Duration::from_secs(1);

/// The stream of a connection, and the leases of answers that it has taken and that its peer may not have read.
#[derive(Debug)]
pub(crate) struct PeerStream {
    stream: Transport,
    taken: Arc<TakenLeases>,
    /// The peer asks for nothing else: then its answers are read.
    idle: Option<Pin<Box<Sleep>>>,
    /// The peer has ended the connection: until then a reset may come.
    ended: Option<Pin<Box<Sleep>>>,
}

impl PeerStream {
    pub(crate) fn new(stream: Transport, taken: Arc<TakenLeases>) -> Self {
        Self { stream, taken, idle: None, ended: None }
    }

    /// The connection ends.
    fn end(&self) {
        if self.stream.is_reset() {
            self.taken.are_lost();
        } else {
            self.taken.were_read();
        }
    }
}

impl Drop for PeerStream {
    fn drop(&mut self) {
        self.end();
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(ended) = &mut this.ended {
            ready!(ended.as_mut().poll(cx));
            this.ended = None;
            this.end();
            return Poll::Ready(Ok(()));
        }
        let before = out.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(cx, out);
        if this.taken.is_empty() {
            return polled;
        }
        match polled {
            Poll::Pending => {
                let idle = this.idle.get_or_insert_with(|| Box::pin(tokio::time::sleep(UNREAD_AT_MOST)));
                if idle.as_mut().poll(cx).is_ready() {
                    this.idle = None;
                    this.taken.were_read();
                }
                return Poll::Pending;
            }
            Poll::Ready(Ok(())) if out.filled().len() > before => this.taken.were_read(),
            Poll::Ready(Ok(())) => {
                this.ended = Some(Box::pin(tokio::time::sleep(RESET_WITHIN)));
                return Pin::new(this).poll_read(cx, out);
            }
            Poll::Ready(Err(_)) => this.taken.are_lost(),
        }
        this.idle = None;
        polled
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        Pin::new(&mut this.stream).poll_write(cx, bytes).map_err(|error| {
            this.taken.are_lost();
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
            this.taken.are_lost();
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
