//! `/v1/retry-policy`: the policy that holds, and an override of it that survives restarts and reloads.
//!
//! A put takes what the file has under `retry_policy`, whole or in part, and replaces the override as a whole: what it
//! leaves out is the file's, also when the file changes later.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::response::Json;
use serde::Serialize;

use super::error::ApiError;
use super::limits::json_body;
use crate::control::Control;
use crate::retry::policy::RetryPolicy;
use crate::service::Service;

#[derive(Debug, Serialize)]
pub(super) struct PolicyView {
    #[serde(flatten)]
    policy: RetryPolicy,
    /// What was put over the file's policy; null if nothing was.
    r#override: Option<serde_json::Value>,
    /// Only after a write, and only where it is not kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<&'static str>,
}

impl PolicyView {
    fn of(service: &Service, note: Option<&'static str>) -> Json<Self> {
        let snapshot = service.live.load_full();
        let patch = snapshot.retry_override.as_ref().map(|over| over.patch.clone());
        Json(Self { policy: snapshot.retry.clone(), r#override: patch, note })
    }
}

pub(crate) async fn get(State(service): State<Arc<Service>>) -> Json<PolicyView> {
    PolicyView::of(&service, None)
}

pub(crate) async fn put(
    State(service): State<Arc<Service>>,
    State(control): State<Arc<Control>>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<PolicyView>, ApiError> {
    let patch = json_body(body)?;
    control.override_retry_policy(Some(patch)).await?;
    Ok(PolicyView::of(&service, control.until_exit().await))
}

pub(crate) async fn delete(
    State(service): State<Arc<Service>>,
    State(control): State<Arc<Control>>,
) -> Result<Json<PolicyView>, ApiError> {
    control.override_retry_policy(None).await?;
    Ok(PolicyView::of(&service, control.until_exit().await))
}
