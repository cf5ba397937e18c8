//! A limit written out flat, as the admin API and the state file have it.
//!
//! Only writes. Reading is `config`'s, which has words for every mistake.

use serde::Serialize;

use super::{Charge, Kind, LimitKey, LimitSpec};

#[derive(Debug, Clone, Serialize)]
pub struct Definition<'a> {
    pub key: &'a str,
    pub kind: &'static str,
    pub capacity: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_seconds: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<u32>,
    pub unit: &'a str,
    pub description: &'a str,
    pub overage: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub exact: bool,
    /// Only where it isn't the default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub charge: Option<&'static str>,
}

impl<'a> Definition<'a> {
    /// With the capacity that holds now, which is not yet the one of `spec` while it is decreasing.
    pub fn new(key: &'a LimitKey, spec: &'a LimitSpec, capacity: u64) -> Self {
        let (window_seconds, timeout_seconds) = match spec.kind {
            Kind::Rolling { window_seconds } => (Some(window_seconds.get()), None),
            Kind::Concurrency { timeout_seconds } => (None, Some(timeout_seconds.get())),
        };
        Self {
            key: key.as_str(),
            kind: spec.kind.name(),
            capacity,
            window_seconds,
            timeout_seconds,
            unit: &spec.unit,
            description: &spec.description,
            overage: spec.overage.name(),
            exact: spec.is_exact,
            charge: (spec.charge != Charge::Admitted).then(|| spec.charge.name()),
        }
    }
}
