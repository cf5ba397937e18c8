//! Answers that are ready together are written together.
//!
//! A call that ends wakes its connection, and the runtime runs that before the other calls that are ready. So there would be a write for every
//! answer or two, and a write costs more than a decision. While a connection has calls without an answer, a write waits for one turn of
//! the runtime. There is no timer: tokio goes on when this thread has nothing else to run, and after 61 tasks at the latest.
//!
//! A large answer does not wait. HTTP/2 keeps it beside the small ones, takes no other before it is written, and can't take it back when
//! its caller resets the call meanwhile.
//!
//! Refuses to know what the bytes say.

use std::io::{IoSlice, Result};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::listen::port::Connection;
use crate::listen::seldom::Seldom;

/// The stream of a connection that writes when nothing else is ready to run.
pub(super) struct Gathered<C> {
    stream: C,
    connection: Arc<Connection>,
    /// In `Seldom`, because every call that ends meanwhile polls the connection.
    others: Seldom<Others>,
    /// The next write has waited.
    has_waited: bool,
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
        Self { stream, connection, others: Seldom::new(Others::default()), has_waited: false }
    }

    /// Whether it is time to write. A write waits once, also if the socket takes nothing for a while: otherwise two writers of a full socket
    /// would wake each other for ever.
    fn poll_others(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if !self.has_waited && self.connection.has_begun() {
            ready!(Pin::new(&mut self.others).poll(context));
            self.others.again();
            self.has_waited = true;
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
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes));
        self.has_waited = false;
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<Result<usize>> {
        if slices.len() == 1 {
            ready!(self.poll_others(context));
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write_vectored(context, slices));
        self.has_waited = false;
        Poll::Ready(written)
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
    use std::task::{Wake, Waker};

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
        let large = [IoSlice::new(b"head"), IoSlice::new(b"body")];
        assert_eq!(stream.write_vectored(&large).await.unwrap(), 8);
        assert_eq!(has_run(), 0, "a large answer does not wait");
        drop(other);
        stream.write_all(b"last").await.unwrap();
        assert_eq!(has_run(), 0);
    }

    #[tokio::test]
    async fn who_waits_for_a_full_socket_sleeps() {
        let place = crate::grpc::port(1, &Metrics::default()).admit().await;
        let (ours, _theirs) = tokio::io::duplex(4);
        let mut stream = Gathered::new(ours, Arc::clone(&place.connection));
        stream.write_all(b"full").await.unwrap();
        let _other = place.connection.begin();
        let wakes = Arc::new(Wakes::default());
        let waker = Waker::from(Arc::clone(&wakes));
        for _ in 0..5 {
            let mut context = Context::from_waker(&waker);
            assert!(Pin::new(&mut stream).poll_write(&mut context, b"more").is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "only when the others had run");
    }

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
