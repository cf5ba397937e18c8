//! Fifty reloads under load: every request is answered, and from one version of all files.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use sluice::api::pb;

use crate::live::{config_map, within};
use crate::testapp::{Builder, TestApp};

const RELOADS: u32 = 50;
const CALLERS: usize = 4;

/// Two files with one number: a limit of this domain, and a named one of the other file.
fn files(capacity: u64) -> [(&'static str, String); 2] {
    let a = format!(
        "domain: d\ndescriptors:\n\
         - {{key: own, limits: [{{name: n, kind: rolling, capacity: {capacity}, window_seconds: 60}}]}}\n\
         - {{key: other, limits: [{{ref: shared}}]}}\n"
    );
    let b = format!(
        "domain: other\nlimits: [{{key: shared, kind: rolling, capacity: {capacity}, window_seconds: 60}}]\n"
    );
    [("a.yaml", a), ("b.yaml", b)]
}

/// Up and down, and always more than all calls together take.
fn capacity(version: u32) -> u64 {
    10_000_000 + u64::from(version) * 7919 % 1000
}

/// Asks until it is told to stop; how often, and the versions it saw.
async fn ask(app: Arc<TestApp>, stop: Arc<AtomicBool>, asked: Arc<AtomicU64>) {
    let mut client = app.client();
    let request = crate::ask::request("own=x + other=x");
    while !stop.load(Ordering::Relaxed) {
        let answer =
            client.should_rate_limit(request.clone()).await.expect("every call is answered").into_inner();
        assert_eq!(answer.overall_code(), pb::Code::Ok, "{answer:?}");
        let seen: Vec<u32> = answer
            .statuses
            .iter()
            .map(|status| status.current_limit.as_ref().unwrap().requests_per_unit)
            .collect();
        assert!(seen[0] >= 10_000_000 && seen[0] == seen[1], "a mixture: {seen:?}");
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_reloads_under_load() {
    let dir = tempfile::tempdir().unwrap();
    let limits = dir.path().join("limits");
    config_map(&limits, 1, &files(capacity(1)));
    let app = Arc::new(Builder::in_dir(dir).start().await);
    let (stop, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..CALLERS {
        callers.spawn(ask(Arc::clone(&app), Arc::clone(&stop), Arc::clone(&asked)));
    }
    for version in 2..=RELOADS + 1 {
        config_map(&limits, version, &files(capacity(version)));
        within("the reload", async || {
            let live = app.app.service.live.load().version;
            if live == u64::from(version) { Ok(()) } else { Err(format!("{live}")) }
        })
        .await;
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(caller) = callers.join_next().await {
        caller.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    }
    assert_eq!(app.capacity("shared").await, Some(capacity(RELOADS + 1)));
    assert!(asked.load(Ordering::Relaxed) > 1000, "{asked:?} calls are no load");
    assert_eq!(app.metric("sluice_config_reloads_total{result=\"error\"}").await, 0.0);
}
