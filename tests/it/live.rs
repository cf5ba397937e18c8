//! What tests of live files and of the admin API share: reading what is live, and waiting for it no longer than promised.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use sluice::ledger::{Action, Chain, Hold, Keep, Ledger, Transfer, Verdict};
use sluice::limit::LeaseId;
use sluice::registry::NamedLimit;
use smallvec::SmallVec;

use crate::stall::Stalls;
use crate::testapp::TestApp;

/// A change is live within this.
pub const LIVE_WITHIN: Duration = Duration::from_secs(2);

/// A domain with one limit per minute on `path`, and one that is shared.
pub fn limits(per_minute: u64) -> String {
    format!(
        "domain: d\ndescriptors:\n- {{key: path, rate_limit: {{unit: minute, requests_per_unit: {per_minute}}}}}\n"
    )
}

/// A domain of its own with a limit that has a name.
pub fn named(key: &str, capacity: u64) -> String {
    format!(
        "domain: {key}s\nlimits:\n- {{key: {key}, kind: rolling, capacity: {capacity}, window_seconds: 2}}\n"
    )
}

/// The key of a limit of [`limits`].
pub const PATH: &str = "d:path=/a:minute";

impl TestApp {
    /// A limit as the API shows it; `None` if there is none.
    pub async fn limit(&self, key: &str) -> Option<serde_json::Value> {
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = self.get(&format!("/v1/limits/{encoded}")).await;
        match answer.status {
            200 => Some(answer.json()),
            404 => None,
            _ => panic!("{key}: {answer:?}"),
        }
    }

    pub async fn capacity(&self, key: &str) -> Option<u64> {
        self.limit(key).await.map(|limit| limit["capacity"].as_u64().expect("a capacity is a number"))
    }

    pub async fn config(&self) -> serde_json::Value {
        self.get("/v1/config").await.json()
    }

    pub async fn version(&self) -> u64 {
        self.config().await["version"].as_u64().expect("a version is a number")
    }

    /// How often a line of the metrics was counted.
    pub async fn metric(&self, line: &str) -> f64 {
        let text = self.get("/metrics").await.body;
        let value = text.lines().find_map(|found| found.strip_prefix(line)?.strip_prefix(' '));
        value.map_or(0.0, |value| value.parse().expect("a metric is a number"))
    }

    /// Waits for a capacity to be live, from now.
    pub async fn becomes(&self, key: &str, capacity: Option<u64>) {
        within(&format!("{key} is {capacity:?}"), async || {
            let now = self.capacity(key).await;
            if now == capacity { Ok(()) } else { Err(format!("{now:?}, {}", self.config().await)) }
        })
        .await;
    }
}

/// What `ask` finds within the time that is promised, on a machine that runs.
pub async fn within<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let (start, stalls) = (sluice::clock::instant(), Stalls::since_now());
    loop {
        match ask().await {
            Ok(found) => return found,
            Err(not_yet) if start.elapsed() > LIVE_WITHIN + stalls.time() => {
                panic!("{what}: not yet: {not_yet}")
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// A directory as the kubelet makes it from a ConfigMap: `limits/a.yaml → ..data/a.yaml`, `..data → ..1/`.
pub fn config_map(limits: &Path, version: u32, files: &[(&str, String)]) {
    use std::fs;
    use std::os::unix::fs::symlink;
    let (new, data) = (limits.join(format!("..{version}")), limits.join("..data"));
    fs::create_dir_all(&new).unwrap();
    for (name, text) in files {
        fs::write(new.join(name), text).unwrap();
    }
    let old = fs::read_link(&data).ok();
    let link = limits.join("..data_tmp");
    symlink(format!("..{version}"), &link).unwrap();
    fs::rename(&link, &data).unwrap();
    for (name, _) in files {
        if fs::symlink_metadata(limits.join(name)).is_err() {
            symlink(format!("..data/{name}"), limits.join(name)).unwrap();
        }
    }
    if let Some(old) = old {
        fs::remove_dir_all(limits.join(old)).unwrap();
    }
}

/// Takes an amount from a limit that no rule leads to.
pub async fn take(app: &TestApp, limit: &NamedLimit, amount: u64) {
    let (lifetime_seconds, overage) = (limit.spec.kind.lifetime_seconds(), limit.spec.overage);
    let hold = Hold { amount, lifetime_seconds, capacity: limit.spec.capacity, overage, is_exact: true };
    let transfer = Transfer { account: Arc::clone(&limit.account), action: Action::Reserve(hold) };
    let lease = LeaseId::fresh(sluice::clock::unix_ms(), fastrand::u128(..));
    let chain = Chain { lease, keep: Keep::Nothing, transfers: SmallVec::from_iter([transfer]) };
    let outcome = app.app.service.admission.ledger.apply(&chain).await.unwrap();
    assert_eq!(outcome.verdict, Verdict::Done);
}
