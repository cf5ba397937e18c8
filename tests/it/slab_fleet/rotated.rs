//! A cluster is replaced under load: four instances, two real servers, and callers that never stop asking.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::JoinSet;

use super::instance::{Client, Instance, admits, pending, start_on};
use super::oracle::{Admission, most_in_a_window};
use super::{SECOND_US, TIMEOUT_MS, end};
use crate::http;
use crate::tigerbeetle::Server;
use crate::wait::until;

/// More is asked of `hot` than it has, and less of `cool`.
const LIMITS: &str = "
domain: d
limits:
- {key: hot, kind: rolling, capacity: 200, window_seconds: 2}
- {key: exact, kind: rolling, capacity: 60, window_seconds: 3, exact: true}
- {key: cool, kind: rolling, capacity: 100000, window_seconds: 3}
descriptors:
- {key: hot, limits: [{ref: hot}]}
- {key: exact, limits: [{ref: exact}]}
- {key: cool, limits: [{ref: cool}]}
";

const CAPACITIES: [(&str, u64, u64); 2] = [("hot", 200, 2), ("exact", 60, 3)];

/// What callers of one limit saw.
#[derive(Default)]
struct Seen {
    admissions: Mutex<Vec<Admission>>,
    denied: AtomicU64,
    failed: AtomicU64,
}

/// Where the instances are now; `None` while one is being replaced.
type Seats = Arc<Vec<Mutex<Option<Client>>>>;

/// When the test began.
static BEGAN: LazyLock<Instant> = LazyLock::new(sluice::clock::instant);

async fn call(seats: Seats, seen: Arc<Seen>, key: &'static str, instance: usize, stop: Arc<AtomicBool>) {
    while !stop.load(Ordering::Relaxed) {
        let seat = seats[instance].lock().clone();
        if let Some(client) = seat {
            let sent_us = now_us();
            let answer = admits(&client, &format!("{key}=x"), None).await;
            let answered_us = now_us();
            match answer {
                Ok(true) => {
                    let admission = Admission { instance, sent_us, answered_us, units: 1 };
                    seen.admissions.lock().push(admission);
                }
                Ok(false) => {
                    seen.denied.fetch_add(1, Ordering::Relaxed);
                }
                // Whether it was admitted is not known, so it is not counted.
                Err(_) => {
                    seen.failed.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn now_us() -> u64 {
    u64::try_from(BEGAN.elapsed().as_micros()).expect("a test must end")
}

async fn ledgers(instance: &Instance) -> Vec<Value> {
    let answer = http::get(instance.sluice.admin, "/v1/ledger").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["ledgers"].as_array().expect("a list").clone()
}

fn safe_after(ledger: &Value) -> u64 {
    ledger["safe_after"].as_u64().expect("a time")
}

/// One after the other is stopped and comes back with other ledgers.
async fn roll(instances: &mut [Instance], seats: &Seats, uris: &[&str]) {
    for (n, instance) in instances.iter_mut().enumerate() {
        *seats[n].lock() = None;
        assert!(end(&mut instance.sluice.process, "TERM").await.success());
        *instance = start_on(uris, LIMITS, TIMEOUT_MS, 1).await.remove(0);
        *seats[n].lock() = Some(instance.client.clone());
        let shown = ledgers(instance).await;
        let shown: Vec<&str> = shown.iter().map(|it| it["uri"].as_str().expect("a text")).collect();
        assert_eq!(shown, uris);
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_replaced_under_load() {
    let (mut old, new) = (Server::start(), Server::start());
    let (old_uri, new_uri) =
        (format!("tigerbeetle:0@{}", old.address()), format!("tigerbeetle:0@{}", new.address()));
    let mut instances = start_on(&[&old_uri], LIMITS, TIMEOUT_MS, 4).await;
    let seats: Seats = Arc::new(instances.iter().map(|it| Mutex::new(Some(it.client.clone()))).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let seen = ["hot", "exact", "cool"].map(|key| (key, Arc::new(Seen::default())));
    let mut callers = JoinSet::new();
    for (key, seen) in &seen {
        for caller in 0..instances.len() * 2 {
            let (seats, seen, stop) = (Arc::clone(&seats), Arc::clone(seen), Arc::clone(&stop));
            callers.spawn(call(seats, seen, key, caller % 4, stop));
        }
    }
    tokio::time::sleep(Duration::from_secs(3)).await;

    roll(&mut instances, &seats, &[&old_uri, &new_uri]).await;
    for instance in &instances {
        let shown = ledgers(instance).await;
        let waits = safe_after(&shown[1]) - safe_after(&shown[0]);
        assert_eq!(waits, 3_000, "the longest window");
        until("the new one to know enough", async || {
            let left = safe_after(&shown[1]).saturating_sub(sluice::clock::unix_ms());
            if left == 0 { Ok(()) } else { Err(format!("{left} ms")) }
        })
        .await;
    }
    roll(&mut instances, &seats, &[&new_uri]).await;
    old.kill();
    tokio::time::sleep(Duration::from_secs(3)).await;

    stop.store(true, Ordering::Relaxed);
    callers.join_all().await;
    for ((key, seen), limit) in seen.iter().zip([Some(CAPACITIES[0]), Some(CAPACITIES[1]), None]) {
        let admissions = std::mem::take(&mut *seen.admissions.lock());
        let (denied, failed) = (seen.denied.load(Ordering::Relaxed), seen.failed.load(Ordering::Relaxed));
        println!("{key}: {} admitted, {denied} denied, {failed} failed", admissions.len());
        assert!(admissions.len() > 300, "{key}: {} admitted", admissions.len());
        match limit {
            None => assert_eq!(denied, 0, "{key} is far below its capacity"),
            Some((_, capacity, window)) => {
                let most = most_in_a_window(&admissions, &[], window * SECOND_US);
                println!("{key}: {most} of {capacity} in the fullest window");
                assert!(most <= capacity, "{key}: {most} of {capacity} in one window");
                assert!(most * 10 >= capacity * 8, "{key} was never full, so nothing is proved: {most}");
                assert!(denied > 100, "{key}: {denied} denied, which is no overload");
            }
        }
    }
    // All is back in the end, on the one that is left.
    for (key, _, _) in CAPACITIES {
        instances[0].until_used(key, 0).await;
        assert_eq!(pending(&new, key).await, 0);
    }
}
