//! `sluice.yaml`: how this process runs. Read once, at start; every key and the file itself are optional.
//!
//! Flags and `SLUICE_*` variables are put over these by the command line, with the same value types. Refuses to know
//! limits, and to read the files that it names: that is [`secret`]'s, when the server starts.

pub mod leases;
pub mod ratelimit;
pub mod secret;
pub mod telemetry;
#[cfg(test)]
mod tests;
mod tls;
pub mod value;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

pub use self::leases::Leases;
pub use self::ratelimit::Xds;
use self::ratelimit::{Config, ConnectionAge, InPlace, LimitHeaders, Metrics};
use self::secret::Secret;
use self::telemetry::{Log, Telemetry};
use self::value::{LedgerUri, Listen, OnFailure, Share, Slabs, TransferIds};
use super::decode::{At, Fields, Sink, read_scalar};
use super::problem::Problems;
use super::shape::Shape;
use super::source::Document;
use super::tree::{Data, Value};
use super::yaml;
use crate::tls::{ClientFiles, ServerFiles};

/// A call that waits longer than a minute has no caller any more.
const TIMEOUT_MS_MAX: u64 = 60_000;

/// Work items that may wait: 16 million of a few hundred bytes are some gigabytes.
const QUEUE_MAX: u64 = 1 << 24;

/// Leases or keys that may be remembered: a hundred million are some tens of gigabytes.
const REMEMBERED_MAX: u64 = 100_000_000;

/// Whoever routes to us looks more often than once in ten minutes.
const DRAIN_WAIT_SECONDS_MAX: u64 = 600;

/// Everything `sluice.yaml` can say.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Settings {
    pub grpc: Grpc,
    pub admin: Admin,
    pub hub: Hub,
    pub ledger: Ledger,
    pub leases: Leases,
    pub limits: Limits,
    pub config: Config,
    pub metrics: Metrics,
    pub telemetry: Telemetry,
    pub drain: Drain,
    pub log: Log,
    /// Only under the name `ratelimit`.
    pub in_place: Option<InPlace>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grpc {
    pub listen: Listen,
    /// Absent: the port speaks in the clear, and so does a Unix socket in any case.
    pub tls: Option<ServerFiles>,
    /// Answers tell in their dynamic metadata what was asked, as envoyproxy/ratelimit's do.
    pub response_dynamic_metadata: bool,
    /// Only under the name `ratelimit`.
    pub limit_headers: Option<LimitHeaders>,
    /// Only under the name `ratelimit`; otherwise a connection may last for ever.
    pub connection_age: Option<ConnectionAge>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Admin {
    pub listen: SocketAddr,
    /// Holds the token that every call must carry.
    pub token_file: Option<PathBuf>,
    /// The token itself, which wins over the file. Never in `sluice.yaml`: it comes from `SLUICE_ADMIN_TOKEN`.
    pub token: Option<Secret>,
    /// Calls that only read need no token.
    pub open_reads: bool,
    pub tls: Option<ServerFiles>,
}

/// Where other Sluices use this one's ledger.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Hub {
    /// Absent: this instance is no hub.
    pub listen: Option<SocketAddr>,
    /// Holds the token that every sidecar must carry.
    pub token_file: Option<PathBuf>,
    /// The token itself, which wins over the file. Never in `sluice.yaml`: it comes from `SLUICE_HUB_TOKEN`.
    pub token: Option<Secret>,
    pub tls: Option<ServerFiles>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Ledger {
    pub uri: LedgerUri,
    /// The one that comes to replace it.
    pub successor: Option<LedgerUri>,
    /// Bounds every call.
    pub timeout_ms: u64,
    pub on_failure: OnFailure,
    /// Of each capacity, for `on_failure: local`.
    pub local_share: Share,
    pub transfer_ids: TransferIds,
    /// Work items that may wait.
    pub queue_max: usize,
    pub slabs: Slabs,
    /// Holds the token that hubs want to see.
    pub token_file: Option<PathBuf>,
    /// The token itself, which wins over the file. Never in `sluice.yaml`: it comes from `SLUICE_LEDGER_TOKEN`.
    pub token: Option<Secret>,
    /// Towards hubs.
    pub tls: Option<ClientFiles>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Distinct LimitKeys remembered; beyond that the coldest are forgotten, never their balances.
    pub dynamic_keys_max: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Drain {
    /// Between the fall of readiness and the close of the gRPC port, while anybody is connected to it.
    pub wait_seconds: u64,
}

impl Default for Grpc {
    fn default() -> Self {
        Self {
            listen: Listen::Tcp(loopback(8081)),
            tls: None,
            response_dynamic_metadata: false,
            limit_headers: None,
            connection_age: None,
        }
    }
}

impl Default for Admin {
    fn default() -> Self {
        Self { listen: loopback(8080), token_file: None, token: None, open_reads: false, tls: None }
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            uri: LedgerUri::Memory,
            successor: None,
            timeout_ms: 250,
            on_failure: OnFailure::Error,
            local_share: Share::DEFAULT,
            transfer_ids: TransferIds::TimeOrdered,
            queue_max: 65_536,
            slabs: Slabs::On,
            token_file: None,
            token: None,
            tls: None,
        }
    }
}

impl Ledger {
    /// The one in use, and the one that replaces it if there is one.
    pub(crate) fn uris(&self) -> impl Iterator<Item = &LedgerUri> {
        std::iter::once(&self.uri).chain(&self.successor)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { dynamic_keys_max: 1_000_000 }
    }
}

impl Default for Drain {
    fn default() -> Self {
        Self { wait_seconds: 3 }
    }
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

static FAMILY: &[&Shape] = &[
    &FILE,
    &GRPC,
    &ADMIN,
    &HUB,
    &LEDGER,
    &leases::LEASES,
    &LIMITS,
    &CONFIG,
    &XDS,
    &METRICS,
    &telemetry::TELEMETRY,
    &telemetry::OTLP,
    &DRAIN,
    &telemetry::LOG,
    &tls::SERVER,
    &tls::CLIENT,
];
static FILE: Shape = Shape {
    name: "the file",
    keys: &[
        "grpc",
        "admin",
        "hub",
        "ledger",
        "leases",
        "limits",
        "config",
        "metrics",
        "telemetry",
        "drain",
        "log",
    ],
    family: FAMILY,
};
static GRPC: Shape =
    Shape { name: "`grpc`", keys: &["listen", "tls", "response_dynamic_metadata"], family: FAMILY };
static ADMIN: Shape =
    Shape { name: "`admin`", keys: &["listen", "token_file", "open_reads", "tls"], family: FAMILY };
static HUB: Shape = Shape { name: "`hub`", keys: &["listen", "token_file", "tls"], family: FAMILY };
static LEDGER: Shape = Shape {
    name: "`ledger`",
    keys: &[
        "uri",
        "timeout_ms",
        "on_failure",
        "local_share",
        "transfer_ids",
        "queue_max",
        "slabs",
        "token_file",
        "tls",
    ],
    family: FAMILY,
};
static LIMITS: Shape = Shape { name: "`limits`", keys: &["dynamic_keys_max"], family: FAMILY };
static CONFIG: Shape = Shape { name: "`config`", keys: &["xds"], family: FAMILY };
static XDS: Shape = Shape { name: "`xds`", keys: &["server", "node_id", "tls"], family: FAMILY };
static METRICS: Shape = Shape { name: "`metrics`", keys: &["ratelimit_names"], family: FAMILY };
static DRAIN: Shape = Shape { name: "`drain`", keys: &["wait_seconds"], family: FAMILY };

/// The settings of a file; the defaults if there is none, and for what it leaves out. And warnings.
#[cfg(test)]
pub(super) fn load_settings(
    file: Option<&Document>,
) -> Result<(Settings, Vec<super::Problem>), Vec<super::Problem>> {
    let mut problems = Problems::default();
    let settings = read(file, &mut problems);
    problems.finish().map(|warnings| (settings, warnings))
}

/// The same for a caller that has more to read. Worthless if there were mistakes.
pub(super) fn read(file: Option<&Document>, problems: &mut Problems) -> Settings {
    let mut settings = Settings::default();
    let Some(file) = file else { return settings };
    let sink = Sink::new(&file.name);
    match yaml::parse(&file.text) {
        Ok(None) => {}
        Ok(Some(tree)) => {
            if let Some(fields) = Fields::of(&tree, At::ROOT, &sink, &FILE) {
                fill(&mut settings, &fields);
            }
        }
        Err(fault) => sink.mistake(fault.line, &At::ROOT, || fault.message),
    }
    problems.absorb(sink.into_problems());
    settings
}

fn fill(settings: &mut Settings, fields: &Fields<'_>) {
    if let Some(fields) = fields.map("grpc", &GRPC) {
        set(&mut settings.grpc.listen, fields.parsed("listen"));
        settings.grpc.tls = tls::server(&fields);
        settings.grpc.response_dynamic_metadata = fields.flag("response_dynamic_metadata");
    }
    if let Some(fields) = fields.map("admin", &ADMIN) {
        set(&mut settings.admin.listen, fields.parsed::<value::TcpListen>("listen").map(|listen| listen.0));
        settings.admin.token_file = path(&fields, "token_file");
        settings.admin.open_reads = fields.flag("open_reads");
        settings.admin.tls = tls::server(&fields);
    }
    if let Some(fields) = fields.map("hub", &HUB) {
        settings.hub.listen = fields.parsed::<value::TcpListen>("listen").map(|listen| listen.0);
        settings.hub.token_file = path(&fields, "token_file");
        settings.hub.tls = tls::server(&fields);
    }
    if let Some(fields) = fields.map("ledger", &LEDGER) {
        fill_ledger(&mut settings.ledger, &fields);
    }
    if let Some(fields) = fields.map("leases", &leases::LEASES) {
        leases::fill(&mut settings.leases, &fields);
    }
    if let Some(fields) = fields.map("limits", &LIMITS) {
        set(&mut settings.limits.dynamic_keys_max, count(&fields, "dynamic_keys_max", REMEMBERED_MAX));
    }
    if let Some(fields) = fields.map("config", &CONFIG) {
        settings.config.xds = fields.map("xds", &XDS).and_then(|fields| ratelimit::xds(&fields));
    }
    if let Some(fields) = fields.map("metrics", &METRICS) {
        settings.metrics.ratelimit_names = fields.flag("ratelimit_names");
    }
    if let Some(fields) = fields.map("telemetry", &telemetry::TELEMETRY) {
        settings.telemetry.otlp = telemetry::otlp(&fields);
    }
    if let Some(fields) = fields.map("drain", &DRAIN) {
        set(&mut settings.drain.wait_seconds, fields.whole("wait_seconds", 0..=DRAIN_WAIT_SECONDS_MAX));
    }
    if let Some(fields) = fields.map("log", &telemetry::LOG) {
        set(&mut settings.log.format, fields.parsed("format"));
        set(&mut settings.log.level, fields.parsed("level"));
    }
}

fn fill_ledger(ledger: &mut Ledger, fields: &Fields<'_>) {
    fill_uris(ledger, fields);
    set(&mut ledger.timeout_ms, fields.whole("timeout_ms", 1..=TIMEOUT_MS_MAX));
    set(&mut ledger.on_failure, fields.parsed("on_failure"));
    set(&mut ledger.local_share, fields.parsed("local_share"));
    set(&mut ledger.transfer_ids, fields.parsed("transfer_ids"));
    set(&mut ledger.queue_max, count(fields, "queue_max", QUEUE_MAX));
    set(&mut ledger.slabs, fields.parsed("slabs"));
    ledger.token_file = path(fields, "token_file");
    ledger.tls = tls::client(fields);
}

/// One, or a list of the old one and the new one.
fn fill_uris(ledger: &mut Ledger, fields: &Fields<'_>) {
    if !matches!(fields.get("uri"), Some(Value { data: Data::List(_), .. })) {
        return set(&mut ledger.uri, fields.parsed("uri"));
    }
    let mut uris = Vec::new();
    for (value, at) in fields.list("uri").iter() {
        match read_scalar(value, |text, _| text.parse::<LedgerUri>()) {
            Ok(uri) => uris.push(uri),
            Err(message) => return fields.sink.mistake(value.line, &at, || message),
        }
    }
    match value::old_and_new(uris) {
        Ok((uri, successor)) => (ledger.uri, ledger.successor) = (uri, successor),
        Err(message) => fields.mistake("uri", || message),
    }
}

fn set<T>(to: &mut T, value: Option<T>) {
    if let Some(value) = value {
        *to = value;
    }
}

fn count(fields: &Fields<'_>, key: &str, most: u64) -> Option<usize> {
    fields.whole(key, 1..=most).and_then(|number| usize::try_from(number).ok())
}

fn path(fields: &Fields<'_>, key: &str) -> Option<PathBuf> {
    let text = fields.text(key)?;
    if text.is_empty() {
        fields.mistake(key, || "must be the path of a file");
        return None;
    }
    Some(PathBuf::from(text))
}
