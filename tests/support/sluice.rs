//! The real binary: as a server on free ports in a directory of its own, or as a command that runs to its end.

use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output};

use crate::process::Process;

/// A running `sluice serve`.
pub struct Sluice {
    pub process: Process,
    /// As it was printed: `127.0.0.1:1234` or `unix:/path`.
    pub grpc: String,
    pub admin: SocketAddr,
    pub dir: tempfile::TempDir,
}

impl Sluice {
    pub async fn with_limits(yaml: &str) -> Self {
        let dir = directory(&[("config/limits/limits.yaml", yaml)]);
        let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        Self::start(dir, command).await
    }

    /// Runs `command` in `dir` until it has printed its addresses.
    pub async fn start(dir: tempfile::TempDir, mut command: Command) -> Self {
        let mut process = Process::start("sluice", &mut command);
        let grpc = process.line("grpc listening on ").await;
        let admin = process.line("admin listening on ").await.parse().expect("an address");
        Self { process, grpc, admin, dir }
    }

    pub fn grpc_port(&self) -> u16 {
        self.grpc.parse::<SocketAddr>().expect("a TCP address").port()
    }
}

/// A temporary directory with these files.
pub fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    dir
}

/// `sluice` with these arguments, in `dir`, with no variable of this process.
pub fn sluice(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.env_clear().current_dir(dir).args(arguments);
    command
}

/// `sluice ratelimit` on free ports of loopback, where the real thing has its own on all addresses.
pub const RATELIMIT_PORTS: [(&str, &str); 6] = [
    ("HOST", "127.0.0.1"),
    ("PORT", "0"),
    ("GRPC_HOST", "127.0.0.1"),
    ("GRPC_PORT", "0"),
    ("DEBUG_HOST", "127.0.0.1"),
    ("DEBUG_PORT", "0"),
];

pub fn serve(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = sluice(dir, &["serve"]);
    command.args(arguments);
    command
}

/// What a command that has ended left behind.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

pub fn run(command: &mut Command) -> Ran {
    let Output { status, stdout, stderr } = command.output().expect("sluice must run");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("sluice must print text");
    let code = status.code().unwrap_or_else(|| panic!("ended by a signal: {status}"));
    Ran { code, stdout: text(stdout), stderr: text(stderr) }
}
