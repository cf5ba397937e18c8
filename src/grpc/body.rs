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
use crate::api::codec::MESSAGE_BYTES_MAX;
use crate::listen::port::Call;
use crate::telemetry::Refused;

/// From when the body is waited for to its end. Who needs longer has lost interest, or wants us to keep what it has sent.
pub(crate) const BODY_WITHIN: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct RequestBody {
    body: Incoming,
    call: Arc<Call>,
    /// Made when the body is not all there at once, which it nearly always is.
    deadline: Option<Pin<Box<Sleep>>>,
    held: usize,
}

impl RequestBody {
    pub(crate) fn new(body: Incoming, call: Arc<Call>) -> Self {
        Self { body, call, deadline: None, held: 0 }
    }

    /// Whoever reads keeps at most one message; a stream of them doesn't add up.
    fn hold(&mut self, bytes: usize) -> Result<(), Status> {
        let held = self.held.saturating_add(bytes).min(MESSAGE_BYTES_MAX + PREFIX_BYTES);
        self.call.hold(held - self.held).map_err(|full| Status::resource_exhausted(full.to_string()))?;
        self.held = held;
        Ok(())
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
            && let Err(status) = this.hold(data.len())
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
