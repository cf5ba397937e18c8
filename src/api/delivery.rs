//! Answers that tell of leases, on their way from the handler to the connection.
//!
//! A handler puts the leases of its answer into the extensions of its response ([`carry`]). The port takes them out
//! ([`carried`]) and gives them to the bytes of the body, which know when the connection has taken the last of them. So an
//! answer that is dropped anywhere between, because its caller has gone or something failed, drops its leases unsent, and
//! that gives them back.
//!
//! A connection that has taken the bytes may still lose them. An HTTP/1 connection finds out ([`TakenLeases`]); with HTTP/2,
//! what crosses the reset of its stream on the wire is lost.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::Extensions;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::service::unsent::UnsentLease;

/// The leases that one answer tells of.
pub type Unsent = Vec<UnsentLease>;

/// Extensions must be `Clone`; whoever takes the leases first has them.
#[derive(Debug, Clone)]
struct Carried(Arc<Mutex<Unsent>>);

/// Leases go with the response whose extensions these are.
pub(crate) fn carry(extensions: &mut Extensions, unsent: Unsent) {
    if !unsent.is_empty() {
        extensions.insert(Carried(Arc::new(Mutex::new(unsent))));
    }
}

/// A gRPC response with the leases that it tells of.
pub(crate) fn response<T>(message: T, unsent: Unsent) -> tonic::Response<T> {
    let mut response = tonic::Response::new(message);
    carry(response.extensions_mut(), unsent);
    response
}

/// The leases that came with a response.
pub(crate) fn carried(extensions: &mut Extensions) -> Unsent {
    extensions.remove::<Carried>().map(|carried| std::mem::take(&mut *carried.0.lock())).unwrap_or_default()
}

/// The leases of answers that a connection has taken, where it finds out later whether its peer has read them.
#[derive(Debug, Default)]
pub(crate) struct TakenLeases {
    leases: Mutex<Unsent>,
}

impl TakenLeases {
    fn take(&self, unsent: impl Iterator<Item = UnsentLease>) {
        self.leases.lock().extend(unsent.map(|mut lease| {
            lease.taken();
            lease
        }));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.leases.lock().is_empty()
    }

    /// The peer has read all of these answers.
    pub(crate) fn were_read(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        leases.into_iter().for_each(UnsentLease::sent);
    }

    /// The peer has closed the connection without reading them.
    pub(crate) fn are_lost(&self) {
        let leases = std::mem::take(&mut *self.leases.lock());
        drop(leases);
    }
}

/// Bytes of an answer, and the leases that they tell of.
#[derive(Debug)]
pub(crate) struct AnswerBytes {
    bytes: Bytes,
    unsent: Unsent,
    /// Where the leases go when the connection has taken the bytes. `None`: then they are sent.
    taken: Option<Arc<TakenLeases>>,
}

impl AnswerBytes {
    pub(crate) fn new(bytes: Bytes, unsent: Unsent) -> Self {
        Self { bytes, unsent, taken: None }
    }
}

impl Buf for AnswerBytes {
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if self.bytes.is_empty() && !self.unsent.is_empty() {
            let leases = std::mem::take(&mut self.unsent).into_iter();
            match &self.taken {
                Some(taken) => taken.take(leases),
                None => leases.for_each(UnsentLease::sent),
            }
        }
    }
}

/// A body whose first bytes have the leases. Answers that tell of leases come in one piece.
#[derive(Debug)]
pub(crate) struct AnswerBody<B> {
    body: B,
    unsent: Unsent,
    taken: Option<Arc<TakenLeases>>,
}

impl<B> AnswerBody<B> {
    pub(crate) fn new(body: B, unsent: Unsent) -> Self {
        Self { body, unsent, taken: None }
    }

    /// For a connection that finds out later what its peer has read.
    pub(crate) fn with_taken(body: B, unsent: Unsent, taken: Arc<TakenLeases>) -> Self {
        Self { body, unsent, taken: Some(taken) }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
    type Data = AnswerBytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerBytes>, B::Error>>> {
        let Self { body, unsent, taken } = self.get_mut();
        Pin::new(body).poll_frame(cx).map_ok(|frame| {
            frame.map_data(|bytes| {
                let unsent = if bytes.is_empty() { Vec::new() } else { std::mem::take(unsent) };
                AnswerBytes { bytes, unsent, taken: taken.clone() }
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
