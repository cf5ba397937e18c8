//! A real Envoy with a bootstrap of envoy/ as it is, but on free ports: `Envoy::asking(port)`, or with more to say
//! `Envoy::of(LEASES).before(router).changed(from, to).start(&[port, port])`.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::http::{self, Answer};
use crate::process::Process;
use crate::upstream::Upstream;
use crate::wait::until;

pub const RATELIMIT: &str = include_str!("../../envoy/ratelimit.yaml");
pub const FAIL_CLOSED: &str = include_str!("../../envoy/fail-closed.yaml");
pub const LEASES: &str = include_str!("../../envoy/leases.yaml");
pub const LLM: &str = include_str!("../../envoy/llm.yaml");
pub const TLS: &str = include_str!("../../envoy/tls.yaml");

/// Time for a busy machine: a call that takes too long lets its request pass, and few tests mean that.
const PATIENCE: [(&str, &str); 2] =
    [("timeout: 1.5s", "timeout: 20s"), ("max_interval: 0.7s", "max_interval: 20s")];

pub struct Envoy {
    _process: Process,
    pub address: SocketAddr,
    pub admin: SocketAddr,
    pub upstream: Upstream,
    _dir: tempfile::TempDir,
}

/// What to start.
pub struct Setup {
    bootstrap: String,
    upstream: axum::Router,
    /// Ports that the upstream is said to have; `None`: its own.
    hosts: Vec<Option<u16>>,
    patient: bool,
}

impl Envoy {
    /// With envoy/ratelimit.yaml, and the Sluice on `sluice_port`.
    pub async fn asking(sluice_port: u16) -> Self {
        Self::of(RATELIMIT).start(&[sluice_port]).await
    }

    pub fn of(bootstrap: &str) -> Setup {
        let upstream = axum::Router::new().fallback(async || "from the upstream");
        Setup { bootstrap: bootstrap.to_owned(), upstream, hosts: vec![None], patient: true }
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        http::send(self.address, "GET", path, headers, "").await
    }

    /// What its own admin port says.
    pub async fn admin(&self, path: &str) -> String {
        http::get(self.admin, path).await.body
    }

    /// A counter of Envoy's own.
    pub async fn stat(&self, name: &str) -> u64 {
        let text = self.admin(&format!("/stats?filter=^{name}$")).await;
        let value = text.trim().strip_prefix(&format!("{name}: ")).map(str::parse);
        value.unwrap_or_else(|| panic!("no {name} in `{text}`")).expect("a counter is a number")
    }
}

impl Setup {
    /// Another upstream than one that answers everything.
    pub fn before(mut self, upstream: axum::Router) -> Self {
        self.upstream = upstream;
        self
    }

    /// With these hosts beside the upstream's own.
    pub fn upstream_beside(mut self, ports: &[u16]) -> Self {
        self.hosts.extend(ports.iter().map(|port| Some(*port)));
        self
    }

    /// With these hosts instead of the upstream's own.
    pub fn upstream_at(mut self, ports: &[u16]) -> Self {
        self.hosts = ports.iter().map(|port| Some(*port)).collect();
        self
    }

    /// With a part of the bootstrap replaced.
    pub fn changed(mut self, from: &str, to: &str) -> Self {
        assert_eq!(self.bootstrap.matches(from).count(), 1, "`{from}` must be in the bootstrap once");
        self.bootstrap = self.bootstrap.replace(from, to);
        self
    }

    /// With the timeouts of the file.
    pub fn impatient(mut self) -> Self {
        self.patient = false;
        self
    }

    /// Asks the Sluices on these ports by turns.
    pub async fn start(mut self, sluice_ports: &[u16]) -> Envoy {
        let upstream = Upstream::start(self.upstream.clone()).await;
        if self.patient {
            self = PATIENCE.iter().fold(self, |setup, (from, to)| setup.changed(from, to));
        }
        for from in [9901, 10_000] {
            self = self.changed(&format!("port_value: {from}}}"), "port_value: 0}");
        }
        let hosts: Vec<u16> = self.hosts.iter().map(|port| port.unwrap_or(upstream.port)).collect();
        let setup = self.with_hosts(10_001, &hosts).with_hosts(8081, sluice_ports);
        run(&setup.bootstrap, upstream).await
    }

    /// These ports in the place of the one in the file.
    fn with_hosts(self, port: u16, ports: &[u16]) -> Self {
        let endpoint = |port: &u16| {
            format!("- endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}")
        };
        let endpoints: Vec<String> = ports.iter().map(endpoint).collect();
        self.changed(&endpoint(&port), &endpoints.join("\n              "))
    }
}

async fn run(bootstrap: &str, upstream: Upstream) -> Envoy {
    let dir = tempfile::tempdir().unwrap();
    let (config, admin) = (dir.path().join("envoy.yaml"), dir.path().join("admin"));
    std::fs::write(&config, bootstrap).unwrap();
    let mut command = Command::new(binary());
    command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]);
    command.arg("--config-path").arg(config).arg("--admin-address-path").arg(&admin);
    let mut process = Process::start("envoy", &mut command);
    let (admin, address) = until("envoy to listen", async || {
        if let Some(status) = process.exited() {
            panic!("envoy ended: {status}");
        }
        let admin = std::fs::read_to_string(&admin).map_err(|error| error.to_string())?;
        let admin = admin.parse().map_err(|error| format!("{error}: `{admin}`"))?;
        Ok((admin, listener(admin).await?))
    })
    .await;
    Envoy { _process: process, address, admin, upstream, _dir: dir }
}

fn binary() -> std::ffi::OsString {
    std::env::var_os("SLUICE_TEST_ENVOY")
        .expect("SLUICE_TEST_ENVOY must name an Envoy binary: run `make test`, which installs one")
}

/// Panics with what Envoy has to say about a file.
pub fn validate(path: &Path) {
    let mut command = Command::new(binary());
    let output =
        command.args(["--mode", "validate", "--config-path"]).arg(path).output().expect("envoy must run");
    assert!(output.status.success(), "{}: {}", path.display(), String::from_utf8_lossy(&output.stderr));
}

/// The address that Envoy's listener really has, once it accepts.
async fn listener(admin: SocketAddr) -> Result<SocketAddr, String> {
    let ready = http::try_send(admin, "GET", "/ready", &[], "").await?;
    if ready.status != 200 {
        return Err(ready.body);
    }
    let list = http::try_send(admin, "GET", "/listeners?format=json", &[], "").await?.json();
    let port = list["listener_statuses"][0]["local_address"]["socket_address"]["port_value"].as_u64();
    let port = port.and_then(|port| u16::try_from(port).ok()).ok_or_else(|| list.to_string())?;
    Ok(SocketAddr::from(([127, 0, 0, 1], port)))
}
