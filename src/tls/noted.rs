//! A connection that remembers what broke it.
//!
//! In TLS 1.3 a server refuses a client's certificate after the handshake, as the client sees it. By then HTTP/2 has the
//! connection, and tells whoever asks no more than that it is closed. Refuses to know what is said inside.

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What broke the last connection, in the words of TLS.
#[derive(Debug, Clone, Default)]
pub(crate) struct Broken(Arc<Mutex<Option<String>>>);

impl Broken {
    pub(crate) fn why(&self) -> Option<String> {
        self.0.lock().clone()
    }
}

#[derive(Debug)]
pub struct Noted<C> {
    stream: C,
    broken: Broken,
}

impl<C> Noted<C> {
    pub(super) fn new(stream: C, broken: Broken) -> Self {
        Self { stream, broken }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Noted<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &polled {
            *self.broken.0.lock() = Some(format!("TLS: {error}"));
        }
        polled
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Noted<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
