//! The way to a collector: OTLP by gRPC, or by HTTP/1.1 with protobuf.
//!
//! If nothing says which, what the endpoint looks like is tried first, then the other one; what has worked is kept. Refuses
//! to know what is sent, and when again.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::rt::{Read, Write};
use hyper_util::rt::TokioIo;
use prost::Message;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Code, Extensions, Status};

use super::options::{Endpoint, Otlp, Protocol, Tls};
use super::pb;
use super::pb::trace_service_client::TraceServiceClient;
use crate::tls::ClientTls;

/// What a collector answers is a few bytes, or an error's text.
const ANSWER_BYTES_MAX: usize = 64 << 10;

const HTTP_PORT: u16 = 80;

/// Why spans were not taken.
#[derive(Debug)]
pub(super) enum SendError {
    /// They may be taken later.
    Away(String),
    /// They never will be.
    Refused(String),
}

#[derive(Debug)]
pub(super) struct Transport {
    endpoint: Endpoint,
    protocol: Protocol,
    /// It was said, or it has worked.
    is_certain: bool,
    headers: HeaderMap,
    timeout: Duration,
    grpc: TraceServiceClient<Channel>,
    http_tls: Option<Arc<ClientTls>>,
    /// A connection that was used before.
    http: Option<SendRequest<Full<Bytes>>>,
    /// The connections' own tasks, which end with this.
    connections: JoinSet<()>,
}

impl Transport {
    /// Connects when something is sent.
    pub(super) fn new(options: &Otlp, tls: Option<Tls>) -> Self {
        let (grpc_tls, http_tls) = tls.map(|tls| (tls.grpc, tls.http)).unzip();
        let endpoint = options.endpoint.clone();
        // With TLS too: its connector adds it.
        let channel = Channel::builder(
            format!("http://{}", endpoint.authority).parse().expect("an authority must make a URI"),
        );
        let channel = channel.connect_timeout(options.timeout).tcp_nodelay(true);
        let channel = match grpc_tls {
            Some(tls) => channel.connect_with_connector_lazy(tls.connector(options.timeout)),
            None => channel.connect_lazy(),
        };
        Self {
            protocol: options.protocol.unwrap_or(endpoint.looks_like),
            is_certain: options.protocol.is_some(),
            headers: options.headers.iter().cloned().collect(),
            timeout: options.timeout,
            grpc: TraceServiceClient::new(channel).max_decoding_message_size(ANSWER_BYTES_MAX),
            http_tls,
            http: None,
            connections: JoinSet::new(),
            endpoint,
        }
    }

    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// How many of the spans were not taken.
    pub(super) async fn send(&mut self, request: &pb::ExportTraceServiceRequest) -> Result<u64, SendError> {
        let answered = self.send_by(self.protocol, request).await;
        let Err(error) = answered else {
            self.is_certain = true;
            return answered;
        };
        if self.is_certain {
            return Err(error);
        }
        let other = self.protocol.other();
        match self.send_by(other, request).await {
            Ok(refused) => {
                (self.protocol, self.is_certain) = (other, true);
                Ok(refused)
            }
            Err(_) => {
                let (SendError::Away(why) | SendError::Refused(why)) = error;
                Err(SendError::Away(why))
            }
        }
    }

    async fn send_by(
        &mut self,
        protocol: Protocol,
        request: &pb::ExportTraceServiceRequest,
    ) -> Result<u64, SendError> {
        let timeout = self.timeout;
        let answered = tokio::time::timeout(timeout, async {
            match protocol {
                Protocol::Grpc => self.by_grpc(request.clone()).await,
                Protocol::Http => self.by_http(request.encode_to_vec().into()).await,
            }
        });
        let late = || SendError::Away(format!("no answer within {} ms", timeout.as_millis()));
        let answer = answered.await.unwrap_or_else(|_| Err(late()))?;
        let Some(partial) = answer.partial_success else { return Ok(0) };
        if partial.rejected_spans > 0 {
            tracing::warn!(endpoint = %self.endpoint, why = partial.error_message, "{} spans were refused", partial.rejected_spans);
        }
        Ok(u64::try_from(partial.rejected_spans).unwrap_or(0))
    }

    async fn by_grpc(
        &mut self,
        request: pb::ExportTraceServiceRequest,
    ) -> Result<pb::ExportTraceServiceResponse, SendError> {
        let metadata = MetadataMap::from_headers(self.headers.clone());
        let request = tonic::Request::from_parts(metadata, Extensions::default(), request);
        let answer = self.grpc.export(request).await;
        answer.map(tonic::Response::into_inner).map_err(|status| grpc_error(&status))
    }

    async fn by_http(&mut self, body: Bytes) -> Result<pb::ExportTraceServiceResponse, SendError> {
        let away = |error: &dyn Error| SendError::Away(cause(error));
        let mut connection = match self.http.take().filter(SendRequest::is_ready) {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let mut request =
            Request::post(&self.endpoint.path).body(Full::new(body)).map_err(|error| away(&error))?;
        let host = HeaderValue::from_str(self.endpoint.authority.as_str()).map_err(|error| away(&error))?;
        let headers = request.headers_mut();
        headers.clone_from(&self.headers);
        headers.insert(header::HOST, host);
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        let answer = connection.send_request(request).await.map_err(|error| away(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), ANSWER_BYTES_MAX).collect().await;
        let body = body.map_err(|error| away(&*error))?.to_bytes();
        self.http = Some(connection);
        if !status.is_success() {
            return Err(http_error(status));
        }
        // Some answer with something else, or nothing; they have taken it.
        Ok(pb::ExportTraceServiceResponse::decode(body).unwrap_or_default())
    }

    async fn connect(&mut self) -> Result<SendRequest<Full<Bytes>>, SendError> {
        let authority = &self.endpoint.authority;
        match &self.http_tls {
            Some(tls) => {
                let uri = format!("https://{authority}").parse().expect("an authority must make a URI");
                let stream = tls.connector(self.timeout).connect(&uri).await;
                let stream = stream.map_err(|error| SendError::Away(cause(&error)))?;
                self.handshake(TokioIo::new(stream)).await
            }
            None => {
                let host = authority.host().trim_matches(['[', ']']);
                let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(HTTP_PORT))).await;
                let stream = stream.map_err(|error| SendError::Away(cause(&error)))?;
                self.handshake(TokioIo::new(stream)).await
            }
        }
    }

    async fn handshake(
        &mut self,
        stream: impl Read + Write + Unpin + Send + 'static,
    ) -> Result<SendRequest<Full<Bytes>>, SendError> {
        let opened = http1::handshake(stream).await;
        let (sender, connection) = opened.map_err(|error| SendError::Away(cause(&error)))?;
        // The one before has ended, or nothing of it is wanted.
        self.connections.shutdown().await;
        // How it ends is what the request is told.
        self.connections.spawn(async { drop(connection.await) });
        Ok(sender)
    }
}

/// As OTLP has it: which may be sent again.
fn grpc_error(status: &Status) -> SendError {
    let is_away = matches!(
        status.code(),
        Code::Cancelled
            | Code::DeadlineExceeded
            | Code::ResourceExhausted
            | Code::Aborted
            | Code::OutOfRange
            | Code::Unavailable
            | Code::DataLoss
    );
    match status.source() {
        // What became of the connection.
        Some(source) => SendError::Away(cause(source)),
        None if is_away => SendError::Away(format!("{:?}: {}", status.code(), status.message())),
        None => SendError::Refused(format!("{:?}: {}", status.code(), status.message())),
    }
}

fn http_error(status: StatusCode) -> SendError {
    match status {
        StatusCode::TOO_MANY_REQUESTS
        | StatusCode::BAD_GATEWAY
        | StatusCode::SERVICE_UNAVAILABLE
        | StatusCode::GATEWAY_TIMEOUT => SendError::Away(status.to_string()),
        _ => SendError::Refused(status.to_string()),
    }
}

/// The innermost reason: the others only say that there is one.
fn cause(error: &(dyn Error + '_)) -> String {
    let mut text = error.to_string();
    let mut inner = error.source();
    while let Some(error) = inner {
        text = error.to_string();
        inner = error.source();
    }
    text
}
