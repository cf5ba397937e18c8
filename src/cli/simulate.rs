//! `sluice simulate`: what limits would have done to traffic, on virtual time, as a table or as JSON, as plots and as a page.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;

use super::check::print_problems;
use super::progress::Bar;
use super::{ConfigDir, complain};
use crate::config::Problem;
use crate::simulate::report::Report;
use crate::simulate::table::Table;
use crate::simulate::{Failure, Options, Progress, Watch, run as simulate};
use crate::simulate::{page, plot};

pub(super) const HELP: &str = "\
Examples:
  sluice simulate traffic.jsonl                      what the files in config/ would have decided
  sluice simulate --config-dir new --against config --map envoy.yaml access.log.gz
  sluice simulate --suggest 0.1% traffic.jsonl       how large each limit would have to be
  sluice simulate --html report.html traffic.jsonl   the same with plots
  sluice simulate --seed 7 --json scenario.yaml      made-up clients, with their retries

A line of traffic: {\"time\": 12.5, \"domain\": \"demo\", \"descriptors\": [{\"entries\": [{\"key\": \"path\", \"value\": \"/\"}]}]}
and, if they are known, hits, status and duration_ms. docs/simulation.md has the rest.";

#[derive(Debug, Args)]
pub(super) struct SimulateArgs {
    #[command(flatten)]
    config: ConfigDir,
    /// Decide everything with these files too, and say what differs
    #[arg(long, value_name = "DIR")]
    against: Option<PathBuf>,
    /// What all chance comes from; the same seed gives the same bytes [default: that of the scenario, or 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// How lines of an access log become requests; without it they are requests already
    #[arg(long, value_name = "FILE")]
    map: Option<PathBuf>,
    /// Write a line of JSON for each decision: {at, time, code, key, reason, retry_after_ms, against?}
    #[arg(long, value_name = "FILE")]
    decisions: Option<PathBuf>,
    /// Write plots: use against capacity, denials by tenant, and how long clients that obey waited
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with the plots and the tables; it needs no other file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Suggest for each limit the capacity that would have denied at most this part of its requests
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    suggest: Option<f64>,
    /// Exit 1 and print nothing if a line can't be read
    #[arg(long)]
    strict: bool,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    /// JSON lines, access logs (`-` is standard input) and scenarios (*.yaml); each may be gzip
    #[arg(required = true, value_name = "TRAFFIC")]
    traffic: Vec<PathBuf>,
}

/// `0.1%`, or `0.1`, as a part of 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').unwrap_or(text).trim();
    let percent = number.parse::<f64>().ok().filter(|percent| (0.0..=100.0).contains(percent));
    percent
        .map(|percent| percent / 100.0)
        .ok_or_else(|| "a percentage from 0% to 100%, such as 0.1%".to_owned())
}

/// Names broken lines on standard error, and shows there how far it is.
struct Terminal {
    bar: Bar,
}

impl Watch for Terminal {
    fn broken(&mut self, problem: &Problem) {
        self.bar.clear();
        eprintln!("{problem}");
    }

    fn progress(&mut self, Progress { requests, part }: Progress) {
        self.bar.draw(requests, part);
    }
}

fn draw(report: &Report, svg: Option<&Path>, html: Option<&Path>) -> anyhow::Result<()> {
    let write = |path: &Path, text: String| {
        std::fs::write(path, text).with_context(|| format!("{} can't be written", path.display()))
    };
    svg.map(|path| write(path, plot::svg(report))).transpose()?;
    html.map(|path| write(path, page::html(report))).transpose()?;
    Ok(())
}

pub(super) fn run(args: SimulateArgs) -> ExitCode {
    let options = Options {
        config: args.config.there(),
        against: args.against,
        seed: args.seed,
        map: args.map,
        decisions: args.decisions,
        suggest: args.suggest,
        traffic: args.traffic,
    };
    let mut terminal = Terminal { bar: Bar::begin() };
    let report = simulate(&options, &mut terminal);
    terminal.bar.clear();
    let report = match report {
        Ok(report) => report,
        Err(Failure::Problems(problems)) => {
            print_problems(&problems);
            return ExitCode::FAILURE;
        }
        Err(Failure::Other(text)) => return complain(&anyhow::Error::msg(text)),
    };
    if report.broken > 0 {
        let (count, were) = (report.broken, if args.strict { "" } else { ", left out" });
        eprintln!("{count} broken {}{were}", if count == 1 { "line" } else { "lines" });
        if args.strict {
            return ExitCode::FAILURE;
        }
    }
    if let Err(error) = draw(&report, args.svg.as_deref(), args.html.as_deref()) {
        return complain(&error);
    }
    let text = match args.json {
        true => serde_json::to_string(&report).map(|json| json + "\n"),
        false => Ok(Table(&report).to_string()),
    };
    match text {
        Ok(text) => {
            // A reader that has closed the pipe wants no more.
            let _ = std::io::stdout().write_all(text.as_bytes());
            ExitCode::SUCCESS
        }
        Err(error) => complain(&anyhow::Error::from(error).context("the report could not be written")),
    }
}
