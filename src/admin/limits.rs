//! Limits as the admin API shows, makes and removes them.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use super::error::ApiError;
use crate::config::limit_from_json;
use crate::control::{Control, WriteError};
use crate::ledger::{Balance, Ledger};
use crate::limit::{Definition, LimitKey, Origin};
use crate::registry::NamedLimit;
use crate::service::Service;
use crate::telemetry::LimitLabel;

/// One limit, flat. While it is decreasing, `capacity` is what still holds and `pending_decrease_to` what it should be.
#[derive(Debug, Serialize)]
pub struct LimitView<'l> {
    #[serde(flatten)]
    definition: Definition<'l>,
    status: &'static str,
    pending_decrease_to: Option<u64>,
    /// These three are null while the ledger can't be asked.
    used: Option<u64>,
    available: Option<u64>,
    debt: Option<u64>,
    origin: String,
}

#[derive(Serialize)]
struct LimitList<'l> {
    limits: Vec<LimitView<'l>>,
}

impl<'l> LimitView<'l> {
    fn new(limit: &'l NamedLimit, balance: Option<Balance>) -> Self {
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
        }
    }
}

/// All of them in one read.
async fn views<'l>(service: &Service, limits: &'l [Arc<NamedLimit>]) -> Result<Vec<LimitView<'l>>, ApiError> {
    let wants = limits.iter().map(|limit| limit.want()).collect();
    let balances = service.admission.ledger.balances(wants).await.map_err(|error| {
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "backend_error", error.to_string())
    })?;
    let view = |(limit, balance): (&'l Arc<NamedLimit>, Balance)| LimitView::new(limit, Some(balance));
    Ok(limits.iter().zip(balances).map(view).collect())
}

/// Named limits; derived ones are asked for by key, there may be millions.
pub async fn list(State(service): State<Arc<Service>>) -> Result<Response, ApiError> {
    let snapshot = service.live.load_full();
    let mut named: Vec<Arc<NamedLimit>> = snapshot.registry.named().cloned().collect();
    named.sort_by(|a, b| a.account.key.cmp(&b.account.key));
    Ok(Json(LimitList { limits: views(&service, &named).await? }).into_response())
}

pub async fn one(
    State(service): State<Arc<Service>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<Response, ApiError> {
    let Path(key) = key?;
    let snapshot = service.live.load_full();
    let limit = snapshot.registry.resolve(&key, &service.admission.accounts).ok_or_else(|| unknown(&key))?;
    let limit = [limit];
    let view = views(&service, &limit).await?.pop();
    Ok(Json(view).into_response())
}

/// Makes or changes a limit that no file owns. It is saved and live when this answers, also if the ledger is away.
pub async fn put(
    State(service): State<Arc<Service>>,
    State(control): State<Arc<Control>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, ApiError> {
    let json = json_body(body)?;
    // Before all else: a limit of a file is not ours, whatever is wrong with the rest.
    let key = json.get("key").and_then(serde_json::Value::as_str);
    if let Some(origin @ Origin::File { .. }) = key.and_then(|key| control.owner(key)) {
        return Err(WriteError::OwnedByFile(origin).into());
    }
    let (key, spec) = limit_from_json(&json, "body").map_err(WriteError::Invalid)?;
    let limit = control.put_limit(key, spec).await?;
    let balances = service.admission.ledger.balances(vec![limit.want()]).await;
    let balance = balances.ok().and_then(|balances| balances.first().copied());
    Ok(Json(LimitView::new(&limit, balance)).into_response())
}

pub async fn delete(
    State(control): State<Arc<Control>>,
    key: Result<Path<String>, PathRejection>,
) -> Result<StatusCode, ApiError> {
    let Path(key) = key?;
    match control.delete_limit(LimitKey::new(&key)).await {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(WriteError::Unknown) => Err(unknown(&key)),
        Err(error) => Err(error.into()),
    }
}

fn unknown(key: &str) -> ApiError {
    ApiError::not_found(format!("unknown_limit_key:{key}"), "no file defines it, and no rule derives it")
}

/// A body that has to be JSON.
pub fn json_body(body: Result<Bytes, BytesRejection>) -> Result<serde_json::Value, ApiError> {
    serde_json::from_slice(&body?)
        .map_err(|error| ApiError::bad_request("invalid_request", format!("body: is no JSON: {error}")))
}

/// Gauges of named limits, filled when somebody looks.
pub async fn fill_gauges(service: &Service) {
    let snapshot = service.live.load_full();
    let named: Vec<Arc<NamedLimit>> = snapshot.registry.named().cloned().collect();
    let wants = named.iter().map(|limit| limit.want()).collect();
    let Ok(balances) = service.admission.ledger.balances(wants).await else { return };
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    for (limit, balance) in named.iter().zip(balances) {
        let label = LimitLabel { limit: limit.account.key.to_string() };
        let metrics = &service.metrics;
        metrics.limit_used.get_or_create(&label).set(gauge(balance.used));
        metrics.limit_capacity.get_or_create(&label).set(gauge(balance.capacity));
        metrics.limit_debt.get_or_create(&label).set(gauge(balance.debt));
    }
}
