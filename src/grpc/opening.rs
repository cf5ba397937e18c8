//! A connection that has to begin: the client's preface comes within a time, or the connection is closed.
//!
//! HTTP/2's own keepalive starts only after it. Refuses to know what the bytes say.

use std::io::{Error, ErrorKind, IoSlice, Result};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Sleep;

/// `PRI * HTTP/2.0` and what follows it, which every client sends first.
const PREFACE_BYTES: usize = 24;

#[derive(Debug)]
pub(crate) struct Opening<C> {
    stream: C,
    /// Until the preface is there.
    missing: Option<Missing>,
}

#[derive(Debug)]
struct Missing {
    bytes: usize,
    deadline: Pin<Box<Sleep>>,
}

impl<C> Opening<C> {
    pub(crate) fn new(stream: C, within: Duration) -> Self {
        let deadline = Box::pin(tokio::time::sleep(within));
        Self { stream, missing: Some(Missing { bytes: PREFACE_BYTES, deadline }) }
    }
}

impl<C: AsyncRead + Unpin> AsyncRead for Opening<C> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        let Some(missing) = &mut self.missing else { return polled };
        if polled.is_pending() {
            let late = missing.deadline.as_mut().poll(context);
            return late.map(|()| Err(Error::new(ErrorKind::TimedOut, "no HTTP/2 preface")));
        }
        missing.bytes = missing.bytes.saturating_sub(buffer.filled().len() - before);
        if missing.bytes == 0 {
            self.missing = None;
        }
        polled
    }
}

impl<C: AsyncWrite + Unpin> AsyncWrite for Opening<C> {
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    const WITHIN: Duration = Duration::from_millis(100);

    #[tokio::test]
    async fn who_says_nothing_or_half_of_it_is_closed() {
        for sent in [&b""[..], &b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"[..]] {
            let (mut client, server) = tokio::io::duplex(64);
            let mut server = Opening::new(server, WITHIN);
            client.write_all(sent).await.expect("to be heard");
            let mut heard = Vec::new();
            let ended = server.read_to_end(&mut heard).await;
            assert_eq!(ended.map_err(|error| error.kind()), Err(ErrorKind::TimedOut));
            assert_eq!(heard, sent);
        }
    }

    #[tokio::test]
    async fn who_has_begun_may_take_its_time() {
        let (mut client, server) = tokio::io::duplex(64);
        let mut server = Opening::new(server, WITHIN);
        client.write_all(&[b'x'; PREFACE_BYTES]).await.expect("to be heard");
        server.read_exact(&mut [0; PREFACE_BYTES]).await.expect("the preface");
        tokio::time::sleep(2 * WITHIN).await;
        client.write_all(b"more").await.expect("to be heard");
        server.read_exact(&mut [0; 4]).await.expect("the rest");
    }
}
