//! Files that change while Envoy keeps asking: what its clients see, and when.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use crate::envoy::Envoy;
use crate::sluice::{Sluice, directory, serve};
use crate::wait::until;

/// An edit holds within two seconds; the rest is for a busy machine.
const SOON: Duration = Duration::from_secs(10);

fn limits(capacity: u32) -> String {
    format!(
        "domain: demo\ndescriptors: [{{key: path, rate_limit: {{unit: hour, requests_per_unit: {capacity}}}}}]"
    )
}

/// Asks until the answer tells of this capacity.
async fn until_limit_is(envoy: &Envoy, capacity: u32) {
    let start = ::sluice::clock::instant();
    until("the new limit to be seen", async || {
        let answer = envoy.get("/door", &[]).await;
        let limit = answer.header("x-ratelimit-limit");
        if limit == format!("{capacity}, {capacity};w=3600") { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
}

#[tokio::test]
async fn an_edit_is_seen_by_clients_and_a_mistake_is_not() {
    let sluice = Sluice::with_limits(&limits(1)).await;
    let envoy = Envoy::asking(sluice.grpc_port()).await;
    assert_eq!([envoy.get("/door", &[]).await.status, envoy.get("/door", &[]).await.status], [200, 429]);

    let file = sluice.dir.path().join("config/limits/limits.yaml");
    std::fs::write(&file, limits(1000)).unwrap();
    until_limit_is(&envoy, 1000).await;
    let more = envoy.get("/door", &[]).await;
    assert_eq!(more.status, 200, "what was denied fits now: {more:?}");
    let left: u32 = more.header("x-ratelimit-remaining").parse().unwrap();
    assert!(left < 999, "what was spent before is still spent: {left}");

    std::fs::write(&file, limits(1000).replace("rate_limit", "ratelimit")).unwrap();
    until("the mistake to be found", async || {
        let config = crate::http::get(sluice.admin, "/v1/config").await.json();
        config["problems"][0]["line"].as_u64().ok_or_else(|| config.to_string())
    })
    .await;
    until_limit_is(&envoy, 1000).await;

    // As editors do it: a new file takes the place of the old one.
    std::fs::write(sluice.dir.path().join("new.yaml"), limits(2000)).unwrap();
    std::fs::rename(sluice.dir.path().join("new.yaml"), &file).unwrap();
    until_limit_is(&envoy, 2000).await;
}

/// As the kubelet does it: `..data` is a link that is swapped for one to another directory.
#[tokio::test]
async fn a_config_map_that_changes_is_seen_by_clients() {
    let dir = directory(&[
        ("config/..first/limits/limits.yaml", &limits(1000)),
        ("config/..second/limits/limits.yaml", &limits(2000)),
    ]);
    let config = dir.path().join("config");
    let point_at = |target: &str, link: &str| symlink(Path::new(target), config.join(link)).unwrap();
    point_at("..first", "..data");
    point_at("..data/limits", "limits");
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let sluice = Sluice::start(dir, command).await;
    let envoy = Envoy::asking(sluice.grpc_port()).await;
    until_limit_is(&envoy, 1000).await;
    point_at("..second", "..data_tmp");
    std::fs::rename(config.join("..data_tmp"), config.join("..data")).unwrap();
    until_limit_is(&envoy, 2000).await;
}
