//! A real Prometheus: every query of the dashboard finds something once there was something to count, and every alert fires
//! when it should.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::authority::Authority;
use crate::envoy::{Envoy, RATELIMIT};
use crate::http;
use crate::process::Process;
use crate::sluice::Sluice;
use crate::tls;
use crate::wait::until;

const LIMITS: &str = "
domain: demo
limits: [{key: all, kind: rolling, capacity: 100, window_seconds: 60}]
descriptors:
- {key: path, value: /once, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: path, value: /dark, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
";

fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn program(variable: &str) -> std::ffi::OsString {
    std::env::var_os(variable)
        .unwrap_or_else(|| panic!("{variable} must name a program: run `make test`, which installs it"))
}

/// A server that scrapes others twice a second.
struct Prometheus {
    address: std::net::SocketAddr,
    _process: Process,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    async fn of(targets: &[(&str, &str, std::net::SocketAddr)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut config = "global: {scrape_interval: 500ms}\nscrape_configs:\n".to_owned();
        for (job, path, address) in targets {
            config.push_str(&format!(
                "- {{job_name: {job}, metrics_path: {path}, static_configs: [{{targets: [\"{address}\"]}}]}}\n"
            ));
        }
        std::fs::write(dir.path().join("prometheus.yaml"), config).unwrap();
        // A port that was free a moment ago: Prometheus does not say which one it took.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new(program("SLUICE_TEST_PROMETHEUS"));
        command
            .arg(format!("--config.file={}", dir.path().join("prometheus.yaml").display()))
            .arg(format!("--storage.tsdb.path={}", dir.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"));
        let process = Process::start("Prometheus", &mut command);
        let prometheus = Self { address, _process: process, _dir: dir };
        for (job, ..) in targets {
            let query = format!("count_over_time(up{{job=\"{job}\"}}[1m]) >= 4 and up{{job=\"{job}\"}} == 1");
            until(&format!("{job} to be scraped"), async || {
                let found = prometheus.query(&query).await?;
                if found == 0 { Err("not four times yet".to_owned()) } else { Ok(()) }
            })
            .await;
        }
        prometheus
    }

    /// How many series a query finds; `Err` if it is no query, or nobody listens yet.
    async fn query(&self, query: &str) -> Result<usize, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/api/v1/query?query={encoded}");
        let answer = http::try_send(self.address, "GET", &path, &[], "").await?;
        let json: serde_json::Value =
            serde_json::from_str(&answer.body).map_err(|error| format!("{error}: {}", answer.body))?;
        let found = json["data"]["result"].as_array();
        found.map(Vec::len).ok_or_else(|| format!("{query}: {}", answer.body))
    }
}

/// One is served, one is denied, one of a limit in shadow mode would have been, one meets no limit, and one can't be asked
/// about.
#[tokio::test]
async fn every_query_of_the_dashboard_finds_something() {
    let sluice = Sluice::with_limits(LIMITS).await;
    let envoy = Envoy::of(RATELIMIT).impatient().start(&[sluice.grpc_port()]).await;
    let targets = [("sluice", "/metrics", sluice.admin), ("envoy", "/stats/prometheus", envoy.admin)];
    for (path, status) in [("/once", 200), ("/once", 429), ("/dark", 200), ("/dark", 200), ("/none", 200)] {
        assert_eq!(envoy.get(path, &[]).await.status, status);
    }
    sluice.process.stop().await;
    assert_eq!(envoy.get("/once", &[]).await.status, 200, "the failure mode lets it pass");
    sluice.process.signal("CONT");
    let prometheus = Prometheus::of(&targets).await;

    let dashboard = std::fs::read_to_string(repository("demo/grafana/sluice.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&dashboard).unwrap();
    let (mut queries, mut rows) = (0, 0);
    for panel in dashboard["panels"].as_array().unwrap() {
        let title = panel["title"].as_str().unwrap();
        if panel["type"] == "row" {
            assert!(title.ends_with('?'), "{title}: a row answers a question");
            rows += 1;
            continue;
        }
        assert!(panel["description"].is_string(), "{title}");
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
            let found = prometheus.query(&query).await.unwrap_or_else(|error| panic!("{title}: {error}"));
            assert!(found > 0, "{title}: nothing for {query}");
            queries += 1;
        }
    }
    assert!(queries > 35 && rows > 5, "{queries} {rows}");
}

/// The alerts and their cases belong together, and each names numbers that there are.
#[tokio::test]
async fn every_alert_fires_when_it_should() {
    let promtool = program("SLUICE_TEST_PROMTOOL");
    let cases = repository("demo/prometheus/alerts_test.yaml");
    let tested = Command::new(&promtool).args(["test", "rules"]).arg(&cases).output().unwrap();
    assert!(tested.status.success(), "{}", String::from_utf8_lossy(&tested.stderr));
    let rules = std::fs::read_to_string(repository("demo/prometheus/alerts.yaml")).unwrap();
    let cases = std::fs::read_to_string(cases).unwrap();
    let alerts: Vec<&str> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    for alert in alerts {
        assert!(cases.contains(&format!("name: {alert}\n")), "{alert} has no case");
    }
    // What has a label is there once it was counted, or once there is a certificate.
    let authority = Authority::new();
    let sluice = tls::with_limits(&authority, false, LIMITS).await;
    for hits in ["1", "2"] {
        let body = format!(
            "{{\"domain\": \"demo\", \"descriptors\": [{{\"entries\": [{{\"key\": \"path\", \"value\": \"/once\"}}], \"hitsAddend\": \"{hits}\"}}]}}"
        );
        http::post(sluice.admin, "/json", &body).await;
    }
    let numbers = http::get(sluice.admin, "/metrics").await.body;
    let words = rules.lines().filter(|line| line.contains("expr:"));
    let words = words.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_'));
    for name in words.filter(|word| word.starts_with("sluice_")) {
        let has = |line: &str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
        assert!(numbers.lines().any(has), "no {name} in\n{numbers}");
    }
}
