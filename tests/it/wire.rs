//! gRPC spoken by hand over one HTTP/2 connection: what a client library would not send, or not send in parts.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request};
use prost::Message;
use sluice::grpc::pb;
use tokio::net::TcpStream;
use tonic::Code;

pub const METHOD: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

pub struct Wire {
    send: h2::client::SendRequest<Bytes>,
}

/// A call whose headers have been sent, and nothing else.
pub struct Open {
    answer: h2::client::ResponseFuture,
    body: h2::SendStream<Bytes>,
}

#[derive(Debug)]
pub struct Reply {
    pub code: Code,
    pub message: String,
    pub body: Bytes,
}

impl Wire {
    pub async fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).await.unwrap();
        // Room for a thousand answers that nobody has read yet.
        let mut builder = h2::client::Builder::new();
        let handshake = builder.initial_connection_window_size(1 << 24).handshake(stream);
        let (send, connection) = handshake.await.unwrap();
        // It ends with the server, and how is not what is tested.
        tokio::spawn(async move { drop(connection.await) });
        let wire = Self { send };
        // One answer, so that the server's settings have come.
        wire.call(METHOD, &framed(&[])).await;
        wire
    }

    /// MAX_CONCURRENT_STREAMS as the server's SETTINGS gave it.
    pub fn streams_max(&self) -> usize {
        self.send.current_max_send_streams()
    }

    /// Opens a stream once the server's limit lets it.
    pub async fn open(&self, path: &str) -> Open {
        let request = Request::post(format!("http://sluice{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let mut send = self.send.clone().ready().await.unwrap();
        let (answer, body) = send.send_request(request, false).unwrap();
        Open { answer, body }
    }

    /// One call with these bytes as its whole body.
    pub async fn call(&self, path: &str, body: &[u8]) -> Reply {
        self.open(path).await.finish(body).await
    }

    pub async fn should_rate_limit(&self, message: &[u8]) -> Reply {
        self.call(METHOD, &framed(message)).await
    }
}

impl Open {
    pub async fn finish(mut self, body: &[u8]) -> Reply {
        // A server that has refused already takes no more, and its answer counts.
        let _ = self.body.send_data(Bytes::copy_from_slice(body), true);
        let response = self.answer.await.unwrap();
        let (parts, mut stream) = response.into_parts();
        let mut body = BytesMut::new();
        while let Some(part) = stream.data().await {
            let part = part.unwrap();
            stream.flow_control().release_capacity(part.len()).unwrap();
            body.extend_from_slice(&part);
        }
        let trailers = stream.trailers().await.unwrap().unwrap_or(parts.headers);
        Reply {
            code: Code::from_bytes(text(&trailers, "grpc-status").as_bytes()),
            message: decoded(text(&trailers, "grpc-message")),
            body: body.freeze(),
        }
    }
}

impl Reply {
    pub fn response(&self) -> pb::RateLimitResponse {
        assert_eq!(self.code, Code::Ok, "{self:?}");
        pb::RateLimitResponse::decode(&self.body[5..]).unwrap()
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).unwrap()
}

/// A message with gRPC's length in front.
pub fn framed(message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap();
    [&[0], &len.to_be_bytes()[..], message].concat()
}
