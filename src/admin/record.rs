//! `GET /v1/record`: every request as it is decided, one JSON object a line, for `sluice record`.
//!
//! It tells all values, so that it needs the token also where reads are open. Who is slow misses lines and is told how many.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream;
use serde::Deserialize;

use super::error::ApiError;
use super::gate::Access;
use crate::api::error::INVALID;
use crate::record::{Sample, Wanted};
use crate::service::Service;

/// An empty line, so that both sides see whether the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

#[derive(Debug, Deserialize)]
pub(crate) struct RecordQuery {
    sample: Option<String>,
    hash_values: Option<String>,
}

pub(crate) async fn get(
    State(service): State<Arc<Service>>,
    Extension(access): Extension<Access>,
    query: Result<Query<RecordQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let wanted = wanted(&query?.0)?;
    if access != Access::Full {
        let detail = "what is recorded needs the admin token, as `authorization: Bearer <token>`";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", detail));
    }
    let recording = service.start_recording(wanted).map_err(|_| {
        let detail = "as many as may already record";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
    })?;
    let lines = stream::unfold((service, recording), |(service, mut recording)| async move {
        let line = tokio::select! {
            line = tokio::time::timeout(KEEP_ALIVE, recording.next()) => line,
            () = service.watching_ends() => return None,
        };
        let line = line.unwrap_or(Some(Bytes::from_static(b"\n")))?;
        Some((Ok::<_, Infallible>(line), (service, recording)))
    });
    Ok(([(header::CONTENT_TYPE, "application/x-ndjson")], Body::from_stream(lines)).into_response())
}

fn wanted(query: &RecordQuery) -> Result<Wanted, ApiError> {
    let bad = |text: String| ApiError::bad_request(INVALID, text);
    let sample = query.sample.as_deref().unwrap_or("1");
    let sample = sample.parse().ok().and_then(Sample::of).ok_or_else(|| {
        bad(format!("sample: must be a share above 0 and at most 1, as in 0.1, not {sample:?}"))
    })?;
    let hash_values = match query.hash_values.as_deref() {
        None | Some("false") => false,
        Some("true") => true,
        Some(other) => return Err(bad(format!("hash_values: must be true or false, not {other:?}"))),
    };
    Ok(Wanted { sample, hash_values })
}
