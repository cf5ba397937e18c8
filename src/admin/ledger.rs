//! `GET /v1/ledger`: the ledgers in use, and from when on each alone knows enough.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::Serialize;

use crate::service::Service;

#[derive(Debug, Serialize)]
pub(crate) struct LedgersView {
    ledgers: Vec<LedgerView>,
}

#[derive(Debug, Serialize)]
struct LedgerView {
    uri: String,
    /// In Unix milliseconds.
    safe_after: u64,
}

pub(crate) async fn get(State(service): State<Arc<Service>>) -> Json<LedgersView> {
    let view = |it: crate::service::ledgers::LedgerView| LedgerView {
        uri: it.uri,
        safe_after: it.safe_after_unix_ms,
    };
    Json(LedgersView { ledgers: service.ledgers().into_iter().map(view).collect() })
}
