//! The gRPC port: Envoy's rate-limit service, the lease API, health and reflection on one listener.
//!
//! Knows how to listen and to drain; what an answer says is decided elsewhere.

mod body;
mod front;
mod gather;
mod head;
mod lease;
pub(crate) mod opening;
pub mod rls;
mod traced;
mod unread;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use self::front::{Front, REFLECTIONS_MAX};
use self::gather::Gathered;
use self::opening::Opening;
use self::unread::{Unread, Watched};
use crate::api::pb;
use crate::codec::MESSAGE_BYTES_MAX;
use crate::config::settings::ratelimit::ConnectionAge;
use crate::listen::port::{Bounds, Place, Port};
use crate::listen::seldom::Seldom;
use crate::listen::{Listener, Transport};
use crate::service::Service;
use crate::telemetry::Metrics;

/// Envoy opens one connection per worker, and opens more streams on it than a low bound allows. A refused stream is a failed call.
const STREAMS_PER_CONNECTION_MAX: u32 = 4096;

/// How many bytes requests under way may hold. Of one connection: as many calls as it may open, and 16 of the largest messages. Of all
/// together: 128 MiB, because a sidecar has little memory.
const CONNECTION_BYTES_MAX: usize = 64 << 20;
const BYTES_MAX: usize = 128 << 20;

/// What a peer may send before anybody has read it: on one stream, and on a connection. What comes is read at once, so it is
/// kept only for a moment.
const STREAM_WINDOW: u32 = 64 << 10;
const CONNECTION_WINDOW: u32 = 256 << 10;

/// Answers that are written and not taken, of one stream.
const SEND_BUFFER_BYTES_MAX: usize = 64 << 10;

/// The headers of one call. Envoy sends some hundred bytes, and what `initial_metadata` adds.
const HEADER_BYTES_MAX: u32 = 16 << 10;

/// From the start of a connection to the client's preface.
pub(crate) const PREFACE_WITHIN: Duration = Duration::from_secs(10);

/// From then on a dead peer is noticed within the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Service names that health checks ask for: the server, envoyproxy/ratelimit's name, and the full ones.
const HEALTH_NAMES: [&str; 4] = ["", "ratelimit", rls::SERVICE_NAME, lease::SERVICE_NAME];

/// Tells gRPC health checks what readiness is.
#[derive(Debug, Clone)]
pub(crate) struct Health(HealthReporter);

impl Health {
    pub(crate) async fn set(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in HEALTH_NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

/// The port, before it serves.
pub(crate) fn port(connections_max: usize, metrics: &Metrics) -> Arc<Port> {
    let bounds = Bounds { connections_max, bytes_max: BYTES_MAX, connection_bytes_max: CONNECTION_BYTES_MAX };
    Port::new(bounds, metrics.port("grpc"))
}

/// Serves until `stop`, then lets calls in flight finish. Connections that are older than `age` are told to go elsewhere.
pub(crate) async fn serve(
    listener: Listener,
    port: Arc<Port>,
    service: Arc<Service>,
    age: Option<ConnectionAge>,
    stop: CancellationToken,
    health: impl FnOnce(Health),
) {
    let (reporter, health_service) = tonic_health::server::health_reporter();
    health(Health(reporter));
    let descriptors = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pb::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };
    let readable = "the descriptors that build.rs wrote must be readable";
    // Older tools ask for the older name.
    let (reflection, reflection_alpha) =
        (descriptors().build_v1().expect(readable), descriptors().build_v1alpha().expect(readable));
    let routes = Routes::new(rls::RateLimitServer::new(Arc::clone(&service)))
        .add_service(lease::server(Arc::clone(&service)))
        .add_service(health_service.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(reflection.max_decoding_message_size(MESSAGE_BYTES_MAX))
        .add_service(reflection_alpha.max_decoding_message_size(MESSAGE_BYTES_MAX));
    let reflections = Arc::new(Semaphore::new(REFLECTIONS_MAX));
    let server = GrpcServer {
        front: Arc::new(Front { service, routes: routes.prepare(), reflections }),
        http: http(Calls(Arc::clone(&port))),
        age,
        stop: stop.clone(),
        connections: TaskTracker::new(),
    };
    listener.serve(&port, stop, |stream, place| server.connect(stream, place)).await;
    server.connections.close();
    server.connections.wait().await;
}

struct GrpcServer {
    front: Arc<Front>,
    http: http2::Builder<Calls>,
    age: Option<ConnectionAge>,
    stop: CancellationToken,
    connections: TaskTracker,
}

impl GrpcServer {
    fn connect(&self, stream: Transport, place: Place) {
        let (front, connection) = (Arc::clone(&self.front), Arc::clone(&place.connection));
        let open = front.service.connection();
        let unread = Arc::new(Unread::default());
        let stream = Gathered::new(stream, Arc::clone(&connection));
        let stream = Watched::new(stream, Arc::clone(&unread));
        let stream = TokioIo::new(Opening::new(stream, PREFACE_WITHIN));
        let answer = service_fn(move |request| {
            Arc::clone(&front).answer(connection.begin(), Arc::clone(&unread), request)
        });
        let (port, open_connection) = (Arc::clone(place.connection.port()), self.connections.token());
        let served = self.http.serve_connection(stream, answer);
        let (age, stop) = (self.age, self.stop.clone());
        port.run(async move {
            place.keep(serve_until(served, age, stop)).await;
            drop(open_connection);
            drop(open);
        });
    }
}

/// Serves a connection to its end. From `stop` on, or when it is old, the peer is told to open another, and calls under way finish.
pub(crate) async fn serve_until<C: GracefulConnection>(
    served: C,
    age: Option<ConnectionAge>,
    stop: CancellationToken,
) -> Result<(), C::Error> {
    let mut served = std::pin::pin!(served);
    let old = async {
        match age {
            // At random, so that connections that were opened together don't end together.
            Some(age) => tokio::time::sleep(age.max.mul_f64(0.9 + 0.2 * fastrand::f64())).await,
            None => std::future::pending().await,
        }
    };
    let told = async {
        tokio::select! {
            () = stop.cancelled() => {}
            () = old => {}
        }
    };
    tokio::select! {
        biased;
        ended = &mut served => return ended,
        () = Seldom::new(told) => served.as_mut().graceful_shutdown(),
    }
    match age.filter(|_| !stop.is_cancelled()) {
        // A peer that has not gone by then is cut off.
        Some(age) => tokio::time::timeout(age.grace, served).await.unwrap_or(Ok(())),
        None => served.await,
    }
}

/// Runs the calls of all connections. A call ends with its connection at the latest.
#[derive(Debug, Clone)]
struct Calls(Arc<Port>);

impl<F: Future<Output: Send> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.run(call);
    }
}

fn http(calls: Calls) -> http2::Builder<Calls> {
    let mut http = http2::Builder::new(calls);
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_BYTES_MAX)
        .max_header_list_size(HEADER_BYTES_MAX)
        // Envoy resets a call that took too long. After a stall that is all of them at once, and the default of 20 would
        // close the connection and fail every other call on it.
        .max_pending_accept_reset_streams(STREAMS_PER_CONNECTION_MAX as usize)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        // No gRPC client reads a `date`.
        .auto_date_header(false);
    http
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use bytes::Bytes;
    use http::{Request, Response};
    use http_body_util::Empty;
    use hyper::body::Incoming;

    use super::*;

    #[tokio::test]
    async fn a_call_that_panics_is_counted_and_leaves_its_connection_alone() {
        let metrics = Metrics::default();
        let calls = Calls(port(1, &metrics));
        let (ours, theirs) = tokio::io::duplex(64 << 10);
        let answer = service_fn(|request: Request<Incoming>| async move {
            assert_ne!(request.uri().path(), "/panic", "on purpose");
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        });
        tokio::spawn(http(calls).serve_connection(TokioIo::new(ours), answer));
        let (mut client, connection) = h2::client::handshake(theirs).await.unwrap();
        tokio::spawn(connection);
        let mut ask = |path: &str| {
            let request = Request::get(format!("http://sluice{path}")).body(()).unwrap();
            client.send_request(request, true).unwrap().0
        };
        assert!(ask("/panic").await.is_err());
        assert_eq!(ask("/").await.unwrap().status(), 200);
        let text = metrics.encode().unwrap();
        assert!(text.contains("sluice_panics_total{port=\"grpc\"} 1\n"), "{text}");
    }
}
