//! Leases on the real TigerBeetle server: by any instance, and whatever becomes of the caller.

use std::time::Duration;

use serde_json::{Value, json};
use sluice::api::pb::lease as pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use sluice::config::settings::secret::Secret;
use sluice::config::settings::value::{LedgerUri, OnFailure, Share};
use sluice::service::reserve::{Ask, AskName, Grant, ReserveOutcome};

use crate::ask::request;
use crate::lease_rows::{run_all, run_forgotten};
use crate::lease_scenario::{LIMITS, Port, complete, lease_of, reserve};
use crate::leases::counted;
use crate::leases::load::{LOAD, thousands};
use crate::testapp::{Builder, TestApp};
use crate::tigerbeetle::Server;
use crate::unsent;
use crate::wait::until;

fn on(server: &Server) -> Builder {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    TestApp::with_limits(LIMITS).and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 5000;
        settings.leases.secrets = vec![Secret::new("a secret that all have")];
    })
}

async fn start(server: &Server) -> TestApp {
    let app = on(server).start().await;
    app.readiness(200).await;
    app
}

async fn until_used(app: &TestApp, key: &str, expected: u64) {
    until(key, async || match app.used(key).await {
        used if used == expected => Ok(()),
        used => Err(format!("{used} are used")),
    })
    .await;
}

fn want(row: &str, limit: &str, amount: u64) -> Value {
    json!({"requirements": [{"key": format!("d:row={row}:{limit}"), "amount": amount}]})
}

/// The lease of a request through Envoy.
async fn ask(app: &TestApp, text: &str) -> String {
    lease_of(&app.client().should_rate_limit(request(text)).await.unwrap().into_inner()).expect("a lease")
}

/// Names that this instance has forgotten, as every other instance has.
#[tokio::test(flavor = "multi_thread")]
async fn names_that_only_the_ledger_knows() {
    let server = Server::start();
    let app = on(&server).and_settings(|settings| settings.leases.book_max = 1).start().await;
    app.readiness(200).await;
    run_forgotten(&app).await;
}

/// Callers that leave before they have heard their answer hold nothing.
#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_never_sent_hold_nothing() {
    let server = Server::start();
    let app = on(&server).and_limits(&unsent::LIMITS.replace("domain: d", "domain: unsent")).start().await;
    app.readiness(200).await;
    unsent::reset_calls_hold_nothing(&app, "unsent").await;
    unsent::closed_calls_hold_nothing(&app, "unsent").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows() {
    let server = Server::start();
    let app = start(&server).await;
    run_all(&app, Port::Grpc).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn any_instance_completes_a_token_once() {
    let server = Server::start();
    let (one, two) = (start(&server).await, start(&server).await);
    let token = ask(&one, "row=a x10").await;
    // The plain id is in the book of the other one.
    let id = reserve(&one, Port::Http, want("b", "held", 1)).await;
    assert_eq!(complete(&two, Port::Http, json!({"lease_id": id["lease_id"]})).await["ok"], true);
    assert_eq!(two.used("d:row=b:held").await, 1);
    assert_eq!(complete(&two, Port::Http, json!({"lease_token": id["lease_token"]})).await["ok"], true);
    assert_eq!(two.used("d:row=b:held").await, 0);

    for app in [&two, &one, &two] {
        app.answers(&[&format!("phase=done lease_id={token} x4 -> bare")]).await;
        app.answers(&["used d:row=a:tokens -> 4", "used d:row=a:held -> 0"]).await;
    }
    // The one that reserved is gone; its lease is not.
    let token = ask(&one, "row=c x10").await;
    one.app.stop().await;
    two.answers(&[&format!("lease_id={token} x120 -> bare")]).await;
    two.answers(&["used d:row=c:tokens -> 10", "used d:row=c:held -> 0"]).await;
    let debt = two.get("/v1/limits/d%3Arow=c%3Atokens").await.json()["debt"].clone();
    assert_eq!(
        debt, 110,
        "as another instance sees it: 10 reserved, 120 used, 110 more than 100 have room for"
    );
}

/// A completion whose caller leaves before it is answered.
async fn cut(app: &TestApp, token: &str) {
    let mut client = app.client();
    let done = client.should_rate_limit(request(&format!("lease_id={token} x3")));
    assert!(tokio::time::timeout(Duration::from_millis(100), done).await.is_err(), "it answered");
}

/// Envoy gives a completion 20 ms by default.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_outlives_its_call() {
    let server = Server::start();
    let app = on(&server).and_settings(|settings| settings.ledger.timeout_ms = 400).start().await;
    app.readiness(200).await;
    let (first, second) = (ask(&app, "row=a x10").await, ask(&app, "row=a x10").await);
    server.signal("STOP");
    cut(&app, &first).await;
    // Also when the ledger is known to be away.
    app.readiness(503).await;
    cut(&app, &second).await;
    server.signal("CONT");
    app.readiness(200).await;
    until_used(&app, "d:row=a:held", 0).await;
    until_used(&app, "d:row=a:tokens", 6).await;
}

/// Whatever becomes of the server in the meantime, and also if a completion was under way when it went.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_waits_for_a_server_that_is_away_for_long() {
    let mut server = Server::start();
    let app = on(&server).and_settings(|settings| settings.ledger.timeout_ms = 400).start().await;
    app.readiness(200).await;
    let (first, second) = (ask(&app, "row=a x10").await, ask(&app, "row=a x10").await);
    server.signal("STOP");
    cut(&app, &first).await;
    app.readiness(503).await;
    cut(&app, &second).await;
    until("two that wait", async || {
        let metrics = app.get("/metrics").await.body;
        if metrics.contains("sluice_completions_waiting 2\n") { Ok(()) } else { Err(metrics) }
    })
    .await;
    server.kill();
    // A caller of the lease API hears that it has not happened yet.
    let third = complete(&app, Port::Http, json!({"lease_token": first})).await;
    assert_eq!(third["ok"], false, "{third}");
    server.restart();
    app.readiness(200).await;
    until_used(&app, "d:row=a:held", 0).await;
    until_used(&app, "d:row=a:tokens", 6).await;
    until("none that wait", async || {
        let metrics = app.get("/metrics").await.body;
        if metrics.contains("sluice_completions_waiting 0\n") { Ok(()) } else { Err(metrics) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stopping_waits_for_completions() {
    let server = Server::start();
    let (app, other) = (start(&server).await, start(&server).await);
    let token = ask(&app, "row=a x10").await;
    server.signal("STOP");
    let mut client = app.client();
    let done = client.should_rate_limit(request(&format!("lease_id={token} x3")));
    assert!(tokio::time::timeout(Duration::from_millis(100), done).await.is_err(), "it answered");
    let stopped = tokio::spawn(app.app.stop());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(!stopped.is_finished(), "it did not wait");
    server.signal("CONT");
    stopped.await.unwrap();
    other.readiness(200).await;
    other.answers(&["used d:row=a:tokens -> 3", "used d:row=a:held -> 0"]).await;
}

/// Neither through Envoy nor through the lease API, alone or in a batch.
#[tokio::test(flavor = "multi_thread")]
async fn a_caller_that_has_left_holds_nothing() {
    let server = Server::start();
    let app = start(&server).await;
    // The accounts are there, so that what follows is on its way at once.
    app.answers(&["row=a x1 -> ok …"]).await;
    let mut envoy = app.client();
    let mut leases = LeaseServiceClient::new(app.channel.clone());
    let mut alone = leases.clone();
    let one: pb::ReserveRequest = serde_json::from_value(want("a", "tokens", 10)).unwrap();
    let many: pb::ReserveBatchRequest =
        serde_json::from_value(json!({"requests": [want("a", "tokens", 10), want("a", "bytes", 10)]}))
            .unwrap();
    server.signal("STOP");
    let asks = async {
        let _ = tokio::join!(
            envoy.should_rate_limit(request("row=a x10")),
            alone.reserve(one),
            leases.reserve_batch(many),
        );
    };
    assert!(tokio::time::timeout(Duration::from_millis(100), asks).await.is_err(), "they answered");
    server.signal("CONT");
    app.readiness(200).await;
    for (limit, used) in [("held", 1), ("tokens", 1), ("bytes", 1)] {
        until_used(&app, &format!("d:row=a:{limit}"), used).await;
    }

    // One item of a batch was answered, the rest was not, and the caller left: the answer never reached it.
    let ask =
        Ask { name: AskName::Fresh, job_id: "", wants: vec![("d:row=a:tokens", 50), ("d:row=a:held", 1)] };
    let service = &app.app.service;
    let grant = granted(service.reserve(&ask).await.unwrap());
    assert_eq!(app.used("d:row=a:tokens").await, 51);
    drop(grant);
    until_used(&app, "d:row=a:tokens", 1).await;
    until_used(&app, "d:row=a:held", 1).await;
    let told = granted(service.reserve(&ask).await.unwrap());
    told.unsent.unwrap().sent();
    assert_eq!(app.used("d:row=a:tokens").await, 51);
    assert!(counted(&app, "voided_on_cancel").await >= 1);
}

fn granted(outcome: ReserveOutcome) -> Grant {
    match outcome {
        ReserveOutcome::Granted(grant) => grant,
        ReserveOutcome::Denied(denial) => panic!("{denial:?}"),
    }
}

/// As an instance with a new file sees a limit of which an older one holds more than it will have.
#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_is_decreasing_says_so() {
    let server = Server::start();
    let old = start(&server).await;
    let lease = reserve(&old, Port::Http, want("a", "tokens", 90)).await;
    let smaller = LIMITS.replacen("capacity: 100", "capacity: 50", 1);
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let new = TestApp::with_limits(&smaller).and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.leases.secrets = vec![Secret::new("a secret that all have")];
    });
    let new = new.start().await;
    new.readiness(200).await;
    for port in [Port::Http, Port::Grpc] {
        let denied = reserve(&new, port, want("a", "tokens", 1)).await;
        assert_eq!(denied["error"], "limit_decreasing:d:row=a:tokens", "{denied}");
        assert_eq!(denied["retry_after_ms"], 10_000);
        assert_eq!(denied["reason"], "limit_decreasing");
    }
    // Settling it is not refused, and makes the room that the decrease waits for.
    let actuals = json!([{"key": "d:row=a:tokens", "actual_amount": 20}]);
    let done = json!({"lease_token": lease["lease_token"], "actuals": actuals});
    assert_eq!(complete(&new, Port::Http, done).await["ok"], true);
    until("room", async || match reserve(&new, Port::Http, want("a", "tokens", 30)).await {
        answer if answer["allowed"] == true => Ok(()),
        answer => Err(answer.to_string()),
    })
    .await;
    new.answers(&["used d:row=a:tokens -> 50"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_ledger_is_away_the_policy_decides() {
    let mut server = Server::start();
    let mut apps = Vec::new();
    for policy in [OnFailure::Error, OnFailure::Allow, OnFailure::Deny] {
        let changed = on(&server).and_settings(move |settings| {
            settings.ledger.timeout_ms = 400;
            settings.ledger.on_failure = policy;
        });
        let app = changed.start().await;
        app.readiness(200).await;
        apps.push(app);
    }
    server.kill();
    for app in &apps {
        app.readiness(503).await;
    }
    let [error, allow, deny] = &apps[..] else { panic!("three apps") };
    let body = want("a", "tokens", 1).to_string();
    let answer = error.post("/v1/reserve", &body).await;
    assert_eq!((answer.status, &answer.json()["error"]), (503, &json!("backend_error")));
    assert!(answer.json()["detail"].as_str().unwrap().contains("not connected"), "{answer:?}");
    let answer = deny.post("/v1/reserve", &body).await;
    assert_eq!((answer.status, &answer.json()["error"]), (503, &json!("backend_error")));
    assert!(answer.json()["retry_after_ms"].as_u64().unwrap() > 0, "{answer:?}");
    // Nothing is held, so there is nothing to complete; who tries is none the wiser.
    let answer = allow.post("/v1/reserve", &body).await;
    assert_eq!((answer.status, &answer.json()["allowed"]), (200, &json!(true)), "{answer:?}");
    let done = complete(allow, Port::Http, json!({"lease_id": answer.json()["lease_id"]})).await;
    assert_eq!(done["ok"], true);
}

/// What was reserved on the stand-in comes back there.
#[tokio::test(flavor = "multi_thread")]
async fn the_stand_in_gives_back_what_it_gave() {
    let mut server = Server::start();
    let app = on(&server)
        .and_settings(|settings| {
            settings.ledger.timeout_ms = 400;
            settings.ledger.on_failure = OnFailure::Local;
            settings.ledger.local_share = "0.5".parse::<Share>().unwrap();
        })
        .start()
        .await;
    app.readiness(200).await;
    server.kill();
    app.readiness(503).await;
    for _ in 0..3 {
        let token = ask(&app, "row=a x20").await;
        app.answers(&["row=a x1 -> OVER d:row=a:held; over …"]).await;
        app.answers(&[&format!("lease_id={token} x10 -> bare")]).await;
    }
    app.answers(&["row=a x21 -> OVER d:row=a:tokens; over …", "row=a x20 -> ok …"]).await;
}

/// Sent while the server was away, and again when it is back: both ledgers hold it, and one completion frees both.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_the_stand_in_has_too_is_completed_on_both() {
    let mut server = Server::start();
    let app = on(&server)
        .and_settings(|settings| {
            settings.ledger.timeout_ms = 400;
            settings.ledger.on_failure = OnFailure::Local;
            // So that the ledgers are asked for a name that was used before.
            settings.leases.book_max = 1;
        })
        .start()
        .await;
    app.readiness(200).await;
    let reserve = async |id: &str| {
        let mut body = want("both", "held", 1);
        body["lease_id"] = json!(id);
        let answer = app.post("/v1/reserve", &body.to_string()).await;
        (answer.status, answer.json()["lease_token"].as_str().unwrap_or_default().to_owned())
    };
    server.kill();
    app.readiness(503).await;
    let (status, token) = reserve("job").await;
    assert_eq!(status, 200);
    server.restart();
    app.readiness(200).await;
    assert_eq!(reserve("other").await.0, 200, "the ledger is back");
    assert_eq!(reserve("job").await.0, 200);
    assert_eq!(app.used("d:row=both:held").await, 2);
    let done = complete(&app, Port::Http, json!({"lease_token": token})).await;
    assert_eq!(done["ok"], true, "{done}");
    until_used(&app, "d:row=both:held", 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_leases_leave_nothing_behind() {
    let server = Server::start();
    let app = on(&server).and_limits(LOAD).start().await;
    app.readiness(200).await;
    thousands(&app).await;
}
