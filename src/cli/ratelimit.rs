//! `ratelimit`: in the place of envoyproxy/ratelimit, with that program's environment in the place of flags.
//!
//! Its variables become the settings that `serve` has; what Sluice adds is in `SLUICE_*`. Arguments mean nothing to that
//! program, and are ignored here too. Refuses to know what the settings do.

mod names;

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use super::check::print_problems;
use super::env::{Bad, Env};
use super::otel;
use super::serve::start;
use super::{ADMIN_TOKEN, LEDGER_TOKEN, complain, token};
use crate::app::Options;
use crate::config::settings::ratelimit::{ConnectionAge, InPlace, LimitHeaders, Xds};
use crate::config::settings::value::{HostPort, LedgerUri, Listen, LogFormat, LogLevel, old_and_new};
use crate::config::{self, Layout, LimitsIn, Runtime, Settings};
use crate::state;
use crate::tls::{ClientFiles, PairFiles, ServerFiles, ServerName};
use crate::trace::options::{Otlp, Protocol, Sampler};

/// The name under which the program takes the other's place.
pub(super) const NAME: &str = "ratelimit";

/// Levels that the other program has under other names.
const LEVELS: [(&str, LogLevel); 3] =
    [("panic", LogLevel::Error), ("fatal", LogLevel::Error), ("warning", LogLevel::Warn)];

/// Where that program looks for a collector if nothing says so.
const COLLECTOR: &str = "http://localhost:4318";

/// What traces say of this process.
const TRACED_AS: [(&str, &str); 3] = [
    ("TRACING_SERVICE_NAME", "service.name"),
    ("TRACING_SERVICE_NAMESPACE", "service.namespace"),
    ("TRACING_SERVICE_INSTANCE_ID", "service.instance.id"),
];

pub(super) fn run(ignored: &[OsString]) -> ExitCode {
    let env = Env::of_process();
    let layout = match layout(&env) {
        Ok(layout) => layout,
        Err(bad) => return complain(&bad.into()),
    };
    let mut loaded = match config::load_layout(&layout) {
        Ok(loaded) => loaded,
        Err(problems) => {
            print_problems(&problems);
            return ExitCode::FAILURE;
        }
    };
    if let Err(bad) = put_over(&mut loaded.settings, &env) {
        return complain(&bad.into());
    }
    let named = env.text("SLUICE_STATE_DIR").map(PathBuf::from);
    // The image sets this variable, and the directory can't be written where the root is read-only.
    let state_dir = named.clone().filter(|dir| state::is_writable(dir));
    let unused = names::unused(&env);
    let is_unkept = named.is_some() && state_dir.is_none();
    let started = start(Options { loaded, files: layout, state_dir }, || {
        if is_unkept {
            tracing::warn!(
                "SLUICE_STATE_DIR can't be written: what the admin API changes lasts until this process exits"
            );
        }
        if !ignored.is_empty() {
            tracing::info!("arguments are ignored: {ignored:?}");
        }
        if !unused.is_empty() {
            tracing::warn!("these variables have no effect here: {}", unused.join(", "));
        }
    });
    started.unwrap_or_else(|error| complain(&error))
}

/// Where the files are. Limits come from where that program has them, and from nowhere else.
fn layout(env: &Env) -> Result<Layout, Bad> {
    let dir = env.text("SLUICE_CONFIG_DIR").map(PathBuf::from);
    if is_xds(env)? {
        return Ok(Layout { dir, limits: LimitsIn::Nowhere });
    }
    let root = PathBuf::from(env.text("RUNTIME_ROOT").unwrap_or("/srv/runtime_data/current"));
    let root = env.text("RUNTIME_SUBDIRECTORY").map_or_else(|| root.clone(), |below| root.join(below));
    let inner = env.text("RUNTIME_APPDIRECTORY").unwrap_or("config").to_owned();
    let dot_files = !env.flag("RUNTIME_IGNOREDOTFILES", false)?;
    // Both ways of noticing an edit are always on.
    env.flag("RUNTIME_WATCH_ROOT", true)?;
    Ok(Layout { dir, limits: LimitsIn::Runtime(Runtime { root, inner, dot_files }) })
}

fn is_xds(env: &Env) -> Result<bool, Bad> {
    match env.text("CONFIG_TYPE").unwrap_or("FILE") {
        "FILE" => Ok(false),
        "GRPC_XDS_SOTW" => Ok(true),
        other => Err(Bad::new("CONFIG_TYPE", format!("must be FILE or GRPC_XDS_SOTW, not `{other}`"))),
    }
}

fn put_over(settings: &mut Settings, env: &Env) -> Result<(), Bad> {
    settings.grpc.listen = match env.text("GRPC_UDS") {
        Some(path) => Listen::Unix(PathBuf::from(path)),
        None => Listen::Tcp(address(env, "GRPC_HOST", "GRPC_PORT", 8081)?),
    };
    settings.grpc.tls = grpc_tls(env)?;
    settings.grpc.connection_age = Some(ConnectionAge {
        max: env.duration("GRPC_MAX_CONNECTION_AGE", Duration::from_secs(24 * 3600))?,
        grace: env.duration("GRPC_MAX_CONNECTION_AGE_GRACE", Duration::from_secs(3600))?,
    });
    settings.admin.listen = address(env, "HOST", "PORT", 8080)?;
    settings.admin.token = token(ADMIN_TOKEN);
    settings.ledger.token = token(LEDGER_TOKEN);
    let debug = address(env, "DEBUG_HOST", "DEBUG_PORT", 6070)?;
    settings.in_place = Some(InPlace { debug, metrics: metrics(env)? });
    settings.metrics.ratelimit_names = true;
    settings.metrics.near_limit_ratio = env.number("NEAR_LIMIT_RATIO", 0.8, 0.0..=1.0)?;
    settings.grpc.response_dynamic_metadata = env.flag("RESPONSE_DYNAMIC_METADATA", false)?;
    settings.grpc.limit_headers = limit_headers(env)?;
    if let Some(uris) = env.text("SLUICE_LEDGER") {
        let uris = uris.split(';').map(str::parse).collect::<Result<Vec<LedgerUri>, String>>();
        let both = uris.and_then(old_and_new).map_err(|message| Bad::new("SLUICE_LEDGER", message))?;
        (settings.ledger.uri, settings.ledger.successor) = both;
    }
    settings.log.level = log_level(env)?;
    settings.log.format = log_format(env)?;
    if is_xds(env)? {
        settings.config.xds = Some(xds(env)?);
    }
    traces(&mut settings.telemetry.otlp, env)
}

/// That program's variables, beside those of OpenTelemetry which both have.
fn traces(otlp: &mut Option<Otlp>, env: &Env) -> Result<(), Bad> {
    let wanted =
        env.text("TRACING_ENABLED").is_some().then(|| env.flag("TRACING_ENABLED", false)).transpose()?;
    if wanted == Some(false) {
        *otlp = None;
        return Ok(());
    }
    otel::put_over(otlp, env)?;
    if wanted == Some(true) && otlp.is_none() && !otel::is_off(env)? {
        *otlp = Some(Otlp::to(COLLECTOR.parse().expect("it must be a URL")));
    }
    let Some(otlp) = otlp else { return Ok(()) };
    match env.text("TRACING_EXPORTER_PROTOCOL") {
        None => {}
        Some("http") => otlp.protocol = Some(Protocol::Http),
        Some("grpc") => otlp.protocol = Some(Protocol::Grpc),
        Some(other) => {
            return Err(Bad::new(
                "TRACING_EXPORTER_PROTOCOL",
                format!("must be http or grpc, not `{other}`"),
            ));
        }
    }
    if let Some(share) = env.parsed("TRACING_SAMPLING_RATE")? {
        otlp.sampler = Sampler { share, ..Sampler::default() };
    }
    for (variable, name) in TRACED_AS {
        env.text(variable).into_iter().for_each(|value| otlp.describe_else(name, value));
    }
    Ok(())
}

fn xds(env: &Env) -> Result<Xds, Bad> {
    let server = env.parsed::<HostPort>("CONFIG_GRPC_XDS_SERVER_URL")?;
    let local = || "localhost:18000".parse().expect("it must be a host and a port");
    let node_id = env.text("CONFIG_GRPC_XDS_NODE_ID").unwrap_or("default").to_owned();
    let must_answer = !env.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false)?;
    let tls = xds_tls(env)?;
    Ok(Xds { server: server.unwrap_or_else(local), node_id, tls, must_answer })
}

fn xds_tls(env: &Env) -> Result<Option<ClientFiles>, Bad> {
    if !env.flag("CONFIG_GRPC_XDS_SERVER_USE_TLS", false)? {
        return Ok(None);
    }
    let (cert, key) = ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "CONFIG_GRPC_XDS_CLIENT_TLS_KEY");
    let pair = match env.text(cert).is_some() || env.text(key).is_some() {
        true => Some(PairFiles { cert_file: file(env, cert)?, key_file: file(env, key)? }),
        false => None,
    };
    let server_name = env.text("CONFIG_GRPC_XDS_SERVER_TLS_SAN").map(|name| {
        let bad = |_| Bad::new("CONFIG_GRPC_XDS_SERVER_TLS_SAN", format!("must be a DNS name, not `{name}`"));
        ServerName::try_from(name.to_owned()).map_err(bad)
    });
    // Without one that program trusts whom the machine trusts.
    let ca_file = env.text("CONFIG_GRPC_XDS_SERVER_TLS_CACERT").map(PathBuf::from);
    let ca_file = ca_file.unwrap_or_else(|| ClientFiles::of_this_machine().ca_file);
    Ok(Some(ClientFiles { ca_file, pair, server_name: server_name.transpose()? }))
}

/// The TLS of the gRPC port. GRPC_SERVER_TLS_CA_CERT is none of that program's variables, so that it asks no client for a
/// certificate.
fn grpc_tls(env: &Env) -> Result<Option<ServerFiles>, Bad> {
    if !env.flag("GRPC_SERVER_USE_TLS", false)? {
        return Ok(None);
    }
    Ok(Some(ServerFiles {
        cert_file: file(env, "GRPC_SERVER_TLS_CERT")?,
        key_file: file(env, "GRPC_SERVER_TLS_KEY")?,
        client_ca_file: env.text("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from),
    }))
}

fn file(env: &Env, variable: &'static str) -> Result<PathBuf, Bad> {
    let path = env.text(variable).map(PathBuf::from);
    path.ok_or_else(|| Bad::new(variable, "is needed for TLS: the path of a file"))
}

fn log_level(env: &Env) -> Result<LogLevel, Bad> {
    let Some(text) = env.text("LOG_LEVEL") else { return Ok(LogLevel::Warn) };
    let text = text.to_ascii_lowercase();
    match LEVELS.iter().find(|(name, _)| *name == text) {
        Some((_, level)) => Ok(*level),
        None => text.parse().map_err(|error| Bad::new("LOG_LEVEL", error)),
    }
}

/// In any case, as the level.
fn log_format(env: &Env) -> Result<LogFormat, Bad> {
    let Some(text) = env.text("LOG_FORMAT") else { return Ok(LogFormat::Text) };
    text.to_ascii_lowercase().parse().map_err(|error| Bad::new("LOG_FORMAT", error))
}

fn limit_headers(env: &Env) -> Result<Option<LimitHeaders>, Bad> {
    let name = |variable: &'static str, default: &str| {
        let name = env.text(variable).unwrap_or(default).to_owned();
        match http::HeaderName::from_bytes(name.as_bytes()) {
            Ok(_) => Ok(name),
            Err(_) => Err(Bad::new(variable, format!("must be the name of a header, not `{name}`"))),
        }
    };
    let headers = LimitHeaders {
        limit: name("LIMIT_LIMIT_HEADER", "RateLimit-Limit")?,
        remaining: name("LIMIT_REMAINING_HEADER", "RateLimit-Remaining")?,
        reset: name("LIMIT_RESET_HEADER", "RateLimit-Reset")?,
    };
    Ok(env.flag("LIMIT_RESPONSE_HEADERS_ENABLED", false)?.then_some(headers))
}

/// The port of the metrics. PROMETHEUS_ADDR alone turns it on too.
fn metrics(env: &Env) -> Result<Option<(SocketAddr, String)>, Bad> {
    let wanted = env.text("PROMETHEUS_ADDR");
    if !env.flag("USE_PROMETHEUS", wanted.is_some())? {
        return Ok(None);
    }
    let path = env.text("PROMETHEUS_PATH").unwrap_or("/metrics").to_owned();
    if !path.starts_with('/') || path.contains(['{', '}', '*', ':']) {
        return Err(Bad::new(
            "PROMETHEUS_PATH",
            format!("must be a plain path, as in /metrics, not `{path}`"),
        ));
    }
    let wanted = wanted.unwrap_or(":9090");
    let bad = || {
        Bad::new("PROMETHEUS_ADDR", format!("must be an address and a port, as in :19001, not `{wanted}`"))
    };
    let (host, port) = wanted.rsplit_once(':').ok_or_else(bad)?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let port = port.parse().map_err(|_| bad())?;
    let host = if host.is_empty() { "0.0.0.0" } else { host };
    Ok(Some((resolved("PROMETHEUS_ADDR", host, port)?, path)))
}

fn address(env: &Env, host: &'static str, port: &'static str, default: u16) -> Result<SocketAddr, Bad> {
    let port = env.parsed_as(port, "must be a port, from 0 to 65535")?.unwrap_or(default);
    resolved(host, env.text(host).unwrap_or("0.0.0.0"), port)
}

fn resolved(variable: &'static str, host: &str, port: u16) -> Result<SocketAddr, Bad> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(SocketAddr::new(ip, port));
    }
    let found = (host, port).to_socket_addrs().ok().and_then(|mut found| found.next());
    found.ok_or_else(|| {
        Bad::new(variable, format!("must be an IP address or a name that leads to one, not `{host}`"))
    })
}

#[cfg(test)]
mod tests;
