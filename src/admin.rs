//! The admin HTTP port.
//!
//! | route | answers |
//! |---|---|
//! | `GET /livez` | 200 while the process runs |
//! | `GET /readyz`, `GET /healthcheck` | 200 `OK`, or 503 with the reason |
//! | `GET /metrics` | Prometheus text |
//! | `POST /json` | a RateLimitRequest as proto3 JSON: 200, 429, 400, 503 |
//! | `GET /rlconfig` | the limits in force, a line each |
//! | `GET /v1/limits`, `GET /v1/limits/{key}` | limits with what is used |
//! | `GET /v1/config` | version, files, problems |
//! | `POST /v1/reserve`, `POST /v1/complete` | the lease API as JSON |
//! | `POST /v1/reserve/batch`, `POST /v1/complete/batch` | the same, 1 to 256 at once |
//! | `GET /v1/leases/{id}` | a lease of this instance: state, limits, age |
//!
//! JSON errors are `{"error": …, "detail": …}`.

mod error;
mod json;
mod lease;
mod limits;
mod rlconfig;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::listen::Listener;
use crate::service::Service;
use error::ApiError;

/// Bodies read at most.
const BODY_BYTES_MAX: usize = 1 << 20;

pub fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/livez", get(async || "OK"))
        .route("/readyz", get(ready))
        .route("/healthcheck", get(ready))
        .route("/metrics", get(metrics))
        .route("/json", post(json::post))
        .route("/rlconfig", get(rlconfig::get))
        .route("/v1/limits", get(limits::list))
        .route("/v1/limits/{key}", get(limits::one))
        .route("/v1/config", get(config))
        .route("/v1/reserve", post(lease::reserve))
        .route("/v1/complete", post(lease::complete))
        .route("/v1/reserve/batch", post(lease::reserve_batch))
        .route("/v1/complete/batch", post(lease::complete_batch))
        .route("/v1/leases/{id}", get(lease::one))
        .fallback(async || ApiError::not_found("no such route", "GET /v1/config is a place to start"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this route has other methods",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(service)
}

/// Serves until `stop`, then lets calls in flight finish.
pub async fn serve(
    listener: Listener,
    service: Arc<Service>,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = router(service);
    let stopped = stop.cancelled_owned();
    match listener {
        Listener::Tcp(listener) => axum::serve(listener, router).with_graceful_shutdown(stopped).await,
        Listener::Unix(listener) => axum::serve(listener, router).with_graceful_shutdown(stopped).await,
    }
}

async fn ready(State(service): State<Arc<Service>>) -> Response {
    match service.ready() {
        Ok(()) => "OK".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(service): State<Arc<Service>>) -> Response {
    limits::fill_gauges(&service).await;
    match service.metrics.encode() {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => ApiError::internal("metrics could not be written", &error).into_response(),
    }
}

#[derive(Serialize)]
struct ConfigView {
    version: u64,
    loaded_at: u64,
    files: Vec<String>,
    problems: Vec<ProblemView>,
    failing_since: Option<u64>,
}

#[derive(Serialize)]
struct ProblemView {
    file: String,
    line: u32,
    field: String,
    message: String,
}

async fn config(State(service): State<Arc<Service>>) -> Response {
    let snapshot = service.live.load_full();
    let view = ConfigView {
        version: snapshot.version,
        loaded_at: snapshot.loaded_at_unix_ms,
        files: snapshot.files.clone(),
        problems: Vec::new(),
        failing_since: None,
    };
    Json(view).into_response()
}
