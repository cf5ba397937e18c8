//! A request's body as it comes in: counted while it is held, and complete within a time.
//!
//! Refuses to know messages.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::Sleep;
use tonic::Status;

use super::front::PREFIX_BYTES;
use crate::codec::MESSAGE_BYTES_MAX;
use crate::listen::port::Call;
use crate::telemetry::Refused;

/// How long the rest of a body may take from when we wait for it. A peer that takes longer has lost interest, or wants us to keep
/// what it has sent.
pub(crate) const BODY_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct RequestBody {
    body: Incoming,
    call: Arc<Call>,
    /// Made when the body is not all there at once, which it nearly always is.
    deadline: Option<Pin<Box<Sleep>>>,
    read: usize,
    held: usize,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, call: Arc<Call>) -> Self {
        Self { body, call, deadline: None, read: 0, held: 0 }
    }

    /// So many bytes are kept for it from now on, whether they have come or not.
    pub(crate) fn expect(&mut self, bytes: usize) -> Result<(), Status> {
        let more = bytes.saturating_sub(self.held);
        self.call.hold(more).map_err(|full| Status::resource_exhausted(full.to_string()))?;
        self.held += more;
        Ok(())
    }

    /// A reader keeps at most one message at a time, so the messages of a stream are not added up.
    fn came(&mut self, bytes: usize) -> Result<(), Status> {
        self.read = self.read.saturating_add(bytes);
        self.expect(self.read.min(MESSAGE_BYTES_MAX + PREFIX_BYTES))
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        let Poll::Ready(frame) = Pin::new(&mut this.body).poll_frame(cx) else {
            let deadline = this.deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(BODY_WITHIN)));
            ready!(deadline.as_mut().poll(cx));
            this.call.port().refused(Refused::Slow);
            let text = format!("the request was not complete within {} s", BODY_WITHIN.as_secs());
            return Poll::Ready(Some(Err(Status::deadline_exceeded(text))));
        };
        let frame = match frame {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => return Poll::Ready(Some(Err(Status::from_error(Box::new(error))))),
            None => {
                this.call.is_read();
                return Poll::Ready(None);
            }
        };
        if let Some(data) = frame.data_ref()
            && let Err(status) = this.came(data.len())
        {
            return Poll::Ready(Some(Err(status)));
        }
        if this.body.is_end_stream() {
            this.call.is_read();
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
