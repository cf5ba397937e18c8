//! A small language for leases, through the ports of a running server, so that the next case costs one line.
//!
//! `A: ask x10 = lease | done A x4 = ok | used tokens 4`
//!
//! * `A: ask x10`: ShouldRateLimit with 10 hits on this row's limits, remembered as A; `ask-as N x10` is called N
//! * `done A x4 limit=tokens + B`: completions as Envoy sends them; `-x3` gives 3 back; `done id:A` by the plain id
//! * `A: reserve tokens 10 held 1`: the lease API; `reserve-as N tokens 10` is called N
//! * `complete A tokens 4`: the lease API, by token; `complete id:A` by the plain id
//! * `= ok`, `= lease` (ok, with a lease for Envoy), `= over tokens`, `= never tokens`, `= debt tokens`, or the start of an error
//! * `used tokens 4`, `owes tokens 2`; `wait 2` seconds; `paid`: what can be paid has been; `forgive tokens`
//!
//! Every row has limits of its own: `tokens` (100 an hour, debt), `bytes` (100 an hour), `calls` (50 an hour, never
//! reconciled), `held` (2 at a time); `ask-short` has them for 6 seconds, and `repaid` with repay, `ask-dark` counts but never denies. `ask-owing` has
//! `tokens` with repay, and `ask-late` has limits with `charge: always`: `tokens`, `owed` (50, debt), `repaid` (50, repay).

use std::collections::HashMap;
use std::time::Duration;

use serde_json::{Value, json};
use sluice::api::pb;
use sluice::api::pb::lease::lease_service_client::LeaseServiceClient;
use sluice::protos::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;

use crate::testapp::TestApp;

pub const LIMITS: &str = "
domain: d
descriptors:
- key: row
  limits:
  - {name: tokens, kind: rolling, capacity: 100, window_seconds: 3600, reconcile: true, overage: debt}
  - {name: bytes, kind: rolling, capacity: 100, window_seconds: 3600, reconcile: true}
  - {name: calls, kind: rolling, capacity: 50, window_seconds: 3600, cost: 1}
  - {name: held, kind: concurrency, capacity: 2, timeout_seconds: 3600}
- key: short
  limits:
  - {name: tokens, kind: rolling, capacity: 100, window_seconds: 6, reconcile: true, overage: debt}
  - {name: bytes, kind: rolling, capacity: 100, window_seconds: 6, reconcile: true}
  - {name: repaid, kind: rolling, capacity: 100, window_seconds: 6, reconcile: true, overage: repay}
  - {name: held, kind: concurrency, capacity: 2, timeout_seconds: 6}
- key: owing
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 3600, reconcile: true, overage: repay}]
- key: late
  limits:
  - {name: tokens, kind: rolling, capacity: 100, window_seconds: 3600, charge: always, exact: true}
  - {name: owed, kind: rolling, capacity: 50, window_seconds: 3600, charge: always, overage: debt, exact: true}
  - {name: repaid, kind: rolling, capacity: 50, window_seconds: 3600, charge: always, overage: repay}
  - {name: calls, kind: rolling, capacity: 50, window_seconds: 3600, cost: 1}
- {key: dark, shadow_mode: true, limits: [{name: held, kind: concurrency, capacity: 2, timeout_seconds: 3600}]}
- {key: plain, rate_limit: {unit: hour, requests_per_unit: 10}}
";

/// Which port the lease API is asked on.
#[derive(Debug, Clone, Copy)]
pub enum Port {
    Http,
    Grpc,
}

/// A lease as a row remembers it.
#[derive(Default, Clone)]
struct Remembered {
    id: String,
    token: String,
}

struct Row<'a> {
    app: &'a TestApp,
    port: Port,
    name: &'a str,
    key: &'static str,
    leases: HashMap<String, Remembered>,
}

/// Runs one row; panics with the step that did not hold. `name` keeps rows apart on a server that they share.
pub async fn run(app: &TestApp, port: Port, name: &str, row: &str) {
    let mut running = Row { app, port, name, key: "row", leases: HashMap::new() };
    for step in row.split('|').map(str::trim) {
        let at = format!("`{step}` of `{row}` ({name})");
        let (command, expected) = match step.split_once(" = ") {
            Some((command, expected)) => (command.trim(), Some(expected.trim())),
            None => (step, None),
        };
        let (label, command) = command.split_once(": ").unwrap_or(("", command));
        let words: Vec<&str> = command.split_whitespace().collect();
        match (words[0], expected) {
            ("wait", None) => tokio::time::sleep(Duration::from_secs(words[1].parse().unwrap())).await,
            ("used" | "owes", None) => running.balance(&words, &at).await,
            // A shared ledger looks at limits that owe once a second.
            ("paid", None) => tokio::time::sleep(Duration::from_millis(1_300)).await,
            ("forgive", None) => {
                let key = running.limit_key(words[1]).replace(':', "%3A");
                let answer = app.send("DELETE", &format!("/v1/limits/{key}/debt"), "").await;
                assert_eq!((answer.status, answer.body.as_str()), (204, ""), "{at}");
            }
            (_, Some(expected)) => {
                let said = running.step(label, &words).await;
                assert!(said.starts_with(expected), "{at}, but it said `{said}`");
            }
            _ => panic!("{at} expects nothing"),
        }
    }
}

impl Row<'_> {
    fn limit_key(&self, limit: &str) -> String {
        format!("d:{}={}:{limit}", self.key, self.name)
    }

    async fn balance(&self, words: &[&str], at: &str) {
        let key = self.limit_key(words[1]);
        let path = format!("/v1/limits/{}", key.replace(':', "%3A"));
        let view = self.app.get(&path).await.json();
        let field = if words[0] == "used" { "used" } else { "debt" };
        assert_eq!(view[field], words[2].parse::<u64>().unwrap(), "{at}: {view}");
    }

    async fn step(&mut self, label: &str, words: &[&str]) -> String {
        match words[0] {
            "ask" => self.ask(label, None, &words[1..]).await,
            "ask-as" => self.ask(label, Some(words[1]), &words[2..]).await,
            "ask-short" => {
                self.key = "short";
                self.ask(label, None, &words[1..]).await
            }
            "ask-owing" => {
                self.key = "owing";
                self.ask(label, None, &words[1..]).await
            }
            "ask-late" => {
                self.key = "late";
                self.ask(label, None, &words[1..]).await
            }
            "ask-late-as" => {
                self.key = "late";
                self.ask(label, Some(words[1]), &words[2..]).await
            }
            "ask-dark" => {
                self.key = "dark";
                self.ask(label, None, &words[1..]).await
            }
            "done" => self.done(&words[1..]).await,
            "reserve" => self.reserve(label, None, &words[1..]).await,
            "reserve-as" => self.reserve(label, Some(words[1]), &words[2..]).await,
            "complete" => self.complete(words[1], &words[2..]).await,
            other => panic!("{other}: no such command"),
        }
    }

    async fn ask(&mut self, label: &str, name: Option<&str>, words: &[&str]) -> String {
        let mut descriptor = pb::RateLimitDescriptor {
            entries: vec![Entry { key: self.key.to_owned(), value: self.name.to_owned() }],
            ..Default::default()
        };
        words.iter().for_each(|word| hits(&mut descriptor, word));
        let response = self.should_rate_limit(vec![descriptor], name).await;
        let token = lease_of(&response);
        if let Some(token) = &token {
            self.leases.insert(label.to_owned(), Remembered { id: String::new(), token: token.clone() });
        }
        match (response.overall_code(), token) {
            (pb::Code::Ok, Some(_)) => "lease".to_owned(),
            (pb::Code::Ok, None) => "ok".to_owned(),
            _ => {
                let limit = crate::ask::header(&response, "x-sluice-limit").unwrap_or_default();
                let limit = limit.rsplit(':').next().unwrap();
                match crate::ask::header(&response, "x-sluice-reason") {
                    Some("debt") => format!("debt {limit}"),
                    Some("never_fits") => format!("never {limit}"),
                    _ => format!("over {limit}"),
                }
            }
        }
    }

    async fn done(&mut self, words: &[&str]) -> String {
        let mut descriptors: Vec<pb::RateLimitDescriptor> = Vec::new();
        for word in words {
            let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
            if let Some(name) = word.strip_prefix("limit=") {
                descriptors.last_mut().unwrap().entries.push(entry("limit", name));
            } else if word.contains('x') {
                hits(descriptors.last_mut().unwrap(), word);
            } else if *word != "+" {
                let lease = match word.strip_prefix("id:") {
                    Some(label) => &self.leases[label].id,
                    None => &self.leases[*word].token,
                };
                let entries = vec![entry("phase", "done"), entry("lease_id", lease)];
                descriptors.push(pb::RateLimitDescriptor { entries, ..Default::default() });
            }
        }
        let count = descriptors.len();
        let response = self.should_rate_limit(descriptors, None).await;
        let bare = pb::DescriptorStatus { code: pb::Code::Ok.into(), ..Default::default() };
        let expected = pb::RateLimitResponse {
            overall_code: pb::Code::Ok.into(),
            statuses: vec![bare; count],
            ..Default::default()
        };
        assert_eq!(response, expected, "a completion's answer is OK and nothing else");
        "ok".to_owned()
    }

    async fn should_rate_limit(
        &self,
        descriptors: Vec<pb::RateLimitDescriptor>,
        name: Option<&str>,
    ) -> pb::RateLimitResponse {
        let request = pb::RateLimitRequest { domain: "d".to_owned(), descriptors, hits_addend: 0 };
        let mut request = tonic::Request::new(request);
        if let Some(name) = name {
            let name = format!("{}-{name}", self.name);
            request.metadata_mut().insert("x-sluice-request-id", name.parse().unwrap());
        }
        self.app.client().should_rate_limit(request).await.unwrap().into_inner()
    }

    async fn reserve(&mut self, label: &str, name: Option<&str>, words: &[&str]) -> String {
        let wants = words
            .chunks(2)
            .map(|want| json!({"key": self.limit_key(want[0]), "amount": want[1].parse::<u64>().unwrap()}));
        let mut request = json!({"requirements": wants.collect::<Vec<_>>()});
        if let Some(name) = name {
            request["lease_id"] = format!("{}-{name}", self.name).into();
        }
        let answer = reserve(self.app, self.port, request).await;
        let text = |field: &str| answer[field].as_str().unwrap_or_default().to_owned();
        if answer["allowed"] == true {
            let lease = Remembered { id: text("lease_id"), token: text("lease_token") };
            assert!(!lease.id.is_empty() && !lease.token.is_empty(), "{answer}");
            self.leases.insert(label.to_owned(), lease);
            return "ok".to_owned();
        }
        assert_eq!((&answer["lease_id"], &answer["lease_token"]), (&json!(null), &json!(null)), "{answer}");
        let limit = text("limit");
        let limit = limit.rsplit(':').next().unwrap();
        match (text("error").as_str(), text("reason").as_str()) {
            ("", "over_limit") => format!("over {limit}"),
            ("", "never_fits") => format!("never {limit}"),
            ("", "debt") => format!("debt {limit}"),
            (error, _) => format!("{error} {}", text("detail")),
        }
    }

    async fn complete(&mut self, label: &str, words: &[&str]) -> String {
        let actuals = words.chunks(2).map(|actual| {
            json!({"key": self.limit_key(actual[0]), "actual_amount": actual[1].parse::<u64>().unwrap()})
        });
        let mut request = json!({"actuals": actuals.collect::<Vec<_>>()});
        match label.strip_prefix("id:") {
            Some(label) => request["lease_id"] = self.leases[label].id.as_str().into(),
            None => request["lease_token"] = self.leases[label].token.as_str().into(),
        }
        let answer = complete(self.app, self.port, request).await;
        if answer["ok"] == true {
            return "ok".to_owned();
        }
        format!("{} {}", answer["error"].as_str().unwrap(), answer["detail"].as_str().unwrap())
    }
}

fn hits(descriptor: &mut pb::RateLimitDescriptor, word: &str) {
    let number = word.trim_start_matches('-').trim_start_matches('x').parse().unwrap();
    descriptor.hits_addend = Some(pb::UInt64Value { value: number });
    descriptor.is_negative_hits = word.starts_with('-');
}

/// The lease that an answer carries for the end of the stream.
pub fn lease_of(response: &pb::RateLimitResponse) -> Option<String> {
    let metadata = response.dynamic_metadata.as_ref()?;
    match metadata.fields.get("lease_id")?.kind.as_ref()? {
        pb::value::Kind::StringValue(token) => Some(token.clone()),
        other => panic!("Envoy takes {other:?} as absent"),
    }
}

/// One reserve, asked and answered as JSON, on either port.
pub async fn reserve(app: &TestApp, port: Port, request: Value) -> Value {
    match port {
        Port::Http => app.post("/v1/reserve", &request.to_string()).await.json(),
        Port::Grpc => {
            let request: pb::lease::ReserveRequest = serde_json::from_value(request).unwrap();
            let mut client = LeaseServiceClient::new(app.channel.clone());
            serde_json::to_value(client.reserve(request).await.unwrap().into_inner()).unwrap()
        }
    }
}

pub async fn complete(app: &TestApp, port: Port, request: Value) -> Value {
    match port {
        Port::Http => app.post("/v1/complete", &request.to_string()).await.json(),
        Port::Grpc => {
            let request: pb::lease::CompleteRequest = serde_json::from_value(request).unwrap();
            let mut client = LeaseServiceClient::new(app.channel.clone());
            serde_json::to_value(client.complete(request).await.unwrap().into_inner()).unwrap()
        }
    }
}
