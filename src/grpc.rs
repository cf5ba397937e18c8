//! The gRPC port: Envoy's rate-limit service, the lease API, health and reflection on one listener.
//!
//! Knows how to listen and to drain; what an answer says is decided elsewhere.

mod codec;
pub mod lease;
pub mod pb;
pub mod queue;
pub mod rls;
pub mod status;

use std::sync::Arc;
use std::time::Duration;

use tokio_stream::StreamExt;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::TcpIncoming;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::listen::Listener;
use crate::retry::backoff;
use crate::service::Service;

/// Envoy opens one connection per worker and overshoots a low number: refused streams are failed calls.
const STREAMS_PER_CONNECTION_MAX: u32 = 4096;

/// A dead peer is noticed within the sum of both.
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

/// A connection that can't be accepted is most often one too many for the process: asking again at once would only
/// keep a core busy.
async fn unhurried<C>(accepted: std::io::Result<C>) -> std::io::Result<C> {
    if let Err(error) = &accepted {
        tracing::warn!(%error, "a connection could not be accepted");
        tokio::time::sleep(backoff::delay(backoff::ATTEMPTS_MAX, |n| fastrand::u64(0..=n))).await;
    }
    accepted
}

/// Serves until `stop`, then lets calls in flight finish.
pub async fn serve(
    listener: Listener,
    service: Arc<Service>,
    stop: CancellationToken,
    health: impl FnOnce(Health),
) -> Result<(), tonic::transport::Error> {
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
    let router = tonic::transport::Server::builder()
        .max_concurrent_streams(STREAMS_PER_CONNECTION_MAX)
        // Envoy resets a call that took too long. After a stall that is all of them at once, and the default of 20 would
        // close the connection and fail every other call on it.
        .http2_max_pending_accept_reset_streams(Some(STREAMS_PER_CONNECTION_MAX as usize))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .add_service(rls::RateLimitServer::new(Arc::clone(&service)))
        .add_service(lease::server(service))
        .add_service(health_service)
        .add_service(reflection)
        .add_service(reflection_alpha);
    let stopped = stop.cancelled_owned();
    match listener {
        Listener::Tcp(listener) => {
            // Small answers must not wait for an acknowledgement of the one before.
            let incoming = TcpIncoming::from(listener).with_nodelay(Some(true)).then(unhurried);
            router.serve_with_incoming_shutdown(incoming, stopped).await
        }
        Listener::Unix(listener) => {
            let incoming = tokio_stream::wrappers::UnixListenerStream::new(listener).then(unhurried);
            router.serve_with_incoming_shutdown(incoming, stopped).await
        }
    }
}
