//! The `sluice` binary: the command line, and nothing else.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match sluice::cli::Cli::try_parse() {
        Ok(cli) => cli.run(),
        Err(error) => {
            // Help is no mistake; anything else is 1, because 2 means "denied".
            let code = if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
            // Nothing can be done about a terminal that is gone.
            let _ = error.print();
            code
        }
    }
}
