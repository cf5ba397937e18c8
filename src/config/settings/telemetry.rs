//! What this process tells of itself beside its metrics: `log`, and in `telemetry` where traces go. What else can be said of
//! traces comes from variables that OpenTelemetry has names for.

use super::value::{LogFormat, LogLevel};
use super::{FAMILY, set, tls};
use crate::config::decode::Fields;
use crate::config::shape::Shape;
use crate::trace::options::{Endpoint, Otlp};

pub(super) static TELEMETRY: Shape = Shape { name: "`telemetry`", keys: &["otlp"], family: FAMILY };
pub(super) static OTLP: Shape =
    Shape { name: "`otlp`", keys: &["endpoint", "sampling", "tls"], family: FAMILY };

pub(super) static LOG: Shape = Shape { name: "`log`", keys: &["format", "level"], family: FAMILY };

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Log {
    pub format: LogFormat,
    pub level: LogLevel,
}

#[derive(Debug, Clone, PartialEq, Default)]
pub struct Telemetry {
    /// Absent: no traces.
    pub otlp: Option<Otlp>,
}

pub(super) fn otlp(telemetry: &Fields<'_>) -> Option<Otlp> {
    let fields = telemetry.map("otlp", &OTLP)?;
    fields.need("endpoint", "the URL of a collector, as in http://collector:4317");
    let (share, tls) = (fields.parsed("sampling"), tls::client(&fields));
    let endpoint: Endpoint = fields.parsed("endpoint")?;
    if tls.is_some() && !endpoint.is_tls() {
        fields.mistake("tls", || "is for an endpoint that begins with https://");
    }
    let mut otlp = Otlp { tls, ..Otlp::to(endpoint) };
    set(&mut otlp.sampler.share, share);
    Some(otlp)
}
