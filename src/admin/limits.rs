//! Limits as the admin API shows them.

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use super::error::ApiError;
use crate::ledger::Balance;
use crate::limit::Kind;
use crate::registry::NamedLimit;
use crate::service::Service;
use crate::telemetry::LimitLabel;

/// One limit, flat.
#[derive(Debug, Serialize)]
pub struct LimitView {
    key: String,
    kind: &'static str,
    capacity: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    window_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout_seconds: Option<u32>,
    unit: String,
    description: String,
    overage: &'static str,
    status: &'static str,
    pending_decrease_to: Option<u64>,
    used: u64,
    available: u64,
    debt: u64,
    origin: String,
}

#[derive(Serialize)]
struct LimitList {
    limits: Vec<LimitView>,
}

impl LimitView {
    /// While it is decreasing, `capacity` is what still holds and `pending_decrease_to` what the file says.
    fn new(limit: &NamedLimit, balance: Balance) -> Self {
        let spec = &limit.spec;
        let decreasing = balance.capacity > spec.capacity;
        let (window_seconds, timeout_seconds) = match spec.kind {
            Kind::Rolling { window_seconds } => (Some(window_seconds.get()), None),
            Kind::Concurrency { timeout_seconds } => (None, Some(timeout_seconds.get())),
        };
        Self {
            key: limit.account.key.to_string(),
            kind: spec.kind.name(),
            capacity: balance.capacity,
            window_seconds,
            timeout_seconds,
            unit: spec.unit.clone(),
            description: spec.description.clone(),
            overage: spec.overage.name(),
            status: if decreasing { "decreasing" } else { "active" },
            pending_decrease_to: decreasing.then_some(spec.capacity),
            used: balance.used,
            available: balance.available(),
            debt: balance.debt,
            origin: spec.origin.to_string(),
        }
    }
}

/// All of them in one read.
async fn views(service: &Service, limits: &[Arc<NamedLimit>]) -> Result<Vec<LimitView>, ApiError> {
    let wants = limits.iter().map(|limit| limit.want()).collect();
    let balances = service.admission.ledger.balances(wants).await.map_err(|error| {
        ApiError::new(axum::http::StatusCode::SERVICE_UNAVAILABLE, "backend_error", error.to_string())
    })?;
    Ok(limits.iter().zip(balances).map(|(limit, balance)| LimitView::new(limit, balance)).collect())
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
    let limit = snapshot.registry.resolve(&key, &service.admission.accounts).ok_or_else(|| {
        ApiError::not_found(format!("unknown_limit_key:{key}"), "no file defines it, and no rule derives it")
    })?;
    let view = views(&service, &[limit]).await?.pop();
    Ok(Json(view).into_response())
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
