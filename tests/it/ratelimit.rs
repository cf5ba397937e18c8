//! The program in the place of envoyproxy/ratelimit: called by that name, with that environment, as Envoy Gateway runs it.

use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluice::config::settings::ratelimit::{ConnectionAge, LimitHeaders};
use sluice::config::settings::value::Listen;
use sluice::control::xds::pb::RateLimitUnit;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;

use crate::ads::{Ads, config, limit, under};
use crate::ask::{request, told};
use crate::http::{get, post, send};
use crate::process::Process;
use crate::sluice::{RATELIMIT_PORTS, Ran, directory, run, sluice};
use crate::testapp::{TestApp, channel};
use crate::wait::until;

/// What Envoy Gateway sets, whatever its users say, without TLS.
pub const ENVOY_GATEWAY: [(&str, &str); 13] = [
    ("RUNTIME_ROOT", "/data"),
    ("RUNTIME_SUBDIRECTORY", "ratelimit"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("RUNTIME_WATCH_ROOT", "false"),
    ("LOG_LEVEL", "info"),
    ("USE_STATSD", "false"),
    ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
    ("CONFIG_GRPC_XDS_NODE_ID", "envoy-ratelimit"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "true"),
    ("REDIS_SOCKET_TYPE", "tcp"),
    ("REDIS_URL", "redis.example:6379"),
    ("USE_PROMETHEUS", "true"),
    ("PROMETHEUS_MAPPER_YAML", "/etc/statsd-exporter/conf.yaml"),
];

/// A running one.
struct Ratelimit {
    process: Process,
    grpc: Listen,
    admin: SocketAddr,
    debug: SocketAddr,
}

impl Ratelimit {
    async fn start(command: &mut Command) -> Self {
        let mut process = Process::start("ratelimit", command);
        let grpc = process.line("grpc listening on ").await.parse().unwrap();
        let admin = process.line("admin listening on ").await.parse().unwrap();
        let debug = process.line("debug listening on ").await.parse().unwrap();
        Self { process, grpc, admin, debug }
    }

    async fn say(&self, asked: &str) -> String {
        let mut client = RateLimitServiceClient::new(channel(&self.grpc).await);
        let message = request(asked);
        let answer = client.should_rate_limit(message.clone()).await;
        told(&message, &answer.map(tonic::Response::into_inner))
    }
}

/// The program under its other name, in a directory that everybody may read and nobody may write.
fn named(dir: &Path) -> Command {
    let program = dir.join("ratelimit");
    symlink(env!("CARGO_BIN_EXE_sluice"), &program).unwrap();
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o555)).unwrap();
    let mut command = if is_root() {
        // As Envoy Gateway's container: nobody, and nowhere to write.
        let mut command = Command::new("unshare");
        let script = "mount -o remount,ro,bind / && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                      --no-new-privs \"$@\"";
        command.args(["--mount", "sh", "-c", script, "sh"]).arg(program);
        command
    } else {
        Command::new(program)
    };
    command.env_clear().env("PATH", "/usr/bin:/bin:/usr/sbin:/sbin").current_dir(dir).envs(RATELIMIT_PORTS);
    command
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output().expect("id must run");
    id.stdout == b"0\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn envoy_gateways_environment_as_nobody_on_a_read_only_root() {
    let (ads, dir) = (Ads::start().await, directory(&[]));
    let mut command = named(dir.path());
    command.envs(ENVOY_GATEWAY).env("PROMETHEUS_ADDR", "127.0.0.1:0");
    command.env("CONFIG_GRPC_XDS_SERVER_URL", ads.address.to_string()).arg("--a-flag=of-another-program");
    let mut ratelimit = Ratelimit::start(&mut command).await;
    let metrics: SocketAddr = ratelimit.process.line("metrics listening on ").await.parse().unwrap();
    let health = get(ratelimit.admin, "/healthcheck").await;
    assert_eq!((health.status, health.body.as_str()), (200, "OK"), "it may start without limits");
    let route =
        under("route", "route", [limit("rule-0-match--1", "rule-0-match--1", 2, RateLimitUnit::Hour)]);
    ads.accepted("1", &[config("default/eg/http", [route, limit("user", "", 5, RateLimitUnit::Minute)])])
        .await;

    let asked = "in default/eg/http: route=route rule-0-match--1=rule-0-match--1";
    assert_eq!(ratelimit.say(asked).await, "ok 1/2 hour");
    assert_eq!(ratelimit.say(asked).await, "ok 0/2 hour");
    assert!(ratelimit.say(asked).await.starts_with("OVER"));
    assert_eq!(ratelimit.say("in default/eg/http: user=eve").await, "ok 4/5 minute");
    let body =
        r#"{"domain": "default/eg/http", "descriptors": [{"entries": [{"key": "user", "value": "bob"}]}]}"#;
    assert_eq!(post(ratelimit.admin, "/json", body).await.status, 200);
    // As programs in the cluster call that program, and not as a web page does.
    let by_name = [
        ("host", "envoy-ratelimit.envoy-gateway-system.svc:8080"),
        ("content-type", "application/x-www-form-urlencoded"),
    ];
    assert_eq!(send(ratelimit.admin, "POST", "/json", &by_name, body).await.status, 200);
    let page = send(ratelimit.admin, "POST", "/json", &[("origin", "http://evil.example")], body).await;
    assert_eq!((page.status, page.json()["error"].as_str()), (403, Some("foreign_origin")));
    assert_eq!(ratelimit.say("in default/eg/http: user=eve x2 <3/hour>").await, "ok 1/3 hour");
    for over in ["x3", "x0"] {
        let said = ratelimit.say(&format!("in default/eg/http: user=eve {over} <3/hour>")).await;
        assert!(said.starts_with("OVER"), "{over}: {said}");
    }

    let limits = get(ratelimit.debug, "/rlconfig").await.body;
    assert!(
        limits.contains("default/eg/http:user:minute: rolling window=60s capacity=5 (xds:default/eg/http)"),
        "{limits}"
    );
    assert_eq!(get(ratelimit.debug, "/metrics").await.status, 404, "one thing on each port");
    let text = get(metrics, "/metrics").await.body;
    for line in [
        r#"ratelimit_service_rate_limit_total_hits{domain="default/eg/http",key1="route_route",key2="rule-0-match--1_rule-0-match--1"} 3"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="default/eg/http",key1="route_route",key2="rule-0-match--1_rule-0-match--1"} 1"#,
        r#"ratelimit_service_rate_limit_near_limit{domain="default/eg/http",key1="route_route",key2="rule-0-match--1_rule-0-match--1"} 1"#,
        r#"ratelimit_service_rate_limit_within_limit{domain="default/eg/http",key1="user"} 3"#,
        // An override is named by its values. Of its 5 hits two did not fit, and a look is none.
        r#"ratelimit_service_rate_limit_total_hits{domain="default/eg/http",key1="user_eve"} 5"#,
        r#"ratelimit_service_rate_limit_over_limit{domain="default/eg/http",key1="user_eve"} 2"#,
        r#"ratelimit_service_total_requests{grpc_method="ShouldRateLimit"} 9"#,
        r#"ratelimit_service_response_time_seconds_count{grpc_method="ShouldRateLimit"} 9"#,
        r#"ratelimit_service_should_rate_limit_error{err_type="redis_error"} 0"#,
        "ratelimit_service_config_load_error 0",
        r#"sluice_decisions_total{domain="default/eg/http",code="OK",reason=""} 6"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    let resident = text.lines().find_map(|line| line.strip_prefix("process_resident_memory_bytes "));
    assert!(resident.unwrap().parse::<u64>().unwrap() > 1 << 20, "{resident:?}");

    // Nothing that changes limits without a token, and there is none.
    let put = send(ratelimit.admin, "PUT", "/v1/limits", &[], r#"{"key": "k"}"#).await;
    assert_eq!((put.status, put.json()["error"].as_str()), (401, Some("unauthorized")));
    assert_eq!(get(ratelimit.admin, "/v1/limits").await.status, 200);

    let log = ratelimit.process.stderr();
    let unused = log.lines().filter(|line| line.contains("these variables have no effect here")).count();
    assert_eq!(unused, 1, "{log}");
    assert!(log.contains("PROMETHEUS_MAPPER_YAML, REDIS_SOCKET_TYPE, REDIS_URL, USE_STATSD"), "{log}");

    // Somebody is connected, so that the fall of readiness can be seen.
    let _connected = channel(&ratelimit.grpc).await;
    ratelimit.process.signal("TERM");
    until("the health check to turn red", async || match get(ratelimit.admin, "/healthcheck").await {
        answer if answer.status == 503 => Ok(()),
        answer => Err(answer.body),
    })
    .await;
    drop(_connected);
    assert!(ratelimit.process.exit().await.success());
}

/// Red until the first answer, and then green whatever the ledger does.
#[tokio::test(flavor = "multi_thread")]
async fn the_health_check_says_whether_a_restart_would_help() {
    let (ads, dir) = (Ads::start().await, directory(&[]));
    let mut command = sluice(dir.path(), &["ratelimit", "--what", "ever"]);
    command.envs(RATELIMIT_PORTS).env("CONFIG_TYPE", "GRPC_XDS_SOTW");
    command.env("CONFIG_GRPC_XDS_SERVER_URL", ads.address.to_string());
    if cfg!(feature = "tigerbeetle") {
        // Nobody is there.
        command.env("SLUICE_LEDGER", "tigerbeetle:0@127.0.0.1:1");
    }
    let ratelimit = Ratelimit::start(&mut command).await;
    let red = get(ratelimit.admin, "/healthcheck").await;
    assert_eq!((red.status, red.body.as_str()), (503, "the xDS server has not sent the limits yet\n"));
    assert_eq!(ads.heard().await.node.unwrap().id, "default");
    ads.accepted("1", &[]).await;
    until("the health check to turn green", async || match get(ratelimit.admin, "/healthcheck").await {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    })
    .await;
    let expected = if cfg!(feature = "tigerbeetle") { 503 } else { 200 };
    assert_eq!(get(ratelimit.admin, "/readyz").await.status, expected, "that one is about the ledger");
}

#[tokio::test(flavor = "multi_thread")]
async fn its_files_are_read_as_that_program_reads_them() {
    let file = |domain: &str| {
        format!(
            "domain: {domain}\ndescriptors: [{{key: k, rate_limit: {{unit: minute, requests_per_unit: 5}}}}]"
        )
    };
    let dir = directory(&[
        ("data/rl/config/a.yaml", &file("a")),
        ("data/rl/config/no-ending", &file("b")),
        ("data/rl/config/below/c.yml", &file("c")),
        ("data/rl/config/.hidden.yaml", "nonsense: ["),
        ("data/rl/beside.yaml", "nonsense: ["),
    ]);
    let mut command = sluice(dir.path(), &["ratelimit"]);
    command
        .envs(RATELIMIT_PORTS)
        .env("RUNTIME_ROOT", dir.path().join("data"))
        .env("RUNTIME_SUBDIRECTORY", "rl");
    command.env("RUNTIME_IGNOREDOTFILES", "true").env("SLUICE_ADMIN_TOKEN", "a-token-for-a-test");
    let ratelimit = Ratelimit::start(&mut command).await;
    for domain in ["a", "b", "c"] {
        assert_eq!(ratelimit.say(&format!("in {domain}: k=x")).await, "ok 4/5 minute");
    }
    std::fs::write(dir.path().join("data/rl/config/below/c.yml"), file("d")).unwrap();
    until("the edit to be live", async || match ratelimit.say("in d: k=x").await {
        said if said.starts_with("ok") => Ok(()),
        said => Err(said),
    })
    .await;

    // What is written through the API holds, and says for how long.
    let limit = r#"{"key": "mine", "kind": "rolling", "capacity": 3, "window_seconds": 60}"#;
    let token = [("authorization", "Bearer a-token-for-a-test")];
    let put = send(ratelimit.admin, "PUT", "/v1/limits", &token, limit).await;
    assert_eq!((put.status, put.json()["capacity"].as_u64()), (200, Some(3)), "{put:?}");
    assert!(put.json()["note"].as_str().unwrap().starts_with("holds until this process exits"), "{put:?}");
    assert_eq!(send(ratelimit.admin, "PUT", "/v1/limits", &[], limit).await.status, 401);
    assert!(get(ratelimit.admin, "/v1/limits").await.body.contains("\"mine\""));
    assert!(!dir.path().join("state").exists());
}

#[test]
fn what_can_t_be_understood_ends_it_naming_the_variable() {
    let dir = directory(&[]);
    let fails = |variable: &str, value: &str| -> String {
        let mut command = sluice(dir.path(), &["ratelimit"]);
        let Ran { code, stdout, stderr } = run(command.envs(RATELIMIT_PORTS).env(variable, value));
        assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
        stderr
    };
    assert!(fails("CONFIG_TYPE", "XDS").contains("CONFIG_TYPE: must be FILE or GRPC_XDS_SOTW, not `XDS`"));
    assert!(fails("RUNTIME_ROOT", "/nowhere").contains("/nowhere: is no directory that can be read"));
}

/// Connections that are old are sent away, and what was called on them is answered, and counted once.
#[tokio::test(flavor = "multi_thread")]
async fn old_connections_make_way_for_new_ones() {
    let limits = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: hour, requests_per_unit: 1000000}}]";
    let age = ConnectionAge { max: Duration::from_millis(200), grace: Duration::from_secs(5) };
    let app = TestApp::with_limits(limits)
        .and_settings(move |settings| settings.grpc.connection_age = Some(age))
        .start()
        .await;
    let opened = Arc::new(AtomicUsize::new(0));
    let (count, grpc) = (Arc::clone(&opened), app.grpc());
    let open = tower::service_fn(move |_: ::http::Uri| {
        count.fetch_add(1, Ordering::SeqCst);
        async move { tokio::net::TcpStream::connect(grpc).await.map(hyper_util::rt::TokioIo::new) }
    });
    let channel = tonic::transport::Endpoint::from_static("http://sluice").connect_with_connector_lazy(open);
    let mut client = RateLimitServiceClient::new(channel);
    let mut calls = 0;
    let start = sluice::clock::instant();
    while start.elapsed() < Duration::from_secs(1) {
        match client.should_rate_limit(request("k=x")).await {
            Ok(_) => calls += 1,
            // The client found the connection closed before it had sent the call.
            Err(status) => assert_eq!(status.code(), tonic::Code::Cancelled, "{status:?}"),
        }
    }
    assert_eq!(app.used("d:k=x:hour").await, calls);
    let opened = opened.load(Ordering::SeqCst);
    assert!((3..=8).contains(&opened), "{opened} connections in five lives");
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_and_metadata_are_told_if_that_is_wanted() {
    let limits = "
domain: d
descriptors:
  - {key: a, rate_limit: {unit: hour, requests_per_unit: 3}, metadata: {weight: 2, to: {pool: 'p1'}}}
  - {key: b, rate_limit: {unit: minute, requests_per_unit: 9}, metadata: {weight: 5, to: {zone: z, pool: p2}}}
  - {key: q, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 1}, metadata: {quota: true}}
";
    let app = TestApp::with_limits(limits)
        .and_settings(|settings| {
            settings.grpc.response_dynamic_metadata = true;
            let name = |name: &str| format!("RateLimit-{name}");
            let (limit, remaining, reset) = (name("Limit"), name("Remaining"), name("Reset"));
            settings.grpc.limit_headers = Some(LimitHeaders { limit, remaining, reset });
        })
        .start()
        .await;
    let ask = async |asked: &str| {
        let message = request(asked);
        let json = serde_json::json!({
            "domain": message.domain,
            "hits_addend": message.hits_addend,
            "descriptors": message.descriptors.iter().map(|descriptor| serde_json::json!({
                "entries": descriptor.entries.iter().map(|entry| serde_json::json!({
                    "key": entry.key, "value": entry.value,
                })).collect::<Vec<_>>(),
                "hits_addend": descriptor.hits_addend.as_ref().map(|hits| hits.value),
                "limit": descriptor.limit.as_ref().map(|limit| serde_json::json!({
                    "requests_per_unit": limit.requests_per_unit, "unit": limit.unit,
                })),
            })).collect::<Vec<_>>(),
        });
        app.post("/json", &json.to_string()).await
    };
    let answer = ask("each 2: a=1 + b=1 x1 + q=1 x1 + q=1 x1 <5/minute>").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(
        answer.json()["dynamicMetadata"],
        serde_json::json!({
            "domain": "d",
            "hitsAddend": 2.0,
            "descriptors": [
                {"entries": ["a=1"]},
                {"entries": ["b=1"], "hitsAddend": 1.0},
                {"entries": ["q=1"], "hitsAddend": 1.0},
                {"entries": ["q=1"], "hitsAddend": 1.0, "limit": "requests_per_unit:5 unit:MINUTE"},
            ],
            "quotaModeEnabled": true,
            "metadata": {"weight": 2.0, "to": {"pool": "p1", "zone": "z"}, "quota": true},
        })
    );
    let told = |answer: &crate::http::Answer| {
        ["ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"]
            .map(|name| answer.header(name).to_owned())
    };
    assert_eq!(told(&answer), ["1", "0", "60"], "of the limit that has the least left");

    // A quota that is over denies nobody as long as another has something left.
    let answer = ask("q=1 + q=2 + b=1").await;
    let metadata = &answer.json()["dynamicMetadata"];
    assert_eq!((answer.status, &metadata["quotaModeViolations"]), (200, &serde_json::json!([0.0])));
    let denied = ask("a=1 x2 + b=1").await;
    assert_eq!((denied.status, told(&denied)[0].as_str(), told(&denied)[1].as_str()), (429, "3", "1"));
    let metadata = &denied.json()["dynamicMetadata"];
    assert_eq!(metadata["metadata"], serde_json::json!({"weight": 5.0, "to": {"pool": "p2", "zone": "z"}}));
    assert_eq!(metadata["quotaModeViolations"], serde_json::Value::Null);
    // Who meets no limit is told of none.
    let free = ask("z=1").await;
    assert_eq!(
        (told(&free)[0].as_str(), &free.json()["dynamicMetadata"]["quotaModeEnabled"]),
        ("", &false.into())
    );
}
