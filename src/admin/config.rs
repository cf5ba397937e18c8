//! `GET /v1/config`: what is live and what is wrong; `GET /v1/config/limits`: all of it, for `sluice check --against`.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Json;
use serde::{Deserialize, Serialize};

use super::Admin;
use crate::config::Problem;
use crate::control::as_json;
use crate::registry::outline::Outline;
use crate::service::Service;
use crate::tls::FileProblem;

#[derive(Debug, Serialize)]
pub struct ConfigView {
    version: u64,
    loaded_at: u64,
    files: Vec<String>,
    problems: Vec<Problem>,
    failing_since: Option<u64>,
}

impl ConfigView {
    pub(crate) fn new(admin: &Admin) -> Self {
        let snapshot = admin.service.live.load_full();
        let (health, of_tls) = (admin.control.health(), admin.certificates.problems());
        let tls_since = of_tls.iter().map(|problem| problem.since_unix_ms);
        Self {
            version: snapshot.version,
            loaded_at: snapshot.loaded_at_unix_ms,
            files: snapshot.files.clone(),
            problems: health.problems.into_iter().chain(of_tls.iter().map(problem)).collect(),
            failing_since: tls_since.chain(health.failing_since_unix_ms).min(),
        }
    }
}

/// Everything that files decide, flat.
#[derive(Debug, Serialize, Deserialize)]
pub struct LiveOutline {
    pub version: u64,
    #[serde(flatten)]
    pub limits: Outline,
    /// Of the file, whatever was put over it.
    pub retry_policy: serde_json::Value,
}

pub(crate) async fn get(State(admin): State<Admin>) -> Json<ConfigView> {
    Json(ConfigView::new(&admin))
}

fn problem(of_tls: &FileProblem) -> Problem {
    let error = &of_tls.error;
    Problem::of_file(&error.file.display().to_string(), &error.message)
}

pub(crate) async fn limits(State(service): State<Arc<Service>>) -> Json<LiveOutline> {
    let snapshot = service.live.load_full();
    Json(LiveOutline {
        version: snapshot.version,
        limits: Outline::of(&snapshot.registry),
        retry_policy: as_json(&snapshot.file_retry),
    })
}
