//! A collector of traces: it takes OTLP by gRPC or HTTP on a free port, and reads it with OpenTelemetry's own messages.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue, any_value::Value};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use crate::wait::until;

/// Gone when it is dropped.
pub struct Collector {
    pub address: SocketAddr,
    received: Received,
    _serving: JoinSet<()>,
}

#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<Export>>>);

/// One request, and the headers that it came with.
#[derive(Clone)]
pub struct Export {
    pub headers: HeaderMap,
    pub request: ExportTraceServiceRequest,
}

impl Collector {
    pub async fn by_grpc() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Received::default());
        let service = TraceServiceServer::new(received.clone());
        let serving = tonic::transport::Server::builder().add_service(service);
        let serving = serving.serve_with_incoming(TcpListenerStream::new(listener));
        let mut tasks = JoinSet::new();
        tasks.spawn(async { serving.await.unwrap() });
        Self { address, received, _serving: tasks }
    }

    pub async fn by_http() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Received::default());
        let take = async |State(received): State<Received>, headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            let request = ExportTraceServiceRequest::decode(body).expect("it must be what a collector reads");
            received.0.lock().unwrap().push(Export { headers, request });
            (StatusCode::OK, ExportTraceServiceResponse::default().encode_to_vec())
        };
        let router = Router::new().route("/v1/traces", post(take)).with_state(received.clone());
        let mut tasks = JoinSet::new();
        tasks.spawn(async { axum::serve(listener, router).await.unwrap() });
        Self { address, received, _serving: tasks }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub fn exports(&self) -> Vec<Export> {
        self.received.0.lock().unwrap().clone()
    }

    pub fn spans(&self) -> Vec<Span> {
        let all = self.exports().into_iter().flat_map(|export| export.request.resource_spans);
        all.flat_map(|resource| resource.scope_spans).flat_map(|scope| scope.spans).collect()
    }

    /// Waits for spans that are so, and returns all of them once there are as many.
    pub async fn until(&self, count: usize, is_so: impl Fn(&Span) -> bool) -> Vec<Span> {
        until("spans", async || {
            let spans: Vec<Span> = self.spans().into_iter().filter(|span| is_so(span)).collect();
            if spans.len() >= count { Ok(spans) } else { Err(format!("{:#?}", self.spans())) }
        })
        .await
    }
}

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        self.0.lock().unwrap().push(Export { headers: metadata.into_headers(), request });
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// An attribute as text; a list has spaces between its values, and what isn't there is empty.
pub fn said(attributes: &[KeyValue], key: &str) -> String {
    let there = attributes.iter().find(|attribute| attribute.key == key);
    there.and_then(|attribute| attribute.value.as_ref()).map_or_else(String::new, text)
}

fn text(value: &AnyValue) -> String {
    match &value.value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::ArrayValue(list)) => list.values.iter().map(text).collect::<Vec<_>>().join(" "),
        other => panic!("{other:?} is not sent"),
    }
}
