//! What the wire says and what the domain means by it, converted once for both ports.
//!
//! Envoy's messages are in [`check`] and [`metadata`], those of the lease API in [`lease`] and [`queue`], errors in [`error`]. Knows no sockets, routes or
//! framing, and decides nothing: what is asked for goes to [`crate::service`].

pub mod delivery;
pub mod pb;

pub(crate) mod check;
pub(crate) mod error;
pub(crate) mod lease;
pub(crate) mod metadata;
pub(crate) mod queue;

/// The header, or gRPC metadata, that names a request, so that sending it twice charges once.
pub(crate) const REQUEST_ID: &str = "x-sluice-request-id";
