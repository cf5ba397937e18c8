//! The processes that are measured: started, asked what they have used, ended. Knows nothing of what they do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// /proc counts time in these; it has been so on every Linux for decades.
const TICKS_PER_SECOND: f64 = 100.0;

/// What a process has used so far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub written_bytes: u64,
}

pub fn usage(pid: u32) -> Usage {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let number = |text: &str, start: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(start)).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().unwrap_or(0)
    };
    let stat = read("stat");
    // The name comes in parentheses and may hold anything; user and system time are the 12th and 13th after it.
    let after_name = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks: f64 =
        after_name.split_whitespace().skip(11).take(2).filter_map(|n| n.parse::<f64>().ok()).sum();
    Usage {
        cpu_seconds: ticks / TICKS_PER_SECOND,
        resident_bytes: number(&read("status"), "VmRSS:") * 1024,
        written_bytes: number(&read("io"), "write_bytes:"),
    }
}

/// A child that goes when it is dropped.
pub struct Process {
    child: Child,
    /// TigerBeetle ends when its input closes.
    _stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Process {
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let (stdin, stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, _stdin: stdin, stdout: BufReader::new(stdout) }
    }

    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    pub fn usage(&self) -> Usage {
        usage(self.child.id())
    }

    /// Asks it to end, and waits.
    pub fn finish(mut self) {
        let pid = self.child.id().to_string();
        Command::new("kill").args(["-TERM", &pid]).status().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Nothing is left to kill after `finish`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that prints where it listens.
pub struct Server {
    pub process: Process,
    pub grpc: String,
}

impl Server {
    pub fn start(command: &mut Command) -> Self {
        let mut process = Process::start(command);
        let line = process.line();
        let grpc = line.strip_prefix("grpc listening on ").unwrap_or_else(|| panic!("{command:?}: {line}"));
        Self { grpc: grpc.to_owned(), process }
    }

    /// Where a Sluice has its admin port. Once, before any other.
    pub fn admin(&mut self) -> String {
        self.address_of("admin")
    }

    /// Where a hub listens. Once, after the admin port.
    pub fn hub(&mut self) -> String {
        self.address_of("hub")
    }

    fn address_of(&mut self, port: &str) -> String {
        let line = self.process.line();
        let address = line.strip_prefix(&format!("{port} listening on "));
        address.unwrap_or_else(|| panic!("no {port} port in `{line}`")).to_owned()
    }
}

/// The directory that everything is written to: on a disk, unlike some /tmp.
pub fn directory() -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/bench");
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

pub fn bare() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg("bare");
    command
}

const LIMITS: &str = "
domain: bench
descriptors:
- key: one
  limits:
  - {name: a, kind: rolling, capacity: 4000000000, window_seconds: 60}
- key: two
  limits:
  - {name: a, kind: rolling, capacity: 4000000000, window_seconds: 60}
  - {name: b, kind: rolling, capacity: 4000000000, window_seconds: 60}
- key: three
  limits:
  - {name: a, kind: rolling, capacity: 4000000000, window_seconds: 60}
  - {name: b, kind: rolling, capacity: 4000000000, window_seconds: 60}
  - {name: c, kind: rolling, capacity: 4000000000, window_seconds: 60}
- key: exact
  limits:
  - {name: a, kind: rolling, capacity: 4000000000, window_seconds: 60, exact: true}
- key: second
  limits:
  - {name: a, kind: rolling, capacity: 100, window_seconds: 1}
- key: minute
  limits:
  - {name: a, kind: rolling, capacity: 3000, window_seconds: 60}
";

/// What is measured is how long it takes, not how it gives up.
const SETTINGS: &str = "ledger: {timeout_ms: 10000}\n";

pub fn config_dir() -> PathBuf {
    config("config", SETTINGS)
}

fn config(name: &str, settings: &str) -> PathBuf {
    let dir = directory().join(name);
    std::fs::create_dir_all(dir.join("limits")).unwrap();
    std::fs::write(dir.join("limits/bench.yaml"), LIMITS).unwrap();
    std::fs::write(dir.join("sluice.yaml"), settings).unwrap();
    dir
}

/// One number of `/metrics`.
pub fn metric(admin: &str, name: &str) -> f64 {
    let mut stream = TcpStream::connect(admin).unwrap();
    write!(stream, "GET /metrics HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Sluice with limits that nobody reaches, but for two.
pub fn sluice(ledger: &str) -> Command {
    sluice_in(&config_dir(), ledger)
}

/// The same with limits files of its own. Whoever reads files wakes all who watch them.
pub fn sluice_called(name: &str, ledger: &str) -> Command {
    sluice_in(&config(&format!("config-{name}"), SETTINGS), ledger)
}

/// The same on memory, with TLS on the gRPC port.
pub fn sluice_with_tls() -> Command {
    let dir = config("config-tls", "");
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(["localhost".to_owned()]).unwrap().self_signed(&key);
    let (cert_file, key_file) = (dir.join("server.pem"), dir.join("server.key"));
    std::fs::write(&cert_file, certificate.unwrap().pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let (cert_file, key_file) = (cert_file.display(), key_file.display());
    let tls = format!("grpc: {{tls: {{cert_file: {cert_file}, key_file: {key_file}}}}}\n{SETTINGS}");
    sluice_in(&config("config-tls", &tls), "memory")
}

fn sluice_in(config_dir: &Path, ledger: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sluice"));
    command.args(["serve", "--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", ledger]);
    command.arg("--config-dir").arg(config_dir).arg("--state-dir").arg(directory().join("state"));
    command
}

/// A single replica in production mode, on a new file.
pub struct TigerBeetle {
    pub process: Process,
    pub address: String,
    _dir: tempfile::TempDir,
}

impl TigerBeetle {
    pub fn start() -> Self {
        let binary = std::env::var_os("SLUICE_TEST_TIGERBEETLE").expect("run it as `make bench`");
        let dir = tempfile::tempdir_in(directory()).unwrap();
        let file = dir.path().join("0_0.tigerbeetle");
        let format = ["format", "--cluster=0", "--replica=0", "--replica-count=1"];
        let formatted = Command::new(&binary).args(format).arg(&file).stderr(Stdio::null()).status();
        assert!(formatted.unwrap().success());
        let mut process = Process::start(Command::new(&binary).args(["start", "--addresses=0"]).arg(&file));
        let port: u16 = process.line().parse().expect("TigerBeetle must print its port");
        Self { process, address: format!("127.0.0.1:{port}"), _dir: dir }
    }
}
