//! Answers that are ready together are written together.
//!
//! A call that ends wakes its connection, and the runtime runs that before the calls that are ready too. So every answer or two would
//! be a write of their own, and a write costs more than a decision. While a connection has calls without an answer, a write waits until
//! the runtime has run what is ready. There is no timer: a runtime that has nothing else to run goes on at once.
//!
//! Refuses to know what the bytes say.

use std::io::{IoSlice, Result};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::listen::port::Connection;
use crate::listen::seldom::Seldom;

/// The stream of a connection that writes when there is no more to write.
pub(super) struct Gathered<C> {
    stream: C,
    connection: Arc<Connection>,
    /// In `Seldom`, because every call that ends meanwhile polls the connection.
    others: Seldom<Others>,
}

/// Ready, and then again from the beginning, when the runtime has run what was ready.
#[derive(Default)]
struct Others {
    are_running: bool,
}

impl Future for Others {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.are_running = !self.are_running;
        if self.are_running { pin!(tokio::task::yield_now()).poll(context) } else { Poll::Ready(()) }
    }
}

impl<C> Gathered<C> {
    pub(super) fn new(stream: C, connection: Arc<Connection>) -> Self {
        Self { stream, connection, others: Seldom::new(Others::default()) }
    }

    /// Whether it is time to write.
    fn poll_others(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.connection.has_begun() {
            ready!(Pin::new(&mut self.others).poll(context));
            self.others.again();
        }
        Poll::Ready(())
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Gathered<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Gathered<C> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize>> {
        ready!(self.poll_others(context));
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        ready!(self.poll_others(context));
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::telemetry::Metrics;

    /// What other tasks do in turns of the runtime, seen by the one that writes.
    #[tokio::test]
    async fn a_write_waits_for_what_is_ready_only_while_there_are_other_calls() {
        let place = crate::grpc::port(1, &Metrics::default()).admit().await;
        let (ours, _theirs) = tokio::io::duplex(64);
        let mut stream = Gathered::new(ours, Arc::clone(&place.connection));
        let ready = Arc::new(AtomicUsize::new(0));
        let others = || {
            for _ in 0..3 {
                let ready = Arc::clone(&ready);
                tokio::spawn(async move { ready.fetch_add(1, Ordering::Relaxed) });
            }
        };
        let has_run = || ready.swap(0, Ordering::Relaxed);
        others();
        stream.write_all(b"alone").await.unwrap();
        assert_eq!(has_run(), 0);
        let other = place.connection.begin();
        for _ in 0..3 {
            stream.write_all(b"one of several").await.unwrap();
            assert!(has_run() > 0);
            others();
        }
        drop(other);
        stream.write_all(b"last").await.unwrap();
        assert_eq!(has_run(), 0);
    }
}
