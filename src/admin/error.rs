//! Errors of the admin API as JSON: `{"error": …, "detail": …}`.

use std::fmt::Display;

use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use crate::control::WriteError;

#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    error: String,
    detail: String,
}

#[derive(Serialize)]
struct Body<'a> {
    error: &'a str,
    detail: &'a str,
}

impl ApiError {
    pub fn new(status: StatusCode, error: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status, error: error.into(), detail: detail.into() }
    }

    pub fn bad_request(error: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, detail)
    }

    pub fn not_found(error: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error, detail)
    }

    pub fn internal(error: impl Into<String>, detail: &dyn Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error, detail.to_string())
    }

    #[cfg(test)]
    pub fn code(&self) -> &str {
        &self.error
    }

    /// From the status that the gRPC port would have given.
    pub fn from_grpc(status: &tonic::Status) -> Self {
        let (code, error) = match status.code() {
            tonic::Code::InvalidArgument => (StatusCode::BAD_REQUEST, "invalid_request"),
            // Here a ledger that is away is 503; envoyproxy/ratelimit says 400.
            _ => (StatusCode::SERVICE_UNAVAILABLE, "backend_error"),
        };
        Self::new(code, error, status.message())
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        let (status, code) = match &error {
            WriteError::OwnedByFile(_) => (StatusCode::CONFLICT, "owned_by_file"),
            WriteError::TooMany => (StatusCode::CONFLICT, "too_many_limits"),
            WriteError::Unknown => (StatusCode::NOT_FOUND, "unknown_limit_key"),
            WriteError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            WriteError::NotSaved(_) => (StatusCode::INTERNAL_SERVER_ERROR, "not_saved"),
        };
        Self::new(status, code, error.to_string())
    }
}

/// A body that can't be taken: mostly because it is too large.
impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> Self {
        let error = match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => "too_large",
            _ => "invalid_request",
        };
        Self::new(rejection.status(), error, rejection.body_text())
    }
}

/// A part of a path that is no text once it is decoded.
impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), "invalid_request", rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(Body { error: &self.error, detail: &self.detail })).into_response()
    }
}
