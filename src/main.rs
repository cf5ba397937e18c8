//! The `sluice` binary: the command line, and nothing else.

use std::process::ExitCode;

fn main() -> ExitCode {
    match sluice::cli::Cli::of(std::env::args_os()) {
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
