//! The queue on the real TigerBeetle server: the same rows, and what only a ledger can do that others use too.

use std::time::Duration;

use serde_json::json;
use sluice::config::settings::secret::Secret;
use sluice::config::settings::value::LedgerUri;

use crate::queue::{a_burst_that_fits, a_crowd, ask, look, queue, until_state};
use crate::queue_rows::{LIMITS, POLICY, run_all};
use crate::testapp::TestApp;
use crate::tigerbeetle::Server;
use crate::wait::until;

async fn start(server: &Server, policy: &str) -> TestApp {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let builder = TestApp::with_limits(LIMITS).and_file("retry_policy.yaml", policy);
    let builder = builder.and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 5000;
        settings.leases.secrets = vec![Secret::new("a secret that all have")];
    });
    let app = builder.start().await;
    app.readiness(200).await;
    app
}

#[tokio::test(flavor = "multi_thread")]
async fn rows() {
    let server = Server::start();
    let app = start(&server, POLICY).await;
    run_all(&app).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_is_served_in_order() {
    let server = Server::start();
    let app = start(&server, "retry_policy: {queue: {pickup_seconds: 60}}").await;
    tokio::time::timeout(Duration::from_secs(120), a_crowd(&app)).await.expect("nobody must wait for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_that_fits_does_not_queue() {
    let server = Server::start();
    a_burst_that_fits(&start(&server, POLICY).await).await;
}

/// What nobody picked up is given back, however long the ledger is away when its time is over.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_picks_up_comes_back_after_an_outage() {
    let mut server = Server::start();
    let app = start(&server, POLICY).await;
    let held = queue(&app, &ask("held", 1)).await.json();
    let [unclaimed, next] =
        [queue(&app, &ask("held", 1)).await.json(), queue(&app, &ask("held", 1)).await.json()];
    let body = json!({"lease_token": held["lease_token"]});
    assert_eq!(app.post("/v1/complete", &body.to_string()).await.json()["ok"], true);
    until("the next to be served", async || match app.get("/metrics").await.body {
        metrics if metrics.contains("sluice_queue_jobs_total{event=\"reserved\"} 1\n") => Ok(()),
        metrics => Err(metrics),
    })
    .await;
    server.kill();
    // 2 s until its time is over, and 10 s that whoever gives it back waits for the ledger.
    tokio::time::sleep(Duration::from_secs(13)).await;
    assert_eq!(look(&app, &unclaimed).await["state"], "timed_out");
    server.restart();
    until_state(&app, &next, "reserved").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_another_instance_gives_back_is_noticed() {
    let server = Server::start();
    let (one, two) = (start(&server, POLICY).await, start(&server, POLICY).await);
    let held = queue(&one, &ask("held", 1)).await.json();
    let waits = queue(&two, &ask("held", 1)).await;
    assert_eq!(waits.status, 202, "{waits:?}");
    let body = json!({"lease_token": held["lease_token"]});
    assert_eq!(one.post("/v1/complete", &body.to_string()).await.json()["ok"], true);
    until_state(&two, &waits.json(), "reserved").await;
}

/// The promise comes from the ledger: what another instance used up, and when.
#[tokio::test(flavor = "multi_thread")]
async fn a_promise_knows_what_others_hold() {
    let server = Server::start();
    let policy = "retry_policy: {queue: {safety_margin: 0, max_seconds: 3600}}";
    let (one, two) = (start(&server, policy).await, start(&server, policy).await);
    queue(&one, &ask("tokens", 100)).await;
    let waits = queue(&two, &ask("tokens", 1)).await.json();
    // An hour, less what has passed since; evenly it would be 36 seconds.
    let promised = until("a promise", async || match look(&two, &waits).await["eta_seconds"].as_u64() {
        Some(seconds) if seconds > 100 => Ok(seconds),
        other => Err(format!("{other:?}")),
    })
    .await;
    assert!((3500..=3600).contains(&promised), "{promised}");
}
