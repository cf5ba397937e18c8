//! What can be set of traces. Each value is read from text in one way, and its error teaches what would be right.
//!
//! Refuses to know where the text comes from.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use http::uri::{Authority, Scheme};
use http::{HeaderName, HeaderValue, Uri};

use crate::tls::{ClientFiles, ClientTls};

/// Where a collector takes traces by HTTP.
const TRACES: &str = "/v1/traces";

/// The port that collectors take HTTP on; 4317 is that for gRPC.
const HTTP_PORT: u16 = 4318;

/// What OpenTelemetry's own programs wait for an answer.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Where spans go, which, and what is said of whoever sends them.
#[derive(Debug, Clone, PartialEq)]
pub struct Otlp {
    pub endpoint: Endpoint,
    /// Absent: what the endpoint looks like, and the other one if that fails.
    pub protocol: Option<Protocol>,
    pub sampler: Sampler,
    /// Sent with every request. Their values may be secrets, and are marked so.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// Bounds every request.
    pub timeout: Duration,
    /// For `https`; absent, the authorities that this machine trusts.
    pub tls: Option<ClientFiles>,
    /// Attributes of this process, each name once.
    pub resource: Vec<(String, String)>,
}

impl Otlp {
    pub fn to(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            protocol: None,
            sampler: Sampler::default(),
            headers: Vec::new(),
            timeout: TIMEOUT,
            tls: None,
            resource: Vec::new(),
        }
    }

    /// Sets an attribute of this process.
    pub fn describe(&mut self, name: &str, value: &str) {
        self.resource.retain(|(there, _)| there != name);
        self.resource.push((name.to_owned(), value.to_owned()));
    }

    /// The same, unless it has a value.
    pub fn describe_else(&mut self, name: &str, value: &str) {
        if !self.resource.iter().any(|(there, _)| there == name) {
            self.describe(name, value);
        }
    }
}

/// TLS towards the collector, for each of the protocols.
#[derive(Debug)]
pub(crate) struct Tls {
    pub(crate) grpc: Arc<ClientTls>,
    pub(crate) http: Arc<ClientTls>,
}

/// A collector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint {
    pub(super) is_tls: bool,
    pub(super) authority: Authority,
    /// For HTTP. gRPC has a path of its own.
    pub(super) path: String,
    pub(super) looks_like: Protocol,
}

impl Endpoint {
    pub fn is_tls(&self) -> bool {
        self.is_tls
    }

    /// One whose path is not added to.
    pub fn exact(text: &str) -> Result<Self, String> {
        let wrong =
            || "must be a URL, as in http://collector:4317 or https://collector:4318/v1/traces".to_owned();
        let parts = text.parse::<Uri>().map_err(|_| wrong())?.into_parts();
        let is_tls = match parts.scheme {
            Some(scheme) if scheme == Scheme::HTTPS => true,
            Some(scheme) if scheme == Scheme::HTTP => false,
            _ => return Err(wrong()),
        };
        let authority = parts.authority.ok_or_else(wrong)?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(wrong());
        }
        let path = parts.path_and_query.map_or_else(String::new, |path| path.to_string());
        let is_http = path.len() > 1 || authority.port_u16() == Some(HTTP_PORT);
        let looks_like = if is_http { Protocol::Http } else { Protocol::Grpc };
        Ok(Self { is_tls, authority, path, looks_like })
    }
}

impl FromStr for Endpoint {
    type Err = String;

    /// Where a collector is. Where it takes traces follows from that.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut endpoint = Self::exact(text)?;
        if !endpoint.path.ends_with(TRACES) {
            endpoint.path = format!("{}{TRACES}", endpoint.path.trim_end_matches('/'));
        }
        Ok(endpoint)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_tls { "https" } else { "http" }, self.authority)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
}

impl Protocol {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Grpc => Self::Http,
            Self::Http => Self::Grpc,
        }
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "grpc" => Ok(Self::Grpc),
            "http/protobuf" => Ok(Self::Http),
            _ => Err(format!("must be grpc or http/protobuf, not `{text}`")),
        }
    }
}

/// Which decisions have a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// Where the caller has a span, ours is sampled if that one is.
    pub heeds_parent: bool,
    /// Of all others.
    pub share: Share,
}

impl Default for Sampler {
    fn default() -> Self {
        Self { heeds_parent: true, share: Share(1.0) }
    }
}

impl Sampler {
    /// By the trace's id, so that whoever samples the same share keeps the same traces.
    pub(super) fn samples(&self, trace_id: u128, parent: Option<bool>) -> bool {
        match parent {
            Some(is_sampled) if self.heeds_parent => is_sampled,
            _ => self.share.has(trace_id),
        }
    }
}

/// From 0, nothing, to 1, everything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Share(f64);

impl Share {
    pub const ALL: Share = Share(1.0);
    pub const NOTHING: Share = Share(0.0);

    /// As OpenTelemetry's own programs do: by the lower 63 bits of the id's right half.
    fn has(self, trace_id: u128) -> bool {
        const HALF: u128 = 1 << 63;
        let place = (trace_id & u128::from(u64::MAX)) >> 1;
        (place as f64) < self.0 * HALF as f64
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = text.parse::<f64>().ok().filter(|share| (0.0..=1.0).contains(share));
        share.map(Self).ok_or_else(|| "must be a number from 0 to 1, as in 0.1".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_url() {
        for (text, path, looks_like) in [
            ("http://collector:4317", "/v1/traces", Protocol::Grpc),
            ("http://collector:4317/", "/v1/traces", Protocol::Grpc),
            ("http://collector:4318", "/v1/traces", Protocol::Http),
            ("https://collector", "/v1/traces", Protocol::Grpc),
            ("http://[::1]:9/otlp/", "/otlp/v1/traces", Protocol::Http),
            ("http://collector:4318/v1/traces", "/v1/traces", Protocol::Http),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.path.as_str(), endpoint.looks_like), (path, looks_like), "{text}");
            assert_eq!(endpoint.is_tls(), text.starts_with("https"));
        }
        assert_eq!(Endpoint::exact("http://c:1/x?y=1").unwrap().path, "/x?y=1");
        for wrong in
            ["", "collector:4317", "/v1/traces", "ftp://c:1", "http://", "http://u:p@c:1", "unix:/x", "a b"]
        {
            wrong.parse::<Endpoint>().unwrap_err();
        }
    }

    #[test]
    fn a_share_of_all_traces_is_kept_and_parents_are_heeded() {
        let kept = |share: &str| {
            let sampler = Sampler { share: share.parse().unwrap(), ..Sampler::default() };
            let mut dice = fastrand::Rng::with_seed(3);
            (0..10_000).filter(|_| sampler.samples(dice.u128(..), None)).count()
        };
        assert_eq!((kept("0"), kept("1")), (0, 10_000));
        assert!((2_300..2_700).contains(&kept("0.25")), "{}", kept("0.25"));
        let (never, heedless) = (
            Sampler { heeds_parent: true, share: Share::NOTHING },
            Sampler { heeds_parent: false, share: Share::ALL },
        );
        assert!(never.samples(7, Some(true)) && !never.samples(7, None));
        assert!(!Sampler::default().samples(7, Some(false)) && heedless.samples(7, Some(false)));
        for wrong in ["", "-0.1", "1.1", "NaN", "all", "inf"] {
            wrong.parse::<Share>().unwrap_err();
        }
    }
}
