//! A real Envoy with a bootstrap of envoy/, on free ports, and the upstream behind it.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use crate::http::{self, Answer};
use crate::process::Process;
use crate::wait::until;

const RATELIMIT: &str = include_str!("../../envoy/ratelimit.yaml");
const LEASES: &str = include_str!("../../envoy/leases.yaml");

/// Time for a busy machine: a call that takes too long lets its request pass, and no test means that.
const PATIENCE: [(&str, &str); 2] =
    [("timeout: 0.25s", "timeout: 20s"), ("max_interval: 0.1s", "max_interval: 20s")];

pub struct Envoy {
    _process: Process,
    pub address: SocketAddr,
    _dir: tempfile::TempDir,
    upstream: tokio::task::JoinHandle<()>,
}

impl Envoy {
    /// Asks the Sluice on `sluice_port`.
    pub async fn asking(sluice_port: u16) -> Self {
        Self::changed(sluice_port, &[]).await
    }

    /// With these parts of the bootstrap replaced.
    pub async fn changed(sluice_port: u16, changes: &[(&str, &str)]) -> Self {
        let upstream = axum::Router::new().fallback(async || "from the upstream");
        Self::start(RATELIMIT, upstream, &[sluice_port], changes).await
    }

    /// With leases, in front of `upstream`, asking each of these in turn.
    pub async fn leasing(upstream: axum::Router, sluice_ports: &[u16], changes: &[(&str, &str)]) -> Self {
        Self::start(LEASES, upstream, sluice_ports, changes).await
    }

    async fn start(
        bootstrap: &str,
        upstream: axum::Router,
        sluice_ports: &[u16],
        changes: &[(&str, &str)],
    ) -> Self {
        let (upstream, upstream_port) = serve(upstream).await;
        let endpoint = |port: u16| {
            format!("- endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}")
        };
        let sluices: Vec<String> = sluice_ports.iter().map(|port| endpoint(*port)).collect();
        let port = |from: u16, to: u16| (format!("port_value: {from}}}"), format!("port_value: {to}}}"));
        let parts = [
            port(9901, 0),
            port(10_000, 0),
            port(10_001, upstream_port),
            (endpoint(8081), sluices.join(&format!("\n{:14}", ""))),
        ];
        let changes = PATIENCE.iter().chain(changes).map(|(from, to)| ((*from).to_owned(), (*to).to_owned()));
        let mut bootstrap = bootstrap.to_owned();
        for (from, to) in parts.into_iter().chain(changes) {
            assert_eq!(bootstrap.matches(&from).count(), 1, "`{from}` must be in the bootstrap once");
            bootstrap = bootstrap.replace(&from, &to);
        }
        let dir = tempfile::tempdir().unwrap();
        let (config, admin) = (dir.path().join("envoy.yaml"), dir.path().join("admin"));
        std::fs::write(&config, bootstrap).unwrap();
        let mut command = Command::new(binary());
        command.args(["--disable-hot-restart", "--concurrency", "2", "--log-level", "warning"]);
        command.arg("--config-path").arg(config).arg("--admin-address-path").arg(&admin);
        let mut process = Process::start("envoy", &mut command);
        let address = until("envoy to listen", async || {
            if let Some(status) = process.exited() {
                panic!("envoy ended: {status}");
            }
            let admin = std::fs::read_to_string(&admin).map_err(|error| error.to_string())?;
            let admin = admin.parse().map_err(|error| format!("{error}: `{admin}`"))?;
            listener(admin).await
        })
        .await;
        Self { _process: process, address, _dir: dir, upstream }
    }

    pub async fn get(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        http::send(self.address, "GET", path, headers, "").await
    }
}

impl Drop for Envoy {
    fn drop(&mut self) {
        self.upstream.abort();
    }
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

async fn serve(router: axum::Router) -> (tokio::task::JoinHandle<()>, u16) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serving = tokio::spawn(async move { axum::serve(listener, router).await.expect("it never ends") });
    (serving, port)
}
