//! The routes that have spans, and what their statuses mean there.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};

use crate::service::Service;
use crate::trace::{self, Call};

/// A route, as OpenTelemetry describes one.
macro_rules! post {
    ($route:literal) => {
        Call {
            name: concat!("POST ", $route),
            attributes: &[("http.request.method", "POST"), ("http.route", $route)],
            status: ("http.response.status_code", 200),
        }
    };
}

pub(super) static JSON: Call = post!("/json");
pub(super) static RESERVE: Call = post!("/v1/reserve");
pub(super) static RESERVE_BATCH: Call = post!("/v1/reserve/batch");

/// Answers within the span of the call, if it has one.
pub(super) async fn traced<R: IntoResponse>(
    service: &Service,
    call: &'static Call,
    headers: &HeaderMap,
    answering: impl Future<Output = R>,
) -> Response {
    let answering = Box::pin(async {
        let response = answering.await.into_response();
        let status = response.status();
        trace::note(|span| {
            span.status(i64::from(status.as_u16()));
            if status.is_server_error() {
                span.fail(status.to_string());
            }
        });
        response
    });
    trace::within(service.span(call, headers), answering).await
}
