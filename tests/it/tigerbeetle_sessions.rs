//! Sessions that are lost, on the real TigerBeetle server: evicted, starved of connections, or left behind by a restart;
//! and tasks that fail. Decisions go on, and nothing is admitted twice or lost.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice::ledger::tigerbeetle::{Cluster, Options, Task, TigerBeetle, TransferIds};
use sluice::ledger::{
    Account, Action, Balance, Chain, Hold, Keep, Ledger, LedgerError, RefusalCode, Transfer, Verdict, Want,
};
use sluice::limit::{LeaseId, Overage};
use sluice::telemetry::Metrics;
use tigerbeetle_unofficial as tb;

use crate::http;
use crate::sluice::{Sluice, directory, serve};
use crate::tigerbeetle::{Replicas, Server, apply, until_ready};
use crate::tigerbeetle_load::{account, balance, chain, fresh, reserve, until_used};
use crate::wait::until;

const TIMEOUT: Duration = Duration::from_millis(400);

/// What operators look for.
const NO_CONNECTION: &str = "this cluster has no connection left (32, two per Sluice): use hubs";

const LIMITS: &str = "
domain: d
descriptors:
- {key: k, rate_limit: {unit: minute, requests_per_unit: 10}}
";

/// An instance that said something in the middle of it is not evicted: then it is tried again.
const TRIES: u64 = 8;

/// Sessions that come and go: the server keeps 64, also of clients that went away, and drops the one that was silent
/// longest. As many at once as there are connections, so that few have the time to say that they are still there.
async fn evict_others(server: &Server) {
    for _ in 0..3 {
        let mut clients = tokio::task::JoinSet::new();
        for _ in 0..26 {
            let address = server.address();
            clients.spawn(async move {
                let client = tb::Client::new(0, address).unwrap();
                client.lookup_accounts(vec![1]).await.unwrap();
                tokio::task::spawn_blocking(move || drop(client)).await.unwrap();
            });
        }
        clients.join_all().await;
    }
}

fn one(limit: &Arc<Account>, capacity: u64) -> Chain {
    chain(fresh(), Keep::Nothing, vec![reserve(limit, 1, capacity, 3600)])
}

fn is_done(answer: &Result<sluice::ledger::Outcome, LedgerError>) -> bool {
    matches!(answer, Ok(outcome) if outcome.verdict == Verdict::Done)
}

/// Asks again until it is answered.
async fn until_done(ledger: &TigerBeetle, limit: &Arc<Account>, within: Duration) {
    let mut last = None;
    let asking = async {
        loop {
            let answer = apply(ledger, one(limit, 1_000_000), TIMEOUT).await;
            if is_done(&answer) {
                return;
            }
            last = Some(answer);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let done = tokio::time::timeout(within, asking).await;
    assert!(done.is_ok(), "{} is not served in {within:?}: {last:?}", limit.key);
}

/// A caller that still waits is answered, though its session was gone when it asked.
#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_session_is_made_again() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("evicted");
    assert!(is_done(&apply(&ledger, one(&limit, 1_000), TIMEOUT).await));
    let mut used = 1;
    while ledger.renewals() == 0 {
        assert!(used < TRIES, "it was not evicted");
        evict_others(&server).await;
        let answer = apply(&ledger, one(&limit, 1_000), Duration::from_secs(5)).await;
        assert!(is_done(&answer), "{answer:?}");
        used += 1;
    }
    until_used(&ledger, &limit, used).await;
}

/// Worker and provisioner use one session: what either of them asks in the moment of an eviction must not be swallowed.
#[tokio::test(flavor = "multi_thread")]
async fn known_and_new_limits_are_served_after_an_eviction() {
    let server = Server::start();
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    until_ready(&ledger, Duration::from_secs(60)).await;
    let known: Vec<_> = (0..10).map(|n| account(&format!("known-{n}"))).collect();
    for limit in &known {
        until_done(&ledger, limit, Duration::from_secs(10)).await;
    }
    for round in 0..TRIES {
        if round > 2 && ledger.renewals() > 0 {
            return;
        }
        evict_others(&server).await;
        let mut asking = tokio::task::JoinSet::new();
        for n in 0..20 {
            let limit = if n % 2 == 0 { known[n / 2].clone() } else { account(&format!("new-{round}-{n}")) };
            let ledger = ledger.clone();
            asking.spawn(async move { until_done(&ledger, &limit, Duration::from_secs(5)).await });
        }
        asking.join_all().await;
        until_ready(&ledger, Duration::from_secs(5)).await;
    }
    panic!("it was not evicted");
}

/// An instance that has nothing to do finds out by itself, before anybody asks.
#[tokio::test(flavor = "multi_thread")]
async fn an_idle_session_is_kept_or_replaced() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("idle");
    until_done(&ledger, &limit, Duration::from_secs(10)).await;
    evict_others(&server).await;
    // Longer than an instance is silent, so that it has found out, whether or not it was evicted.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let answer = apply(&ledger, one(&limit, 1_000_000), TIMEOUT).await;
    assert!(is_done(&answer), "the first to ask pays for it: {answer:?}");
}

/// What timed out at an instance whose session was evicted is sent to another, as Envoy does. The first one sends its
/// request again when it is back, and must not give back what the other admitted under the same name.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_another_instance_admitted_is_not_given_back() {
    let server = Server::start();
    let evicted = server.ledger_with(Duration::from_millis(200), TransferIds::TimeOrdered);
    until_ready(&evicted, Duration::from_secs(60)).await;
    let other = server.ledger().await;
    for round in 0..TRIES {
        let limits = [account(&format!("twice-{round}")), account(&format!("twice-{round}"))];
        // Both know the account, and only the session is new.
        assert!(is_done(&apply(&evicted, one(&limits[0], 11), Duration::from_secs(5)).await));
        evict_others(&server).await;
        assert_eq!(balance(&other, &limits[1], 11).await.used, 1);
        let mut asking = tokio::task::JoinSet::new();
        for n in 0..10 {
            let (evicted, other, limits) = (evicted.clone(), other.clone(), limits.clone());
            asking.spawn(async move {
                let named = |limit, name: &str| {
                    chain(LeaseId::parse(name), Keep::ForRetries, vec![reserve(limit, 1, 11, 3600)])
                };
                let mut name = format!("twice-{round}-{n}");
                if is_done(&apply(&evicted, named(&limits[0], &name), Duration::from_millis(200)).await) {
                    return (1, 0);
                }
                loop {
                    let answer = apply(&other, named(&limits[1], &name), Duration::from_secs(5)).await;
                    match answer.unwrap().verdict {
                        Verdict::Done => return (1, 1),
                        // As admission does: it was given back, and is asked for under the next name.
                        Verdict::Refused(refusal) if refusal.code == RefusalCode::Abandoned => name.push('+'),
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
        let answers = asking.join_all().await;
        let sent_twice = answers.iter().map(|(_, twice)| twice).sum::<u64>();
        assert_eq!(answers.iter().map(|(admitted, _)| admitted).sum::<u64>(), 10);
        // It is back when it answers, and has then given back all that it will.
        until_done(&evicted, &account("back"), Duration::from_secs(5)).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        until_used(&other, &limits[1], 11).await;
        let one_more = apply(&other, one(&limits[1], 11), Duration::from_secs(5)).await.unwrap();
        assert_ne!(one_more.verdict, Verdict::Done, "12 of 11 were admitted");
        if sent_twice > 0 {
            return;
        }
    }
    panic!("nothing was sent to the other instance");
}

/// A server takes a bounded number of connections. One is enough to decide.
#[tokio::test(flavor = "multi_thread")]
async fn decisions_go_on_without_a_connection_to_read() {
    let server = Server::start_with_eight_connections();
    let mut others = Vec::new();
    for _ in 0..7 {
        let client = tb::Client::new(0, server.address()).unwrap();
        client.lookup_accounts(vec![1]).await.unwrap();
        others.push(client);
    }
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    let limit = account("starved");
    until_done(&ledger, &limit, Duration::from_secs(20)).await;
    until("what is missing to be told", async || {
        let reason = ledger.ready().expect_err("it has one connection of two");
        assert!(reason.contains("balances can't be read") || reason.contains("yet"), "{reason}");
        if reason.contains(NO_CONNECTION) { Ok(()) } else { Err(reason) }
    })
    .await;
    until_done(&ledger, &limit, Duration::from_secs(1)).await;
    // One goes, and its connection is taken.
    let last = others.pop();
    tokio::task::spawn_blocking(move || drop(last)).await.unwrap();
    until_ready(&ledger, Duration::from_secs(20)).await;
    tokio::task::spawn_blocking(move || drop(others)).await.unwrap();
}

/// All connections of a server are taken: a new instance says so in words that can be acted on, and serves when one is free.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_gets_no_connection_says_so() {
    let server = Server::start_with_eight_connections();
    let mut others = Vec::new();
    for _ in 0..8 {
        let client = tb::Client::new(0, server.address()).unwrap();
        client.lookup_accounts(vec![1]).await.unwrap();
        others.push(client);
    }
    let uri = format!("tigerbeetle:0@{}", server.address());
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", &uri]);
    let sluice = Sluice::start(dir, command).await;
    let metric = async || {
        let text = http::get(sluice.admin, "/metrics").await.body;
        let line = text.lines().find_map(|line| line.strip_prefix("sluice_ledger_no_connection "));
        line.expect("it must be there").parse::<u64>().expect("a number")
    };
    until("/readyz to say so", async || {
        let answer = http::get(sluice.admin, "/readyz").await;
        if answer.status == 503 && answer.body.contains(NO_CONNECTION) { Ok(()) } else { Err(answer.body) }
    })
    .await;
    assert!(sluice.process.stderr().contains(NO_CONNECTION), "{}", sluice.process.stderr());
    assert!(metric().await > 0);

    others.truncate(6);
    tokio::time::sleep(Duration::from_millis(100)).await;
    until("it to be ready", async || {
        let answer = http::get(sluice.admin, "/readyz").await;
        if answer.status == 200 { Ok(()) } else { Err(answer.body) }
    })
    .await;
    assert_eq!(metric().await, 0);
    tokio::task::spawn_blocking(move || drop(others)).await.unwrap();
}

/// A server that stands still has all of its connections: nobody is told to use hubs for that.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_stands_still_is_not_taken_for_a_full_one() {
    let server = Server::start();
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    until_ready(&ledger, Duration::from_secs(60)).await;
    server.signal("STOP");
    assert!(!is_done(&apply(&ledger, one(&account("still"), 1_000), TIMEOUT).await));
    // Longer than it takes to give a session up and to be sure that the next one gets no connection.
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if let Err(reason) = ledger.ready() {
            assert!(!reason.contains(NO_CONNECTION), "{reason}");
        }
    }
    let reason = ledger.ready().expect_err("it stands still");
    assert!(reason.contains("no answer"), "{reason}");
    server.signal("CONT");
    until_ready(&ledger, Duration::from_secs(30)).await;
}

/// The client library waits up to ten seconds before it tries a server again.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods, reason = "a test may look at the clock")]
async fn a_server_that_was_away_for_long_is_used_soon_after_it_listens() {
    let mut server = Server::start();
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    until_ready(&ledger, Duration::from_secs(60)).await;
    let limit = account("away");
    until_done(&ledger, &limit, Duration::from_secs(10)).await;
    server.kill();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(ledger.ready().is_err());
    server.restart();
    while tokio::net::TcpStream::connect(server.address()).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let listens = Instant::now();
    until_done(&ledger, &limit, Duration::from_secs(30)).await;
    let took = listens.elapsed();
    println!("answered {took:?} after the server listened again");
    assert!(took < Duration::from_secs(2), "{took:?}");
}

/// One name may stand for all replicas, in whatever order the resolver knows them. Any of them may go, also the first.
#[tokio::test(flavor = "multi_thread")]
async fn the_order_of_addresses_does_not_matter() {
    let mut cluster = Replicas::start();
    let addresses = cluster.replicas.iter().rev().map(Server::address).collect();
    let options = Options {
        cluster: Cluster { id: 0, addresses },
        transfer_ids: TransferIds::TimeOrdered,
        timeout: Duration::from_secs(5),
        queue_max: 100,
        sums: true,
        events: None,
    };
    let ledger = TigerBeetle::start(options, Arc::new(Metrics::default())).unwrap();
    until_ready(&ledger, Duration::from_secs(90)).await;
    let (limit, before) = (account("reversed"), ledger.renewals());
    for _ in 0..50 {
        let answer = apply(&ledger, one(&limit, 1_000), Duration::from_secs(5)).await;
        assert!(is_done(&answer), "{answer:?}");
    }
    assert_eq!(ledger.renewals(), before);
    cluster.replicas[2].kill();
    until_done(&ledger, &limit, Duration::from_secs(30)).await;
}

/// Whichever task fails, everything works again soon.
#[cfg(debug_assertions)]
#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_panics_is_started_again() {
    let server = Server::start();
    let ledger = server.ledger_with(TIMEOUT, TransferIds::TimeOrdered);
    until_ready(&ledger, Duration::from_secs(60)).await;
    let known = account("known");
    until_done(&ledger, &known, Duration::from_secs(10)).await;
    let tasks = [Task::Worker, Task::Provisioner, Task::Reader, Task::Payer];
    for (n, task) in tasks.into_iter().enumerate() {
        ledger.make_panic(task);
        let (new, owing) = (account(&format!("new-{n}")), account(&format!("owing-{n}")));
        let lifetime_seconds = NonZeroU32::new(3600).unwrap();
        let (amount, capacity, overage) = (3, 10, Overage::Repay);
        let debt = Hold { amount, lifetime_seconds, capacity, overage, is_exact: true };
        let debt = Transfer { account: Arc::clone(&owing), action: Action::Debt(debt) };
        // Each of these wakes one of the tasks. What became of them does not matter.
        let (overage, lifetime_seconds) = (Overage::Deny, NonZeroU32::MIN);
        let want = Want { account: Arc::clone(&known), capacity: 0, overage, lifetime_seconds };
        drop(apply(&ledger, one(&known, 1_000_000), TIMEOUT).await);
        drop(apply(&ledger, one(&new, 1_000_000), TIMEOUT).await);
        drop(ledger.balances(vec![want]).await);
        drop(apply(&ledger, chain(fresh(), Keep::ForRetries, vec![debt.clone()]), TIMEOUT).await);
        let restarted = async {
            while ledger.restarts() <= n as u64 {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        let restarted = tokio::time::timeout(Duration::from_secs(5), restarted).await;
        assert!(restarted.is_ok(), "{task:?} did not fail");
        until_ready(&ledger, Duration::from_secs(5)).await;
        until_done(&ledger, &known, Duration::from_secs(5)).await;
        until_done(&ledger, &new, Duration::from_secs(5)).await;
        assert_eq!(balance(&ledger, &new, 1_000_000).await.capacity, 1_000_000);
        let owed = chain(fresh(), Keep::ForRetries, vec![debt]);
        let owed = apply(&ledger, owed, Duration::from_secs(5)).await;
        assert!(is_done(&owed), "{owed:?}");
        until("what is owed to be paid", async || match balance(&ledger, &owing, 10).await {
            Balance { used: 3.., debt: 0, .. } => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    }
}
