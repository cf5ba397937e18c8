//! Limits as the admin API shows, makes and removes them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::{Deserialize, Serialize};

use super::error::ApiError;
use super::top::list_limit;
use crate::activity::LIST_MAX;
use crate::api::error::{INVALID, WireError};
use crate::config::limit_from_json;
use crate::control::{Control, WriteError};
use crate::ledger::SlabView;
use crate::limit::{Definition, LimitKey, Origin};
use crate::service::Service;
use crate::service::inspect::LimitState;
use crate::service::watch::{Listing, Sort};

/// One limit, flat. While it is decreasing, `capacity` is what still holds and `pending_decrease_to` what it should be.
#[derive(Debug, Serialize)]
pub(crate) struct LimitView<'l> {
    #[serde(flatten)]
    definition: Definition<'l>,
    status: &'static str,
    pending_decrease_to: Option<u64>,
    /// These three are null while the ledger can't be asked.
    used: Option<u64>,
    available: Option<u64>,
    debt: Option<u64>,
    origin: String,
    /// What this instance holds of it to hand out by itself.
    slab: Option<SlabBody>,
    /// Only of one that was just written, and only where it is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

#[derive(Debug, Serialize)]
struct SlabBody {
    held: u64,
    handed_out: u64,
    ends_in_ms: u64,
}

impl From<SlabView> for SlabBody {
    fn from(slab: SlabView) -> Self {
        Self { held: slab.held, handed_out: slab.handed_out, ends_in_ms: slab.ends_in_ms }
    }
}

#[derive(Serialize)]
struct LimitList<'l> {
    limits: Vec<LimitView<'l>>,
}

impl<'l> LimitView<'l> {
    pub(super) fn new(state: &'l LimitState) -> Self {
        let (limit, balance) = (&state.limit, state.balance);
        let spec = &limit.spec;
        let capacity = balance.map_or(spec.capacity, |balance| balance.capacity);
        let decreasing = capacity > spec.capacity;
        Self {
            definition: Definition::new(&limit.account.key, spec, capacity),
            status: if decreasing { "decreasing" } else { "active" },
            pending_decrease_to: decreasing.then_some(spec.capacity),
            used: balance.map(|balance| balance.used),
            available: balance.map(|balance| balance.available()),
            debt: balance.map(|balance| balance.debt),
            origin: spec.origin.to_string(),
            slab: state.slab.map(SlabBody::from),
            note: None,
        }
    }
}

#[derive(Debug, Deserialize)]
pub(crate) struct ListQuery {
    prefix: Option<String>,
    sort: Option<String>,
    limit: Option<String>,
}

/// Named limits. With a query also derived ones, those that this instance remembers: there may be millions.
pub(crate) async fn list(
    State(service): State<Arc<Service>>,
    query: Result<Query<ListQuery>, QueryRejection>,
) -> Result<Response, ApiError> {
    let limits = match query?.0 {
        ListQuery { prefix: None, sort: None, limit: None } => service.limits().await,
        query => service.find_limits(&listing(query)?).await.map(|found| found.limits),
    };
    let limits = limits.map_err(WireError::from)?;
    Ok(Json(LimitList { limits: limits.iter().map(LimitView::new).collect() }).into_response())
}

fn listing(query: ListQuery) -> Result<Listing, ApiError> {
    let sort = match query.sort.as_deref() {
        None | Some("key") => Sort::Key,
        Some("used") => Sort::Used,
        Some("denied") => Sort::Denied,
        Some(other) => {
            let detail = format!("sort: must be used, denied or key, not {other:?}");
            return Err(ApiError::bad_request(INVALID, detail));
        }
    };
    let limit = list_limit(query.limit.as_deref())?.unwrap_or(LIST_MAX);
    Ok(Listing { prefix: query.prefix.unwrap_or_default(), sort, limit })
}

pub(crate) async fn one(
    State(service): State<Arc<Service>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(key) = key?;
    let limit = service.limit(&key).await.map_err(WireError::from)?;
    let limit = limit.ok_or_else(|| ApiError::unknown_limit(&key))?;
    Ok(Json(LimitView::new(&limit)).into_response())
}

/// Makes or changes a limit that no file owns. It is saved and live when this answers, also if the ledger is away.
pub(crate) async fn put(
    State(service): State<Arc<Service>>,
    State(control): State<Arc<Control>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let json = json_body(body)?;
    // Before all else: a limit of a file is not ours, whatever is wrong with the rest.
    let key = json.get("key").and_then(serde_json::Value::as_str);
    if let Some(origin) = key.and_then(|key| control.owner(key)).filter(Origin::is_source) {
        return Err(WriteError::OwnedByFile(origin).into());
    }
    let (key, spec) = limit_from_json(&json, "body").map_err(WriteError::Invalid)?;
    let limit = control.put_limit(key, spec).await?;
    let (state, note) = (service.written_limit(limit).await, control.until_exit().await);
    Ok(Json(LimitView { note, ..LimitView::new(&state) }).into_response())
}

pub(crate) async fn delete(
    State(control): State<Arc<Control>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let Path(key) = key?;
    match control.delete_limit(LimitKey::new(&key)).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(WriteError::Unknown) => Err(ApiError::unknown_limit(&key)),
        Err(error) => Err(error.into()),
    }
}

/// Forgives what a limit owes, if it owes anything.
pub(crate) async fn forgive(
    State(service): State<Arc<Service>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let Path(key) = key?;
    match service.forgive(&key).await.map_err(WireError::from)? {
        Some(()) => Ok(StatusCode::NO_CONTENT),
        None => Err(ApiError::unknown_limit(&key)),
    }
}

/// A body that has to be JSON.
pub(crate) fn json_body(body: Result<Bytes, BytesRejection>) -> Result<serde_json::Value, ApiError> {
    serde_json::from_slice(&body?)
        .map_err(|error| ApiError::bad_request(INVALID, format!("body: is no JSON: {error}")))
}
