//! `sluice ready`: whether a running server is ready, for health checks of containers that have no other program to ask with.
//!
//! Refuses to know why a server is not ready; it says so itself.

use std::process::ExitCode;

use super::admin::{AdminArgs, run_within};
use super::complain;
use super::text::plain;

pub(super) const HELP: &str = "\
Examples:
  sluice ready
  sluice ready --admin localhost:8080 --ca ca.pem    where the admin port has TLS";

pub(super) fn run(args: &AdminArgs) -> ExitCode {
    match ask(args) {
        Ok(answer) => {
            println!("{}", plain(answer.trim_end()));
            ExitCode::SUCCESS
        }
        Err(error) => complain(&error),
    }
}

fn ask(args: &AdminArgs) -> anyhow::Result<String> {
    let server = args.server()?;
    run_within(args.address(), server.text("/readyz"))
}
