//! `GET /v1/events`: denials, reloads and the ledger as they happen, as server-sent events.
//!
//! A reader that is slow misses events; the server does not wait for it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, stream};
use serde::Serialize;
use tokio::sync::broadcast::error::RecvError;

use super::error::ApiError;
use crate::activity::{Denied, Event};
use crate::service::Service;

/// A line that says nothing, so that both sides see whether the other is there.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// Writing one can't fail.
type Message = Result<sse::Event, Infallible>;

#[derive(Serialize)]
#[serde(untagged)]
enum EventBody<'e> {
    Denied {
        time: u64,
        domain: &'e str,
        key: &'e str,
        reason: &'static str,
        retry_after_ms: Option<u64>,
        denials: u64,
    },
    Reload {
        time: u64,
        result: &'static str,
        version: u64,
        problems: &'e [serde_json::Value],
    },
    Ledger {
        time: u64,
        up: bool,
    },
}

pub(crate) async fn get(State(service): State<Arc<Service>>) -> Result<Response, ApiError> {
    Ok(sent(of(&service)?))
}

/// What happens from now on, until the server stops.
pub(super) fn of(service: &Arc<Service>) -> Result<impl Stream<Item = Message> + use<>, ApiError> {
    let listening = service.listen().map_err(|_| {
        let detail = "as many as may already listen to events";
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "overloaded", detail)
    })?;
    Ok(stream::unfold((Arc::clone(service), listening), |(service, mut listening)| async move {
        loop {
            let event = tokio::select! {
                event = listening.recv() => event,
                () = service.watching_ends() => return None,
            };
            match event {
                Ok(event) => return Some((Ok(message(&event)), (service, listening))),
                // The oldest are missed; the next is there.
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return None,
            }
        }
    }))
}

/// A stream that stays open.
pub(super) fn sent(events: impl Stream<Item = Message> + Send + 'static) -> Response {
    Sse::new(events).keep_alive(KeepAlive::new().interval(KEEP_ALIVE)).into_response()
}

fn message(event: &Event) -> sse::Event {
    let (name, body) = match event {
        Event::Denied(Denied { time_unix_ms, domain, key, reason, retry_after_ms, denials }) => {
            let (reason, retry_after_ms) = (reason.name(), *retry_after_ms);
            let body = EventBody::Denied {
                time: *time_unix_ms,
                domain,
                key,
                reason,
                retry_after_ms,
                denials: *denials,
            };
            ("denied", body)
        }
        Event::Reload { time_unix_ms, is_live, version, problems } => {
            let result = if *is_live { "ok" } else { "error" };
            ("reload", EventBody::Reload { time: *time_unix_ms, result, version: *version, problems })
        }
        Event::Ledger { time_unix_ms, up } => ("ledger", EventBody::Ledger { time: *time_unix_ms, up: *up }),
    };
    let text = serde_json::to_string(&body).unwrap_or_default();
    sse::Event::default().event(name).data(text)
}
