//! What the client of an upstream sees when Sluice has a say.

use std::path::Path;
use std::time::Duration;

use crate::envoy::{Envoy, FAIL_CLOSED, RATELIMIT};
use crate::sluice::{Sluice, directory, serve};
use crate::wait::until;

const FREE: [&str; 4] = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

/// The files that Sluice ships, and the bootstrap that stands beside them.
#[tokio::test]
async fn five_are_served_and_the_sixth_hears_when_to_come_back() {
    let dir = directory(&[]);
    let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("config");
    let mut command = serve(dir.path(), &FREE);
    command.arg("--config-dir").arg(config);
    let sluice = Sluice::start(dir, command).await;
    let envoy = Envoy::asking(sluice.grpc_port()).await;

    for left in (0..5).rev() {
        let answer = envoy.get("/hello", &[]).await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "from the upstream"), "{answer:?}");
        assert_eq!(answer.header("x-ratelimit-limit"), "5, 5;w=60");
        assert_eq!(answer.header("x-ratelimit-remaining"), left.to_string());
        assert_eq!((answer.header("retry-after"), answer.header("x-sluice-limit")), ("", ""));
    }
    for _ in 0..3 {
        let denied = envoy.get("/hello", &[]).await;
        assert_eq!((denied.status, denied.body.as_str()), (429, ""), "{denied:?}");
        assert_eq!(denied.header("x-sluice-limit"), "demo:path=/hello:minute");
        assert_eq!(denied.header("x-sluice-reason"), "over_limit");
        let hint_ms: u64 = denied.header("retry-after-ms").parse().unwrap();
        assert!((50_000..=60_000).contains(&hint_ms), "until the first come back: {hint_ms}");
        assert_eq!(denied.header("retry-after"), hint_ms.div_ceil(1000).to_string());
        assert_eq!(denied.header("x-ratelimit-remaining"), "0");
        assert_eq!(denied.header("x-ratelimit-reset"), (hint_ms / 1000).to_string());
        assert_eq!(denied.header("x-envoy-ratelimited"), "true");
    }
    let blocked = envoy.get("/blocked", &[]).await;
    assert_eq!(blocked.status, 429);
    assert_eq!((blocked.header("x-sluice-reason"), blocked.header("retry-after")), ("never_fits", ""));
    let free = envoy.get("/elsewhere", &[]).await;
    assert_eq!((free.status, free.header("x-ratelimit-limit")), (200, ""), "no limit has a say");
}

/// However a client writes a path, it is the path that the upstream serves, and has the limit of that.
#[tokio::test]
async fn no_way_to_write_a_path_is_beside_its_limit() {
    let limits = "domain: demo\ndescriptors: [{key: path, value: /hello, rate_limit: {unit: hour, requests_per_unit: 6}}]";
    let sluice = Sluice::with_limits(limits).await;
    for bootstrap in [RATELIMIT, FAIL_CLOSED] {
        let envoy = Envoy::of(bootstrap).start(&[sluice.grpc_port()]).await;
        let status = async |path: &str| envoy.get(path, &[]).await.status;
        assert_eq!(status("/hello/other").await, 200, "another path");
        if bootstrap == RATELIMIT {
            for path in ["/hello", "/hello?x=1", "/hello?", "//hello", "/a/../hello?y", "/%68ello"] {
                assert_eq!(status(path).await, 200, "{path}");
            }
        }
        for path in ["/hello", "/hello?x=1", "/hello?x=2", "/./hello", "/%68ello?"] {
            assert_eq!(status(path).await, 429, "{path}");
        }
    }
}

/// Denials of one limit must cost the other nothing: else whoever is denied starves everybody.
#[tokio::test]
async fn two_limits_are_charged_together_or_not_at_all() {
    let limits = "
domain: demo
descriptors:
- {key: path, value: /shared, rate_limit: {unit: hour, requests_per_unit: 5}}
- {key: user, rate_limit: {unit: hour, requests_per_unit: 2}}
";
    let sluice = Sluice::with_limits(limits).await;
    let envoy = Envoy::asking(sluice.grpc_port()).await;
    let ask = async |user: &str| {
        let answer = envoy.get("/shared", &[("x-user", user)]).await;
        format!("{} {}", answer.status, answer.header("x-sluice-limit")).trim().to_owned()
    };
    assert_eq!([ask("bob").await, ask("bob").await], ["200", "200"]);
    for _ in 0..20 {
        assert_eq!(ask("bob").await, "429 demo:user=bob:hour");
    }
    assert_eq!([ask("eve").await, ask("eve").await], ["200", "200"]);
    assert_eq!(ask("ann").await, "200", "bob's twenty denials took nothing from the path");
    assert_eq!(ask("ann").await, "429 demo:path=/shared:hour");
    // And that denial took nothing from ann.
    let elsewhere = envoy.get("/elsewhere", &[("x-user", "ann")]).await;
    assert_eq!((elsewhere.status, elsewhere.header("x-ratelimit-remaining")), (200, "0"));
}

#[tokio::test]
async fn the_hint_is_kept_from_both_sides() {
    let limits = "
domain: demo
descriptors:
- {key: path, value: /once, rate_limit: {unit: second, requests_per_unit: 1}}
";
    let sluice = Sluice::with_limits(limits).await;
    let envoy = Envoy::asking(sluice.grpc_port()).await;
    assert_eq!(envoy.get("/once", &[]).await.status, 200);
    let start = ::sluice::clock::instant();
    // A hint is a guess that grows; who follows it gets in once the window has passed, and not before.
    let waits = until("it to be admitted", async || {
        let answer = envoy.get("/once", &[]).await;
        if answer.status == 200 {
            return Ok(start.elapsed());
        }
        let hint_ms: u64 = answer.header("retry-after-ms").parse().unwrap();
        tokio::time::sleep(Duration::from_millis(hint_ms)).await;
        Err(format!("told to wait {hint_ms} ms"))
    });
    let waited = waits.await;
    assert!(waited >= Duration::from_millis(900), "admitted within the window: {waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_admitted_up_to_the_limit_and_not_one_more() {
    let limits = "domain: demo\ndescriptors: [{key: path, rate_limit: {unit: hour, requests_per_unit: 100}}]";
    let sluice = Sluice::with_limits(limits).await;
    let envoy = std::sync::Arc::new(Envoy::asking(sluice.grpc_port()).await);
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..300 {
        let envoy = std::sync::Arc::clone(&envoy);
        crowd.spawn(async move { envoy.get("/door", &[]).await.status });
    }
    let mut statuses = crowd.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [vec![200; 100], vec![429; 200]].concat());
}
