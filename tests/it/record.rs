//! `sluice record` on a real server: what is written, how much of it at most, of whom, and what those miss who don't read.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use ::sluice::api::pb;
use ::sluice::clock;
use ::sluice::config::settings::secret::Secret;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::ask::request;
use crate::http;
use crate::process::Process;
use crate::sluice::{Sluice, run, sluice};
use crate::testapp::TestApp;
use crate::wait::until;

const LIMITS: &str = "\
domain: d
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 2, name: rph}
  - key: tenant
    value: acme
    rate_limit: {unit: hour, requests_per_unit: 5, name: rph}
  - key: path
    value: /api/*/users
    rate_limit: {unit: hour, requests_per_unit: 5, name: rph}
  - key: slow
    limits:
      - {name: inflight, kind: concurrency, capacity: 2, timeout_seconds: 60}
";

/// A recorder that has begun.
async fn recorder(served: &Sluice, arguments: &[&str]) -> Process {
    recorder_of(served.admin, served.dir.path(), arguments).await
}

async fn recorder_of(admin: SocketAddr, dir: &Path, arguments: &[&str]) -> Process {
    let admin = admin.to_string();
    let arguments = [&["record", "--admin", &admin], arguments].concat();
    let process = Process::start("record", &mut sluice(dir, &arguments));
    until("the recorder to begin", async || {
        let said = process.stderr();
        if said.starts_with("recording ") { Ok(()) } else { Err(said) }
    })
    .await;
    process
}

/// What it says when it is told to stop.
async fn stopped(mut process: Process) -> String {
    process.signal("INT");
    assert_eq!(process.exit().await.code(), Some(0), "{}", process.stderr());
    process.stdout()
}

async fn ask(served: &Sluice, descriptors: Value) -> Value {
    let body = json!({"domain": "d", "descriptors": descriptors}).to_string();
    http::post(served.admin, "/json", &body).await.json()
}

fn entry(key: &str, value: &str) -> Value {
    json!({"entries": [{"key": key, "value": value}]})
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(text.is_empty() || text.ends_with('\n'));
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

fn value(line: &Value) -> &str {
    line["descriptors"][0]["entries"][0]["value"].as_str().unwrap()
}

#[tokio::test]
async fn a_recording_has_what_was_asked_and_how_it_was_decided() {
    let served = Sluice::with_limits(LIMITS).await;
    let recording = recorder(&served, &["traffic.jsonl"]).await;
    let hostile = "a\"\n\u{fc}";
    let retry =
        json!({"entries": [{"key": "tenant", "value": hostile}, {"key": "retry_attempt", "value": "2"}]});
    let mut hits = entry("tenant", hostile);
    hits["hitsAddend"] = json!("0");
    let mut limited = entry("own", "x");
    limited["limit"] = json!({"requestsPerUnit": 7, "unit": "MINUTE"});
    limited["hitsAddend"] = json!("3");
    for descriptors in [
        json!([entry("tenant", hostile), entry("nothing", "x")]),
        json!([retry]),
        json!([entry("tenant", hostile)]),
        json!([hits]),
        json!([limited]),
    ] {
        ask(&served, descriptors).await;
    }
    // What is malformed was not decided.
    http::post(served.admin, "/json", "{\"domain\": \"d\"}").await;
    let lease = ask(&served, json!([entry("slow", "s")])).await["dynamicMetadata"]["lease_id"].clone();
    tokio::time::sleep(Duration::from_millis(30)).await;
    ask(&served, json!([entry("lease_id", lease.as_str().unwrap())])).await;
    // This one never ends, and is not waited for when the recorder stops.
    ask(&served, json!([entry("slow", "s")])).await;
    assert_eq!(stopped(recording).await, "recorded 7 requests to traffic.jsonl\n");

    let mut lines = lines(&served.dir.path().join("traffic.jsonl"));
    let times: Vec<String> = lines.iter().map(|line| line["time"].as_str().unwrap().to_owned()).collect();
    assert!(
        times.is_sorted() && times.iter().all(|time| time.len() == 30 && time.ends_with('Z')),
        "{times:?}"
    );
    for line in &mut lines {
        assert_eq!(line["domain"], "d");
        let fields = line.as_object_mut().unwrap();
        fields.remove("time");
        fields.remove("domain");
    }
    let held_ms = lines[5]["duration_ms"].as_u64().expect("it has ended");
    assert!((30..5_000).contains(&held_ms), "{held_ms}");
    let mark = json!({"key": "retry_attempt", "value": "1"});
    let tenant = json!({"key": "tenant", "value": hostile});
    let own = json!({"entries": [{"key": "own", "value": "x"}], "limit": {"requestsPerUnit": 7, "unit": "MINUTE"}, "hitsAddend": "3"});
    let expected = [
        json!({"status": 200, "descriptors": [entry("tenant", hostile), entry("nothing", "x")]}),
        json!({"status": 200, "descriptors": [{"entries": [tenant, mark]}]}),
        json!({"status": 429, "descriptors": [entry("tenant", hostile)]}),
        json!({"status": 200, "descriptors": [{"entries": [tenant], "hitsAddend": "0"}]}),
        json!({"status": 200, "descriptors": [own]}),
        json!({"status": 200, "descriptors": [entry("slow", "s")], "duration_ms": held_ms}),
        json!({"status": 200, "descriptors": [entry("slow", "s")]}),
    ];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_recording_is_bounded_sampled_and_hashed() {
    let served = Sluice::with_limits(LIMITS).await;
    let small = recorder(&served, &["--max-bytes", "2kB", "--files", "3", "small"]).await;
    let sampled = recorder(&served, &["--sample", "25%", "sampled"]).await;
    let hashed = recorder(&served, &["--hash-values", "hashed"]).await;
    let all = recorder(&served, &["all"]).await;
    let body = async |tenant: &str| {
        ask(&served, json!([entry("tenant", tenant), entry("path", "/api/secret/users")])).await
    };
    let mut asking = Vec::new();
    for _ in 0..2 {
        asking.extend((0..60).map(|n| format!("secret{n}")).chain(["acme".to_owned()]));
    }
    for tenant in &asking {
        body(tenant).await;
    }
    for process in [small, sampled, hashed, all] {
        stopped(process).await;
    }
    let dir = served.dir.path();
    let all = lines(&dir.join("all"));
    assert_eq!(all.iter().map(value).collect::<Vec<_>>(), asking);

    // The newest are in at most three files of 2 kB, in order.
    let sizes = ["small.2", "small.1", "small"].map(|name| fs::metadata(dir.join(name)).unwrap().len());
    assert!(
        sizes.iter().all(|size| (1..=2_000).contains(size)) && !dir.join("small.3").exists(),
        "{sizes:?}"
    );
    let kept: Vec<Value> =
        ["small.2", "small.1", "small"].iter().flat_map(|name| lines(&dir.join(name))).collect();
    assert_eq!(kept, all[all.len() - kept.len()..]);

    // Of some tenants all, of the others nothing.
    let sampled = lines(&dir.join("sampled"));
    let mut times: BTreeMap<&str, u32> = BTreeMap::new();
    sampled.iter().for_each(|line| *times.entry(value(line)).or_default() += 1);
    assert!((3..=30).contains(&times.len()) && times.values().all(|times| *times == 2), "{times:?}");

    // Values that the files mention are there, and whatever else is known by its hash only.
    let text = fs::read_to_string(dir.join("hashed")).unwrap();
    assert!(!text.contains("secret"), "{text}");
    let hashed = lines(&dir.join("hashed"));
    let mut names: BTreeMap<&str, &str> = BTreeMap::new();
    for (line, tenant) in hashed.iter().zip(&asking) {
        let name = value(line);
        assert_eq!(*names.entry(tenant).or_insert(name), name, "one value, one hash");
        let path = line["descriptors"][1]["entries"][0]["value"].as_str().unwrap();
        assert!(path.starts_with("/api/") && path.ends_with("/users") && path.len() == 27, "{path}");
    }
    assert_eq!((names["acme"], names["secret1"].len()), ("acme", 16));
    let statuses = |lines: &[Value]| lines.iter().map(|line| line["status"].clone()).collect::<Vec<_>>();
    assert_eq!(statuses(&hashed), statuses(&all));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_misses_lines_and_nobody_waits() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let mut stream = TcpStream::connect(app.app.admin).await.unwrap();
    stream.write_all(b"GET /v1/record HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    let mut read = vec![0; 4096];
    let length = stream.read(&mut read).await.unwrap();
    assert!(read[..length].starts_with(b"HTTP/1.1 200 OK"), "{}", String::from_utf8_lossy(&read));
    // More than the queue and both sockets take.
    let value = "v".repeat(900_000);
    let body = json!({"domain": "d", "descriptors": [entry("nothing", &value)]}).to_string();
    const ASKED: usize = 40;
    for _ in 0..ASKED {
        assert_eq!(app.post("/json", &body).await.status, 200);
    }
    read.truncate(length);
    let missed = until("the missed ones to be told", async || {
        let mut more = vec![0; 1 << 20];
        let length = stream.read(&mut more).await.map_err(|error| error.to_string())?;
        read.extend_from_slice(&more[..length]);
        let text = String::from_utf8_lossy(&read);
        let told: Vec<usize> = text
            .split("{\"missed\":")
            .skip(1)
            .filter_map(|rest| rest.split_once('}')?.0.parse().ok())
            .collect();
        let lines = text.matches("\"asked\"").count();
        if told.iter().sum::<usize>() + lines == ASKED { Ok(told) } else { Err(format!("{lines} {told:?}")) }
    })
    .await;
    assert!(missed.iter().sum::<usize>() >= 10, "{missed:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn recording_needs_the_token_and_a_share() {
    let app = TestApp::with_limits(LIMITS)
        .and_settings(|settings| {
            settings.admin.token = Some(Secret::new("let me in"));
            settings.admin.open_reads = true;
        })
        .start()
        .await;
    let get = async |path: &str, token: &str| {
        http::send(app.app.admin, "GET", path, &[("authorization", token)], "").await
    };
    assert_eq!(get("/v1/top", "").await.status, 200, "reads are open");
    assert_eq!(get("/v1/record", "").await.status, 401);
    for (query, field) in [
        ("sample=0", "sample"),
        ("sample=2", "sample"),
        ("sample=x", "sample"),
        ("hash_values=1", "hash_values"),
    ] {
        let answer = get(&format!("/v1/record?{query}"), "Bearer let me in").await;
        assert_eq!(answer.status, 400, "{query}");
        assert!(answer.json()["detail"].as_str().unwrap().starts_with(&format!("{field}: ")), "{answer:?}");
    }
    let mut readers = Vec::new();
    for _ in 0..4 {
        let mut stream = TcpStream::connect(app.app.admin).await.unwrap();
        let call = "GET /v1/record HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer let me in\r\n\r\n";
        stream.write_all(call.as_bytes()).await.unwrap();
        assert!(stream.read(&mut [0; 4096]).await.unwrap() > 0);
        readers.push(stream);
    }
    assert_eq!(get("/v1/record", "Bearer let me in").await.status, 503);
    let address = app.app.admin.to_string();
    let ran = run(&mut sluice(app.dir.path(), &["record", "--admin", &address, "file"]));
    assert!(ran.code == 1 && ran.stderr.contains("set SLUICE_ADMIN_TOKEN"), "{ran:?}");
    // Who records doesn't hold up a stop.
    tokio::time::timeout(Duration::from_secs(5), app.stop()).await.expect("it must stop");
}

#[tokio::test]
async fn a_recorder_outlives_its_server_and_says_what_it_is_given_wrongly() {
    let mut served = Sluice::with_limits(LIMITS).await;
    let recording = recorder(&served, &["file"]).await;
    ask(&served, json!([entry("tenant", "a")])).await;
    served.process.signal("TERM");
    served.process.exit().await;
    until("the recorder to notice", async || {
        let said = recording.stderr();
        if said.contains("has gone") { Ok(()) } else { Err(said) }
    })
    .await;
    assert_eq!(stopped(recording).await, "recorded 1 requests to file\n");
    assert_eq!(lines(&served.dir.path().join("file")).len(), 1);
    let admin = served.admin.to_string();
    for (arguments, said) in [
        (&["--admin", &admin, "file"][..], "no server at"),
        (&["--admin", &admin, "no/file"], "no/file can't be written"),
        (&["--sample", "0", "file"], "above 0% and at most 100%"),
        (&["--max-bytes", "10", "file"], "at least 1kB"),
        (&["--files", "0", "file"], "1..=1000"),
        (&[], "<FILE>"),
    ] {
        let ran = run(&mut sluice(served.dir.path(), &[&["record"], arguments].concat()));
        assert!(ran.code != 0 && ran.stderr.contains(said), "{said}: {ran:?}");
    }
}

const ROLLING: &str = "\
domain: d
limits:
  - {key: all, kind: rolling, capacity: 150, window_seconds: 1}
descriptors:
  - key: tenant
    limits:
      - {name: rps, kind: rolling, capacity: 40, window_seconds: 1}
      - {ref: all}
";

/// Callers that ask as fast as they are answered meet every border of a window, on several threads at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_recorded_run_replays_to_the_same_denials_one_for_one() {
    let app = TestApp::with_limits(ROLLING).start().await;
    let recording = recorder_of(app.app.admin, app.dir.path(), &["traffic.jsonl"]).await;
    let mut callers = JoinSet::new();
    for caller in 0..8 {
        let mut client = app.client();
        callers.spawn(async move {
            let asked = request(&format!("tenant=t{} x{}", caller % 3, 1 + caller % 2));
            let (mut denied, began) = (0u64, clock::instant());
            while began.elapsed() < Duration::from_millis(3_200) {
                let answer = client.should_rate_limit(asked.clone()).await.unwrap().into_inner();
                denied += u64::from(answer.overall_code() == pb::Code::OverLimit);
                tokio::time::sleep(Duration::from_millis(caller % 3)).await;
            }
            denied
        });
    }
    let denied: u64 = callers.join_all().await.into_iter().sum();
    stopped(recording).await;
    let arguments = ["simulate", "--config-dir", ".", "--json", "traffic.jsonl"];
    let ran = run(&mut sluice(app.dir.path(), &arguments));
    assert_eq!(ran.code, 0, "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let lines = lines(&app.dir.path().join("traffic.jsonl")).len();
    assert!(denied > 100 && lines as u64 > denied + 100, "{denied} of {lines}");
    assert_eq!(report["recorded"], json!({"denied": denied, "agree": lines}), "{}", report["limits"]);
    assert_eq!((&report["requests"], &report["denied"]), (&json!(lines), &json!(denied)));
}
