//! `POST /v1/explain`: what a request of `/json` would meet, charging nothing.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use super::error::ApiError;
use super::json;
use super::limits::LimitView;
use crate::api::check;
use crate::api::error::WireError;
use crate::registry::Enforcement;
use crate::service::Service;
use crate::service::explain::{Explained, ExplainedLimit};

#[derive(Serialize)]
struct ExplainView<'e> {
    overall_code: &'static str,
    limits: Vec<ExplainedView<'e>>,
}

#[derive(Serialize)]
struct ExplainedView<'e> {
    #[serde(flatten)]
    limit: LimitView<'e>,
    amount: u64,
    passes: bool,
    /// Why it would say no; empty if it would not.
    reason: &'static str,
    /// `enforced`, `quota` (denies only if all quotas of the request are over) or `shadow` (never denies).
    enforcement: &'static str,
}

impl<'e> ExplainView<'e> {
    fn new(explained: &'e Explained) -> Self {
        let limit = |it: &'e ExplainedLimit| ExplainedView {
            limit: LimitView::new(&it.state),
            amount: it.amount,
            passes: it.refusal.is_none(),
            reason: it.refusal.map_or("", |reason| reason.name()),
            enforcement: match it.enforcement {
                Enforcement::Enforced => "enforced",
                Enforcement::Quota => "quota",
                Enforcement::Shadow => "shadow",
            },
        };
        let overall_code = if explained.is_over { "OVER_LIMIT" } else { "OK" };
        Self { overall_code, limits: explained.limits.iter().map(limit).collect() }
    }
}

pub(crate) async fn post(
    State(service): State<Arc<Service>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let request = json::parse(&body?)?;
    let explained = service.explain(check::parse(&request, None)?).await.map_err(WireError::from)?;
    Ok(Json(ExplainView::new(&explained)).into_response())
}
