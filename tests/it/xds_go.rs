//! Limits from a real management server: go-control-plane's snapshot cache, which is what Envoy Gateway serves them with.
//! `SLUICE_TEST_ADS` names it (tests/ads); without it these tests fail.

use std::io::Write;
use std::process::{Child, ChildStdin, Command, Stdio};

use serde_json::json;
use sluice::config::settings::ratelimit::Xds;

use crate::testapp::{Builder, TestApp};
use crate::wait::until;

/// The server, what it is told and what it has said.
struct GoAds {
    child: Child,
    tell: ChildStdin,
    said: std::sync::Arc<std::sync::Mutex<Vec<String>>>,
    dir: tempfile::TempDir,
}

impl GoAds {
    fn start(address: &str) -> Self {
        let program = std::env::var_os("SLUICE_TEST_ADS")
            .expect("SLUICE_TEST_ADS must name an xDS server: run `make test`, which builds one");
        let mut command = Command::new(program);
        command.args(["envoy-ratelimit", address]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the xDS server must start");
        let (tell, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let said = std::sync::Arc::<std::sync::Mutex<Vec<String>>>::default();
        let lines = std::sync::Arc::clone(&said);
        std::thread::spawn(move || {
            let read = std::io::BufRead::lines(std::io::BufReader::new(output));
            read.map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        Self { child, tell, said, dir: tempfile::tempdir().unwrap() }
    }

    /// The first line from `since` on that starts so.
    async fn says(&self, since: usize, start: &str) -> String {
        until(&format!("the server to say `{start}`"), async || {
            let said = self.said.lock().unwrap();
            let found = said.iter().skip(since).find(|line| line.starts_with(start)).cloned();
            found.ok_or_else(|| format!("{said:?}"))
        })
        .await
    }

    fn heard(&self) -> usize {
        self.said.lock().unwrap().len()
    }

    fn push(&mut self, version: &str, resources: &serde_json::Value) {
        let file = self.dir.path().join(version);
        std::fs::write(&file, resources.to_string()).unwrap();
        writeln!(self.tell, "push {version} {}", file.display()).unwrap();
    }
}

impl Drop for GoAds {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn following(address: &str) -> TestApp {
    let server = address.parse().unwrap();
    let follow = Builder::default().and_settings(move |settings| {
        let node_id = "envoy-ratelimit".to_owned();
        settings.config.xds = Some(Xds { server, node_id, tls: None, must_answer: true });
    });
    follow.start().await
}

fn limits(requests: u64, unit: &str) -> serde_json::Value {
    let rate_limit = json!({"unit": unit, "requests_per_unit": requests});
    let metadata = json!({"tier": "gold", "weights": [1, 2]});
    let deep = json!({"key": "rule-0-match--1", "value": "rule-0-match--1", "rate_limit": rate_limit, "metadata": metadata});
    json!([
        {"name": "default/eg/http", "domain": "default/eg/http", "descriptors": [
            {"key": "route", "value": "route", "descriptors": [deep]},
        ]},
        {"name": "other", "domain": "other", "descriptors": [{"key": "k", "rate_limit": {"unlimited": true}}]},
    ])
}

const ASKED: &str = "in default/eg/http: route=route rule-0-match--1=rule-0-match--1";

#[tokio::test(flavor = "multi_thread")]
async fn a_go_control_plane_is_followed_refused_and_followed_again() {
    let mut ads = GoAds::start("127.0.0.1:0");
    let address = ads.says(0, "ads listening on ").await.replace("ads listening on ", "");
    let app = following(&address).await;
    // It has nothing for us yet, and says nothing: not even headers.
    ads.says(0, "first \"\"").await;
    assert_eq!(app.get("/readyz").await.status, 503);
    ads.push("1", &limits(5, "WEEK"));
    ads.says(0, "ack 1").await;
    app.answers(&[&format!("{ASKED} -> ok 4/5 week"), "in other: k=x -> free"]).await;

    // It sends what was refused again at once: we don't let that become a storm.
    ads.push("2", &limits(5, "UNKNOWN"));
    let nack = ads.says(0, "nack ").await;
    assert!(
        nack.contains("xds:default/eg/http: descriptors[0].descriptors[0].rate_limit.unit: must be one of"),
        "{nack}"
    );
    let before = ads.heard();
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    let again = ads.heard() - before;
    assert!(again < 20, "{again} refusals in two seconds");
    app.answers(&[&format!("{ASKED} -> ok 3/5 week")]).await;
    ads.push("3", &limits(7, "WEEK"));
    ads.says(0, "ack 3").await;
    app.answers(&[&format!("{ASKED} -> ok 4/7 week")]).await;

    // Another one in its place counts its versions from the start.
    drop(ads);
    app.answers(&[&format!("{ASKED} -> ok 3/7 week")]).await;
    let mut ads = GoAds::start(&address);
    ads.push("1", &json!([]));
    ads.says(0, "first \"\"").await;
    ads.says(0, "ack 1").await;
    app.answers(&[&format!("{ASKED} -> bare")]).await;
}
