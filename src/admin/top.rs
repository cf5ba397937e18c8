//! `GET /v1/top`: the heaviest LimitKeys of the last minutes.

use std::sync::Arc;

use axum::extract::Query;
use axum::extract::State;
use axum::extract::rejection::QueryRejection;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use crate::activity::{By, Heavy, LIST_MAX, WINDOW_SECONDS};
use crate::api::error::INVALID;
use crate::service::Service;

const LIMIT: usize = 20;

#[derive(Debug, Deserialize)]
pub(crate) struct TopQuery {
    by: Option<String>,
    domain: Option<String>,
    limit: Option<String>,
}

#[derive(Debug, Serialize)]
struct TopView {
    by: &'static str,
    window_seconds: u64,
    keys: Vec<HeavyView>,
}

#[derive(Debug, Serialize)]
pub(super) struct HeavyView {
    key: Arc<str>,
    domain: Arc<str>,
    count: u64,
    error: u64,
}

impl HeavyView {
    pub(super) fn list(service: &Service, by: By, domain: Option<&str>, limit: usize) -> Vec<Self> {
        let view = |Heavy { key, domain, count, error }| Self { key, domain, count, error };
        service.top(by, domain, limit).into_iter().map(view).collect()
    }
}

pub(crate) async fn get(
    State(service): State<Arc<Service>>,
    query: Result<Query<TopQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(TopQuery { by, domain, limit }) = query?;
    let by = match by.as_deref() {
        None => By::default(),
        Some(name) => By::named(name).ok_or_else(|| {
            ApiError::bad_request(INVALID, format!("by: must be denied, admitted or used, not {name:?}"))
        })?,
    };
    let limit = list_limit(limit.as_deref())?.unwrap_or(LIMIT);
    let keys = HeavyView::list(&service, by, domain.as_deref(), limit);
    Ok(Json(TopView { by: by.name(), window_seconds: WINDOW_SECONDS, keys }).into_response())
}

/// How long a list may be.
pub(crate) fn list_limit(text: Option<&str>) -> Result<Option<usize>, ApiError> {
    let Some(text) = text else { return Ok(None) };
    let limit = text.parse().ok().filter(|limit| (1..=LIST_MAX).contains(limit));
    let bad = || ApiError::bad_request(INVALID, format!("limit: must be 1 to {LIST_MAX}, not {text:?}"));
    limit.ok_or_else(bad).map(Some)
}
