//! The gRPC port: Envoy's rate-limit service, the lease API, health and reflection on one listener.
//!
//! Knows how to listen and to drain; what an answer says is decided elsewhere.

mod front;
mod lease;
mod opening;
pub mod rls;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use self::front::Front;
use self::opening::Opening;
use crate::api::pb;
use crate::listen::Listener;
use crate::retry::backoff;
use crate::service::Service;

/// Envoy opens one connection per worker and overshoots a low number: refused streams are failed calls.
const STREAMS_PER_CONNECTION_MAX: u32 = 4096;

/// From the start of a connection to the client's preface.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);

/// From then on a dead peer is noticed within the sum of both.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);

/// Service names that health checks ask for: the server, envoyproxy/ratelimit's name, and the full ones.
const HEALTH_NAMES: [&str; 4] = ["", "ratelimit", rls::SERVICE_NAME, lease::SERVICE_NAME];

/// Tells gRPC health checks what readiness is.
#[derive(Debug, Clone)]
pub struct Health(HealthReporter);

impl Health {
    pub async fn set(&self, ready: bool) {
        let status = if ready { ServingStatus::Serving } else { ServingStatus::NotServing };
        for name in HEALTH_NAMES {
            self.0.set_service_status(name, status).await;
        }
    }
}

/// Serves until `stop`, then lets calls in flight finish.
pub async fn serve(
    listener: Listener,
    service: Arc<Service>,
    stop: CancellationToken,
    health: impl FnOnce(Health),
) -> std::io::Result<()> {
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
        .add_service(health_service)
        .add_service(reflection)
        .add_service(reflection_alpha);
    let server = Server {
        front: Front { service, routes: routes.prepare() },
        http: http(),
        calls: GracefulShutdown::new(),
    };
    while let Some(accepted) = stop.run_until_cancelled(accept(&listener, &server)).await {
        if let Err(error) = accepted {
            // Most often it is one too many for the process: asking again at once would only keep a core busy.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(backoff::delay(backoff::ATTEMPTS_MAX, |n| fastrand::u64(0..=n))).await;
        }
    }
    drop(listener);
    server.calls.shutdown().await;
    Ok(())
}

struct Server {
    front: Front,
    http: http2::Builder<TokioExecutor>,
    calls: GracefulShutdown,
}

async fn accept(listener: &Listener, server: &Server) -> std::io::Result<()> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, _) = listener.accept().await?;
            // Small answers must not wait for an acknowledgement of the one before.
            // One that is gone already finds out by itself.
            let _ = stream.set_nodelay(true);
            server.connect(stream);
        }
        Listener::Unix(listener) => server.connect(listener.accept().await?.0),
    }
    Ok(())
}

impl Server {
    fn connect(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let front = self.front.clone();
        let open = front.service.connection();
        // On the heap once: hyper and tokio move what it returns eight times, and it is large.
        let answer = service_fn(move |request| Box::pin(front.clone().answer(request)));
        let stream = TokioIo::new(Opening::new(stream, PREFACE_WITHIN));
        let connection = self.calls.watch(self.http.serve_connection(stream, answer));
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
            drop(open);
        });
    }
}

fn http() -> http2::Builder<TokioExecutor> {
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        // Envoy resets a call that took too long. After a stall that is all of them at once, and the default of 20 would
        // close the connection and fail every other call on it.
        .max_pending_accept_reset_streams(STREAMS_PER_CONNECTION_MAX as usize)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        // Nobody reads it in a gRPC answer.
        .auto_date_header(false);
    http
}
