//! The command line: the commands and their flags, and whether a flag, a variable or the file wins.
//!
//! Flags win over `SLUICE_*`, which win over `config/sluice.yaml`. Exit codes: 0 done or allowed, 1 a mistake, 2 denied.

mod admin;
mod bench;
mod check;
mod config_dir;
mod connect;
mod describe;
mod env;
mod explain;
mod import;
mod otel;
mod progress;
mod ratelimit;
mod ready;
mod record;
mod serve;
mod simulate;
mod text;
mod top;
mod try_it;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

use self::admin::AdminArgs;
use self::config_dir::ConfigDir;
use self::connect::{Address, TlsArgs};
use crate::activity::By;
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
    /// Serve in the place of envoyproxy/ratelimit, with that program's environment
    ///
    /// The same as calling this program by the name `ratelimit`. Takes HOST, PORT, GRPC_PORT, CONFIG_TYPE and the others from
    /// the environment, the ledger from SLUICE_LEDGER, and ignores arguments. docs/envoy-gateway.md has the list.
    #[command(after_help = RATELIMIT_HELP)]
    Ratelimit(RatelimitArgs),
    /// Name every mistake of every file, with its line
    ///
    /// Reads the same files as `serve`, and exits 1 if anything in them is wrong.
    #[command(after_help = CHECK_HELP)]
    Check(CheckArgs),
    /// Print the limits of another program as limits files of Sluice
    ///
    /// What can't be said is named on standard error with its line, and its limit is left out: then it exits 1.
    #[command(subcommand, after_help = IMPORT_HELP)]
    Import(Import),
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
    /// Ask a running server which limits a request would meet, charging nothing
    ///
    /// Prints where each limit is written, what it has left, and why the request would pass or not. Exits like `try`.
    #[command(after_help = EXPLAIN_HELP)]
    Explain(ExplainArgs),
    /// Ask a running server whether it is ready, and exit 1 if not
    #[command(after_help = ready::HELP)]
    Ready(AdminArgs),
    /// Watch the heaviest limits of a running server, and what happens there
    ///
    /// Keys: d, a and u change what is counted, q quits. Prints once where standard output is no terminal.
    #[command(after_help = TOP_HELP)]
    Top(TopArgs),
    /// Say what limits would have done to traffic: logs, or made-up clients
    ///
    /// Decides with the code of a server on the memory ledger, on virtual time. Exits 1 on mistakes.
    #[command(after_help = simulate::HELP)]
    Simulate(simulate::SimulateArgs),
    /// Write what a running server is asked into files that `simulate` reads
    ///
    /// Ends with a signal, or after --seconds. Requests that come faster than they can be written are missed and counted.
    #[command(after_help = record::HELP)]
    Record(record::RecordArgs),
    /// Print a script that completes commands and flags in a shell
    #[command(after_help = COMPLETIONS_HELP)]
    Completions {
        /// Whose script
        shell: clap_complete::Shell,
    },
    /// Print the manual, as a reader of man pages takes it
    #[command(after_help = MAN_HELP)]
    Man,
}

const SERVE_HELP: &str = "\
Examples:
  sluice serve                                       the memory ledger, the files in config/
  sluice serve --grpc 127.0.0.1:0 --admin 127.0.0.1:0
  sluice serve --grpc unix:/run/sluice.sock
  sluice serve --ledger tigerbeetle:0@127.0.0.1:3000 (needs the feature `tigerbeetle`)
  sluice serve --ledger tigerbeetle:0@old:3000 --ledger tigerbeetle:1@new:3000    while the new one replaces the old one
  sluice serve --ledger tigerbeetle:0@127.0.0.1:3000 --hub 127.0.0.1:8082
  sluice serve --ledger hub:127.0.0.1:8082           a sidecar of that hub

With OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4317 decisions are sent there as traces. docs/looking.md has the other OTEL_*.";

const RATELIMIT_HELP: &str = "\
Examples:
  CONFIG_TYPE=GRPC_XDS_SOTW CONFIG_GRPC_XDS_SERVER_URL=envoy-gateway:18001 sluice ratelimit
  RUNTIME_ROOT=/data RUNTIME_SUBDIRECTORY=ratelimit SLUICE_LEDGER=tigerbeetle:0@tb-0:3000 sluice ratelimit";

const CHECK_HELP: &str = "\
Examples:
  sluice check
  sluice check --config-dir new --against http://127.0.0.1:8080    what would change, like a plan
  sluice check --against https://sluice.mesh:8080 --ca ca.pem      the same where the admin port has TLS

A server with an admin token is asked with SLUICE_ADMIN_TOKEN, or with the token_file of these files.";

const IMPORT_HELP: &str = "\
Examples:
  sluice import limitador limits.yaml > config/limits/shop.yaml

Several namespaces become several documents, each under the name of the file it belongs in.";

const TRY_HELP: &str = "\
Examples:
  sluice try demo path=/hello
  sluice try llm tenant=acme model=gpt-4o --hits 1200
  sluice try --grpc sluice.mesh:8081 --ca ca.pem demo path=/hello    where the gRPC port has TLS";

const BENCH_HELP: &str = "\
Examples:
  sluice bench demo user={}                          as fast as 64 callers can, 1000 users
  sluice bench demo user={} --rate 5000 --seconds 30 latency at 5000 a second";

const EXPLAIN_HELP: &str = "\
Examples:
  sluice explain demo path=/hello
  sluice explain llm tenant=acme model=gpt-4o --hits 1200 --json
  sluice explain --admin sluice.mesh:8080 --ca ca.pem demo path=/hello    where the admin port has TLS

A server with an admin token is asked with SLUICE_ADMIN_TOKEN.";

const TOP_HELP: &str = "\
Examples:
  sluice top
  sluice top --by used --json                        once, for a script
  sluice top --admin sluice.mesh:8080 --ca ca.pem    where the admin port has TLS

A server with an admin token is asked with SLUICE_ADMIN_TOKEN.";

const COMPLETIONS_HELP: &str = "\
Examples:
  sluice completions bash > /etc/bash_completion.d/sluice
  sluice completions zsh > ~/.zfunc/_sluice
  sluice completions fish > ~/.config/fish/completions/sluice.fish";

const MAN_HELP: &str = "\
Examples:
  sluice man | man -l -
  sluice man > /usr/local/share/man/man1/sluice.1";

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
struct RatelimitArgs {
    /// Ignored
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    ignored: Vec<OsString>,
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
    /// Print one JSON object instead of text: {problems}, and warnings and changes where there could be any
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Import {
    /// Limitador's limits file
    Limitador {
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
}

/// A request of one descriptor.
#[derive(Debug, Args)]
struct RequestArgs {
    /// The domain of the rate-limit filter
    domain: String,
    /// Entries of the descriptor
    #[arg(required = true, value_name = "KEY=VALUE", value_parser = entry)]
    entries: Vec<(String, String)>,
    /// How many hits; 0 looks without charging
    #[arg(long, value_name = "N", default_value_t = 1)]
    hits: u64,
}

#[derive(Debug, Args)]
struct TryArgs {
    /// The server's gRPC address: host:port or unix:/path
    #[arg(long, env = "SLUICE_GRPC", value_name = "ADDRESS", default_value = "127.0.0.1:8081")]
    grpc: Address,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Print one JSON object instead of text: {overall_code, statuses, headers}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct ExplainArgs {
    #[command(flatten)]
    server: AdminArgs,
    #[command(flatten)]
    request: RequestArgs,
    /// Print the server's answer as it is: {overall_code, limits}
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
struct TopArgs {
    #[command(flatten)]
    server: AdminArgs,
    /// What makes a limit heavy: requests denied, requests admitted, or units used
    #[arg(long, default_value = "denied", value_parser = by())]
    by: By,
    /// Print the server's answer once, as it is: {by, window_seconds, keys}
    #[arg(long)]
    json: bool,
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
    /// Print one JSON object instead of text: {answers_per_second, latency_ms, codes}
    #[arg(long)]
    json: bool,
}

fn by() -> impl TypedValueParser<Value = By> {
    PossibleValuesParser::new(By::ALL.map(By::name)).map(|name| By::named(&name).unwrap_or_default())
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
    /// The command that `arguments` ask for, the name of the program first. Under the name `ratelimit` it is always that one.
    pub fn of(mut arguments: impl Iterator<Item = OsString>) -> Result<Self, clap::Error> {
        let program = arguments.next().unwrap_or_default();
        if Path::new(&program).file_name() == Some(OsStr::new(ratelimit::NAME)) {
            return Ok(Self { command: Command::Ratelimit(RatelimitArgs { ignored: arguments.collect() }) });
        }
        Self::try_parse_from([program].into_iter().chain(arguments))
    }

    pub fn run(self) -> ExitCode {
        match self.command {
            Command::Ratelimit(RatelimitArgs { ignored }) => ratelimit::run(&ignored),
            Command::Serve(args) => serve::run(args),
            Command::Check(args) => check::run(&args),
            Command::Import(Import::Limitador { files }) => import::limitador(&files),
            Command::Try(args) => try_it::run(&args),
            Command::Bench(args) => bench::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Ready(args) => ready::run(&args),
            Command::Top(args) => top::run(&args),
            Command::Simulate(args) => simulate::run(args),
            Command::Record(args) => record::run(&args),
            Command::Completions { shell } => describe::completions(shell),
            Command::Man => describe::man(),
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

/// Denied is neither a success nor a mistake.
const DENIED: u8 = 2;

/// One object on one line.
fn print_json(json: &serde_json::Value) {
    println!("{json}");
}

/// Prints an error and what caused it.
fn complain(error: &anyhow::Error) -> ExitCode {
    eprintln!("sluice: {error:#}");
    ExitCode::FAILURE
}
