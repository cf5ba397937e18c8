//! A gateway to a language model that keeps each tenant within its requests, tokens and concurrency.
//!
//! ```text
//! make run                                                      in one terminal: Sluice with config/limits/llm.yaml
//! cargo run --example llm_gateway                               in another
//! cargo run --example llm_gateway -- http://127.0.0.1:8081 200  another address, more calls
//! ```
//! What a call will cost is a guess until the model has answered. So the gateway reserves an estimate, together with one
//! request and one place in flight, all or nothing; and completes the lease with what was really used. The model here is a
//! pretence that takes a moment and answers at random length.

use std::time::Duration;

use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use sluice::api::pb::lease::{Actual, CompleteRequest, Requirement, ReserveRequest};
use sluice::limit::LimitKey;
use sluice::limit::key::Entry;
use tokio::task::JoinSet;
use tonic::transport::Channel;

type Leases = LeaseServiceClient<Channel>;

/// The first has the most to say, and will hear "later" before the others do.
const TENANTS: [&str; 5] = ["acme", "acme", "acme", "bits & bobs", "c:corp"];

/// As config/limits/llm.yaml has them.
const REQUESTS: &str = "global:llm:openai:gpt-4o:rpm";
const DOMAIN: &str = "llm";
const MODEL: &str = "gpt-4o";

/// The longest answer that a prompt may ask for, in tokens.
const ANSWER_MAX: u64 = 4_000;

/// Give up after this many denials in a row.
const ATTEMPTS_MAX: u32 = 5;

/// What became of a call.
#[derive(Default)]
struct Spent {
    reserved: u64,
    used: u64,
    waits: u32,
    given_up: bool,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "http://127.0.0.1:8081".to_owned());
    let calls: usize = arguments.next().map_or(Ok(60), |text| text.parse())?;
    let leases = LeaseServiceClient::connect(address).await?;

    let mut running = JoinSet::new();
    for call in 0..calls {
        let leases = leases.clone();
        let tenant = TENANTS[call % TENANTS.len()];
        running.spawn(async move { (tenant, serve(leases, tenant, call).await) });
    }
    let mut total = Spent::default();
    while let Some(done) = running.join_next().await {
        let (tenant, spent) = done?;
        let spent = spent?;
        let said = if spent.given_up { "gave up".to_owned() } else { format!("used {:>4}", spent.used) };
        println!("{tenant:<12} reserved {:>4}  {said}  after {} waits", spent.reserved, spent.waits);
        total.reserved += spent.reserved;
        total.used += spent.used;
    }
    println!(
        "{calls} calls: {} tokens were reserved, {} used, the rest given back",
        total.reserved, total.used
    );
    Ok(())
}

/// One call of a tenant: reserve, ask the model, complete.
async fn serve(mut leases: Leases, tenant: &str, call: usize) -> anyhow::Result<Spent> {
    let prompt_tokens = fastrand::u64(50..1_500);
    let mut spent = Spent { reserved: prompt_tokens + ANSWER_MAX, ..Spent::default() };
    let tokens = limit(tenant, "tpm");
    let want = |key: &str, amount| Requirement { key: key.to_owned(), amount };
    let requirements =
        vec![want(REQUESTS, 1), want(&tokens, spent.reserved), want(&limit(tenant, "inflight"), 1)];
    let job_id = format!("call-{call}");
    let lease_token = loop {
        // Without a lease_id every attempt is a new one: an id that was denied stays denied.
        let ask = ReserveRequest {
            lease_id: String::new(),
            job_id: job_id.clone(),
            requirements: requirements.clone(),
        };
        let answer = leases.reserve(ask).await?.into_inner();
        if answer.allowed {
            break answer.lease_token;
        }
        anyhow::ensure!(answer.error.is_empty(), "{}: {}", answer.error, answer.detail);
        let Some(wait_ms) = answer.retry_after_ms.filter(|_| spent.waits < ATTEMPTS_MAX) else {
            return Ok(Spent { reserved: 0, given_up: true, ..spent });
        };
        println!("{tenant:<12} {} says: in {wait_ms} ms", answer.limit);
        spent.waits += 1;
        tokio::time::sleep(Duration::from_millis(wait_ms)).await;
    };
    spent.used = prompt_tokens + ask_model().await;
    let actuals = vec![Actual { key: tokens, actual_amount: Some(spent.used) }];
    let done = CompleteRequest { lease_id: String::new(), lease_token, actuals };
    let answer = leases.complete(done).await?.into_inner();
    anyhow::ensure!(answer.ok, "{}: {}", answer.error, answer.detail);
    Ok(spent)
}

/// The key of a tenant's own limit, with whatever the name has in it escaped.
fn limit(tenant: &str, name: &str) -> String {
    let entries = [Entry { key: "tenant", value: tenant }, Entry { key: "model", value: MODEL }];
    LimitKey::derived(DOMAIN, &entries, name).to_string()
}

/// How long the answer was, in tokens.
async fn ask_model() -> u64 {
    let tokens = fastrand::u64(20..ANSWER_MAX / 4);
    tokio::time::sleep(Duration::from_millis(tokens)).await;
    tokens
}
