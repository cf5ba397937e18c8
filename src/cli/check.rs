//! `sluice check`: what `serve` would say about the files.

use std::process::ExitCode;

use super::CheckArgs;
use crate::config::{self, Problem};

pub fn run(args: &CheckArgs) -> ExitCode {
    match config::load(args.config.config_dir.as_deref()) {
        Ok(loaded) => {
            for warning in &loaded.hot.warnings {
                println!("warning: {warning}");
            }
            let domains = loaded.hot.registry.domain_names().count();
            let named = loaded.hot.registry.named().count();
            let files = loaded.hot.files.len();
            println!("ok: {files} files, {domains} domains, {named} named limits");
            ExitCode::SUCCESS
        }
        Err(problems) => {
            print_problems(&problems);
            ExitCode::FAILURE
        }
    }
}

/// Every problem on a line of its own, on standard error.
pub fn print_problems(problems: &[Problem]) {
    for problem in problems {
        eprintln!("{problem}");
    }
    let count = problems.len();
    eprintln!("{count} {} found", if count == 1 { "problem" } else { "problems" });
}
