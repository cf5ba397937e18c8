//! gRPC spoken by hand over one HTTP/2 connection: what a client library would not send, or not send in parts.

use std::net::SocketAddr;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, Request};
use prost::Message;
use sluice::api::pb;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
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
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    /// On a connection that is there.
    pub async fn over(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Self {
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
        self.reply().await
    }

    /// A part of the body that is not its end.
    pub fn send(&mut self, part: Bytes) {
        let _ = self.body.send_data(part, false);
    }

    pub async fn reply(self) -> Reply {
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

/// So many calls that their caller gave up before it sent a message, and then one it did not, in one burst of bytes:
/// whether that one is answered.
pub async fn survives_resets(address: SocketAddr, count: u32, message: &[u8]) -> Result<(), String> {
    burst(address, METHOD, &[], count, None, message).await
}

/// The same with calls that were given up after their message was sent.
pub async fn send_and_reset(
    address: SocketAddr,
    path: &str,
    more_headers: &[(&str, &str)],
    count: u32,
    message: &[u8],
) {
    burst(address, path, more_headers, count, Some(message), message).await.unwrap();
}

async fn burst(
    address: SocketAddr,
    path: &str,
    more_headers: &[(&str, &str)],
    count: u32,
    given_up: Option<&[u8]>,
    message: &[u8],
) -> Result<(), String> {
    let mut burst = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    burst.extend(frame(4, 0, 0, &[]));
    let last = 2 * count + 1;
    for stream in (1..last).step_by(2) {
        burst.extend(frame(1, 4, stream, &headers(path, more_headers)));
        burst.extend(given_up.iter().flat_map(|message| frame(0, 1, stream, &framed(message))));
        burst.extend(frame(3, 0, stream, &8u32.to_be_bytes()));
    }
    burst.extend(frame(1, 4, last, &headers(path, more_headers)));
    burst.extend(frame(0, 1, last, &framed(message)));
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(&burst).await.unwrap();
    loop {
        let mut head = [0; 9];
        stream.read_exact(&mut head).await.map_err(|error| format!("closed: {error}"))?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        stream.read_exact(&mut payload).await.map_err(|error| format!("closed: {error}"))?;
        match (head[3], u32::from_be_bytes([head[5], head[6], head[7], head[8]])) {
            (0, stream) if stream == last => return Ok(()),
            (7, _) => return Err(format!("GOAWAY {payload:?}")),
            _ => {}
        }
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call, in the plainest HPACK: `:method POST`, `:scheme http`, `:path`, `content-type`, and more.
fn headers(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let more = more.iter().flat_map(|(name, value)| [&[0][..], &text(name), &text(value)].concat());
    let plain = [&[0x83, 0x86, 0x04][..], &text(path), &[0x0f, 0x10], &text("application/grpc")].concat();
    plain.into_iter().chain(more).collect()
}
