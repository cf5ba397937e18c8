//! The ceiling: a tonic service that decodes the same request and answers a constant. Knows no limit.

use std::io::Write;

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf::Duration;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status};

struct Constant;

#[tonic::async_trait]
impl RateLimitService for Constant {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        std::hint::black_box(request.into_inner());
        // As large as an answer of Sluice for one descriptor.
        let status = DescriptorStatus {
            code: Code::Ok as i32,
            current_limit: Some(RateLimit { name: "rpm".to_owned(), requests_per_unit: u32::MAX, unit: 2 }),
            limit_remaining: u32::MAX - 1,
            duration_until_reset: Some(Duration { seconds: 60, nanos: 0 }),
            ..Default::default()
        };
        let overall_code = Code::Ok as i32;
        Ok(Response::new(RateLimitResponse { overall_code, statuses: vec![status], ..Default::default() }))
    }
}

/// Serves until it is killed; prints its address as Sluice does.
pub fn serve() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        println!("grpc listening on {}", listener.local_addr().unwrap());
        std::io::stdout().flush().unwrap();
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let router = tonic::transport::Server::builder()
            .max_concurrent_streams(4096)
            .add_service(RateLimitServiceServer::new(Constant));
        router.serve_with_incoming(incoming).await.unwrap();
    });
}
