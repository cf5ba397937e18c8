//! A network that is cut between a sidecar and its hub, both ways and one way: nothing is lost and nothing counts twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use sluice::config::settings::value::LedgerUri;
use sluice::ledger::{Keep, Ledger, Verdict};
use sluice::limit::LeaseId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::hub::{address, balance, hub_on, open, ready, sidecar};
use crate::testapp::TestApp;
use crate::wait::until;
use crate::work::{account, chain, reserve};

/// Which way is cut.
const TO_HUB: u8 = 1;
const TO_SIDECAR: u8 = 2;

/// Forwards bytes, until it is told not to: then they are kept, as a network that drops packets makes TCP keep them.
struct Proxy {
    address: String,
    cut: Arc<AtomicU8>,
}

impl Proxy {
    async fn start(hub: &TestApp) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (to, cut) = (crate::hub::address(hub), Arc::new(AtomicU8::new(0)));
        let ways = Arc::clone(&cut);
        tokio::spawn(async move {
            while let Ok((sidecar, _)) = listener.accept().await {
                let Ok(hub) = TcpStream::connect(&to).await else { continue };
                let ((from_sidecar, to_sidecar), (from_hub, to_hub)) =
                    (sidecar.into_split(), hub.into_split());
                tokio::spawn(forward(from_sidecar, to_hub, Arc::clone(&ways), TO_HUB));
                tokio::spawn(forward(from_hub, to_sidecar, Arc::clone(&ways), TO_SIDECAR));
            }
        });
        Self { address, cut }
    }

    fn set(&self, cut: u8) {
        self.cut.store(cut, Ordering::Relaxed);
    }
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    cut: Arc<AtomicU8>,
    way: u8,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        while cut.load(Ordering::Relaxed) & way != 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}

/// Two ways, of which one is cut while callers reserve under names. What is behind them, one hub or two, shares a ledger.
async fn loses_nothing(hubs: [&TestApp; 2]) {
    let ways = [Proxy::start(hubs[0]).await, Proxy::start(hubs[1]).await];
    let sidecar = open(ways.iter().map(|way| way.address.clone()).collect(), Duration::from_secs(10));
    until("a hub", async || sidecar.ready()).await;
    let limit = account("cut");
    let mut admitted = 0;
    for (round, cut) in [TO_HUB, TO_SIDECAR, TO_HUB | TO_SIDECAR].into_iter().enumerate() {
        // Either may be the home. In turns each is cut.
        for (at, way) in ways.iter().enumerate() {
            let call = |n: u64| {
                let lease = LeaseId::parse(&format!("cut-{round}-{at}-{n}"));
                chain(lease, Keep::ForRetries, vec![reserve(&limit, 1, 1_000_000, 3600)])
            };
            for n in 0..20 {
                if n == 5 {
                    way.set(cut);
                }
                let outcome = sidecar.apply(&call(n)).await.unwrap();
                assert_eq!(outcome.verdict, Verdict::Done);
                admitted += 1;
            }
            way.set(0);
        }
    }
    assert_eq!(balance(&sidecar, &limit, 1_000_000).await.used, admitted);
    let peers = async |hub: &TestApp| match hub.get("/v1/peers").await.json()["peers"].as_array() {
        Some(peers) => peers.len(),
        None => 0,
    };
    let is_one = std::ptr::eq(hubs[0], hubs[1]);
    until("both ways to be used again", async || match [peers(hubs[0]).await, peers(hubs[1]).await] {
        [2, 2] if is_one => Ok(()),
        [1, 1] if !is_one => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_way_that_is_cut_is_left_and_nothing_counts_twice() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    loses_nothing([&hub, &hub]).await;
}

#[cfg(feature = "tigerbeetle")]
#[tokio::test(flavor = "multi_thread")]
async fn a_hub_that_is_cut_off_is_left_and_nothing_counts_twice_on_tigerbeetle() {
    let server = crate::tigerbeetle::Server::start();
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    let hubs = [hub_on(uri.clone()).start().await, hub_on(uri).start().await];
    ready(&hubs[0]).await;
    ready(&hubs[1]).await;
    loses_nothing([&hubs[0], &hubs[1]]).await;
}

const LIMITS: &str = "
domain: d
limits:
- {key: hot, kind: rolling, capacity: 100000, window_seconds: 60}
descriptors:
- {key: k, limits: [{ref: hot}]}
";

/// Slabs go on while the only hub is cut off; then it is unready and says why; then all is as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_whose_only_hub_is_cut_off_recovers() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let way = Proxy::start(&hub).await;
    assert_ne!(way.address, address(&hub));
    let addresses = vec![way.address.clone()];
    let app = sidecar(LIMITS, &[&hub]).and_settings(move |settings| {
        settings.ledger.uri = LedgerUri::Hub { addresses };
        settings.ledger.timeout_ms = 300;
    });
    let app = app.start().await;
    ready(&app).await;
    assert_eq!(app.say("k=v").await, "ok 99999/100000 minute hot");
    until("a slab that answers although the hub is cut off", async || {
        way.set(0);
        ready(&app).await;
        until("a slab", async || {
            for _ in 0..5 {
                app.say("k=v").await;
            }
            let slab = app.get("/v1/limits/hot").await.json()["slab"].clone();
            let is_enough = slab["held"].as_u64() > Some(0) && slab["ends_in_ms"].as_u64() > Some(500);
            if is_enough { Ok(()) } else { Err(slab.to_string()) }
        })
        .await;
        way.set(TO_HUB | TO_SIDECAR);
        let said = app.say("k=v").await;
        if said.starts_with("ok ") { Ok(()) } else { Err(said) }
    })
    .await;
    way.set(TO_SIDECAR);
    until("to be unready", async || {
        let answer = app.get("/readyz").await;
        let is_so = answer.status == 503 && answer.body.contains("it has said nothing for 2 s");
        if is_so { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    assert!(app.say("k=v").await.starts_with("Unavailable: "));
    way.set(0);
    ready(&app).await;
    assert!(app.say("k=v").await.starts_with("ok "));
}
