//! `GET /v1/ledger`, and where two ledgers come from.

use serde_json::json;
use sluice::config::settings::value::LedgerUri;

use crate::http;
use crate::sluice::{Sluice, directory, run, serve};
use crate::testapp::TestApp;

const FREE: [&str; 4] = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

const LIMITS: &str = "
domain: d
limits:
- {key: named, kind: rolling, capacity: 10, window_seconds: 5}
descriptors:
- {key: a, limits: [{ref: named}]}
- key: b
  descriptors:
  - {key: c, limits: [{name: held, kind: concurrency, capacity: 3, timeout_seconds: 40}]}
";

async fn ledgers(app: &TestApp) -> Vec<(String, u64)> {
    let answer = app.get("/v1/ledger").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let body = answer.json();
    let ledgers = body["ledgers"].as_array().expect("a list").iter();
    let each = ledgers.map(|it| (it["uri"].as_str().unwrap().to_owned(), it["safe_after"].as_u64().unwrap()));
    each.collect()
}

#[tokio::test]
async fn the_new_ledger_is_safe_after_the_longest_lifetime_of_any_limit() {
    let before_ms = sluice::clock::unix_ms();
    let app = TestApp::with_limits(LIMITS)
        .and_settings(|settings| settings.ledger.successor = Some(LedgerUri::Memory))
        .start()
        .await;
    let shown = ledgers(&app).await;
    let [(old, began), (new, safe)] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!((old.as_str(), new.as_str()), ("memory", "memory"));
    assert!((before_ms..=sluice::clock::unix_ms()).contains(began), "{began}");
    assert_eq!(safe - began, 40_000, "the timeout of the derived limit");
    // It is a decision like any other.
    assert_eq!(app.post("/json", &ask()).await.status, 200);
    assert_eq!(app.get("/v1/limits/named").await.json()["used"], 1);
    let metrics = app.get("/metrics").await.body;
    let seconds = format!("sluice_ledger_safe_after_seconds {}", *safe as f64 / 1000.0);
    assert!(metrics.contains(&seconds) && metrics.contains("sluice_ledgers 2\n"), "{seconds}:\n{metrics}");

    let longer = json!({"key": "long", "kind": "rolling", "capacity": 1, "window_seconds": 100}).to_string();
    assert_eq!(app.send("PUT", "/v1/limits", &longer).await.status, 200);
    assert_eq!(ledgers(&app).await[1].1 - began, 100_000);
    assert_eq!(app.send("DELETE", "/v1/limits/long", "").await.status, 204);
    assert_eq!(ledgers(&app).await, shown);
}

/// A hub has no limits of its own: those of its sidecars count once they were asked for, as does one that a request brings
/// along.
#[tokio::test]
async fn what_a_hub_was_asked_for_counts() {
    let app = TestApp::with_limits(LIMITS)
        .and_settings(|settings| {
            settings.ledger.successor = Some(LedgerUri::Memory);
            settings.hub.listen = Some("127.0.0.1:0".parse().unwrap());
        })
        .start()
        .await;
    let began = ledgers(&app).await[0].1;
    assert_eq!(ledgers(&app).await[1].1 - began, 40_000);
    let a_day =
        json!({"entries": [{"key": "a", "value": "x"}], "limit": {"requestsPerUnit": 5, "unit": "DAY"}});
    let asked = app.post("/json", &json!({"domain": "d", "descriptors": [a_day]}).to_string()).await;
    assert_eq!(asked.status, 200, "{asked:?}");
    assert_eq!(ledgers(&app).await[1].1 - began, 86_400_000);
}

fn ask() -> String {
    json!({"domain": "d", "descriptors": [{"entries": [{"key": "a", "value": "x"}]}]}).to_string()
}

#[tokio::test]
async fn one_ledger_has_known_enough_since_the_start() {
    let app = TestApp::with_limits(LIMITS).start().await;
    let shown = ledgers(&app).await;
    assert_eq!(shown.len(), 1);
    assert!(shown[0].1 <= sluice::clock::unix_ms());
}

#[tokio::test]
async fn two_ledgers_come_from_two_flags_or_one_variable() {
    let files = [("config/limits/limits.yaml", LIMITS), ("config/sluice.yaml", "ledger: {uri: memory}")];
    for by_variable in [false, true] {
        let dir = directory(&files);
        let mut command = serve(dir.path(), &FREE);
        if by_variable {
            command.env("SLUICE_LEDGER", "memory;memory");
        } else {
            command.args(["--ledger", "memory", "--ledger", "memory"]);
        }
        let sluice = Sluice::start(dir, command).await;
        let body = http::get(sluice.admin, "/v1/ledger").await.json();
        assert_eq!(body["ledgers"].as_array().map(Vec::len), Some(2), "{body}");
    }
    let dir = directory(&files);
    let ran = run(serve(dir.path(), &FREE).args(["--ledger", "memory"].repeat(3)));
    assert_eq!(ran.code, 1);
    let expected = "sluice: --ledger must be one ledger, or two while the second replaces the first, not 3\n";
    assert_eq!(ran.stderr, expected);
}
