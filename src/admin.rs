//! The admin HTTP port.
//!
//! | route | answers |
//! |---|---|
//! | `GET /` | the page: what happens now, for people (`/page.js`, `/page.css`; `/v1/live` fills it) |
//! | `GET /livez` | 200 while the process runs |
//! | `GET /readyz`, `GET /healthcheck` | 200 `OK`, or 503 with the reason |
//! | `GET /metrics` | Prometheus text |
//! | `POST /json` | a RateLimitRequest as proto3 JSON: 200, 429, 400, 503 |
//! | `GET /rlconfig` | the limits in force, a line each |
//! | `GET /v1/limits`, `GET /v1/limits/{key}` | limits with what is used; with `prefix`, `sort` or `limit` derived ones too |
//! | `PUT /v1/limits`, `DELETE /v1/limits/{key}` | makes, changes, removes one that no file owns; 409 for a file's |
//! | `DELETE /v1/limits/{key}/debt` | forgives what a limit owes |
//! | `GET`, `PUT`, `DELETE /v1/retry-policy` | the retry policy that holds, and an override of the file's |
//! | `GET /v1/peers` | the sidecars of a hub, and what their slabs hold |
//! | `GET /v1/top` | the heaviest limits of the last minutes: `by=denied`, `admitted` or `used`, `domain`, `limit` |
//! | `GET /v1/events` | denials, reloads and the ledger as they happen, as server-sent events |
//! | `GET /v1/record` | every request as it is decided, a line each, for `sluice record`: `sample`, `hash_values` |
//! | `POST /v1/explain` | what a request of `/json` would meet, charging nothing |
//! | `GET /v1/config` | version, files, problems |
//! | `GET /v1/ledger` | the ledgers in use; while one replaces another, from when on it alone knows enough |
//! | `POST /v1/reserve`, `POST /v1/complete` | the lease API as JSON |
//! | `POST /v1/reserve/batch`, `POST /v1/complete/batch` | the same, 1 to 256 at once |
//! | `GET`, `DELETE /v1/leases/{id}` | a lease or a place in line of this instance: state, limits, when; leaves the line |
//! | `GET /v1/config/limits` | every limit of every file, for `sluice check --against` |
//!
//! In the place of envoyproxy/ratelimit `/healthcheck` says whether a restart would help, and `/rlconfig` and the metrics are
//! also on ports of their own ([`Part`]).
//!
//! JSON errors are `{"error": …, "detail": …}`. With a token set, a call without it is 401, health checks excepted. Without
//! one, what may change something is 403 from another site's web page, and 415 if its body is not `application/json`.

mod body;
mod browser;
pub mod config;
mod connections;
mod error;
mod events;
mod explain;
mod gate;
pub(crate) mod json;
mod lease;
mod ledger;
mod limits;
mod overviews;
mod page;
mod peer;
mod peers;
mod record;
mod retry;
mod rlconfig;
mod top;
mod traced;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, FromRef, State};
use axum::http::{StatusCode, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::hub::Hub;
use crate::listen::Listener;
use crate::listen::port::{Bounds, Port};
use crate::service::Service;
use crate::telemetry::Metrics;
use crate::tls::Certificates;
use body::BODY_BYTES_MAX;
use error::ApiError;
pub(crate) use gate::Gate;
use overviews::Overviews;

/// Bodies under way: of one connection, which has one request at a time, and 64 of the largest together.
const CONNECTION_BYTES_MAX: usize = BODY_BYTES_MAX;
const BYTES_MAX: usize = 64 * BODY_BYTES_MAX;

/// The body of one limit at most, because Sluice remembers it.
const LIMIT_BYTES_MAX: usize = 16 << 10;

/// What routes work on.
#[derive(Debug, Clone)]
pub(crate) struct Admin {
    service: Arc<Service>,
    control: Arc<Control>,
    certificates: Arc<Certificates>,
    /// If this instance is one.
    hub: Option<Arc<Hub>>,
    overviews: Arc<Overviews>,
}

impl Admin {
    pub(crate) fn new(
        service: Arc<Service>,
        control: Arc<Control>,
        certificates: Arc<Certificates>,
        hub: Option<Arc<Hub>>,
    ) -> Self {
        Self { service, control, certificates, hub, overviews: Arc::default() }
    }
}

impl FromRef<Admin> for Arc<Service> {
    fn from_ref(admin: &Admin) -> Self {
        Arc::clone(&admin.service)
    }
}

impl FromRef<Admin> for Arc<Control> {
    fn from_ref(admin: &Admin) -> Self {
        Arc::clone(&admin.control)
    }
}

impl FromRef<Admin> for Arc<Certificates> {
    fn from_ref(admin: &Admin) -> Self {
        Arc::clone(&admin.certificates)
    }
}

impl FromRef<Admin> for Option<Arc<Hub>> {
    fn from_ref(admin: &Admin) -> Self {
        admin.hub.clone()
    }
}

/// What a port has.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    Everything(Gate),
    /// `/rlconfig`, as envoyproxy/ratelimit's debug port.
    Debug,
    /// The metrics, at this path.
    Metrics(String),
}

impl Part {
    fn router(self, admin: Admin) -> Router {
        match self {
            Part::Everything(gate) => router(admin, gate),
            Part::Debug => Router::new().route("/rlconfig", get(rlconfig::get)).with_state(admin),
            Part::Metrics(path) => Router::new().route(&path, get(metrics)).with_state(admin),
        }
    }
}

fn router(admin: Admin, gate: Gate) -> Router {
    let health = if gate.is_in_place() { get(started) } else { get(ready) };
    let written = put(limits::put).layer(DefaultBodyLimit::max(LIMIT_BYTES_MAX));
    let policy = put(retry::put).layer(DefaultBodyLimit::max(LIMIT_BYTES_MAX));
    Router::new()
        .route("/", get(page::html))
        .route("/page.js", get(page::script))
        .route("/page.css", get(page::style))
        .route("/v1/live", get(page::live))
        .route("/livez", get(async || "OK"))
        .route("/readyz", get(ready))
        .route("/healthcheck", health)
        .route("/metrics", get(metrics))
        .route("/json", post(json::post))
        .route("/rlconfig", get(rlconfig::get))
        .route("/v1/reserve", post(lease::reserve))
        .route("/v1/complete", post(lease::complete))
        .route("/v1/reserve/batch", post(lease::reserve_batch))
        .route("/v1/complete/batch", post(lease::complete_batch))
        .route("/v1/leases/{id}", get(lease::one).delete(lease::leave))
        .route("/v1/top", get(top::get))
        .route("/v1/events", get(events::get))
        .route("/v1/record", get(record::get))
        .route("/v1/explain", post(explain::post))
        .route("/v1/limits", get(limits::list).merge(written))
        .route("/v1/limits/{key}", get(limits::one).merge(delete(limits::delete)))
        .route("/v1/limits/{key}/debt", delete(limits::forgive))
        .route("/v1/retry-policy", get(retry::get).merge(policy).delete(retry::delete))
        .route("/v1/peers", get(peers::get))
        .route("/v1/config", get(config::get))
        .route("/v1/ledger", get(ledger::get))
        .route("/v1/config/limits", get(config::limits))
        .fallback(async || ApiError::not_found("no such route", "GET /v1/config is a place to start"))
        .method_not_allowed_fallback(async || {
            ApiError::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "method_not_allowed",
                "this route has other methods",
            )
        })
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(middleware::from_fn(body::read))
        .layer(middleware::from_fn_with_state(gate, gate::check))
        .with_state(admin)
}

/// The port, before it serves.
pub(crate) fn port(connections_max: usize, metrics: &Metrics) -> Arc<Port> {
    let bounds = Bounds { connections_max, bytes_max: BYTES_MAX, connection_bytes_max: CONNECTION_BYTES_MAX };
    Port::new(bounds, metrics.port("admin"))
}

/// Serves until `stop`, then lets calls in flight finish.
pub(crate) async fn serve(
    listener: Listener,
    port: Arc<Port>,
    admin: Admin,
    part: Part,
    stop: CancellationToken,
) {
    connections::serve(listener, port, part.router(admin), connections::HEADERS_WITHIN, stop).await;
}

async fn ready(State(service): State<Arc<Service>>) -> Response {
    health(service.ready())
}

/// 200 although the ledger is away: a restart would not help, and would lose what this process holds.
async fn started(State(service): State<Arc<Service>>) -> Response {
    health(service.started())
}

fn health(state: Result<(), String>) -> Response {
    match state {
        Ok(()) => "OK".into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}

async fn metrics(State(service): State<Arc<Service>>) -> Response {
    match service.metrics_text().await {
        Ok(text) => {
            let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
            ([(header::CONTENT_TYPE, kind)], text).into_response()
        }
        Err(error) => ApiError::internal("metrics could not be written", &error).into_response(),
    }
}
