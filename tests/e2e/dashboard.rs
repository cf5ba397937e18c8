//! The dashboard asks for numbers that Sluice and Envoy really have, once there was something to count.

use std::path::Path;

use crate::envoy::{Envoy, RATELIMIT};
use crate::http;
use crate::sluice::Sluice;

/// One is served, one is denied, one of a limit in shadow mode would have been, and one can't be asked about.
#[tokio::test]
async fn every_number_of_the_dashboard_is_there() {
    let limits = "
domain: demo
limits: [{key: all, kind: rolling, capacity: 100, window_seconds: 60}]
descriptors:
- {key: path, value: /once, detailed_metric: true, rate_limit: {unit: hour, requests_per_unit: 1}}
- {key: path, value: /dark, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 1}}
";
    let mut sluice = Sluice::with_limits(limits).await;
    let envoy = Envoy::of(RATELIMIT).start(&[sluice.grpc_port()]).await;
    for (path, status) in [("/once", 200), ("/once", 429), ("/dark", 200), ("/dark", 200)] {
        assert_eq!(envoy.get(path, &[]).await.status, status);
    }
    let mut numbers = http::get(sluice.admin, "/metrics").await.body;
    sluice.process.signal("KILL");
    sluice.process.exit().await;
    assert_eq!(envoy.get("/once", &[]).await.status, 200);
    numbers.push_str(&envoy.admin("/stats/prometheus").await);

    let dashboard = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/grafana/sluice.json");
    let dashboard: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(dashboard).unwrap()).unwrap();
    let has = |name: &str| {
        numbers.lines().any(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' '])))
    };
    let mut seen = 0;
    for panel in dashboard["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let query = target["expr"].as_str().unwrap();
            let words = query.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            for name in words.filter(|word| word.starts_with("sluice_") || word.starts_with("envoy_")) {
                // The name of a label.
                if name == "envoy_cluster_name" {
                    continue;
                }
                assert!(has(name), "{}: no {name} in\n{numbers}", panel["title"]);
                seen += 1;
            }
        }
    }
    assert!(seen > 20, "{seen}");
}
