//! Several Sluices on one TigerBeetle server, each a process of its own, and what can be asked of one.

use std::time::Duration;

use serde_json::Value;
use sluice::api::pb;
use sluice::config::settings::value::Listen;
use sluice::limit::LimitKey;
use sluice::protos::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use tigerbeetle_unofficial as tb;
use tonic::transport::Channel;

use crate::ask;
use crate::http;
use crate::sluice::{Sluice, directory, serve};
use crate::testapp::channel;
use crate::tigerbeetle::Server;
use crate::wait::until;

/// Longer than anything that a test stops for.
const PATIENCE: Duration = Duration::from_secs(20);

pub type Client = RateLimitServiceClient<Channel>;

pub struct Instance {
    pub sluice: Sluice,
    pub client: Client,
}

/// Ready ones. `timeout_ms` is the ledger's.
pub async fn start(server: &Server, limits: &str, timeout_ms: u64, count: usize) -> Vec<Instance> {
    start_on(&[&format!("tigerbeetle:0@{}", server.address())], limits, timeout_ms, count).await
}

/// The same on these ledgers.
pub async fn start_on(uris: &[&str], limits: &str, timeout_ms: u64, count: usize) -> Vec<Instance> {
    let uri = format!("['{}']", uris.join("', '"));
    let settings = format!("ledger: {{uri: {uri}, timeout_ms: {timeout_ms}}}\ndrain: {{wait_seconds: 0}}\n");
    let mut instances = Vec::new();
    for _ in 0..count {
        let files = [("config/limits/limits.yaml", limits), ("config/sluice.yaml", settings.as_str())];
        let dir = directory(&files);
        let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
        let sluice = Sluice::start(dir, command).await;
        let address = Listen::Tcp(sluice.grpc.parse().expect("an address"));
        let client = RateLimitServiceClient::new(channel(&address).await);
        instances.push(Instance { sluice, client });
    }
    for instance in &instances {
        until("readiness", async || {
            let answer = http::get(instance.sluice.admin, "/readyz").await;
            if answer.status == 200 { Ok(()) } else { Err(answer.body) }
        })
        .await;
    }
    instances
}

/// Whether a request, in the language of `ask`, is admitted.
pub async fn admits(
    client: &RateLimitServiceClient<Channel>,
    asked: &str,
    id: Option<&str>,
) -> Result<bool, String> {
    let mut call = tonic::Request::new(ask::request(asked));
    if let Some(id) = id {
        call.metadata_mut().insert("x-sluice-request-id", id.parse().expect("an id is text"));
    }
    let mut client = client.clone();
    let answer = tokio::time::timeout(PATIENCE, client.should_rate_limit(call)).await;
    let answer = answer.map_err(|_| format!("no answer in {PATIENCE:?}"))?;
    let answer = answer.map_err(|status| status.to_string())?;
    Ok(answer.into_inner().overall_code() == pb::Code::Ok)
}

impl Instance {
    pub async fn admits(&self, asked: &str) -> bool {
        admits(&self.client, asked, None).await.unwrap_or_else(|error| panic!("`{asked}`: {error}"))
    }

    /// Asks so often, one after the other; how many were admitted.
    pub async fn count(&self, asked: &str, times: usize) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += u64::from(self.admits(asked).await);
        }
        admitted
    }

    /// All at once; how many were admitted.
    pub async fn count_at_once(&self, asked: &str, times: usize) -> u64 {
        let calls = (0..times).map(|_| {
            let (client, asked) = (self.client.clone(), asked.to_owned());
            async move { admits(&client, &asked, None).await }
        });
        let answers = calls.collect::<tokio::task::JoinSet<_>>().join_all().await;
        let admitted = answers.into_iter().filter(|it| *it.as_ref().expect("an answer must come"));
        u64::try_from(admitted.count()).expect("a count must fit")
    }

    /// Asks until this instance has a slab of the limit with something left in it that lives on for a while. How many were
    /// admitted on the way.
    pub async fn until_slab(&self, asked: &str, key: &str) -> u64 {
        let mut admitted = 0;
        until("a slab", async || {
            admitted += self.count(asked, 20).await;
            let slab = self.limit(key).await["slab"].clone();
            let has = |field: &str, least| slab[field].as_u64().is_some_and(|found| found >= least);
            if has("held", 2) && has("ends_in_ms", 300) { Ok(()) } else { Err(slab.to_string()) }
        })
        .await;
        admitted
    }

    pub async fn limit(&self, key: &str) -> Value {
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let answer = http::get(self.sluice.admin, &format!("/v1/limits/{encoded}")).await;
        assert_eq!(answer.status, 200, "{key}: {answer:?}");
        answer.json()
    }

    pub async fn used(&self, key: &str) -> u64 {
        self.limit(key).await["used"].as_u64().expect("used must be a number")
    }

    /// Waits until this much is used, and no more than that: nothing that nobody spent is held.
    pub async fn until_used(&self, key: &str, used: u64) {
        until(&format!("{key} to have {used} used"), async || {
            let limit = self.limit(key).await;
            let is_so = limit["used"] == used && limit["slab"].is_null();
            if is_so { Ok(()) } else { Err(limit.to_string()) }
        })
        .await;
    }

    async fn metrics(&self) -> String {
        http::get(self.sluice.admin, "/metrics").await.body
    }

    pub async fn metric(&self, name: &str) -> u64 {
        metric(&self.metrics().await, name)
    }

    pub async fn units(&self) -> Units {
        let text = self.metrics().await;
        let of = |event: &str| metric(&text, &format!("sluice_slab_units_total{{event=\"{event}\"}}"));
        Units { taken: of("taken"), handed_out: of("handed_out"), given_back: of("given_back") }
    }

    /// How often slabs, the ledger, and the memory of a refusal have answered.
    pub async fn answers(&self, from: &str) -> u64 {
        self.metric(&format!("sluice_slab_answers_total{{from=\"{from}\"}}")).await
    }

    pub async fn stop(&self) {
        self.sluice.process.stop().await;
    }

    pub fn go_on(&self) {
        self.sluice.process.signal("CONT");
    }
}

/// All units of an instance's slabs since it started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Units {
    pub taken: u64,
    pub handed_out: u64,
    pub given_back: u64,
}

fn metric(text: &str, name: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let line = line.unwrap_or_else(|| panic!("{name} is not in\n{text}"));
    line.trim().parse().unwrap_or_else(|error| panic!("{name}{line}: {error}"))
}

/// What the server itself says is pending on a limit, past all of Sluice.
pub async fn pending(server: &Server, key: &str) -> u64 {
    let client = tb::Client::new(0, server.address()).expect("an address");
    let id = sluice::ledger::Account::new(LimitKey::new(key)).id.bits();
    let found = client.lookup_accounts(vec![id]).await.expect("the server must answer");
    // Closing a client blocks.
    tokio::task::spawn_blocking(move || drop(client)).await.expect("it must close");
    let account = found.first().unwrap_or_else(|| panic!("{key} must have an account"));
    u64::try_from(account.debits_pending()).expect("an amount must fit")
}
