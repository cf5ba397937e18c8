//! The command line: what can be asked, and in which order flags, variables and the file are heard.
//!
//! Flags win over `SLUICE_*`, which win over `config/sluice.yaml`. Exit codes: 0 done or allowed, 1 a mistake, 2 denied.

mod bench;
mod check;
mod connect;
mod serve;
mod try_it;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use self::connect::{Address, TlsArgs};
use crate::config::settings::secret::Secret;
use crate::config::settings::value::{LedgerUri, Listen, TcpListen};

/// Envoy's rate-limit service over a ledger: limits that hold, and clients that are told when to come back.
#[derive(Debug, Parser)]
#[command(name = "sluice", version, max_term_width = 100)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer Envoy's rate-limit calls until a signal comes
    ///
    /// Prints the addresses it listens on, one per line, once the sockets are open and the files are valid. Logs go to
    /// standard error. SIGTERM drains and exits 0; a second one exits at once.
    #[command(after_help = SERVE_HELP)]
    Serve(ServeArgs),
    /// Name every mistake of every file, with its line
    ///
    /// Reads the same files as `serve`, and exits 1 if anything in them is wrong.
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Ask a running server once, as Envoy would, and print its answer
    ///
    /// Each key=value is an entry of one descriptor, in order. Exits 0 when allowed, 2 when denied, 1 on errors.
    #[command(after_help = TRY_HELP)]
    Try(TryArgs),
    /// Load a running server and print how long its answers took
    ///
    /// Closed loop unless --rate is given; then requests are due at fixed times and latency counts from the due time.
    #[command(after_help = BENCH_HELP)]
    Bench(BenchArgs),
}

const SERVE_HELP: &str = "\
Examples:
  sluice serve                                       the memory ledger, the files in config/
  sluice serve --grpc 127.0.0.1:0 --admin 127.0.0.1:0
  sluice serve --grpc unix:/run/sluice.sock
  sluice serve --ledger tigerbeetle:0@127.0.0.1:3000 (needs the feature `tigerbeetle`)
  sluice serve --ledger tigerbeetle:0@old:3000 --ledger tigerbeetle:1@new:3000    while the new one replaces the old one
  sluice serve --ledger tigerbeetle:0@127.0.0.1:3000 --hub 127.0.0.1:8082
  sluice serve --ledger hub:127.0.0.1:8082           a sidecar of that hub";

const CHECK_HELP: &str = "\
Examples:
  sluice check
  sluice check --config-dir new --against http://127.0.0.1:8080    what would change, like a plan
  sluice check --against https://sluice.mesh:8080 --ca ca.pem      the same where the admin port has TLS

A server with an admin token is asked with SLUICE_ADMIN_TOKEN, or with the token_file of these files.";

const TRY_HELP: &str = "\
Examples:
  sluice try demo path=/hello
  sluice try llm tenant=acme model=gpt-4o --hits 1200
  sluice try --grpc sluice.mesh:8081 --ca ca.pem demo path=/hello    where the gRPC port has TLS";

const BENCH_HELP: &str = "\
Examples:
  sluice bench demo user={}                          as fast as 64 callers can, 1000 users
  sluice bench demo user={} --rate 5000 --seconds 30 latency at 5000 a second";

#[derive(Debug, Args)]
struct ConfigDir {
    /// Where sluice.yaml, limits/ and retry_policy.yaml are [default: config, if it is there]
    #[arg(long, env = "SLUICE_CONFIG_DIR", value_name = "DIR")]
    config_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
struct ServeArgs {
    #[command(flatten)]
    config: ConfigDir,
    /// Where Sluice keeps what it must remember itself
    #[arg(long, env = "SLUICE_STATE_DIR", value_name = "DIR", default_value = "state")]
    state_dir: PathBuf,
    /// Where Envoy calls: ip:port or unix:/path; port 0 picks a free one [default: 127.0.0.1:8081]
    #[arg(long, env = "SLUICE_GRPC", value_name = "ADDRESS")]
    grpc: Option<Listen>,
    /// Where people and Prometheus look: ip:port [default: 127.0.0.1:8080]
    #[arg(long, env = "SLUICE_ADMIN", value_name = "ADDRESS")]
    admin: Option<TcpListen>,
    /// Where other Sluices use this one's ledger: ip:port [default: nowhere]
    #[arg(long, env = "SLUICE_HUB", value_name = "ADDRESS")]
    hub: Option<TcpListen>,
    /// memory, tigerbeetle:<cluster>@<host:port>[,<host:port>…] or hub:<host:port>[,<host:port>…] [default: memory]
    ///
    /// Twice, or with a semicolon between: the old one and the new one, while the new one replaces it.
    #[arg(long, env = "SLUICE_LEDGER", value_name = "LEDGER", value_delimiter = ';')]
    ledger: Vec<LedgerUri>,
}

#[derive(Debug, Args)]
struct CheckArgs {
    #[command(flatten)]
    config: ConfigDir,
    /// Name every limit that a reload of these files would change in the server with this admin URL, and how
    #[arg(long, value_name = "URL")]
    against: Option<String>,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Debug, Args)]
struct TryArgs {
    /// The server's gRPC address: host:port or unix:/path
    #[arg(long, env = "SLUICE_GRPC", value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    grpc: Address,
    #[command(flatten)]
    tls: TlsArgs,
    /// The domain of the rate-limit filter
    domain: String,
    /// Entries of the descriptor
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
    /// How many hits; 0 looks without charging
    #[arg(long, value_name = "N", default_value_t = 1)]
    hits: u64,
}

#[derive(Debug, Clone, Args)]
struct BenchArgs {
    /// The server's gRPC address: host:port or unix:/path
    #[arg(long, env = "SLUICE_GRPC", value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    grpc: Address,
    #[command(flatten)]
    tls: TlsArgs,
    /// The domain of the rate-limit filter
    domain: String,
    /// Entries of the descriptor; {} in a value stands for a number
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
    /// How many different numbers {} stands for
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// How many hits a request has
    #[arg(long, value_name = "N", default_value_t = 1)]
    hits: u64,
    /// Requests a second; without it each caller asks again as soon as it is answered
    #[arg(long, value_name = "N", value_parser = rate)]
    rate: Option<f64>,
    /// How long
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// How many connections
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = count)]
    connections: usize,
    /// How many callers, over all connections
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = count)]
    in_flight: usize,
}

fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (0.001..=10_000_000.0).contains(rate));
    rate.ok_or_else(|| "a rate is a number from 0.001 to 10000000".to_owned())
}

fn count(text: &str) -> Result<usize, String> {
    let count = text.parse::<usize>().ok().filter(|count| (1..=65_536).contains(count));
    count.ok_or_else(|| "a whole number from 1 to 65536".to_owned())
}

fn entry(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("an entry is written key=value".to_owned()),
    }
}

impl Cli {
    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Serve(args) => serve::run(args),
            Command::Check(args) => check::run(&args),
            Command::Try(args) => try_it::run(&args),
            Command::Bench(args) => bench::run(&args),
        }
    }
}

/// Secrets are no flags: every process on the machine can read those.
const ADMIN_TOKEN: &str = "SLUICE_ADMIN_TOKEN";
const HUB_TOKEN: &str = "SLUICE_HUB_TOKEN";
const LEDGER_TOKEN: &str = "SLUICE_LEDGER_TOKEN";

/// A token of the environment. An empty one is none.
fn token(variable: &str) -> Option<Secret> {
    let token = std::env::var(variable).ok()?;
    Some(token.trim()).filter(|token| !token.is_empty()).map(Secret::new)
}

/// Prints an error and what caused it.
fn complain(error: &anyhow::Error) -> ExitCode {
    eprintln!("sluice: {error:#}");
    ExitCode::FAILURE
}
