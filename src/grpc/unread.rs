//! Whether callers on an HTTP/2 connection have read the answers that tell of leases.
//!
//! A caller that leaves resets its stream. An answer that is queued for it then is dropped. One that was written already
//! crosses the reset on the wire, and the HTTP/2 library, which has forgotten the stream, says nothing of it. So the frames of
//! both directions are looked at here. An answer that tells of leases is remembered with its stream for a second after it was
//! written, and a reset of that stream gives its leases back.
//!
//! Which stream an answer was written to is found by counting: the library takes the bytes of all answers in the order in
//! which it writes them, so the last byte of an answer has the same place among those and among the bytes of all DATA frames.
//!
//! Refuses to know what frames say beyond their kind and stream.

mod answers;
mod frames;

use std::io::{IoSlice, Result};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use self::answers::{Answers, News};
use self::frames::{FramePart, Frames};
use crate::api::delivery::{Taker, Unsent};
use crate::clock;
use crate::service::unsent::UnsentLease;

/// The answers of one connection that tell of leases.
#[derive(Debug, Default)]
pub(crate) struct Unread(Answers<UnsentLease>);

impl Unread {
    fn saw(&self, seen: FramePart) {
        hear(match seen {
            FramePart::Data { stream, bytes } => self.0.wrote(stream, bytes, clock::monotonic_ms),
            FramePart::Reset { stream } => self.0.reset(stream, clock::monotonic_ms),
        });
    }
}

impl Taker for Unread {
    fn take(&self, bytes: usize, mut unsent: Unsent) {
        unsent.retain_mut(UnsentLease::taken);
        hear(self.0.take(bytes, unsent, clock::monotonic_ms));
    }
}

#[inline]
fn hear(news: Option<News<UnsentLease>>) {
    if let Some(News { sent, lost }) = news {
        sent.into_iter().for_each(UnsentLease::sent);
        drop(lost);
    }
}

/// The stream of a connection whose frames are looked at.
#[derive(Debug)]
pub(super) struct Watched<C> {
    stream: C,
    unread: Arc<Unread>,
    incoming: Frames,
    outgoing: Frames,
}

impl<C> Watched<C> {
    pub(super) fn new(stream: C, unread: Arc<Unread>) -> Self {
        Self { stream, unread, incoming: Frames::of_a_client(), outgoing: Frames::of_a_server() }
    }

    fn wrote(&mut self, bytes: &[u8]) {
        let unread = &self.unread;
        self.outgoing.look_at(bytes, |seen| {
            if matches!(seen, FramePart::Data { .. }) {
                unread.saw(seen);
            }
        });
    }
}

impl<C> Drop for Watched<C> {
    fn drop(&mut self) {
        hear(self.unread.0.end());
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Watched<C> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.stream).poll_read(context, buffer);
        let unread = &this.unread;
        this.incoming.look_at(&buffer.filled()[before..], |seen| {
            if matches!(seen, FramePart::Reset { .. }) {
                unread.saw(seen);
            }
        });
        // A peer that is quiet still answers pings, so this is called soon enough.
        hear(unread.0.forget_old(clock::monotonic_ms));
        polled
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Watched<C> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = polled {
            this.wrote(&bytes[..count]);
        }
        polled
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        let this = self.get_mut();
        let polled = Pin::new(&mut this.stream).poll_write_vectored(context, slices);
        if let Poll::Ready(Ok(mut count)) = polled {
            for slice in slices {
                let written = count.min(slice.len());
                this.wrote(&slice[..written]);
                count -= written;
            }
        }
        polled
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}
