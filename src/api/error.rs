//! Each error of the domain once: as a gRPC status, as an HTTP status, and by its name in the lease API.
//!
//! Envoy treats every gRPC error alike: `failure_mode_deny` decides between 500 and pass. So a refusal is never an error.

use http::StatusCode;
use tonic::Status;

use crate::admission::DecideError;
use crate::ledger::LedgerError;
use crate::service::complete::CompleteError;
use crate::service::reserve::ReserveError;

pub(crate) const INVALID: &str = "invalid_request";
pub(crate) const UNKNOWN_LIMIT: &str = "unknown_limit_key:";
pub(crate) const DECREASING: &str = "limit_decreasing:";
pub(crate) const BACKEND: &str = "backend_error";
pub(crate) const LEASE_ID_USED: &str = "lease_id_used";

/// An error as either port says it.
#[derive(Debug)]
pub(crate) struct WireError {
    kind: Kind,
    /// What programs read.
    pub(crate) error: String,
    /// What people read.
    pub(crate) detail: String,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Invalid,
    Conflict,
    Unavailable,
    TimedOut,
}

impl WireError {
    /// The request can't be carried out as it is.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self { kind: Kind::Invalid, error: INVALID.to_owned(), detail: detail.into() }
    }

    pub(crate) fn http(&self) -> StatusCode {
        match self.kind {
            Kind::Invalid => StatusCode::BAD_REQUEST,
            Kind::Conflict => StatusCode::CONFLICT,
            // envoyproxy/ratelimit says 400 on `/json` when its store is away; here that is 503.
            Kind::Unavailable | Kind::TimedOut => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub(crate) fn grpc(self) -> Status {
        match self.kind {
            // The same request would fail again. Envoy's failure mode decides.
            Kind::Invalid => Status::invalid_argument(self.detail),
            // Envoy never asks for what can conflict.
            Kind::Conflict => Status::already_exists(self.detail),
            // Nothing was charged: a retry policy of Envoy with `unavailable` may try another instance.
            Kind::Unavailable => Status::unavailable(self.detail),
            // It may have been charged, and is voided if so. Envoy's failure mode decides.
            Kind::TimedOut => Status::deadline_exceeded(self.detail),
        }
    }
}

impl From<LedgerError> for WireError {
    fn from(error: LedgerError) -> Self {
        let kind = match error {
            LedgerError::Unavailable(_) | LedgerError::Full(_) | LedgerError::QueueFull { .. } => {
                Kind::Unavailable
            }
            LedgerError::TimedOut(_) => Kind::TimedOut,
        };
        Self { kind, error: BACKEND.to_owned(), detail: error.to_string() }
    }
}

impl From<DecideError> for WireError {
    fn from(error: DecideError) -> Self {
        match error {
            DecideError::Invalid(error) => Self::invalid(format!("descriptors: {error}")),
            DecideError::Ledger(error) => error.into(),
        }
    }
}

impl From<ReserveError> for WireError {
    fn from(error: ReserveError) -> Self {
        let detail = error.to_string();
        match error {
            ReserveError::Invalid(_) => Self::invalid(detail),
            ReserveError::LeaseIdUsed => {
                Self { kind: Kind::Conflict, error: LEASE_ID_USED.to_owned(), detail }
            }
            ReserveError::UnknownLimit(key) => {
                Self { kind: Kind::Invalid, error: format!("{UNKNOWN_LIMIT}{key}"), detail }
            }
            ReserveError::Ledger(error) => error.into(),
        }
    }
}

impl From<CompleteError> for WireError {
    fn from(error: CompleteError) -> Self {
        match error {
            CompleteError::Invalid(_) | CompleteError::Refused(_) | CompleteError::NotHeld { .. } => {
                Self::invalid(error.to_string())
            }
            CompleteError::Ledger(error) => error.into(),
        }
    }
}
