//! `sluice serve`: files, flags, sockets, then run until a signal, then drain.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::check::print_problems;
use super::env::Env;
use super::otel;
use super::{ADMIN_TOKEN, HUB_TOKEN, LEDGER_TOKEN, ServeArgs, complain, token};
use crate::app::{App, Options};
use crate::config::settings::value::{LogFormat, old_and_new};
use crate::config::{self, DEFAULT_DIR, Settings};
use crate::telemetry;

pub(super) fn run(args: ServeArgs) -> ExitCode {
    let mut loaded = match config::load(args.config.config_dir.as_deref()) {
        Ok(loaded) => loaded,
        Err(problems) => {
            print_problems(&problems);
            return ExitCode::FAILURE;
        }
    };
    let config_dir = args.config.config_dir.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_DIR));
    let state_dir = Some(args.state_dir.clone());
    if let Err(message) = put_over(&mut loaded.settings, args) {
        return complain(&anyhow::Error::msg(message));
    }
    match start(Options { loaded, files: config_dir.into(), state_dir }, || {}) {
        Ok(code) => code,
        Err(error) => complain(&error),
    }
}

/// Flags and variables win over the file.
fn put_over(settings: &mut Settings, args: ServeArgs) -> Result<(), String> {
    if let Some(listen) = args.grpc {
        settings.grpc.listen = listen;
    }
    if let Some(listen) = args.admin {
        settings.admin.listen = listen.0;
    }
    if let Some(listen) = args.hub {
        settings.hub.listen = Some(listen.0);
    }
    if !args.ledger.is_empty() {
        let both = old_and_new(args.ledger).map_err(|message| format!("--ledger {message}"))?;
        (settings.ledger.uri, settings.ledger.successor) = both;
    }
    settings.admin.token = token(ADMIN_TOKEN);
    settings.hub.token = token(HUB_TOKEN);
    settings.ledger.token = token(LEDGER_TOKEN);
    if let Some(xds) = &mut settings.config.xds
        && std::env::var("FORCE_START_WITHOUT_INITIAL_CONFIG").is_ok_and(|value| value == "true")
    {
        xds.must_answer = false;
    }
    otel::put_over(&mut settings.telemetry.otlp, &Env::of_process()).map_err(|bad| bad.to_string())
}

/// Serves until a signal. `say` is called as soon as something can be logged.
pub(super) fn start(options: Options, say: impl FnOnce()) -> anyhow::Result<ExitCode> {
    let settings = &options.loaded.settings;
    let json = settings.log.format == LogFormat::Json;
    telemetry::init_logs(json, settings.log.level.name()).map_err(anyhow::Error::msg)?;
    say();
    // A hub answers for the limits of its sidecars, and needs none itself.
    let is_bare_hub = settings.hub.listen.is_some() && options.loaded.hot.files.is_empty();
    for warning in options.loaded.hot.warnings.iter().filter(|_| !is_bare_hub) {
        tracing::warn!("{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(serve(options))
}

async fn serve(options: Options) -> anyhow::Result<ExitCode> {
    // Before anything is promised, so that a signal is never missed.
    let mut stop = Stop::new().context("signals can't be watched")?;
    let ledger =
        options.loaded.settings.ledger.uris().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let app = App::start(options).await?;
    let mut addresses = format!("grpc listening on {}\nadmin listening on {}\n", app.grpc, app.admin);
    for (name, address) in [("debug", app.debug), ("metrics", app.metrics), ("hub", app.hub)] {
        addresses.extend(address.map(|address| format!("{name} listening on {address}\n")));
    }
    // A script that only wanted the first line may have closed the pipe: that is no reason to stop.
    let _ = std::io::stdout().write_all(addresses.as_bytes()).and_then(|()| std::io::stdout().flush());
    tracing::info!(version = env!("CARGO_PKG_VERSION"), grpc = %app.grpc, admin = %app.admin, %ledger, "started");
    tokio::select! {
        reason = app.failed() => {
            tracing::error!(reason, "a part of the server ended");
            Ok(ExitCode::FAILURE)
        }
        signal = stop.next() => {
            tracing::info!(signal, "draining");
            tokio::select! {
                () = app.stop() => {
                    tracing::info!("stopped");
                    Ok(ExitCode::SUCCESS)
                }
                signal = stop.next() => {
                    tracing::warn!(signal, "a second signal: exiting at once");
                    std::process::exit(1);
                }
            }
        }
    }
}

/// The signals that end the server.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}
