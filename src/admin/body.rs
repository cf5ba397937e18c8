//! A request's body, read before its route is asked: whole, within a time, and counted while it is held.
//!
//! One place for all routes, so that each refusal is said in the same JSON. Refuses to know what bodies say.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;

use super::error::ApiError;
use crate::clock;
use crate::listen::port::{Call, Connection};
use crate::telemetry::Refused;

/// The largest body that any route reads.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 20;

/// From the end of the headers to the end of the body. A peer that takes longer makes us keep what it has sent so far.
const BODY_WITHIN: Duration = Duration::from_secs(10);

/// So much of a body that is too long is read and dropped, and for so long: many clients send all of it before they look for an answer, and
/// those never see the answer of a server that has closed the connection by then.
const DROPPED_BYTES_MAX: usize = 8 << 20;
const DROPPED_WITHIN: Duration = Duration::from_secs(1);

/// In front of every route. Reads that have a body are answered without it.
pub(crate) async fn read(request: Request, next: Next) -> Response {
    let Some(connection) = request.extensions().get::<Arc<Connection>>().cloned() else {
        // Routes that a test calls without a connection.
        return next.run(request).await;
    };
    let call = match connection.call(0) {
        Ok(call) => call,
        Err(full) => return overloaded(&full).into_response(),
    };
    let request = match *request.method() {
        Method::GET | Method::HEAD => request,
        _ => match with_whole_body(request, &call).await {
            Ok(request) => request,
            Err(error) => return error.into_response(),
        },
    };
    call.is_read();
    let answer = next.run(request).await;
    // Whether it is taken is watched where it is written.
    call.is_answered(false, clock::monotonic_ms());
    answer
}

async fn with_whole_body(request: Request, call: &Call) -> Result<Request, ApiError> {
    let (parts, mut body) = request.into_parts();
    match tokio::time::timeout(BODY_WITHIN, collect(&mut body, call)).await {
        Ok(Ok(read)) => Ok(Request::from_parts(parts, Body::from(read))),
        Ok(Err(error)) => {
            // Whoever asks before it sends the body gets the answer instead of a yes.
            if error.status() == StatusCode::PAYLOAD_TOO_LARGE && !parts.headers.contains_key(header::EXPECT)
            {
                drop(tokio::time::timeout(DROPPED_WITHIN, drop_rest(body)).await);
            }
            Err(error)
        }
        Err(_) => {
            call.port().refused(Refused::Slow);
            let detail = format!("the body was not complete within {} s", BODY_WITHIN.as_secs());
            Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", detail))
        }
    }
}

async fn collect(body: &mut Body, call: &Call) -> Result<Bytes, ApiError> {
    // If the header says that the body is too long, nothing of it is kept.
    if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
        return Err(too_large());
    }
    let mut read = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad_request("invalid_request", error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() > BODY_BYTES_MAX - read.len() {
            return Err(too_large());
        }
        call.hold(data.len()).map_err(|full| overloaded(&full))?;
        read.extend_from_slice(&data);
    }
    Ok(Bytes::from(read))
}

async fn drop_rest(mut body: Body) {
    let mut dropped = 0;
    while dropped < DROPPED_BYTES_MAX
        && let Some(Ok(frame)) = body.frame().await
    {
        dropped += frame.data_ref().map_or(0, Bytes::len);
    }
}

fn too_large() -> ApiError {
    let detail = format!("the body is longer than {BODY_BYTES_MAX} bytes");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", detail)
}

fn overloaded(full: &crate::listen::port::Full) -> ApiError {
    ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", full.to_string())
}
