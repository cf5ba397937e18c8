//! `GET /v1/peers`, and a thousand streams on one hub.

use sluice::api::pb;
use sluice::config::settings::value::LedgerUri;
use sluice::ledger::Ledger;

use crate::ask::request;
use crate::hub::{address, hub_on, open, ready, sidecar};
use crate::testapp::TestApp;
use crate::wait::until;

const LIMITS: &str = "
domain: d
limits:
- {key: hot, kind: rolling, capacity: 100000, window_seconds: 60}
descriptors:
- {key: k, limits: [{ref: hot}]}
- {key: busy, rate_limit: {unit: day, requests_per_unit: 1000000, exact: true}}
";

/// What a request holds, of one hub that this many sidecars use at the same time.
const STREAMS: usize = 1_000;

#[tokio::test(flavor = "multi_thread")]
async fn a_hub_lists_its_sidecars_and_what_their_slabs_hold() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let app = sidecar(LIMITS, &[&hub]).start().await;
    ready(&app).await;
    // So much is asked all the time that the stream is never quiet.
    let mut client = app.client();
    let busy =
        tokio::spawn(async move { while client.should_rate_limit(request("busy=1")).await.is_ok() {} });
    let peer = until("a slab to be seen", async || {
        for _ in 0..20 {
            let answer = app.client().should_rate_limit(request("k=v")).await.unwrap().into_inner();
            assert_eq!(answer.overall_code(), pb::Code::Ok);
        }
        let peers = hub.get("/v1/peers").await.json();
        let peer = peers["peers"][0].clone();
        let holds = peer["slabs"][0]["held"].as_u64().is_some_and(|held| held > 0);
        if holds { Ok(peer) } else { Err(peers.to_string()) }
    })
    .await;
    busy.abort();
    assert_eq!(peer["slabs"][0]["key"], "hot");
    assert_eq!(peer["version"], env!("CARGO_PKG_VERSION"));
    let port = format!(":{}", app.grpc().port());
    assert!(peer["name"].as_str().is_some_and(|name| name.ends_with(&port)), "{peer}");
    assert!(peer["address"].as_str().is_some_and(|address| address.starts_with("127.0.0.1:")), "{peer}");
    assert!(peer["chains_per_second"].as_f64().is_some_and(|rate| rate > 0.0), "{peer}");
    let metrics = hub.get("/metrics").await.body;
    assert!(metrics.contains("\nsluice_hub_streams 1\n"), "{metrics}");
    assert!(!metrics.contains("\nsluice_hub_chains_total 0\n"), "{metrics}");
    assert_eq!(app.get("/v1/peers").await.body, r#"{"peers":[]}"#, "a sidecar is no hub");
    // A sidecar that stops gives its slabs back first: only what was handed out stays.
    let handed_out = counter(&app, "sluice_slab_units_total{event=\"handed_out\"}").await
        + counter(&app, "sluice_slab_answers_total{from=\"ledger\"}").await;
    app.stop().await;
    until("the sidecar to be gone", async || {
        let body = hub.get("/v1/peers").await.body;
        if body == r#"{"peers":[]}"# { Ok(()) } else { Err(body) }
    })
    .await;
    let other = sidecar(LIMITS, &[&hub]).start().await;
    ready(&other).await;
    assert_eq!(other.used("hot").await, handed_out);
}

async fn counter(app: &TestApp, name: &str) -> u64 {
    let text = app.get("/metrics").await.body;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.unwrap_or_else(|| panic!("{name} is not in {text}")).trim().parse().unwrap()
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Both ends are in this process, so that it holds twice what a hub does.
#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_streams_cost_little() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let before = resident_kib();
    let mut sidecars = Vec::new();
    for _ in 0..STREAMS {
        sidecars.push(open(vec![address(&hub)], crate::hub::TIMEOUT));
    }
    for sidecar in &sidecars {
        until("a hub", async || sidecar.ready()).await;
    }
    let limit = crate::work::account("many");
    let calls = sidecars.iter().map(|sidecar| {
        let transfers = vec![crate::work::reserve(&limit, 1, 10_000, 3600)];
        let chain = crate::work::chain(crate::work::fresh(), sluice::ledger::Keep::Nothing, transfers);
        async move { sidecar.apply(&chain).await.unwrap().verdict }
    });
    let verdicts = futures_util::future::join_all(calls).await;
    assert!(verdicts.iter().all(|verdict| *verdict == sluice::ledger::Verdict::Done));
    assert_eq!(crate::hub::balance(&sidecars[0], &limit, 10_000).await.used, STREAMS as u64);
    let peers = hub.get("/v1/peers").await.json();
    assert_eq!(peers["peers"].as_array().map(Vec::len), Some(STREAMS));
    let each = (resident_kib() - before) / STREAMS as u64;
    println!("{each} KiB for both ends of a stream");
    assert!(each < 400, "{each} KiB for both ends of a stream");
}
