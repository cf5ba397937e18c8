//! Whether the peer of an HTTP/1 connection is still there when an answer that tells of a lease is written to it.
//!
//! A socket takes bytes for a peer that has closed it, so writing tells nothing. Reading does: before such an answer is
//! written, [`LooksFirst`] reads what there is, and a stream that has ended refuses the write. What it reads early is handed
//! out with the next read. HTTP/2 needs none of this: its connections read all there is before they write.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Read at most before an answer is written. More than that is a peer that is still there.
const READ_EARLY_BYTES: usize = 1024;

/// What the answers of a connection tell its stream.
#[derive(Debug, Default)]
pub(crate) struct Peer {
    must_be_there: AtomicBool,
}

impl Peer {
    /// The next write is worthless if nobody reads it.
    pub(crate) fn must_be_there(&self) {
        self.must_be_there.store(true, Ordering::Release);
    }
}

/// A stream that looks for the end of what it reads before it writes such an answer.
#[derive(Debug)]
pub(crate) struct LooksFirst<S> {
    stream: S,
    peer: Arc<Peer>,
    /// What was read early, and how much of it was handed out.
    early: Vec<u8>,
    handed_out: usize,
}

impl<S: AsyncRead + Unpin> LooksFirst<S> {
    pub(crate) fn new(stream: S, peer: Arc<Peer>) -> Self {
        Self { stream, peer, early: Vec::new(), handed_out: 0 }
    }

    fn look(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if !self.peer.must_be_there.swap(false, Ordering::AcqRel) || self.handed_out < self.early.len() {
            return Ok(());
        }
        let mut bytes = [0; READ_EARLY_BYTES];
        let mut read = ReadBuf::new(&mut bytes);
        match Pin::new(&mut self.stream).poll_read(cx, &mut read) {
            Poll::Pending => Ok(()),
            Poll::Ready(Ok(())) if read.filled().is_empty() => Err(io::ErrorKind::BrokenPipe.into()),
            Poll::Ready(Ok(())) => {
                (self.early, self.handed_out) = (read.filled().to_vec(), 0);
                Ok(())
            }
            Poll::Ready(Err(error)) => Err(error),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for LooksFirst<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let early = &this.early[this.handed_out..];
        if early.is_empty() {
            return Pin::new(&mut this.stream).poll_read(cx, out);
        }
        let count = early.len().min(out.remaining());
        out.put_slice(&early[..count]);
        this.handed_out += count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for LooksFirst<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.look(cx)?;
        Pin::new(&mut this.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.look(cx)?;
        Pin::new(&mut this.stream).poll_write_vectored(cx, parts)
    }

    /// Also where the stream does not: then hyper keeps an answer whole until it is written, and knows what was not.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
