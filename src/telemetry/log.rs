//! Logs: one line each, on standard error, so that standard output stays the addresses.

use std::io::IsTerminal;

use tracing_subscriber::filter::LevelFilter;

/// Sends logs to standard error. `level` is `off`, `error`, `warn`, `info`, `debug` or `trace`.
pub(crate) fn init_logs(json: bool, level: &str) -> Result<(), String> {
    let level: LevelFilter = level.parse().map_err(|_| format!("`{level}` is no level of the log"))?;
    let builder = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    if json { builder.json().flatten_event(true).try_init() } else { builder.try_init() }
        .map_err(|error| error.to_string())
}
