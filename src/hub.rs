//! The hub port: `sluice.v1.LedgerService`, the ledger of this process for other Sluices.
//!
//! Chains go to the ledger below this instance's own slabs and failover, so that what many sidecars ask for shares its
//! batches and sums. Knows how to listen, who may come in, and how to leave; [`conversation`] is one sidecar's stream, and
//! [`answer`] what is done for it.

mod answer;
mod conversation;
mod line;
mod newcomers;
mod peers;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::sync::watch;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic::{Status, Streaming};
use tower::Service as _;

use self::conversation::{Conversation, Message};
pub(crate) use self::peers::Peer;
use self::peers::Peers;
use crate::clock;
use crate::codec::MESSAGE_BYTES_MAX;
use crate::grpc::opening::Opening;
use crate::grpc::{PREFACE_WITHIN, serve_until};
use crate::ledger::hub::pb::ledger_service_server::{LedgerService, LedgerServiceServer};
use crate::ledger::hub::{pb, wire};
use crate::ledger::{Backend, Ledger, Lending, Rotation};
use crate::listen::port::{Bounds, Call, Connection, Place, Port};
use crate::listen::repoll::Repoll;
use crate::listen::token::Token;
use crate::listen::{Listener, Transport};
use crate::service::Service;
use crate::telemetry::Metrics;

/// A sidecar has one stream; one that opens it again may have two for a moment.
const STREAMS_PER_CONNECTION_MAX: u32 = 16;

/// What a stream costs before it asks anything: its task, its connection and the buffers of both.
const STREAM_BYTES: usize = 64 << 10;

/// Streams that may be open on one connection, and on the port.
const CONNECTION_BYTES_MAX: usize = STREAM_BYTES * STREAMS_PER_CONNECTION_MAX as usize;
const BYTES_MAX: usize = 1 << 30;

/// What a sidecar may send before anybody has read it. A stream that has too much unanswered is not read.
const WINDOW: u32 = 256 << 10;

/// Answers that are written and not taken, of one stream.
const SEND_BUFFER_BYTES_MAX: usize = 256 << 10;

const HEADER_BYTES_MAX: u32 = 16 << 10;

/// A dead peer is noticed within the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// From the start of a stream to its hello.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// How often it is looked whether the ledger is as sidecars were told.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// How often limits are forgotten of which nothing is lent any more.
const LOOKS_PER_SWEEP: u32 = 4;

/// The ledger of this process as others use it.
#[derive(Debug)]
pub struct Hub {
    ledger: Arc<Rotation<Backend>>,
    lending: Lending<Arc<Rotation<Backend>>>,
    service: Arc<Service>,
    metrics: Arc<Metrics>,
    /// What sidecars call this hub, and weigh homes by.
    name: String,
    /// Absent: everybody may come in.
    token: Option<Token>,
    peers: Arc<Peers>,
    /// What all unanswered asks hold.
    bytes: AtomicUsize,
    streams: TaskTracker,
    /// What sidecars are told of this hub.
    status: watch::Sender<pb::HubStatus>,
}

impl Hub {
    pub(crate) fn new(
        ledger: Arc<Rotation<Backend>>,
        lending: Lending<Arc<Rotation<Backend>>>,
        service: Arc<Service>,
        name: String,
        token: Option<Token>,
    ) -> Arc<Self> {
        let metrics = Arc::clone(&service.metrics);
        let (peers, bytes, streams) = (Arc::default(), AtomicUsize::new(0), TaskTracker::new());
        let hub = Self {
            ledger,
            lending,
            service,
            metrics,
            name,
            token,
            peers,
            bytes,
            streams,
            status: watch::Sender::default(),
        };
        hub.look();
        Arc::new(hub)
    }

    /// Tells the sidecars if the ledger is not as it was.
    fn look(&self) {
        let (ready, reason) = match self.ledger.ready() {
            Ok(()) => (true, String::new()),
            Err(reason) => (false, reason),
        };
        self.status.send_if_modified(|status| {
            let is_new = (status.ready, &status.reason) != (ready, &reason);
            (status.ready, status.reason) = (ready, reason);
            is_new
        });
    }

    /// The sidecars that are connected.
    pub(crate) fn peers(&self) -> Vec<Peer> {
        self.peers.list(clock::monotonic_ms())
    }

    /// A sidecar tells what became of something that it was lent.
    fn end_loan(&self, end: &pb::LoanEnd) -> Result<(), String> {
        let (limit, name) = wire::read_loan_end(end)?;
        self.lending.end_loan(limit, name, end.spent, end.last_ago_ms);
        Ok(())
    }

    /// Tells the sidecars to go elsewhere, and returns when all that they asked is answered and what was not spent of what they were
    /// lent is given back.
    pub(crate) async fn leave(&self, within: Duration) {
        self.status.send_modify(|status| status.leaving = true);
        self.streams.close();
        if tokio::time::timeout(within, self.streams.wait()).await.is_err() {
            tracing::warn!("some sidecars were not answered in time");
        }
        self.lending.close().await;
    }
}

/// The port, before it serves.
pub(crate) fn port(connections_max: usize, metrics: &Metrics) -> Arc<Port> {
    let bounds = Bounds { connections_max, bytes_max: BYTES_MAX, connection_bytes_max: CONNECTION_BYTES_MAX };
    Port::new(bounds, metrics.port("hub"))
}

/// Serves until `stop`.
pub(crate) async fn serve(listener: Listener, port: Arc<Port>, hub: Arc<Hub>, stop: CancellationToken) {
    let service = LedgerServiceServer::new(HubServer { hub: Arc::clone(&hub), port: Arc::clone(&port) });
    let routes = Routes::new(service.max_decoding_message_size(MESSAGE_BYTES_MAX)).prepare();
    let http = http(Streams(Arc::clone(&port)));
    let connect = |stream: Transport, place: Place| {
        let (hub, routes, connection) = (Arc::clone(&hub), routes.clone(), Arc::clone(&place.connection));
        let from = PeerAddress(stream.peer_address());
        let answer = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(from);
            answer(Arc::clone(&hub), routes.clone(), Arc::clone(&connection), request)
        });
        let stream = TokioIo::new(Opening::new(stream, PREFACE_WITHIN));
        let served = serve_until(http.serve_connection(stream, answer), None, stop.clone());
        port.run(place.keep(served));
    };
    let looking = async {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            for _ in 0..LOOKS_PER_SWEEP {
                looks.tick().await;
                hub.look();
            }
            hub.lending.sweep();
        }
    };
    tokio::select! {
        () = listener.serve(&port, stop.clone(), connect) => {}
        () = looking => {}
    }
}

fn http(streams: Streams) -> http2::Builder<Streams> {
    let mut http = http2::Builder::new(streams);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .auto_date_header(false);
    http
}

/// Runs the streams of all connections. One ends with its connection at the latest.
#[derive(Debug, Clone)]
struct Streams(Arc<Port>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.0.run(Repoll::new(stream));
    }
}

/// One call, if it may come in.
async fn answer(
    hub: Arc<Hub>,
    mut routes: Routes,
    connection: Arc<Connection>,
    mut request: Request<Incoming>,
) -> Result<Response<tonic::body::Body>, Infallible> {
    if hub.token.as_ref().is_some_and(|token| !token.is_in(request.headers())) {
        let what = if request.headers().contains_key(http::header::AUTHORIZATION) {
            "this hub has another token than the one that came"
        } else {
            "this hub needs a token"
        };
        let text = format!(
            "{what}, as `authorization: Bearer <token>`: a sidecar has it from ledger.token_file or SLUICE_LEDGER_TOKEN"
        );
        return Ok(Status::unauthenticated(text).into_http());
    }
    match connection.call(STREAM_BYTES) {
        Ok(call) => {
            request.extensions_mut().insert(call);
            routes.call(request).await
        }
        Err(full) => Ok(Status::resource_exhausted(full.to_string()).into_http()),
    }
}

/// Who is at the other end.
#[derive(Debug, Clone, Copy)]
struct PeerAddress(Option<SocketAddr>);

/// Takes the streams of sidecars in.
struct HubServer {
    hub: Arc<Hub>,
    port: Arc<Port>,
}

#[tonic::async_trait]
impl LedgerService for HubServer {
    type OpenStream = ReceiverStream<Message>;

    async fn open(
        &self,
        request: tonic::Request<Streaming<pb::SidecarMessage>>,
    ) -> Result<tonic::Response<Self::OpenStream>, Status> {
        let (_, mut extensions, mut asked) = request.into_parts();
        let call = extensions.remove::<Arc<Call>>();
        let call = call.ok_or_else(|| Status::internal("the stream has no connection"))?;
        let first = tokio::time::timeout(HELLO_WITHIN, asked.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello came within 5 s"))??;
        let hello = first.and_then(|message| message.hello);
        let hello = hello.ok_or_else(|| Status::invalid_argument("the first message must have `hello`"))?;
        wire::check_hello(&hello, "sidecar").map_err(Status::failed_precondition)?;
        if self.hub.status.borrow().leaving {
            return Err(Status::unavailable("this hub is stopping"));
        }
        call.is_read();
        call.is_answered(false, clock::monotonic_ms());
        let from = extensions.remove::<PeerAddress>().and_then(|from| from.0);
        // Whoever comes is told how the ledger is now, not how it was at the last look.
        self.hub.look();
        let registration = self.hub.peers.enter(hello, from);
        let (conversation, answers) = Conversation::new(Arc::clone(&self.hub), registration, asked, call);
        // Stopping waits for it, and the port counts it if it panics.
        self.port.run(self.hub.streams.track_future(conversation.run()));
        Ok(tonic::Response::new(ReceiverStream::new(answers)))
    }
}
