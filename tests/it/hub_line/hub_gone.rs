//! A hub that stops or is killed takes its line with it.

use serde_json::json;
use sluice::config::settings::value::LedgerUri;

use super::{depth, metric};
use crate::http;
use crate::hub::{hub_on, ready, sidecar};
use crate::queue::{ask, queue};
use crate::queue_rows::LIMITS;
use crate::sluice::{Sluice, directory, serve};
use crate::testapp::TestApp;
use crate::wait::until;

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_stops_takes_its_line_with_it_and_says_so() {
    let hubs = [hub_on(LedgerUri::Memory).start().await, hub_on(LedgerUri::Memory).start().await];
    let a = sidecar(LIMITS, &[&hubs[0], &hubs[1]]).start().await;
    ready(&a).await;
    until("both hubs", async || {
        let peers = a.get("/readyz").await;
        let there: f64 =
            metric(&hubs[0], "sluice_hub_streams").await + metric(&hubs[1], "sluice_hub_streams").await;
        if there == 2.0 { Ok(()) } else { Err(format!("{there} {peers:?}")) }
    })
    .await;
    let [first, second] = hubs;
    queue(&a, &ask("held", 1)).await;
    let waits = queue(&a, &ask("held", 1)).await.json();
    let is_at_first = metric(&first, "sluice_queue_depth").await == 1.0;
    let (home, other) = if is_at_first { (first, second) } else { (second, first) };
    home.stop().await;
    let gone = a.get(&format!("/v1/leases/{}", waits["lease_id"].as_str().unwrap())).await;
    assert_eq!((gone.status, &gone.json()["error"]), (404, &json!("unknown_lease")), "{gone:?}");
    assert!(gone.json()["detail"].as_str().unwrap().contains("ask again"), "{gone:?}");
    // In memory the other hub has a ledger of its own, which is empty.
    assert_eq!(queue(&a, &ask("held", 1)).await.status, 200);
    assert_eq!(queue(&a, &ask("held", 1)).await.json()["position"], 0);
    depth(&other, 1.0).await;
    other.stop().await;
    until("an error", async || {
        let said = queue(&a, &ask("held", 1)).await;
        let is_so =
            said.status == 503 && said.json()["detail"].as_str().unwrap().contains("no hub can be used");
        if is_so { Ok(()) } else { Err(format!("{said:?}")) }
    })
    .await;
    assert_eq!(a.get("/v1/leases/nobody").await.status, 503);
}

/// Real processes: the hub that keeps the line is killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_killed_loses_its_line_and_the_next_one_begins_another() {
    let mut hubs = Vec::new();
    for _ in 0..2 {
        let dir = directory(&[]);
        let ports = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--hub", "127.0.0.1:0"];
        let command = serve(dir.path(), &ports);
        let mut hub = Sluice::start(dir, command).await;
        let address = hub.process.line("hub listening on ").await;
        hubs.push((hub, address));
    }
    let addresses: Vec<String> = hubs.iter().map(|(_, address)| address.clone()).collect();
    let a = TestApp::with_limits(LIMITS)
        .and_settings(move |settings| settings.ledger.uri = LedgerUri::Hub { addresses })
        .start()
        .await;
    ready(&a).await;
    let depth = async |hub: &Sluice| {
        let body = http::get(hub.admin, "/metrics").await.body;
        body.lines().any(|line| line == "sluice_queue_depth 1")
    };
    until("both hubs", async || {
        let mut there = 0;
        for (hub, _) in &hubs {
            let metrics = http::get(hub.admin, "/metrics").await.body;
            there += usize::from(metrics.contains("sluice_hub_streams 1"));
        }
        if there == 2 { Ok(()) } else { Err(format!("{there}")) }
    })
    .await;
    queue(&a, &ask("held", 1)).await;
    let mut body = ask("held", 1);
    body["lease_id"] = json!("mine");
    assert_eq!(queue(&a, &body).await.status, 202);
    let at = if depth(&hubs[0].0).await { 0 } else { 1 };
    assert!(depth(&hubs[at].0).await);
    hubs[at].0.process.signal("KILL");
    until("its end", async || match a.get("/v1/leases/mine").await {
        gone if gone.status == 404 => Ok(()),
        said => Err(format!("{said:?}")),
    })
    .await;
    // The other hub's ledger is empty, so that somebody has to be there first.
    assert_eq!(queue(&a, &ask("held", 1)).await.status, 200);
    let again = queue(&a, &body).await;
    assert_eq!((again.status, &again.json()["position"]), (202, &json!(0)), "{again:?}");
    assert!(depth(&hubs[1 - at].0).await);
}
