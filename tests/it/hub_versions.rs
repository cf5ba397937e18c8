//! A sidecar at hubs of other versions. The hub of another version is a real one behind a relay that takes out what that
//! version doesn't know, from what it hears and from what it says.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sluice::config::settings::value::LedgerUri;
use sluice::ledger::hub::pb;
use sluice::ledger::hub::pb::answer::What as Answer;
use sluice::ledger::hub::pb::ask::What as Ask;
use sluice::ledger::hub::pb::ledger_service_client::LedgerServiceClient;
use sluice::ledger::hub::pb::ledger_service_server::{LedgerService, LedgerServiceServer};
use tokio::task::AbortHandle;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request, Response, Status, Streaming};

use crate::hub::{address, hub_on, ready, sidecar_of};
use crate::queue::{ask, queue};
use crate::testapp::TestApp;

const LIMITS: &str = "
domain: d
descriptors:
- key: row
  limits:
  - {name: held, kind: concurrency, capacity: 1, timeout_seconds: 600}
- {key: few, rate_limit: {unit: hour, requests_per_unit: 5}}
- key: hot
  limits:
  - {name: minute, kind: rolling, capacity: 100000, window_seconds: 60}
";

/// A hub that speaks version 1.`minor`.
struct Relay {
    address: String,
    samples_asked: Arc<AtomicUsize>,
    serving: AbortHandle,
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Relay {
    async fn to(hub: &TestApp, minor: u32) -> Self {
        let listener = tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
        let own = listener.local_addr().unwrap().to_string();
        let samples_asked = Arc::new(AtomicUsize::new(0));
        let relaying = Relaying { hub: address(hub), minor, samples_asked: Arc::clone(&samples_asked) };
        let server = tonic::transport::Server::builder().add_service(LedgerServiceServer::new(relaying));
        let serving =
            tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener))).abort_handle();
        Self { address: own, samples_asked, serving }
    }

    async fn sidecar(&self) -> TestApp {
        let app = sidecar_of(LIMITS, vec![self.address.clone()]).start().await;
        ready(&app).await;
        app
    }
}

struct Relaying {
    hub: String,
    minor: u32,
    samples_asked: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl LedgerService for Relaying {
    type OpenStream = Pin<Box<dyn Stream<Item = Result<pb::HubMessage, Status>> + Send>>;

    async fn open(
        &self,
        request: Request<Streaming<pb::SidecarMessage>>,
    ) -> Result<Response<Self::OpenStream>, Status> {
        let (minor, samples_asked) = (self.minor, Arc::clone(&self.samples_asked));
        let heard = request.into_inner().map_while(Result::ok).map(move |mut message| {
            if minor < 3 {
                message.loan_ends.clear();
            }
            for ask in &mut message.asks {
                if matches!(ask.what, Some(Ask::Samples(_))) {
                    samples_asked.fetch_add(1, Ordering::Relaxed);
                }
                if let Some(Ask::Apply(chain)) = &mut ask.what
                    && minor < 3
                {
                    chain.slab_window_seconds = 0;
                }
                if minor < 1 {
                    // Whoever doesn't know a field reads an ask without it.
                    ask.what.take_if(|what| matches!(what, Ask::Join(_) | Ask::Find(_) | Ask::Leave(_)));
                }
            }
            message
        });
        let client = LedgerServiceClient::connect(format!("http://{}", self.hub)).await;
        let mut client = client.map_err(|error| Status::unavailable(error.to_string()))?;
        let said = client.open(heard).await?.into_inner().map(move |message| {
            let mut message = message?;
            if let Some(hello) = &mut message.hello {
                hello.minor = minor;
            }
            for answer in &mut message.answers {
                if let Some(Answer::Outcome(outcome)) = &mut answer.what
                    && minor < 2
                {
                    outcome.samples.clear();
                }
            }
            Ok(message)
        });
        Ok(Response::new(Box::pin(said)))
    }
}

/// A limit that is hot here until `is_enough` of the asks for samples and the time since there was a slab; the two.
async fn samples_while_hot(
    relay: &Relay,
    sidecar: &TestApp,
    is_enough: impl Fn(usize, Duration) -> bool,
) -> (usize, Duration) {
    let use_it = async || {
        sidecar.answers(&["hot=x -> ok…"]).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    // Until there is a slab and what is left is known.
    for _ in 0..50 {
        use_it().await;
    }
    let (before, start) = (relay.samples_asked.load(Ordering::Relaxed), sluice::clock::instant());
    loop {
        use_it().await;
        let asked = (relay.samples_asked.load(Ordering::Relaxed) - before, start.elapsed());
        if is_enough(asked.0, asked.1) || asked.1 > Duration::from_secs(30) {
            return asked;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sidecar_uses_a_hub_that_is_older() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let relay = Relay::to(&hub, 0).await;
    let sidecar = relay.sidecar().await;
    sidecar.answers(&["5 times: few=x -> ok…", "few=x -> OVER d:few=x…"]).await;
    let lease = queue(&sidecar, &ask("held", 1)).await;
    assert!(lease.status >= 400 && lease.body.contains("newer"), "an old hub keeps no places: {lease:?}");
    let (samples, time) = samples_while_hot(&relay, &sidecar, |samples, _| samples >= 6).await;
    assert!(samples >= 6, "its answers have no samples, so they are asked for: {samples} in {time:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_sidecar_has_its_samples_from_answers() {
    let hub = hub_on(LedgerUri::Memory).start().await;
    let relay = Relay::to(&hub, 2).await;
    let sidecar = relay.sidecar().await;
    let (samples, time) = samples_while_hot(&relay, &sidecar, |_, time| time > Duration::from_secs(3)).await;
    assert!(samples as u128 <= time.as_millis() / 1000, "asked for {samples} times in {time:?}");
}
