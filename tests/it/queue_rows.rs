//! What the queue must do on every ledger, a line each, in a small language.
//!
//! * `A: queue held 1 wide 2`: a reserve that may wait, remembered as A; `= reserved`, `= queued 1` (with its position),
//!   `= full held`, `= never held`
//! * `A is queued 1`, `A is cancelled`: what `GET /v1/leases/{id}` says now; `A becomes reserved` within its time
//! * `leave A = cancelled`, `= conflict`, `= unknown`
//! * `done A tokens 20`: completes it by its token; `done id:A` by its id
//! * `reserve held 1 = ok`, `= over held`: one who doesn't queue
//! * `used held 1`
//!
//! Every row has limits of its own: `held` (1 at a time), `pair` (2 at a time), `slow` (2 in 6 seconds), `tokens` (100 an
//! hour), `wide` (1000 an hour).

use std::collections::HashMap;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::stall::steadily;
use crate::testapp::TestApp;
use crate::wait::until;

pub const LIMITS: &str = "
domain: d
descriptors:
- key: row
  limits:
  - {name: held, kind: concurrency, capacity: 1, timeout_seconds: 600}
  - {name: pair, kind: concurrency, capacity: 2, timeout_seconds: 600}
  - {name: slow, kind: rolling, capacity: 2, window_seconds: 6}
  - {name: tokens, kind: rolling, capacity: 100, window_seconds: 3600}
  - {name: wide, kind: rolling, capacity: 1000, window_seconds: 3600}
";

pub const POLICY: &str = "
retry_policy:
  queue: {pickup_seconds: 5, places_per_key_max: 3, reserved_share: 1}
";

const ROWS: &[&str] = &[
    // in order, each when the one before it is done
    "A: queue held 1 = reserved | B: queue held 1 = queued 0 | C: queue held 1 = queued 1 | B is queued 0 | done A = ok | B becomes reserved | C is queued 0 | done B = ok | C becomes reserved | done id:C = ok | C is completed | used held 0",
    // what expires is offered as well
    "queue slow 2 = reserved | B: queue slow 1 = queued 0 | C: queue slow 1 = queued 1 | B becomes reserved | C becomes reserved | used slow 2",
    // what was not used of a rolling limit
    "A: queue tokens 100 = reserved | B: queue tokens 50 = queued 0 | done A tokens 51 = ok | B is queued 0 | leave B = cancelled | C: queue tokens 49 = reserved | used tokens 100",
    "A: queue tokens 100 = reserved | B: queue tokens 50 = queued 0 | done A tokens 50 = ok | B becomes reserved | used tokens 100",
    // who came first is first, even if another one would fit
    "A: queue pair 1 = reserved | B: queue pair 2 = queued 0 | C: queue pair 1 = queued 1 | done A = ok | B becomes reserved | C is queued 0 | done B = ok | C becomes reserved",
    // one who waits for one limit holds up nobody at another
    "A: queue held 1 = reserved | B: queue held 1 wide 1 = queued 0 | C: queue wide 1 = reserved | D: queue tokens 1 wide 1 = reserved | used wide 2 | done A = ok | B becomes reserved | used wide 3",
    // all or nothing, also in line
    "A: queue held 1 = reserved | B: queue tokens 40 held 1 = queued 0 | used tokens 0 | done A = ok | B becomes reserved | used tokens 40",
    // leaving
    "A: queue held 1 = reserved | B: queue held 1 = queued 0 | C: queue held 1 = queued 1 | leave B = cancelled | leave B = cancelled | B is cancelled | C is queued 0 | done A = ok | C becomes reserved | leave C = conflict | leave A = conflict",
    // who does not come to pick it up loses it to the next
    "A: queue held 1 = reserved | B: queue held 1 = queued 0 | C: queue held 1 = queued 1 | done A = ok | C becomes reserved | B is timed_out | used held 1",
    // no place left
    "queue held 1 = reserved | queue held 1 = queued 0 | queue held 1 = queued 1 | D: queue held 1 = queued 2 | queue held 1 = full held | queue wide 1 = reserved | leave D = cancelled | queue held 1 = queued 2",
    // one who doesn't queue does not get in between
    "A: queue pair 1 = reserved | B: queue pair 2 = queued 0 | reserve pair 1 = over pair | reserve wide 1 = ok | leave B = cancelled | reserve pair 1 = ok",
    "queue held 2 = never held | used held 0",
    "queue nonsense 1 = unknown_limit_key:d:row=",
    "queue tokens 0 = invalid_request",
];

struct Row<'a> {
    app: &'a TestApp,
    name: String,
    jobs: HashMap<String, Value>,
}

/// All rows beside each other: none can be in the way of another.
pub async fn run_all(app: &TestApp) {
    join_all(ROWS.iter().enumerate().map(|(n, row)| run(app, n, row))).await;
}

async fn run(app: &TestApp, n: usize, row: &str) {
    steadily(async |number| run_once(app, format!("q{n}.{number}"), row).await).await;
}

async fn run_once(app: &TestApp, name: String, row: &str) {
    let mut running = Row { app, name, jobs: HashMap::new() };
    for step in row.split('|').map(str::trim) {
        let at = format!("`{step}` of `{row}`");
        let (command, expected) = step.split_once(" = ").unwrap_or((step, ""));
        let (label, command) = command.split_once(": ").unwrap_or(("", command));
        let words: Vec<&str> = command.split_whitespace().collect();
        let said = match words[..] {
            ["used", limit, amount] => running.until_used(limit, amount, &at).await,
            ["queue", ref needs @ ..] => running.queue(label, needs).await,
            ["reserve", ref needs @ ..] => running.reserve(needs).await,
            ["leave", label] => running.leave(label).await,
            ["done", label, ref used @ ..] => running.done(label, used).await,
            [label, "is", ref state @ ..] => {
                assert_eq!(running.settled(label, &at).await, state.join(" "), "{at}");
                String::new()
            }
            [label, "becomes", state] => running.until(label, state, &at).await,
            _ => panic!("{at}: no such step"),
        };
        assert!(said.starts_with(expected), "{at}, but it said `{said}`");
    }
}

impl Row<'_> {
    fn key(&self, limit: &str) -> String {
        format!("d:row={}:{limit}", self.name)
    }

    fn requirements(&self, needs: &[&str]) -> Value {
        let each =
            |pair: &[&str]| json!({"key": self.key(pair[0]), "amount": pair[1].parse::<u64>().unwrap()});
        needs.chunks(2).map(each).collect()
    }

    async fn queue(&mut self, label: &str, needs: &[&str]) -> String {
        let body = json!({"queue": true, "job_id": label, "requirements": self.requirements(needs)});
        let answer = self.app.post("/v1/reserve", &body.to_string()).await;
        let said = answer.json();
        self.jobs.insert(label.to_owned(), said.clone());
        match answer.status {
            429 | 202 => {
                assert_eq!(answer.header("retry-after"), said["eta_seconds"].to_string(), "{answer:?}")
            }
            _ => {}
        }
        let limit = said["limit"].as_str().and_then(|key| key.rsplit(':').next()).unwrap_or_default();
        match answer.status {
            200 if said["allowed"] == true => {
                assert!(said["lease_token"].is_string() && said["state"] == "reserved", "{said}");
                "reserved".to_owned()
            }
            202 => {
                assert_eq!(
                    (&said["status"], &said["job_id"]),
                    (&json!("queued"), &json!(said_job(label, &said)))
                );
                assert!(
                    said["eta_seconds"].as_u64().unwrap() >= 1 && said["lease_token"].is_null(),
                    "{said}"
                );
                format!("queued {}", said["position"])
            }
            429 => {
                assert_eq!((&said["error"], &said["reason"]), (&json!("queue_full"), &json!("queue_full")));
                format!("full {limit}")
            }
            200 if said["reason"] == "never_fits" => format!("never {limit}"),
            _ => said["error"].as_str().unwrap_or_default().to_owned(),
        }
    }

    async fn reserve(&self, needs: &[&str]) -> String {
        let body = json!({"requirements": self.requirements(needs)});
        let said = self.app.post("/v1/reserve", &body.to_string()).await.json();
        let limit = said["limit"].as_str().and_then(|key| key.rsplit(':').next()).unwrap_or_default();
        if said["allowed"] == true { "ok".to_owned() } else { format!("over {limit}") }
    }

    fn id(&self, label: &str) -> String {
        self.jobs[label]["lease_id"].as_str().unwrap_or_else(|| panic!("{}", self.jobs[label])).to_owned()
    }

    async fn state(&mut self, label: &str) -> String {
        let id = self.id(label);
        let answer = self.app.get(&format!("/v1/leases/{id}")).await;
        let said = answer.json();
        if said["error"] == "unknown_lease" {
            return "unknown".to_owned();
        }
        assert!(said["elapsed_seconds"].is_u64(), "{said}");
        assert!(said["requirements"][0]["key"].as_str().unwrap().starts_with("d:row="), "{said}");
        let waits = said["status"] == "queued";
        assert_eq!(answer.status, if waits { 202 } else { 200 }, "{answer:?}");
        let is_over =
            ["completed", "timed_out", "failed", "cancelled"].iter().any(|over| said["state"] == *over);
        assert_eq!(answer.header("retry-after") == "0", is_over, "{answer:?}");
        if said["state"] == "reserved" {
            self.jobs.insert(label.to_owned(), said.clone());
        }
        match said["position"].as_u64() {
            Some(position) => format!("{} {position}", said["state"].as_str().unwrap()),
            None => said["state"].as_str().unwrap().to_owned(),
        }
    }

    /// What it is when it isn't being tried.
    async fn settled(&mut self, label: &str, at: &str) -> String {
        until(at, async || match self.state(label).await {
            said if said.starts_with("processing") => Err(said),
            said => Ok(said),
        })
        .await
    }

    async fn until(&mut self, label: &str, state: &str, at: &str) -> String {
        until(at, async || match self.state(label).await {
            said if said == state => Ok(String::new()),
            said => Err(said),
        })
        .await
    }

    async fn until_used(&self, limit: &str, amount: &str, at: &str) -> String {
        until(at, async || match self.app.used(&self.key(limit)).await.to_string() {
            used if used == amount => Ok(String::new()),
            used => Err(used),
        })
        .await
    }

    async fn leave(&self, label: &str) -> String {
        let answer = self.app.send("DELETE", &format!("/v1/leases/{}", self.id(label)), "").await;
        match answer.status {
            200 => answer.json()["state"].as_str().unwrap().to_owned(),
            409 => "conflict".to_owned(),
            404 => "unknown".to_owned(),
            _ => panic!("{answer:?}"),
        }
    }

    async fn done(&self, label: &str, used: &[&str]) -> String {
        let actual = |pair: &[&str]| json!({"key": self.key(pair[0]), "actual_amount": pair[1].parse::<u64>().unwrap()});
        let actuals: Value = used.chunks(2).map(actual).collect();
        let body = match label.strip_prefix("id:") {
            Some(label) => json!({"lease_id": self.id(label), "actuals": actuals}),
            None => json!({"lease_token": self.jobs[label]["lease_token"], "actuals": actuals}),
        };
        let said = self.app.post("/v1/complete", &body.to_string()).await.json();
        if said["ok"] == true { "ok".to_owned() } else { said.to_string() }
    }
}

/// Who gives its work no name has the lease's.
fn said_job<'a>(label: &'a str, said: &'a Value) -> &'a str {
    if label.is_empty() { said["lease_id"].as_str().unwrap() } else { label }
}
