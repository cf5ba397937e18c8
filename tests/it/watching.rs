//! What people and programs watch: the heaviest limits, events, explanations, and the page's files and stream.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::{Value, json};
use sluice::config::settings::secret::Secret;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::http;
use crate::testapp::TestApp;

const LIMITS: &str = "\
domain: d
limits:
  - {key: gpus, kind: concurrency, capacity: 2, timeout_seconds: 60}
descriptors:
  - key: tenant
    rate_limit: {unit: hour, requests_per_unit: 3, name: rph}
  - key: dark
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
";

const SOON: Duration = Duration::from_secs(10);

async fn ask(app: &TestApp, entry: (&str, &str), hits: u64) -> u16 {
    app.post("/json", &request(entry, hits)).await.status
}

fn request((key, value): (&str, &str), hits: u64) -> String {
    let descriptor = json!({"entries": [{"key": key, "value": value}], "hitsAddend": hits.to_string()});
    json!({"domain": "d", "descriptors": [descriptor]}).to_string()
}

/// A stream of server-sent events.
struct Events {
    stream: TcpStream,
    read: String,
}

impl Events {
    async fn open(admin: SocketAddr, path: &str, headers: &str) -> Self {
        let mut stream = TcpStream::connect(admin).await.unwrap();
        let call = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(call.as_bytes()).await.unwrap();
        let mut events = Self { stream, read: String::new() };
        while !events.read.contains("\r\n\r\n") {
            assert!(events.more().await, "{}", events.read);
        }
        assert!(events.read.contains("text/event-stream"), "{}", events.read);
        events
    }

    /// False at the end.
    async fn more(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = tokio::time::timeout(SOON, self.stream.read(&mut bytes)).await;
        let read = read.unwrap_or_else(|_| panic!("nothing more came: {}", self.read)).unwrap();
        self.read.push_str(&String::from_utf8_lossy(&bytes[..read]));
        read > 0
    }

    /// The first event of this name that has come, or comes.
    async fn next(&mut self, name: &str) -> Value {
        loop {
            let begin = format!("event: {name}\ndata: ");
            if let Some((_, after)) = self.read.split_once(&begin)
                && let Some((data, _)) = after.split_once("\n\n")
            {
                // A chunk's length may stand in between: an event is written at once.
                let found = serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {data}"));
                self.read = after[data.len()..].to_owned();
                return found;
            }
            assert!(self.more().await, "the stream ended: {}", self.read);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_heaviest_are_counted_by_requests_and_by_units() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for (tenant, hits, times) in [("a", 1, 5), ("b", 3, 2)] {
        for _ in 0..times {
            ask(&app, ("tenant", tenant), hits).await;
        }
    }
    ask(&app, ("dark", "x"), 1).await;
    let top = async |query: &str| {
        let answer = app.get(&format!("/v1/top{query}")).await.json();
        let keys = answer["keys"].as_array().unwrap().iter();
        let keys: Vec<String> = keys
            .map(|it| {
                assert_eq!((it["domain"].as_str(), it["error"].as_u64()), (Some("d"), Some(0)), "{it}");
                format!("{} {}", it["key"].as_str().unwrap(), it["count"])
            })
            .collect();
        (answer["by"].as_str().unwrap().to_owned(), keys.join(", "))
    };
    let row = |by: &str, keys: &str| (by.to_owned(), keys.to_owned());
    // Of a's five, three are admitted; of b's two, one, which takes all.
    assert_eq!(top("").await, row("denied", "d:tenant=a:rph 2, d:tenant=b:rph 1"));
    assert_eq!(top("?by=admitted").await, row("admitted", "d:tenant=a:rph 3, d:tenant=b:rph 1"));
    assert_eq!(top("?by=used&limit=1").await, row("used", "d:tenant=a:rph 3"));
    assert_eq!(top("?by=used&domain=d").await, row("used", "d:tenant=a:rph 3, d:tenant=b:rph 3"));
    assert_eq!(top("?domain=e").await, row("denied", ""));
    for wrong in ["?by=most", "?limit=0", "?limit=1001", "?limit=x"] {
        let answer = app.get(&format!("/v1/top{wrong}")).await;
        assert_eq!((answer.status, &answer.json()["error"]), (400, &"invalid_request".into()), "{wrong}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn derived_limits_are_listed_when_they_are_asked_for() {
    let app = TestApp::with_limits(LIMITS).start().await;
    for (tenant, times) in [("a", 1), ("b", 5), ("c", 2)] {
        for _ in 0..times {
            ask(&app, ("tenant", tenant), 1).await;
        }
    }
    let listed = async |query: &str| {
        let answer = app.get(&format!("/v1/limits{query}")).await.json();
        let keys: Vec<String> = answer["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["key"].as_str().unwrap().to_owned())
            .collect();
        keys.join(" ")
    };
    assert_eq!(listed("").await, "gpus");
    assert_eq!(listed("?sort=key").await, "d:tenant=a:rph d:tenant=b:rph d:tenant=c:rph gpus");
    assert_eq!(listed("?sort=used&limit=2").await, "d:tenant=b:rph d:tenant=c:rph");
    assert_eq!(listed("?sort=denied&limit=1").await, "d:tenant=b:rph");
    assert_eq!(listed("?prefix=d:tenant=c").await, "d:tenant=c:rph");
    assert_eq!(app.get("/v1/limits?sort=colour").await.status, 400);
    assert_eq!(app.get("/v1/limits?limit=0").await.status, 400);
}

/// Balances of ten thousand are read at most; the one that is used must be among them, whatever its name.
#[tokio::test(flavor = "multi_thread")]
async fn the_most_used_is_found_among_very_many() {
    let named = |n| format!("- {{key: a-{n:05}, kind: rolling, capacity: 10, window_seconds: 60}}\n");
    let many: String = (0..10_001).map(named).collect();
    let app = TestApp::with_limits(&format!(
        "domain: d\nlimits:\n{many}descriptors:\n- {{key: z, rate_limit: {{unit: hour, requests_per_unit: 9}}}}\n"
    ))
    .start()
    .await;
    ask(&app, ("z", "last"), 7).await;
    let found = app.get("/v1/limits?sort=used&limit=2").await.json();
    let used = |n: usize| format!("{} {}", found["limits"][n]["key"], found["limits"][n]["used"]);
    assert_eq!([used(0), used(1)], ["\"d:z=last:hour\" 7", "\"a-00000\" 0"], "{found}");
}

#[tokio::test(flavor = "multi_thread")]
async fn events_tell_of_denials_and_reloads() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let mut events = Events::open(app.app.admin, "/v1/events", "").await;
    for _ in 0..8 {
        ask(&app, ("tenant", "a"), 1).await;
    }
    let mut denials = 0;
    while denials < 5 {
        let denied = events.next("denied").await;
        assert_eq!(denied["key"], "d:tenant=a:rph");
        assert_eq!((&denied["domain"], &denied["reason"]), (&"d".into(), &"over_limit".into()));
        assert!(denied["time"].as_u64().unwrap() > 1_600_000_000_000 && denied["retry_after_ms"].is_u64());
        denials += denied["denials"].as_u64().unwrap();
    }
    assert_eq!(denials, 5);
    let file = app.dir.path().join("limits/0.yaml");
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: x")).unwrap();
    let reload = events.next("reload").await;
    assert_eq!((&reload["result"], &reload["version"]), (&"error".into(), &1.into()), "{reload}");
    assert_eq!(reload["problems"][0]["line"], 6, "{reload}");
    std::fs::write(&file, LIMITS.replace("requests_per_unit: 3", "requests_per_unit: 4")).unwrap();
    let reload = events.next("reload").await;
    assert_eq!(
        (&reload["result"], &reload["version"], &reload["problems"]),
        (&"ok".into(), &2.into(), &json!([]))
    );
    // Who watches does not hold up a stop.
    let stopping = tokio::spawn(app.stop());
    while tokio::time::timeout(SOON, events.more()).await.unwrap() {}
    tokio::time::timeout(SOON, stopping).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_explanation_says_what_a_request_would_meet_and_charges_nothing() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let explained = async |entry, hits| app.post("/v1/explain", &request(entry, hits)).await.json();
    let short = |answer: &Value| {
        let limits: Vec<Value> = answer["limits"].as_array().unwrap().clone();
        let limits: Vec<String> = limits
            .iter()
            .map(|it| {
                format!("{} {} {} {}", it["key"], it["amount"], it["passes"], it["reason"]).replace('"', "")
            })
            .collect();
        format!("{} {}", answer["overall_code"], limits.join("; ")).replace('"', "")
    };
    for _ in 0..2 {
        assert_eq!(short(&explained(("tenant", "a"), 3).await), "OK d:tenant=a:rph 3 true ");
    }
    assert_eq!(short(&explained(("tenant", "a"), 4).await), "OVER_LIMIT d:tenant=a:rph 4 false never_fits");
    assert_eq!(ask(&app, ("tenant", "a"), 2).await, 200);
    let over = explained(("tenant", "a"), 2).await;
    assert_eq!(short(&over), "OVER_LIMIT d:tenant=a:rph 2 false over_limit");
    assert_eq!((&over["limits"][0]["used"], &over["limits"][0]["available"]), (&2.into(), &1.into()));
    assert!(over["limits"][0]["origin"].as_str().unwrap().ends_with("limits/0.yaml:6"), "{over}");
    // A shadow never denies, and what no limit applies to passes.
    assert_eq!(short(&explained(("dark", "x"), 1).await), "OK d:dark=x:hour 1 false never_fits");
    assert_eq!(short(&explained(("nothing", "x"), 1).await), "OK ");
    assert_eq!(app.post("/v1/explain", "{}").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_page_is_served_to_all_and_its_data_to_those_who_have_the_token() {
    let app = TestApp::with_limits(LIMITS)
        .and_settings(|settings| settings.admin.token = Some(Secret::new("let me in")))
        .start()
        .await;
    for (path, kind) in [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")] {
        let answer = app.get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.header("content-type").starts_with(kind), "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        let policy = answer.header("content-security-policy");
        assert!(
            policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
            "{policy}"
        );
    }
    for path in ["/v1/live", "/v1/events", "/v1/top"] {
        assert_eq!(app.get(path).await.status, 401, "{path}");
    }
    let refused = http::send(app.app.admin, "POST", "/", &[], "{}").await;
    assert_eq!(refused.status, 401);
    let mut live =
        Events::open(app.app.admin, "/v1/live?prefix=g", "authorization: Bearer let me in\r\n").await;
    let overview = live.next("overview").await;
    assert_eq!(overview["limits"][0]["key"], "gpus");
    assert_eq!((&overview["ready"], &overview["ledger_up"]), (&Value::Null, &true.into()));
    assert_eq!(overview["config"]["version"], 1);
}
