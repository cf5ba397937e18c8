//! `sluice completions` and `sluice man`: the command line, described to a shell and to a reader.

use std::io::Write;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use super::{Cli, complain};

pub(super) fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "sluice", &mut script);
    print(&script)
}

pub(super) fn man() -> ExitCode {
    match pages() {
        Ok(pages) => print(&pages),
        Err(error) => complain(&error),
    }
}

/// A page of the whole, and one of each command after it.
fn pages() -> anyhow::Result<Vec<u8>> {
    let mut sluice = Cli::command();
    // Gives the commands their whole names.
    sluice.build();
    let mut pages = Vec::new();
    let commands: Vec<clap::Command> =
        sluice.get_subcommands().filter(|command| command.get_name() != "help").cloned().collect();
    for command in std::iter::once(sluice).chain(commands) {
        Man::new(command).render(&mut pages).context("the page can't be written")?;
    }
    Ok(pages)
}

fn print(bytes: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => complain(&anyhow::Error::new(error).context("standard output")),
    }
}
