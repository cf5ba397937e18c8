//! HTTP/1.1 for tests: one request, one answer, on a connection of its own. What has a body is JSON, unless a test says else.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;

/// A whole answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: http::HeaderMap,
    pub body: String,
}

impl Answer {
    /// A header's text; empty if it isn't there.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a header must be text"))
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

pub async fn get(address: SocketAddr, path: &str) -> Answer {
    send(address, "GET", path, &[], "").await
}

pub async fn post(address: SocketAddr, path: &str, body: &str) -> Answer {
    send(address, "POST", path, &[], body.to_owned()).await
}

pub async fn send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Answer {
    let answer = try_send(address, method, path, headers, body).await;
    answer.unwrap_or_else(|error| panic!("{method} {path} at {address}: {error}"))
}

/// The same where nobody may be listening.
pub async fn try_send(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: impl Into<Bytes>,
) -> Result<Answer, String> {
    let mut request = http::Request::builder().method(method).uri(format!("http://{address}{path}"));
    let has_kind = headers.iter().any(|(name, _)| *name == "content-type");
    if matches!(method, "POST" | "PUT") && !has_kind {
        request = request.header("content-type", "application/json");
    }
    for (name, value) in headers.iter().filter(|(_, value)| !value.is_empty()) {
        request = request.header(*name, *value);
    }
    let request = request.body(Full::<Bytes>::new(body.into())).expect("a test must send what can be sent");
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client.request(request).await.map_err(|error| format!("{error:?}"))?;
    let (parts, body) = response.into_parts();
    let body = body.collect().await.map_err(|error| format!("{error:?}"))?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    Ok(Answer { status: parts.status.as_u16(), headers: parts.headers, body })
}
