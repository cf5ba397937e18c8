//! Errors of the admin API as JSON: `{"error": …, "detail": …}`. Those that both ports have are in [`crate::api::error`].

use std::fmt::Display;

use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Json, Response};
use serde::Serialize;

use crate::api::error::{INVALID, UNKNOWN_LIMIT, WireError};
use crate::control::WriteError;
use crate::service::reserve::ReserveError;

#[derive(Debug)]
pub(crate) struct ApiError {
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
    pub(crate) fn new(status: StatusCode, error: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status, error: error.into(), detail: detail.into() }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn bad_request(error: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, error, detail)
    }

    pub(crate) fn not_found(error: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, error, detail)
    }

    pub(crate) fn internal(error: impl Into<String>, detail: &dyn Display) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, error, detail.to_string())
    }
}

#[cfg(test)]
impl ApiError {
    pub(crate) fn code(&self) -> &str {
        &self.error
    }
}

impl From<WireError> for ApiError {
    fn from(error: WireError) -> Self {
        Self::new(error.http(), error.error, error.detail)
    }
}

impl ApiError {
    /// No limit has this key.
    pub(crate) fn unknown_limit(key: &str) -> Self {
        Self::not_found(
            format!("{UNKNOWN_LIMIT}{key}"),
            ReserveError::UnknownLimit(key.to_owned()).to_string(),
        )
    }
}

impl From<WriteError> for ApiError {
    fn from(error: WriteError) -> Self {
        let (status, code) = match &error {
            WriteError::OwnedByFile(_) => (StatusCode::CONFLICT, "owned_by_file"),
            WriteError::TooMany => (StatusCode::CONFLICT, "too_many_limits"),
            WriteError::Unknown => (StatusCode::NOT_FOUND, "unknown_limit_key"),
            WriteError::Invalid(_) => (StatusCode::BAD_REQUEST, INVALID),
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
            _ => INVALID,
        };
        Self::new(rejection.status(), error, rejection.body_text())
    }
}

/// A part of a path that is no text once it is decoded.
impl From<QueryRejection> for ApiError {
    fn from(rejection: QueryRejection) -> Self {
        Self::bad_request(INVALID, rejection.body_text())
    }
}

impl From<PathRejection> for ApiError {
    fn from(rejection: PathRejection) -> Self {
        Self::new(rejection.status(), INVALID, rejection.body_text())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(Body { error: &self.error, detail: &self.detail })).into_response()
    }
}
