//! Envoy's RateLimitService on the gRPC port.
//!
//! Decodes, asks [`crate::service`], encodes. What the messages mean is in [`crate::api::check`].

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tonic::Status;
use tonic::server::{Grpc, NamedService, UnaryService};

use super::traced::{SHOULD_RATE_LIMIT, note_failure};
use crate::api::delivery::{self, Unsent};
use crate::api::error::WireError;
use crate::api::{REQUEST_ID, check, pb};
use crate::codec::{MESSAGE_BYTES_MAX, ProtoCodec};
use crate::service::Service;
use crate::trace;

pub(crate) const SERVICE_NAME: &str = "envoy.service.ratelimit.v3.RateLimitService";
pub const PATH: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The service on the wire, for requests that [`super::front`] leaves to tonic. Hand-written only because of its codec.
#[derive(Debug, Clone)]
pub(crate) struct RateLimitServer {
    service: Arc<Service>,
}

impl RateLimitServer {
    pub(crate) fn new(service: Arc<Service>) -> Self {
        Self { service }
    }
}

impl NamedService for RateLimitServer {
    const NAME: &'static str = SERVICE_NAME;
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl tower::Service<http::Request<tonic::body::Body>> for RateLimitServer {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let service = Arc::clone(&self.service);
        Box::pin(async move {
            if request.uri().path() != PATH {
                return Ok(Status::unimplemented("the only method is ShouldRateLimit").into_http());
            }
            let codec = ProtoCodec::<pb::RateLimitResponse, pb::RateLimitRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(MESSAGE_BYTES_MAX);
            Ok(grpc.unary(ShouldRateLimit { service }, request).await)
        })
    }
}

struct ShouldRateLimit {
    service: Arc<Service>,
}

impl UnaryService<pb::RateLimitRequest> for ShouldRateLimit {
    type Response = pb::RateLimitResponse;
    type Future = BoxFuture<Result<tonic::Response<pb::RateLimitResponse>, Status>>;

    fn call(&mut self, request: tonic::Request<pb::RateLimitRequest>) -> Self::Future {
        let service = Arc::clone(&self.service);
        Box::pin(async move {
            let (metadata, _, message) = request.into_parts();
            let request_id = metadata.get(REQUEST_ID).and_then(|value| value.to_str().ok());
            let span = service.span(&SHOULD_RATE_LIMIT, metadata.as_ref());
            let answering = Box::pin(async {
                let answered = should_rate_limit(&service, &message, request_id).await;
                answered.inspect_err(note_failure)
            });
            let (response, unsent) = trace::within(span, answering).await?;
            Ok(delivery::response(response, unsent))
        })
    }
}

/// One call, from message to message, and the leases that the answer tells of.
pub async fn should_rate_limit(
    service: &Arc<Service>,
    message: &pb::RateLimitRequest,
    request_id: Option<&str>,
) -> Result<(pb::RateLimitResponse, Unsent), Status> {
    let mut parsed = check::parse(message, request_id).map_err(WireError::grpc)?;
    match service.check(&mut parsed).await {
        Ok(checked) => Ok(check::response(checked, message, &service.tells)),
        Err(error) => Err(WireError::from(error).grpc()),
    }
}
