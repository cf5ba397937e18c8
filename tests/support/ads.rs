//! A management server: Envoy's aggregated discovery service, state of the world, with what a test has pushed last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_server::{
    AggregatedDiscoveryService, AggregatedDiscoveryServiceServer,
};
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use sluice::control::xds::pb::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::{Mutex, mpsc, watch};
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status, Streaming};

pub const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// Serves until it is dropped.
pub struct Ads {
    pub address: SocketAddr,
    pushed: watch::Sender<Option<Pushed>>,
    heard: Mutex<mpsc::UnboundedReceiver<DiscoveryRequest>>,
    serving: tokio::task::JoinHandle<()>,
    /// Ends the streams, which outlive the server that accepted them.
    _hang_up: DropGuard,
}

#[derive(Clone)]
struct Pushed {
    version: String,
    resources: Arc<Vec<Any>>,
}

impl Ads {
    pub async fn start() -> Self {
        Self::start_at(SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// In the place of one that is gone.
    pub async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        Self::serve(address, TcpListenerStream::new(listener))
    }

    /// On connections that somebody else accepts.
    pub fn serve<S, I>(address: SocketAddr, incoming: I) -> Self
    where
        S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
        I: Stream<Item = Result<S, std::io::Error>> + Send + 'static,
    {
        let (pushed, _) = watch::channel(None);
        let (tell, heard) = mpsc::unbounded_channel();
        let hang_up = CancellationToken::new();
        let server =
            Server { pushed: pushed.clone(), tell, nonces: Arc::default(), hang_up: hang_up.clone() };
        let service = AggregatedDiscoveryServiceServer::new(server).max_encoding_message_size(64 << 20);
        let serving = tonic::transport::Server::builder().add_service(service);
        let serving = serving.serve_with_incoming(incoming);
        let serving = tokio::spawn(async move { serving.await.expect("it never ends") });
        Self { address, pushed, heard: Mutex::new(heard), serving, _hang_up: hang_up.drop_guard() }
    }

    /// What all clients get now, and those who come later.
    pub fn push(&self, version: &str, configs: &[RateLimitConfig]) {
        self.push_any(version, configs.iter().map(any).collect());
    }

    /// The same with whatever a resource may be.
    pub fn push_any(&self, version: &str, resources: Vec<Any>) {
        let resources = Arc::new(resources);
        self.pushed.send_replace(Some(Pushed { version: version.to_owned(), resources }));
    }

    /// The next request of any client.
    pub async fn heard(&self) -> DiscoveryRequest {
        let mut heard = self.heard.lock().await;
        let next = tokio::time::timeout(std::time::Duration::from_secs(30), heard.recv());
        next.await.expect("a client must say something").expect("the server must run")
    }

    /// Pushes, and waits until it is acknowledged.
    pub async fn accepted(&self, version: &str, configs: &[RateLimitConfig]) {
        self.push(version, configs);
        loop {
            let said = self.heard().await;
            assert_eq!(said.error_detail, None);
            if said.version_info == version {
                return;
            }
        }
    }

    /// Pushes, and waits until it is refused: why.
    pub async fn refused(&self, version: &str, configs: &[RateLimitConfig]) -> String {
        self.refused_any(version, configs.iter().map(any).collect()).await
    }

    pub async fn refused_any(&self, version: &str, resources: Vec<Any>) -> String {
        self.push_any(version, resources);
        loop {
            let said = self.heard().await;
            if let Some(error) = said.error_detail {
                assert_ne!(said.version_info, version, "a refusal names what was accepted before");
                return error.message;
            }
        }
    }

    /// Hangs up on everybody, and is gone when this returns.
    pub async fn stop(mut self) -> SocketAddr {
        self.serving.abort();
        // The listener and its connections are dropped with the task.
        let _ = (&mut self.serving).await;
        self.address
    }
}

impl Drop for Ads {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

struct Server {
    pushed: watch::Sender<Option<Pushed>>,
    tell: mpsc::UnboundedSender<DiscoveryRequest>,
    nonces: Arc<AtomicU64>,
    hang_up: CancellationToken,
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Server {
    type StreamAggregatedResourcesStream = ReceiverStream<Result<DiscoveryResponse, Status>>;
    type DeltaAggregatedResourcesStream = ReceiverStream<Result<DeltaDiscoveryResponse, Status>>;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Self::StreamAggregatedResourcesStream>, Status> {
        let mut requests = request.into_inner();
        let (answers, outgoing) = mpsc::channel(4);
        let (mut pushed, tell, nonces) =
            (self.pushed.subscribe(), self.tell.clone(), Arc::clone(&self.nonces));
        let hang_up = self.hang_up.clone();
        let following = async move {
            // The first request subscribes.
            let Ok(Some(first)) = requests.message().await else { return };
            let _ = tell.send(first);
            pushed.mark_changed();
            loop {
                tokio::select! {
                    request = requests.message() => match request {
                        Ok(Some(request)) => drop(tell.send(request)),
                        _ => return,
                    },
                    changed = pushed.changed() => {
                        if changed.is_err() {
                            return;
                        }
                        let Some(Pushed { version, resources }) = pushed.borrow_and_update().clone() else { continue };
                        let answer = DiscoveryResponse {
                            version_info: version,
                            resources: resources.to_vec(),
                            type_url: TYPE_URL.to_owned(),
                            nonce: nonces.fetch_add(1, Ordering::SeqCst).to_string(),
                            ..Default::default()
                        };
                        if answers.send(Ok(answer)).await.is_err() {
                            return;
                        }
                    }
                }
            }
        };
        tokio::spawn(async move { hang_up.run_until_cancelled(following).await });
        Ok(Response::new(ReceiverStream::new(outgoing)))
    }

    async fn delta_aggregated_resources(
        &self,
        _: Request<Streaming<DeltaDiscoveryRequest>>,
    ) -> Result<Response<Self::DeltaAggregatedResourcesStream>, Status> {
        Err(Status::unimplemented("state of the world only"))
    }
}

pub fn any(config: &RateLimitConfig) -> Any {
    Any { type_url: TYPE_URL.to_owned(), value: config.encode_to_vec() }
}

/// The limits of a domain: `config("d", [limit("path", "/a", 5, RateLimitUnit::Minute)])`.
pub fn config(domain: &str, descriptors: impl Into<Vec<RateLimitDescriptor>>) -> RateLimitConfig {
    RateLimitConfig { name: domain.to_owned(), domain: domain.to_owned(), descriptors: descriptors.into() }
}

pub fn limit(key: &str, value: &str, requests_per_unit: u32, unit: RateLimitUnit) -> RateLimitDescriptor {
    let rate_limit = RateLimitPolicy { unit: unit.into(), requests_per_unit, ..Default::default() };
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        rate_limit: Some(rate_limit),
        ..Default::default()
    }
}

/// Descriptors below one that has no limit of its own.
pub fn under(
    key: &str,
    value: &str,
    descriptors: impl Into<Vec<RateLimitDescriptor>>,
) -> RateLimitDescriptor {
    RateLimitDescriptor {
        key: key.to_owned(),
        value: value.to_owned(),
        descriptors: descriptors.into(),
        ..Default::default()
    }
}
