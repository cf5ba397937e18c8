//! The way in: the requests of one connection. The one that Envoy sends is answered right here, all others are handed to tonic.
//!
//! tonic's router, boxed bodies and codecs cost about as much as a decision. A plain ShouldRateLimit needs none of them: its
//! body is one message, and its answer is another one and a trailer. Whatever is not plain (compressed, cut short, too long,
//! followed by more) goes to tonic with the bytes that were read, so that there is one place that answers it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming};
use prost::Message;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::service::Routes;
use tonic::{Code, Status, TimeoutExpired};
use tower::Service as _;

use super::body::RequestBody;
use super::head::Head;
use super::traced::{SHOULD_RATE_LIMIT, note_failure};
use super::unread::Unread;
use super::{lease, rls};
use crate::api::delivery::{self, AnswerBody, AnswerBytes, Unsent, Way};
use crate::api::pb;
use crate::clock;
use crate::codec::MESSAGE_BYTES_MAX;
use crate::listen::port::{Begun, Call};
use crate::service::Service;

// Made once: a name that is used as text is parsed first.
static GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");

/// In front of a message: whether it is compressed, and its length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// Methods that answer with a stream, which ends when its peer likes.
const WATCH_LEASE: (&str, &str) = (lease::SERVICE_NAME, "WatchLease");
const WATCH_HEALTH: (&str, &str) = ("grpc.health.v1.Health", "Watch");
const REFLECTION: &str = "/grpc.reflection.";

/// Streams of reflection at once. They are for people with a tool, and each keeps a task and what it has not read yet.
pub(crate) const REFLECTIONS_MAX: usize = 16;

/// What an open call costs before its body: its stream, its task and what it waits with. Measured (debug build): 4,096 calls that
/// have sent only their headers hold 36 MB, which is 8.7 kB each.
const CALL_BYTES: usize = 12 << 10;

/// The way in, one for all connections.
#[derive(Debug)]
pub(crate) struct Front {
    pub(crate) service: Arc<Service>,
    /// Every method there is, this one too.
    pub(crate) routes: Routes,
    pub(crate) reflections: Arc<Semaphore>,
}

/// What goes back, and what its call holds until all of it is sent.
#[derive(Debug)]
pub(crate) struct ResponseBody {
    content: Content,
    call: Option<Arc<Call>>,
    _reflection: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum Content {
    Plain { message: Option<AnswerBytes>, trailers: Option<HeaderMap> },
    Tonic(AnswerBody<tonic::body::Body>),
}

impl Content {
    fn go(&mut self, way: Way) {
        match self {
            Content::Plain { message, .. } => message.iter_mut().for_each(|bytes| bytes.go(way.clone())),
            Content::Tonic(body) => body.go(way),
        }
    }
}

impl From<Content> for ResponseBody {
    fn from(content: Content) -> Self {
        Self { content, call: None, _reflection: None }
    }
}

impl Front {
    /// A small future, because hyper and tokio move it eight times. What is large is on the heap behind it.
    pub(crate) fn answer(
        self: Arc<Self>,
        connection: Begun,
        unread: Arc<Unread>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send + use<> {
        let head = Head::of(request.headers());
        let limit = head.timeout(request.headers());
        // Asked first, because nearly every call is this one.
        let is_should_rate_limit = request.uri().path() == rls::PATH;
        let is_stream = !is_should_rate_limit && is_stream(request.uri().path());
        let may_be_plain = is_should_rate_limit && !head.is_encoded;
        let called = connection.call(CALL_BYTES + head.bytes).map(|call| {
            let request = request.map(|body| RequestBody::new(body, Arc::clone(&call)));
            (call, Box::pin(self.route(head, may_be_plain, request)))
        });
        async move {
            let _until_answered = connection;
            let (call, routed) = match called {
                Ok(called) => called,
                Err(full) => {
                    let mut answer = refusal(&Status::resource_exhausted(full.to_string()));
                    answer.body_mut().content.go(Way { taker: unread, _call: None });
                    return Ok(answer);
                }
            };
            let mut answer = match limit {
                None => routed.await?,
                Some(limit) => match Box::pin(tokio::time::timeout(limit, routed)).await {
                    Ok(answer) => answer?,
                    Err(_) => refusal(&Status::from_error(Box::new(TimeoutExpired(())))),
                },
            };
            call.is_answered(!is_stream, clock::monotonic_ms());
            let body = answer.body_mut();
            body.content.go(Way { taker: unread, _call: Some(Arc::clone(&call)) });
            body.call = Some(call);
            Ok(answer)
        }
    }

    /// A block and not an `async fn`, which would keep a second place for each of its arguments.
    fn route(
        self: Arc<Self>,
        head: Head,
        may_be_plain: bool,
        request: Request<RequestBody>,
    ) -> impl Future<Output = Result<Response<ResponseBody>, Infallible>> + Send {
        let (parts, mut body) = request.into_parts();
        async move {
            // What goes to tonic is on the heap, so that calls that don't go there carry no space for it.
            if !may_be_plain {
                return Box::pin(self.by_tonic(Request::from_parts(parts, body))).await;
            }
            match read(&mut body).await {
                Ok(Read::Plain(message)) => {
                    let request_id = head.request_id(&parts.headers);
                    // On the heap by itself: glibc is quick only with up to 1,032 bytes, and both together are more.
                    let deciding = Box::pin(self.decide(message, request_id));
                    let decided = match self.service.span(&SHOULD_RATE_LIMIT, &parts.headers) {
                        None => deciding.await,
                        Some(span) => Box::pin(span.around(deciding)).await,
                    };
                    Ok(match decided {
                        Ok((response, unsent)) => plain(&response, unsent),
                        Err(status) => refusal(&status),
                    })
                }
                Ok(Read::Other(start)) => {
                    let request = Request::from_parts(parts, Rest { start: Some(start), rest: body });
                    Box::pin(self.by_tonic(request)).await
                }
                Err(status) => Ok(refusal(&status)),
            }
        }
    }

    async fn by_tonic<B>(self: Arc<Self>, request: Request<B>) -> Result<Response<ResponseBody>, Infallible>
    where
        B: Body<Data = Bytes, Error = Status> + Send + 'static,
    {
        let mut reflection = None;
        if request.uri().path().starts_with(REFLECTION) {
            let Ok(permit) = Arc::clone(&self.reflections).try_acquire_owned() else {
                let text = format!("{REFLECTIONS_MAX} streams of reflection are open already");
                return Ok(refusal(&Status::resource_exhausted(text)));
            };
            reflection = Some(permit);
        }
        let answer = self.routes.clone().call(request).await?;
        if let Some(status) = too_large(&answer) {
            return Ok(refusal(&status));
        }
        let mut answer = tonic_answer(answer);
        answer.body_mut()._reflection = reflection;
        Ok(answer)
    }

    async fn decide(
        &self,
        message: Bytes,
        request_id: Option<&str>,
    ) -> Result<(pb::RateLimitResponse, Unsent), Status> {
        let decoded = pb::RateLimitRequest::decode(&*message);
        // It would keep the whole buffer that it came in.
        drop(message);
        let answered = match decoded {
            Ok(message) => rls::should_rate_limit(&self.service, &message, request_id).await,
            Err(error) => Err(Status::invalid_argument(error.to_string())),
        };
        answered.inspect_err(note_failure)
    }
}

enum Read {
    /// One message and nothing else.
    Plain(Bytes),
    /// Something else, and the bytes that were read of it.
    Other(Bytes),
}

async fn read(body: &mut RequestBody) -> Result<Read, Status> {
    let first = next(body).await?.unwrap_or_default();
    // Nearly always the first frame has everything, and says so.
    if body.is_end_stream() || is_not_plain(&first) {
        return Ok(sorted(first));
    }
    // Copied: a message may come in many small frames, and each frame would keep the whole buffer that it came in.
    let mut read = BytesMut::from(first);
    while !is_not_plain(&read) {
        // Reserved once, when the length is known: a buffer that grows by and by would end with more than twice the length.
        if let Some(length) = whole_length(&read).filter(|length| *length > read.capacity()) {
            body.expect(length)?;
            read.reserve(length - read.len());
        }
        match next(body).await? {
            Some(more) => read.extend_from_slice(&more),
            None => return Ok(sorted(read.freeze())),
        }
    }
    Ok(Read::Other(read.freeze()))
}

/// Sorts what was read: one plain message, or something else.
fn sorted(mut read: Bytes) -> Read {
    if is_not_plain(&read) || whole_length(&read) != Some(read.len()) {
        return Read::Other(read);
    }
    read.advance(PREFIX_BYTES);
    Read::Plain(read)
}

/// The next bytes; `None` at the end.
async fn next(body: &mut RequestBody) -> Result<Option<Bytes>, Status> {
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            return Ok(Some(data));
        }
    }
    Ok(None)
}

/// How long a message is by its prefix, the prefix included.
fn whole_length(read: &[u8]) -> Option<usize> {
    let length = read.get(1..PREFIX_BYTES)?;
    let length = u32::from_be_bytes(length.try_into().ok()?);
    usize::try_from(length).ok()?.checked_add(PREFIX_BYTES)
}

/// Whether these bytes can't be the beginning of one plain message.
fn is_not_plain(read: &[u8]) -> bool {
    let compressed = read.first().is_some_and(|flag| *flag != 0);
    let length = whole_length(read);
    compressed
        || length.is_some_and(|length| length > MESSAGE_BYTES_MAX + PREFIX_BYTES || read.len() > length)
}

fn is_stream(path: &str) -> bool {
    let is = |(service, method): (&str, &str)| {
        path.strip_prefix('/').and_then(|path| path.strip_prefix(service)?.strip_prefix('/')) == Some(method)
    };
    path.starts_with(REFLECTION) || is(WATCH_LEASE) || is(WATCH_HEALTH)
}

/// tonic refuses a message that is too long with OUT_OF_RANGE. Nothing else here answers so, and for us it is INVALID_ARGUMENT.
fn too_large(answer: &Response<tonic::body::Body>) -> Option<Status> {
    let status = Status::from_header_map(answer.headers())?;
    (status.code() == Code::OutOfRange).then(|| Status::invalid_argument(status.message()))
}

fn plain(response: &pb::RateLimitResponse, unsent: Unsent) -> Response<ResponseBody> {
    let length = response.encoded_len();
    let prefix = u32::try_from(length).expect("an answer to 1 MiB must be shorter than 4 GiB");
    // A Vec: a BytesMut copies every byte of a number with a call of its own.
    let mut message = Vec::with_capacity(PREFIX_BYTES + length);
    message.push(0);
    message.extend_from_slice(&prefix.to_be_bytes());
    response.encode_raw(&mut message);
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(&GRPC_STATUS, HeaderValue::from_static("0"));
    let message = AnswerBytes::new(Bytes::from(message), unsent);
    let content = Content::Plain { message: Some(message), trailers: Some(trailers) };
    let mut response = Response::new(ResponseBody::from(content));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

fn refusal(status: &Status) -> Response<ResponseBody> {
    tonic_answer(status.clone().into_http())
}

/// What tonic answered, and with it the leases that its handler put into the response.
fn tonic_answer(mut response: Response<tonic::body::Body>) -> Response<ResponseBody> {
    let carried = delivery::carried(response.extensions_mut());
    response.map(|body| Content::Tonic(AnswerBody::new(body, carried)).into())
}

impl Body for ResponseBody {
    type Data = AnswerBytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<AnswerBytes>, Status>>> {
        match &mut self.get_mut().content {
            Content::Plain { message, trailers } => {
                let message = message.take().map(Frame::data);
                let frame = message.or_else(|| trailers.take().map(Frame::trailers));
                Poll::Ready(frame.map(Ok))
            }
            Content::Tonic(body) => Pin::new(body).poll_frame(cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.content {
            Content::Plain { message, trailers } => message.is_none() && trailers.is_none(),
            Content::Tonic(body) => body.is_end_stream(),
        }
    }
}

/// A body of which the start was read already.
#[derive(Debug)]
struct Rest {
    start: Option<Bytes>,
    rest: RequestBody,
}

impl Body for Rest {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        match this.start.take().filter(|start| !start.is_empty()) {
            Some(start) => Poll::Ready(Some(Ok(Frame::data(start)))),
            None => Pin::new(&mut this.rest).poll_frame(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_can_be_one_plain_message_is_not_odd() {
        for (bytes, odd, length) in [
            (&b""[..], false, None),
            (b"\0\0\0", false, None),
            (b"\x01", true, None),
            (b"\0\0\0\0\x02a", false, Some(7)),
            (b"\0\0\0\0\x02ab", false, Some(7)),
            (b"\0\0\0\0\x02abc", true, Some(7)),
            (b"\0\0\x10\0\0", false, Some(MESSAGE_BYTES_MAX + 5)),
            (b"\0\0\x10\0\x01", true, Some(MESSAGE_BYTES_MAX + 6)),
        ] {
            assert_eq!((is_not_plain(bytes), whole_length(bytes)), (odd, length), "{bytes:?}");
        }
    }
}
