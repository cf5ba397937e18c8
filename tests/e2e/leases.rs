//! Leases through a real Envoy: what a request holds comes back when its stream ends, however it does.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::get;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

use crate::envoy::{Envoy, LEASES};
use crate::http;
use crate::sluice::{Sluice, directory, serve};
use crate::wait::until;

/// One at a time, and tokens that the response counts.
const LIMITS: &str = "
domain: llm
descriptors:
- key: tenant
  descriptors:
  - key: model
    limits:
    - {name: tpm, kind: rolling, capacity: 100000, window_seconds: 3600, reconcile: true, overage: debt}
    - {name: inflight, kind: concurrency, capacity: 1, timeout_seconds: 3600}
";

pub const SECRETS: &str = "leases: {secrets: [a secret that all instances have]}";

/// What the upstream does: `/` answers, `/tokens/42` says what that cost, `/wait` answers when it is told to,
/// `/break` breaks off in the middle.
fn upstream(gate: Arc<Semaphore>) -> Router {
    let wait = async move || match gate.acquire().await {
        Ok(permit) => permit.forget(),
        Err(error) => panic!("{error}"),
    };
    let tokens = async |Path(tokens): Path<String>| ([("x-tokens-used", tokens)], "done");
    let broken = async || {
        let parts = tokio_stream::iter([Ok(Bytes::from("half")), Err(std::io::Error::other("broken off"))]);
        Body::from_stream(parts)
    };
    Router::new()
        .route("/wait", get(wait))
        .route("/tokens/{tokens}", get(tokens))
        .route("/break", get(broken))
        .route("/fail", get(async || (StatusCode::INTERNAL_SERVER_ERROR, "no")))
        .fallback(async || Ok::<_, Infallible>("from the upstream"))
}

pub struct Setup {
    pub envoy: Envoy,
    pub sluices: Vec<Sluice>,
    /// Lets one waiting request go.
    gate: Arc<Semaphore>,
}

impl Setup {
    async fn start(changes: &[(&str, &str)]) -> Self {
        Self::limited(LIMITS, changes).await
    }

    pub async fn limited(limits: &str, changes: &[(&str, &str)]) -> Self {
        let dir = directory(&[("config/limits/limits.yaml", limits), ("config/sluice.yaml", SECRETS)]);
        let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        Self::with(vec![Sluice::start(dir, command).await], changes).await
    }

    pub async fn with(sluices: Vec<Sluice>, changes: &[(&str, &str)]) -> Self {
        let gate = Arc::new(Semaphore::new(0));
        let ports: Vec<u16> = sluices.iter().map(Sluice::grpc_port).collect();
        let setup = Envoy::of(LEASES).before(upstream(Arc::clone(&gate)));
        let setup = changes.iter().fold(setup, |setup, (from, to)| setup.changed(from, to));
        let envoy = setup.start(&ports).await;
        Self { envoy, sluices, gate }
    }

    pub async fn ask(&self, path: &str) -> http::Answer {
        self.envoy.get(path, &[("x-tenant", "acme")]).await
    }

    /// A request that is under way, on a connection of its own.
    pub async fn open(&self, path: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.envoy.address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nx-tenant: acme\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    pub async fn used(&self, limit: &str) -> u64 {
        self.field(limit, "used").await
    }

    async fn field(&self, limit: &str, field: &str) -> u64 {
        let admin = self.sluices.last().unwrap().admin;
        let path = format!("/v1/limits/llm%3Atenant=acme%3Amodel=gpt-4o%3A{limit}");
        let view = http::get(admin, &path).await.json();
        view[field].as_u64().unwrap_or_else(|| panic!("{view}"))
    }

    pub async fn until_used(&self, limit: &str, expected: u64) {
        until(limit, async || match self.used(limit).await {
            used if used == expected => Ok(()),
            used => Err(format!("{used} are used")),
        })
        .await;
    }

    /// Nothing is held, and the next request gets in.
    pub async fn is_free(&self) {
        self.until_used("inflight", 0).await;
        let next = self.ask("/").await;
        assert_eq!(next.status, 200, "{next:?}");
        self.until_used("inflight", 0).await;
    }
}

/// The first line of an answer, once it comes.
async fn status(stream: &mut TcpStream) -> String {
    let mut buffer = [0; 4096];
    let read = tokio::time::timeout(Duration::from_secs(20), stream.read(&mut buffer)).await;
    let count = read.expect("an answer must come").unwrap();
    String::from_utf8_lossy(&buffer[..count]).lines().next().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn one_at_a_time_and_the_next_when_the_response_has_ended() {
    let setup = Setup::start(&[]).await;
    for _ in 0..3 {
        let mut first = setup.open("/wait").await;
        setup.until_used("inflight", 1).await;
        let second = setup.ask("/").await;
        assert_eq!(second.status, 429, "{second:?}");
        assert_eq!(second.header("x-sluice-limit"), "llm:tenant=acme:model=gpt-4o:inflight");
        assert_eq!(setup.used("inflight").await, 1, "a denial has no lease to complete");
        setup.gate.add_permits(1);
        assert_eq!(status(&mut first).await, "HTTP/1.1 200 OK");
        setup.is_free().await;
    }
    // Nobody said what they cost: the estimate stays, of the six that were served.
    assert_eq!(setup.used("tpm").await, 6000);
}

#[tokio::test]
async fn it_comes_back_when_the_client_leaves() {
    let setup = Setup::start(&[]).await;
    let first = setup.open("/wait").await;
    setup.until_used("inflight", 1).await;
    drop(first);
    setup.is_free().await;
}

#[tokio::test]
async fn it_comes_back_when_the_upstream_fails_breaks_off_or_is_away() {
    let setup = Setup::start(&[]).await;
    assert_eq!(setup.ask("/fail").await.status, 500);
    setup.is_free().await;
    let mut broken = setup.open("/break").await;
    status(&mut broken).await;
    setup.is_free().await;

    let away = Setup::start(&[("name: upstream\n      type: STATIC", AWAY)]).await;
    assert_eq!(away.ask("/").await.status, 503);
    away.until_used("inflight", 0).await;
}

/// The same cluster, where nobody is ever chosen.
const AWAY: &str = "name: upstream\n      type: STATIC\n      health_checks: []\n      \
                    lb_subset_config: {fallback_policy: NO_FALLBACK, subset_selectors: [{keys: [none]}]}";

#[tokio::test]
async fn it_comes_back_when_the_route_times_out() {
    let setup = Setup::start(&[("timeout: 290s", "timeout: 0.3s")]).await;
    assert_eq!(setup.ask("/wait").await.status, 504);
    setup.is_free().await;
}

#[tokio::test]
async fn the_response_says_what_it_cost() {
    let setup = Setup::start(&[]).await;
    let mut used = 0;
    // Less than the estimate, as much, more, nothing; then two that can't be read, where the estimate stays.
    for (path, cost) in [
        ("/tokens/42", 42),
        ("/tokens/1000", 1000),
        ("/tokens/1700", 1700),
        ("/tokens/0", 0),
        ("/tokens/many", 1000),
        ("/", 1000),
    ] {
        assert_eq!(setup.ask(path).await.status, 200, "{path}");
        used += cost;
        setup.until_used("inflight", 0).await;
        setup.until_used("tpm", used).await;
    }
    assert_eq!(setup.ask("/tokens/200000").await.status, 200);
    until("the debt", async || match setup.field("tpm", "debt").await {
        199_000 => Ok(()),
        debt => Err(debt.to_string()),
    })
    .await;
    assert_eq!(setup.used("tpm").await, used + 1000, "what did not fit is a debt");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_leaves_nothing_behind() {
    let limits = LIMITS.replace("capacity: 1,", "capacity: 1000,");
    let setup = Arc::new(Setup::limited(&limits, &[]).await);
    let mut crowd = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let setup = Arc::clone(&setup);
        crowd.spawn(async move {
            for _ in 0..40 {
                assert_eq!(setup.ask("/tokens/7").await.status, 200);
            }
        });
    }
    crowd.join_all().await;
    setup.until_used("inflight", 0).await;
    setup.until_used("tpm", 2000 * 7).await;
}

/// Who doesn't say who they are share one set of limits. Without the header the descriptor would be left out, and with it
/// the limits.
#[tokio::test]
async fn nobody_is_unlimited_for_being_nameless() {
    let setup = Setup::start(&[]).await;
    let mut stream = TcpStream::connect(setup.envoy.address).await.unwrap();
    stream.write_all(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    until("it to be held", async || {
        let path = "/v1/limits/llm%3Atenant=anonymous%3Amodel=gpt-4o%3Ainflight";
        let view = http::get(setup.sluices[0].admin, path).await.json();
        if view["used"] == 1 { Ok(()) } else { Err(view.to_string()) }
    })
    .await;
    let denied = setup.envoy.get("/", &[]).await;
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-sluice-limit"), "llm:tenant=anonymous:model=gpt-4o:inflight");
    assert_eq!(setup.ask("/").await.status, 200, "acme has its own");
}

/// Clients that mark their retries are held to the budget, and the mark is no part of the limit's name.
#[tokio::test]
async fn marked_retries_are_held_to_the_budget() {
    let policy = "retry_policy: {budget: {ratio: 0.5, window_seconds: 300, min_retries_per_second: 0}}";
    let dir = directory(&[("config/limits/limits.yaml", LIMITS), ("config/retry_policy.yaml", policy)]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    let setup = Setup::with(vec![Sluice::start(dir, command).await], &[]).await;
    for served in 1..=4 {
        assert_eq!(setup.ask("/").await.status, 200);
        setup.until_used("tpm", 1000 * served).await;
        setup.until_used("inflight", 0).await;
    }
    let mut answers = Vec::new();
    for attempt in ["1", "2", "3"] {
        let answer = setup.envoy.get("/", &[("x-tenant", "acme"), ("x-retry-attempt", attempt)]).await;
        answers.push((answer.status, answer.header("x-sluice-reason").to_owned()));
        setup.until_used("inflight", 0).await;
    }
    let served = (200, String::new());
    assert_eq!(answers, [served.clone(), served, (429, "retry_budget".to_owned())]);
    assert_eq!(setup.used("tpm").await, 6000, "two retries of the same limit");
}

/// Envoy sends the completion to whichever is next, not to the one that reserved.
#[cfg(feature = "tigerbeetle")]
pub mod two_instances {
    use super::*;
    use crate::tigerbeetle::Server;

    async fn start(server: &Server) -> Sluice {
        let dir = directory(&[("config/limits/limits.yaml", LIMITS), ("config/sluice.yaml", SECRETS)]);
        start_in(dir, server).await
    }

    pub async fn start_in(dir: tempfile::TempDir, server: &Server) -> Sluice {
        let uri = format!("tigerbeetle:0@{}", server.address());
        let arguments = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", &uri];
        let command = serve(dir.path(), &arguments);
        let sluice = Sluice::start(dir, command).await;
        until("readiness", async || match http::get(sluice.admin, "/readyz").await {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.body),
        })
        .await;
        sluice
    }

    async fn counted(sluice: &Sluice, event: &str) -> u64 {
        let metrics = http::get(sluice.admin, "/metrics").await.body;
        let start = format!("sluice_leases_total{{event=\"{event}\"}} ");
        metrics.lines().find_map(|line| line.strip_prefix(&start)).unwrap().parse().unwrap()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn either_completes_what_the_other_reserved() {
        let server = Server::start();
        let sluices = vec![start(&server).await, start(&server).await];
        let setup = Setup::with(sluices, &[]).await;
        for n in 1..=10 {
            assert_eq!(setup.ask("/tokens/7").await.status, 200);
            setup.until_used("inflight", 0).await;
            setup.until_used("tpm", 7 * n).await;
        }
        let mut completed = 0;
        for sluice in &setup.sluices {
            completed += counted(sluice, "completed").await;
            assert_eq!(counted(sluice, "forged").await, 0);
        }
        assert_eq!(completed, 10);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_other_completes_what_one_reserved_that_was_killed() {
        let server = Server::start();
        let sluices = vec![start(&server).await, start(&server).await];
        let mut setup = Setup::with(sluices, &[]).await;
        let mut waiting = setup.open("/wait").await;
        setup.until_used("inflight", 1).await;
        // Kill the one that reserved.
        let reserved =
            [counted(&setup.sluices[0], "reserved").await, counted(&setup.sluices[1], "reserved").await];
        let mut killed = setup.sluices.remove(usize::from(reserved[0] == 0));
        killed.process.signal("KILL");
        killed.process.exit().await;
        setup.gate.add_permits(1);
        assert_eq!(status(&mut waiting).await, "HTTP/1.1 200 OK");
        setup.until_used("inflight", 0).await;
        assert_eq!(counted(&setup.sluices[0], "completed").await, 1);
    }
    /// The one that reserved is gone and comes back on the same port: the lease is in Envoy, the balance in the ledger.
    #[tokio::test(flavor = "multi_thread")]
    async fn one_that_was_restarted_completes_what_it_reserved_before() {
        let server = Server::start();
        let mut setup = Setup::with(vec![start(&server).await], &[]).await;
        let mut waiting = setup.open("/wait").await;
        setup.until_used("inflight", 1).await;
        let mut killed = setup.sluices.remove(0);
        killed.process.signal("KILL");
        killed.process.exit().await;
        let uri = format!("tigerbeetle:0@{}", server.address());
        let arguments = ["--grpc", &killed.grpc, "--admin", "127.0.0.1:0", "--ledger", &uri];
        let command = serve(killed.dir.path(), &arguments);
        let again = Sluice::start(directory(&[]), command).await;
        until("readiness", async || match http::get(again.admin, "/readyz").await {
            answer if answer.status == 200 => Ok(()),
            answer => Err(answer.body),
        })
        .await;
        setup.sluices.push(again);
        assert_eq!(setup.used("inflight").await, 1);
        setup.gate.add_permits(1);
        assert_eq!(status(&mut waiting).await, "HTTP/1.1 200 OK");
        setup.until_used("inflight", 0).await;
    }

    /// A completion that meets the one that drains goes to the other.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_drain_under_load_loses_no_completion() {
        const CLIENTS: usize = 20;
        const EACH: usize = 30;
        let server = Server::start();
        let plenty = LIMITS.replace("capacity: 1,", "capacity: 1000,");
        let patient = format!("{SECRETS}\nledger: {{timeout_ms: 20000}}");
        let mut sluices = Vec::new();
        for _ in 0..2 {
            let dir = directory(&[("config/limits/limits.yaml", &plenty), ("config/sluice.yaml", &patient)]);
            sluices.push(start_in(dir, &server).await);
        }
        let mut setup = Setup::with(sluices, &[]).await;
        let mut drained = setup.sluices.remove(0);
        let setup = Arc::new(setup);
        let mut crowd = tokio::task::JoinSet::new();
        for _ in 0..CLIENTS {
            let setup = Arc::clone(&setup);
            crowd.spawn(async move {
                for _ in 0..EACH {
                    assert_eq!(setup.ask("/tokens/7").await.status, 200);
                }
            });
        }
        until("the crowd to be under way", async || match setup.envoy.upstream.arrived() {
            100.. => Ok(()),
            arrived => Err(arrived.to_string()),
        })
        .await;
        drained.process.signal("TERM");
        assert_eq!(drained.process.exit().await.code(), Some(0));
        crowd.join_all().await;
        setup.until_used("inflight", 0).await;
        setup.until_used("tpm", (CLIENTS * EACH * 7) as u64).await;
    }
}
