//! Settings that Sluice shares with envoyproxy/ratelimit: limits from xDS, what answers and metrics tell beside their own, and
//! the ports that it has in that program's place.

use std::net::SocketAddr;
use std::time::Duration;

use super::value::HostPort;
use crate::config::decode::Fields;
use crate::tls::ClientFiles;

/// What the node is called if nothing says so. An xDS server has limits for some names only.
const NODE_ID: &str = "sluice";

/// Where limits come from beside the files.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Config {
    pub xds: Option<Xds>,
}

/// A server that sends limits: an aggregated discovery service, state of the world.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xds {
    pub server: HostPort,
    pub node_id: String,
    /// Absent: in the clear.
    pub tls: Option<ClientFiles>,
    /// Not ready until the server has answered. Without that, everything is allowed until then.
    pub must_answer: bool,
}

/// Headers of every answer, for the limit that has the least left. The names they have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitHeaders {
    pub limit: String,
    pub remaining: String,
    pub reset: String,
}

/// How long a connection may last, so that its peer finds instances that were added since.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionAge {
    /// Then the peer is told to open another one, a tenth earlier or later.
    pub max: Duration,
    /// After that, for calls under way.
    pub grace: Duration,
}

/// Metrics beside Sluice's own.
#[derive(Debug, Clone, PartialEq)]
pub struct Metrics {
    /// Also under the names that envoyproxy/ratelimit has for them.
    pub ratelimit_names: bool,
    /// What is used beyond this part of a limit is near the limit.
    pub near_limit_ratio: f64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { ratelimit_names: false, near_limit_ratio: 0.8 }
    }
}

/// In the place of envoyproxy/ratelimit: the admin port can be reached from everywhere and needs no token for what changes no
/// limit, `/healthcheck` says whether a restart would help, and two things have ports of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InPlace {
    /// `/rlconfig`.
    pub debug: SocketAddr,
    /// The metrics, and the path that they have.
    pub metrics: Option<(SocketAddr, String)>,
}

pub(super) fn xds(fields: &Fields<'_>) -> Option<Xds> {
    fields.need("server", "the host:port of the xDS server");
    let node_id = fields.text("node_id").unwrap_or(NODE_ID).to_owned();
    if node_id.is_empty() {
        fields.mistake("node_id", || "must not be empty: the server knows us by it");
    }
    let tls = super::tls::client(fields);
    Some(Xds { server: fields.parsed("server")?, node_id, tls, must_answer: true })
}
