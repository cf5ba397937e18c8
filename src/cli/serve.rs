//! `sluice serve`: files, flags, sockets, then run until a signal, then drain.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::check::print_problems;
use super::env::Env;
use super::otel;
use super::{ADMIN_TOKEN, HUB_TOKEN, LEDGER_TOKEN, ServeArgs, complain, token};
use crate::app::{App, Options};
use crate::config::settings::value::{LogFormat, old_and_new};
use crate::config::{Loaded, Settings};
use crate::telemetry;

pub(super) fn run(args: ServeArgs) -> ExitCode {
    let mut loaded = match args.config.load() {
        Ok(loaded) => loaded,
        Err(problems) => {
            print_problems(&problems);
            return ExitCode::FAILURE;
        }
    };
    let files = args.config.layout();
    let state_dir = Some(args.state_dir.clone());
    if let Err(message) = put_over(&mut loaded.settings, args) {
        return complain(&anyhow::Error::msg(message));
    }
    match start(Options { loaded, files, state_dir }, || {}) {
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
    let env = Env::of_process();
    if let Some(xds) = &mut settings.config.xds {
        let may_start =
            env.flag("FORCE_START_WITHOUT_INITIAL_CONFIG", false).map_err(|bad| bad.to_string())?;
        xds.must_answer = !may_start;
    }
    otel::put_over(&mut settings.telemetry.otlp, &env).map_err(|bad| bad.to_string())
}

/// Serves until a signal. `say` is called as soon as something can be logged.
pub(super) fn start(mut options: Options, say: impl FnOnce()) -> anyhow::Result<ExitCode> {
    let Loaded { settings, hot, .. } = &mut options.loaded;
    let json = settings.log.format == LogFormat::Json;
    telemetry::init_logs(json, settings.log.level.name()).map_err(anyhow::Error::msg)?;
    say();
    // A hub answers for the limits of its sidecars, and those of an xDS server are yet to come.
    if settings.hub.listen.is_some() || settings.config.xds.is_some() {
        hot.need_no_files();
    }
    hot.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let ended = runtime.block_on(serve(options));
    // All that had to be written is. What may still run is work that nobody waits for, such as reading a very large configuration.
    runtime.shutdown_background();
    ended
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
