//! A capacity that falls on the real TigerBeetle server, with a restart of Sluice in the middle.

use std::fs;

use serde_json::{Value, json};
use sluice::config::settings::value::LedgerUri;

use crate::live::within;
use crate::testapp::{Builder, TestApp};
use crate::tigerbeetle::Server;
use crate::wait::until;

const HELD_SECONDS: u32 = 6;

fn limits(capacity: u64) -> String {
    format!(
        "domain: d\n\
         limits: [{{key: shared, kind: rolling, capacity: {capacity}, window_seconds: {HELD_SECONDS}}}]\n\
         descriptors:\n\
         - {{key: all, limits: [{{ref: shared}}]}}\n\
         - {{key: own, limits: [{{name: n, kind: rolling, capacity: {capacity}, window_seconds: {HELD_SECONDS}}}]}}\n"
    )
}

async fn start(builder: Builder, server: &Server) -> TestApp {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let app = builder.and_settings(move |settings| settings.ledger.uri = uri).start().await;
    app.readiness(200).await;
    app
}

fn remembered(app: &TestApp) -> Vec<Value> {
    let text = fs::read_to_string(app.dir.path().join("state/limits.json")).unwrap_or_default();
    let state: Value = serde_json::from_str(&text).unwrap_or_default();
    state["limits"].as_array().cloned().unwrap_or_default()
}

async fn is(app: &TestApp, key: &str, status: &str) -> Result<Value, String> {
    let limit = app.limit(key).await.unwrap();
    if limit["status"] == status { Ok(limit) } else { Err(limit.to_string()) }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrease_survives_a_restart() {
    let server = Server::start();
    let app = start(TestApp::with_limits(&limits(10)), &server).await;
    assert!(app.say("all=x x8 + own=x x8").await.starts_with("ok "));
    fs::write(app.dir.path().join("limits/0.yaml"), limits(5)).unwrap();
    let limit = within("decreasing", async || is(&app, "shared", "decreasing").await).await;
    assert_eq!((&limit["capacity"], &limit["pending_decrease_to"]), (&10.into(), &5.into()));
    // The one of its own is found out by the next request, as there may be millions.
    assert!(app.say("own=x").await.starts_with("limit_decreasing d:own=x:n;"));
    assert!(app.say("own=x x0").await.starts_with("limit_decreasing d:own=x:n;"), "a look hears the same");
    within("both in the state", async || {
        let remembered = remembered(&app);
        if remembered.len() == 2 { Ok(()) } else { Err(format!("{remembered:?}")) }
    })
    .await;
    let expected = json!({
        "definition": {"key": "shared", "kind": "rolling", "capacity": 10, "window_seconds": HELD_SECONDS,
                       "unit": "", "description": "", "overage": "deny"},
        "status": "decreasing", "pending_decrease_to": 5, "owner": "file",
    });
    assert_eq!(remembered(&app)[1], expected);

    let app = start(Builder::in_dir(app.stop().await), &server).await;
    for key in ["shared", "d:own=x:n"] {
        is(&app, key, "decreasing").await.unwrap_or_else(|limit| panic!("at once: {limit}"));
    }
    assert!(app.say("all=x").await.starts_with("limit_decreasing shared;"));
    // Nobody asks for it: it goes on by itself.
    for key in ["shared", "d:own=x:n"] {
        let limit = until("active", async || is(&app, key, "active").await).await;
        assert_eq!((&limit["capacity"], &limit["used"]), (&5.into(), &0.into()), "{key}");
    }
    within("nothing in the state", async || {
        let remembered = remembered(&app);
        if remembered.is_empty() { Ok(()) } else { Err(format!("{remembered:?}")) }
    })
    .await;
    assert!(app.say("own=x x0").await.starts_with("ok "));
    assert!(app.say("all=x x5 + own=x x5").await.starts_with("ok "));
    app.app.stop().await;
}

/// What settled while nobody ran, and what no file has any more, is forgotten at the next start.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_arrived_in_the_meantime_is_forgotten() {
    let server = Server::start();
    let app = start(TestApp::with_limits(&limits(10)), &server).await;
    let dir = app.stop().await;
    let entry = |key: &str| {
        json!({"definition": {"key": key, "kind": "rolling", "capacity": 20, "window_seconds": 6},
               "status": "decreasing", "pending_decrease_to": 10, "owner": "file"})
    };
    let state = json!({"version": 1, "limits": [entry("shared"), entry("d:gone=x:n"), entry("d:own=x:n")]});
    fs::create_dir(dir.path().join("state")).unwrap();
    fs::write(dir.path().join("state/limits.json"), state.to_string()).unwrap();
    let app = start(Builder::in_dir(dir), &server).await;
    until("nothing in the state", async || {
        let remembered = remembered(&app);
        if remembered.is_empty() { Ok(()) } else { Err(format!("{remembered:?}")) }
    })
    .await;
    app.app.stop().await;
}

/// The ledger is away: a limit of the API is saved, live, and made when it is back.
#[tokio::test(flavor = "multi_thread")]
async fn limits_are_made_when_the_ledger_is_back() {
    let mut server = Server::start();
    let app = start(TestApp::with_limits(&limits(10)), &server).await;
    server.kill();
    app.readiness(503).await;
    let body = r#"{"key": "night", "kind": "rolling", "capacity": 7, "window_seconds": 60}"#;
    let put = app.send("PUT", "/v1/limits", body).await;
    assert_eq!(
        (put.status, &put.json()["capacity"], &put.json()["used"]),
        (200, &7.into(), &Value::Null),
        "{put:?}"
    );
    fs::write(app.dir.path().join("limits/0.yaml"), limits(20)).unwrap();
    within("the reload", async || if app.version().await == 3 { Ok(()) } else { Err(String::new()) }).await;
    server.restart();
    let named =
        ["night", "shared"].map(|key| app.app.service.live.load().registry.get_named(key).cloned().unwrap());
    until("accounts", async || {
        let funded = named.each_ref().map(|limit| limit.account.funded());
        if funded == [Some(7), Some(20)] { Ok(()) } else { Err(format!("{funded:?}")) }
    })
    .await;
    app.app.stop().await;
}
