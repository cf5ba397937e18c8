//! `sluice.v1.LeaseService` on the gRPC port.
//!
//! Decodes, asks [`crate::service`], encodes. What the messages mean is in [`crate::api::lease`].

use std::sync::Arc;

use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use super::traced::{QUEUE_RESERVE, RESERVE, RESERVE_BATCH};
use super::watch::{Watching, unknown, watch};
use crate::admission::Denial;
use crate::api::REQUEST_ID;
use crate::api::delivery;
use crate::api::error::WireError;
use crate::api::lease::{self, ReserveBatch};
use crate::api::pb::lease as pb;
use crate::api::queue::{self, NOT_IN_LINE};
use crate::codec::MESSAGE_BYTES_MAX;
use crate::service::Service;
use crate::service::queue::Left;
use crate::trace;

pub(crate) const SERVICE_NAME: &str = pb::lease_service_server::SERVICE_NAME;

#[derive(Debug)]
pub(crate) struct LeaseServer(Arc<Service>);

pub(crate) fn server(service: Arc<Service>) -> pb::lease_service_server::LeaseServiceServer<LeaseServer> {
    let server = pb::lease_service_server::LeaseServiceServer::new(LeaseServer(service));
    server.max_decoding_message_size(MESSAGE_BYTES_MAX)
}

#[tonic::async_trait]
impl pb::lease_service_server::LeaseService for LeaseServer {
    async fn reserve(
        &self,
        request: Request<pb::ReserveRequest>,
    ) -> Result<Response<pb::ReserveResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let span = self.0.span(&RESERVE, metadata.as_ref());
        let asking =
            Box::pin(async { self.0.reserve(&lease::parse_reserve(&message, request_id(&metadata))?).await });
        let outcome = trace::within(span, asking).await;
        let answer = lease::reserve_answer(outcome);
        let mut response = with_metadata(answer.message, answer.denial.as_ref());
        delivery::carry(response.extensions_mut(), answer.unsent);
        Ok(response)
    }

    async fn queue_reserve(
        &self,
        request: Request<pb::ReserveRequest>,
    ) -> Result<Response<pb::LeaseStatus>, Status> {
        let (metadata, _, message) = request.into_parts();
        let span = self.0.span(&QUEUE_RESERVE, metadata.as_ref());
        let asking = Box::pin(async {
            self.0.queue_reserve(&lease::parse_reserve(&message, request_id(&metadata))?).await
        });
        let outcome = trace::within(span, asking).await;
        let answer = queue::reserve_answer(outcome);
        let mut response = with_metadata(answer.message, answer.denial.as_ref());
        delivery::carry(response.extensions_mut(), answer.unsent);
        Ok(response)
    }

    type WatchLeaseStream = Watching;

    async fn watch_lease(
        &self,
        request: Request<pb::WatchLeaseRequest>,
    ) -> Result<Response<Self::WatchLeaseStream>, Status> {
        watch(&self.0, request.into_inner().lease_id).await
    }

    async fn leave_queue(
        &self,
        request: Request<pb::LeaveQueueRequest>,
    ) -> Result<Response<pb::LeaseStatus>, Status> {
        let left = self.0.leave(&request.get_ref().lease_id).await;
        match left.map_err(|error| WireError::from(error).grpc())? {
            Left::Out(place) => Ok(Response::new(queue::status(&place))),
            Left::Holds => Err(Status::failed_precondition(NOT_IN_LINE)),
            Left::Unknown => Err(unknown()),
        }
    }

    async fn complete(
        &self,
        request: Request<pb::CompleteRequest>,
    ) -> Result<Response<pb::CompleteResponse>, Status> {
        let outcome = match lease::parse_complete(request.get_ref()) {
            Ok(completion) => self.0.complete(&completion).await,
            Err(error) => Err(error),
        };
        Ok(Response::new(lease::complete_answer(outcome).0))
    }

    async fn reserve_batch(
        &self,
        request: Request<pb::ReserveBatchRequest>,
    ) -> Result<Response<pb::ReserveBatchResponse>, Status> {
        let (metadata, _, message) = request.into_parts();
        let batch = ReserveBatch::parse(&message, request_id(&metadata)).map_err(WireError::grpc)?;
        let span = self.0.span(&RESERVE_BATCH, metadata.as_ref());
        let outcomes = trace::within(span, Box::pin(self.0.reserve_batch(batch.asks()))).await;
        let (results, unsent) = lease::reserve_batch_response(outcomes);
        Ok(delivery::response(results, unsent))
    }

    async fn complete_batch(
        &self,
        request: Request<pb::CompleteBatchRequest>,
    ) -> Result<Response<pb::CompleteBatchResponse>, Status> {
        let completions = lease::parse_complete_batch(request.get_ref()).map_err(WireError::grpc)?;
        Ok(Response::new(lease::complete_batch_response(self.0.complete_batch(completions).await)))
    }
}

/// An answer with what a denied client is told in headers.
fn with_metadata<T>(answer: T, denial: Option<&Denial>) -> Response<T> {
    let mut response = Response::new(answer);
    for (name, value) in denial.into_iter().flat_map(Denial::headers) {
        // A LimitKey may have letters that metadata can't carry; it is in the answer too.
        if let Ok(value) = value.parse() {
            response.metadata_mut().insert(name, value);
        }
    }
    response
}

fn request_id(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(REQUEST_ID)?.to_str().ok().filter(|id| !id.is_empty())
}
