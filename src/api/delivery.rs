//! Answers that tell of leases, on their way from the handler to the connection.
//!
//! A handler puts the leases of its answer into the extensions of its response ([`carry`]). The port takes them out
//! ([`carried`]) and gives them to the bytes of the body, which know when the connection has taken the last of them. So an
//! answer that is dropped anywhere between, because its caller has gone or something failed, drops its leases unsent, and
//! that gives them back.
//!
//! A connection that has taken the bytes may still lose them. Who finds out is the connection's [`Taker`]: [`TakenLeases`] for
//! HTTP/1, `grpc/unread.rs` for HTTP/2.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::Extensions;
use hyper::body::{Body, Frame, SizeHint};
use parking_lot::Mutex;

use crate::listen::port::Call;
use crate::service::unsent::UnsentLease;

/// The leases that one answer tells of.
pub type Unsent = Vec<UnsentLease>;

/// The leases that an answer tells of with its next bytes. A stream adds to them as it goes on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Carried(Arc<Mutex<Unsent>>);

impl Carried {
    /// The message that is being encoded tells of this one too.
    pub(crate) fn add(&self, unsent: UnsentLease) {
        self.0.lock().push(unsent);
    }

    fn take(&self) -> Unsent {
        std::mem::take(&mut *self.0.lock())
    }
}

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

/// A gRPC response of many messages, each with the leases that were added when it was encoded.
pub(crate) fn stream<T>(messages: T, carried: Carried) -> tonic::Response<T> {
    let mut response = tonic::Response::new(messages);
    response.extensions_mut().insert(carried);
    response
}

/// The leases that came with a response.
pub(crate) fn carried(extensions: &mut Extensions) -> Option<Carried> {
    extensions.remove::<Carried>()
}

/// Hears what a connection takes of its answers, and finds out whether its peer reads it.
pub(crate) trait Taker: std::fmt::Debug + Send + Sync {
    /// The connection has taken so many bytes more, and with them all of an answer that tells of these leases.
    fn take(&self, bytes: usize, unsent: Unsent);
}

/// What goes with the bytes of an answer until the connection has taken the last of them.
#[derive(Debug, Clone)]
pub(crate) struct Way {
    pub(crate) taker: Arc<dyn Taker>,
    /// What its call holds is held until then.
    pub(crate) _call: Option<Arc<Call>>,
}

/// The leases of answers that a connection has taken, where it finds out later whether its peer has read them.
#[derive(Debug, Default)]
pub(crate) struct TakenLeases {
    leases: Mutex<Unsent>,
}

impl Taker for TakenLeases {
    fn take(&self, _: usize, mut unsent: Unsent) {
        unsent.retain_mut(UnsentLease::taken);
        self.leases.lock().extend(unsent);
    }
}

impl TakenLeases {
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
    way: Option<Way>,
}

impl AnswerBytes {
    /// [`Self::go`] must be called before the bytes are sent.
    pub(crate) fn new(bytes: Bytes, unsent: Unsent) -> Self {
        Self { bytes, unsent, way: None }
    }

    pub(crate) fn go(&mut self, way: Way) {
        self.way = Some(way);
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
        if let Some(way) = &self.way {
            let unsent = if self.bytes.is_empty() { std::mem::take(&mut self.unsent) } else { Unsent::new() };
            way.taker.take(count, unsent);
        }
    }
}

/// A body whose leases go with the bytes that tell of them.
#[derive(Debug)]
pub(crate) struct AnswerBody<B> {
    body: B,
    carried: Option<Carried>,
    way: Option<Way>,
}

impl<B> AnswerBody<B> {
    pub(crate) fn new(body: B, carried: Option<Carried>) -> Self {
        Self { body, carried, way: None }
    }

    pub(crate) fn go(&mut self, way: Way) {
        self.way = Some(way);
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B> {
    type Data = AnswerBytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerBytes>, B::Error>>> {
        let Self { body, carried, way } = self.get_mut();
        Pin::new(body).poll_frame(cx).map_ok(|frame| {
            frame.map_data(|bytes| {
                let unsent = match carried {
                    Some(carried) if !bytes.is_empty() => carried.take(),
                    _ => Unsent::new(),
                };
                AnswerBytes { bytes, unsent, way: way.clone() }
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
