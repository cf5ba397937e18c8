//! A real TigerBeetle server for tests: formatted in a temporary directory, on a free port, gone when dropped.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sluice::ledger::tigerbeetle::{Cluster, Options, TigerBeetle, TransferIds};
use sluice::ledger::{Chain, Ledger, LedgerError, Outcome};
use sluice::telemetry::Metrics;

/// The binary; a test that needs it fails without it.
fn binary() -> PathBuf {
    std::env::var_os("SLUICE_TEST_TIGERBEETLE")
        .expect("SLUICE_TEST_TIGERBEETLE must name the TigerBeetle server: run `make test`")
        .into()
}

/// One replica. Its output is kept and shown only when a test fails.
pub struct Server {
    child: Child,
    /// The server ends when its input closes.
    _stdin: Option<ChildStdin>,
    pub port: u16,
    dir: Arc<tempfile::TempDir>,
    output: Arc<Mutex<String>>,
}

impl Server {
    pub fn start() -> Self {
        Self::start_on(0)
    }

    /// On a new data file. Port 0 picks a free one.
    pub fn start_on(port: u16) -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        format(dir.path(), 0, 1);
        let addresses = if port == 0 { "0".to_owned() } else { format!("127.0.0.1:{port}") };
        Self::run(dir, 0, &addresses, port)
    }

    /// With as few connections as a development server has by default.
    pub fn start_with_eight_connections() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        format(dir.path(), 0, 1);
        Self::run_with(&["start", "--development"], dir, 0, "0", 0)
    }

    /// Starts on the data file that is there. Several sidecars share it, so it has more connections.
    fn run(dir: Arc<tempfile::TempDir>, replica: usize, addresses: &str, port: u16) -> Self {
        let start = ["start", "--development", "--experimental", "--limit-pipeline-requests=24"];
        Self::run_with(&start, dir, replica, addresses, port)
    }

    fn run_with(
        start: &[&str],
        dir: Arc<tempfile::TempDir>,
        replica: usize,
        addresses: &str,
        port: u16,
    ) -> Self {
        let mut child = Command::new(binary())
            .args(start)
            .arg(format!("--addresses={addresses}"))
            .arg(dir.path().join(format!("0_{replica}.tigerbeetle")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the TigerBeetle server must start");
        let output = Arc::new(Mutex::new(String::new()));
        keep(child.stderr.take().unwrap(), Arc::clone(&output));
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let port = if port == 0 {
            let mut line = String::new();
            stdout.read_line(&mut line).unwrap();
            line.trim().parse().unwrap_or_else(|_| panic!("no port in `{line}`: {}", output.lock().unwrap()))
        } else {
            port
        };
        keep(stdout, Arc::clone(&output));
        let stdin = child.stdin.take();
        Self { child, _stdin: stdin, port, dir, output }
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(format!("-{signal}")).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success(), "kill -{signal}");
    }

    /// kill -9.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts again on the same file and port.
    pub fn restart(&mut self) {
        let (dir, port) = (Arc::clone(&self.dir), self.port);
        *self = Self::run(dir, 0, &format!("127.0.0.1:{port}"), port);
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// A ledger on it, once it answers.
    pub async fn ledger(&self) -> TigerBeetle {
        let ledger = self.ledger_with(Duration::from_secs(5), TransferIds::TimeOrdered);
        until_ready(&ledger, Duration::from_secs(60)).await;
        ledger
    }

    pub fn ledger_with(&self, timeout: Duration, transfer_ids: TransferIds) -> TigerBeetle {
        self.open(timeout, transfer_ids, 65_536, true)
    }

    /// One that sends every chain by itself.
    pub async fn ledger_without_sums(&self) -> TigerBeetle {
        let ledger = self.open(Duration::from_secs(5), TransferIds::TimeOrdered, 65_536, false);
        until_ready(&ledger, Duration::from_secs(60)).await;
        ledger
    }

    /// With a short queue.
    pub fn ledger_queue(&self, queue_max: usize) -> TigerBeetle {
        self.open(Duration::from_secs(5), TransferIds::TimeOrdered, queue_max, true)
    }

    fn open(
        &self,
        timeout: Duration,
        transfer_ids: TransferIds,
        queue_max: usize,
        sums: bool,
    ) -> TigerBeetle {
        let cluster = Cluster { id: 0, addresses: vec![self.address()] };
        let options = Options { cluster, transfer_ids, timeout, queue_max, sums, events: None };
        TigerBeetle::start(options, Arc::new(Metrics::default())).unwrap()
    }
}

/// A cluster of three.
pub struct Replicas {
    pub replicas: Vec<Server>,
    pub addresses: String,
}

impl Replicas {
    pub fn start() -> Self {
        let dir = Arc::new(tempfile::tempdir().unwrap());
        let ports = [free_port(), free_port(), free_port()];
        let addresses = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
        let mut replicas = Vec::new();
        for (replica, port) in ports.into_iter().enumerate() {
            format(dir.path(), replica, 3);
            replicas.push(Server::run(Arc::clone(&dir), replica, &addresses, port));
        }
        Self { replicas, addresses }
    }

    pub fn restart(&mut self, replica: usize) {
        let Server { dir, port, .. } = &self.replicas[replica];
        self.replicas[replica] = Server::run(Arc::clone(dir), replica, &self.addresses, *port);
    }

    pub fn ledger(&self) -> TigerBeetle {
        let addresses = self.addresses.split(',').map(str::to_owned).collect();
        let cluster = Cluster { id: 0, addresses };
        let timeout = Duration::from_millis(400);
        let options = Options {
            cluster,
            transfer_ids: TransferIds::TimeOrdered,
            timeout,
            queue_max: 65_536,
            sums: true,
            events: None,
        };
        TigerBeetle::start(options, Arc::new(Metrics::default())).unwrap()
    }
}

/// A port that nobody has right now.
pub fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing can be done about a process that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- TigerBeetle on port {} ---\n{}", self.port, self.output.lock().unwrap());
        }
    }
}

/// Applies a chain that the caller has no more use for.
pub async fn apply(ledger: &TigerBeetle, chain: Chain, limit: Duration) -> Result<Outcome, LedgerError> {
    ledger.apply_within(&chain, limit).await
}

pub async fn until_ready(ledger: &TigerBeetle, limit: Duration) {
    let ready = async {
        while ledger.ready().is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(limit, ready).await;
    assert!(done.is_ok(), "not ready in {limit:?}: {:?}", ledger.ready());
}

fn format(dir: &Path, replica: usize, count: usize) {
    let output = Command::new(binary())
        .args(["format", "--cluster=0", "--development"])
        .arg(format!("--replica={replica}"))
        .arg(format!("--replica-count={count}"))
        .arg(dir.join(format!("0_{replica}.tigerbeetle")))
        .output()
        .expect("the TigerBeetle server must run");
    assert!(output.status.success(), "format: {}", String::from_utf8_lossy(&output.stderr));
}

/// The last of what a process says.
fn keep(mut from: impl Read + Send + 'static, to: Arc<Mutex<String>>) {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(count) = from.read(&mut buffer) {
            if count == 0 {
                break;
            }
            let mut text = to.lock().unwrap();
            text.push_str(&String::from_utf8_lossy(&buffer[..count]));
            if text.len() > 64 * 1024 {
                let cut = (text.len() - 32 * 1024..).find(|at| text.is_char_boundary(*at)).unwrap();
                text.drain(..cut);
            }
        }
    });
}
