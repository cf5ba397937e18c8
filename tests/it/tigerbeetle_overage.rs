//! Debts on the real TigerBeetle server: known everywhere, paid once, and never lost with an instance.

mod random_load;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluice::clock;
use sluice::config::settings::secret::Secret;
use sluice::config::settings::value::LedgerUri;
use sluice::ledger::{Account, Action, Balance, Hold, Keep, Ledger, RefusalCode, Transfer, Verdict};
use sluice::limit::Overage;

use crate::ask::{header, request};
use crate::http;
use crate::lease_scenario::lease_of;
use crate::sluice::{Sluice, directory, serve};
use crate::stall::Stalls;
use crate::testapp::{Builder, TestApp};
use crate::tigerbeetle::{Server, apply};
use crate::tigerbeetle_load::{account, balance, chain, fresh, said};
use crate::wait::until;

const PATIENCE: Duration = Duration::from_secs(10);

fn hold(amount: u64, capacity: u64, seconds: u32, overage: Overage) -> Hold {
    Hold { amount, lifetime_seconds: NonZeroU32::new(seconds).unwrap(), capacity, overage, is_exact: true }
}

fn debt(account: &Arc<Account>, hold: Hold) -> sluice::ledger::Chain {
    let transfer = Transfer { account: Arc::clone(account), action: Action::Debt(hold) };
    chain(fresh(), Keep::ForRetries, vec![transfer])
}

fn reserve(account: &Arc<Account>, hold: Hold) -> sluice::ledger::Chain {
    let transfer = Transfer { account: Arc::clone(account), action: Action::Reserve(hold) };
    chain(fresh(), Keep::Nothing, vec![transfer])
}

/// Four instances pay 22 of a limit of 3 in a second: 3 at once and 3 in every second, however many pay.
#[tokio::test(flavor = "multi_thread")]
async fn any_number_of_instances_pays_a_debt_once() {
    let server = Server::start();
    let mut ledgers = Vec::new();
    for _ in 0..4 {
        let (ledger, limit) = (server.ledger().await, account("owed"));
        let first = apply(&ledger, reserve(&limit, hold(0, 3, 1, Overage::Repay)), PATIENCE).await;
        assert_eq!(first.unwrap().verdict, Verdict::Done);
        ledgers.push((ledger, limit));
    }
    let started = clock::instant();
    let (first, limit) = &ledgers[0];
    apply(first, debt(limit, hold(22, 3, 1, Overage::Repay)), PATIENCE).await.unwrap();
    let mut last = 22;
    loop {
        let before = started.elapsed();
        let Balance { used, debt: owed, .. } = balance(first, limit, 3).await;
        assert!(used <= 3 && owed <= last, "{used} used, {owed} owed after {last}");
        // An expiry is never early, so no more can have been paid by then.
        let most = 3 * (started.elapsed().as_secs() + 1);
        assert!(22 - owed <= most, "{owed} are owed after {before:?}");
        last = owed;
        if owed == 0 {
            break;
        }
        for (ledger, limit) in &ledgers {
            let asked = apply(ledger, reserve(limit, hold(1, 3, 1, Overage::Repay)), PATIENCE).await.unwrap();
            if owed > 3 && before > Duration::from_secs(1) {
                assert_eq!(said(&asked), Some((0, RefusalCode::InDebt)), "{owed} are owed");
            }
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(started.elapsed() < Duration::from_secs(20), "{owed} are still owed");
    }
    // 22 are 7 seconds, and each of them may be a little late.
    assert!(started.elapsed() > Duration::from_secs(7), "{:?}", started.elapsed());
}

/// As if the one who recorded it had been killed before it could pay anything.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_meets_a_debt_that_nobody_pays_goes_on() {
    let server = Server::start();
    let gone = server.ledger().await;
    let limit = account("left");
    apply(&gone, debt(&limit, hold(14, 10, 3600, Overage::Debt)), PATIENCE).await.unwrap();
    gone.close().await;

    let (ledger, limit) = (server.ledger().await, account("left"));
    let first = apply(&ledger, reserve(&limit, hold(1, 10, 3600, Overage::Repay)), PATIENCE).await.unwrap();
    assert_eq!(said(&first), Some((0, RefusalCode::InDebt)), "known before the first is let in");
    until("what is free to be paid", async || match balance(&ledger, &limit, 10).await {
        Balance { used: 10, debt: 4, .. } => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

const LIMITS: &str = "
domain: d
descriptors:
- key: tenant
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 2, reconcile: true, overage: repay}]
- key: denies
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 2, reconcile: true}]
- key: slow
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 3600, reconcile: true, overage: repay}]
- key: bills
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 2, reconcile: true, overage: debt}]
- key: late
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 3600, charge: always}]
- key: late-and-owed
  limits: [{name: tokens, kind: rolling, capacity: 100, window_seconds: 3600, charge: always, overage: debt}]
";

fn on(server: &Server) -> Builder {
    let uri = LedgerUri::TigerBeetle { cluster: 0, addresses: vec![server.address()] };
    TestApp::with_limits(LIMITS).and_settings(move |settings| {
        settings.ledger.uri = uri;
        settings.ledger.timeout_ms = 10_000;
        settings.leases.secrets = vec![Secret::new("a secret that all have")];
    })
}

async fn start(server: &Server) -> TestApp {
    let app = on(server).start().await;
    app.readiness(200).await;
    app
}

#[tokio::test(flavor = "multi_thread")]
async fn other_instances_know_within_a_second() {
    let server = Server::start();
    let (one, two) = (start(&server).await, start(&server).await);
    two.answers(&["slow=a x1 -> ok …", "late=a x1 -> ok …"]).await;
    let answer = one.client().should_rate_limit(request("slow=a x10")).await.unwrap().into_inner();
    one.answers(&[&format!("lease_id={} x400 -> bare", lease_of(&answer).unwrap())]).await;
    let (started, stalls) = (clock::instant(), Stalls::since_now());
    one.answers(&["slow=a x1 -> debt d:slow=a:tokens; over 0/100 hour tokens"]).await;
    until("the other to know", async || {
        let said = two.say("slow=a x1").await;
        if said.starts_with("debt d:slow=a:tokens; ") { Ok(()) } else { Err(said) }
    })
    .await;
    let took = started.elapsed();
    assert!(
        took < Duration::from_millis(1_500) + stalls.time(),
        "it took {took:?}, on a machine that may be busy"
    );
    let hint = async |app: &TestApp| {
        let denied = app.client().should_rate_limit(request("slow=a x1")).await.unwrap().into_inner();
        header(&denied, "retry-after").unwrap().parse::<u64>().unwrap()
    };
    // 89 of 390 were paid at once. Of the other 301, 100 are paid in an hour, in two and in three, and the last in four.
    for app in [&one, &two] {
        until("a forecast", async || match hint(app).await {
            14_300..=14_401 => Ok(()),
            other => Err(other.to_string()),
        })
        .await;
    }
    // What others have used is known to whoever only looks.
    one.answers(&["late=a x200 -> NEVER d:late=a:tokens; over 0/100 hour tokens"]).await;
    until("the other to know", async || {
        let said = two.say("late=a x0").await;
        if said == "OVER d:late=a:tokens; over 0/100 hour tokens" { Ok(()) } else { Err(said) }
    })
    .await;
    // Forgiven at one, it is forgiven everywhere.
    assert_eq!(two.send("DELETE", "/v1/limits/d%3Aslow=a%3Atokens/debt", "").await.status, 204);
    for app in [&two, &one] {
        until("all to know", async || {
            let said = app.say("slow=a x1").await;
            if said.starts_with("OVER d:slow=a:tokens; ") { Ok(()) } else { Err(said) }
        })
        .await;
    }
}

/// One that nobody has asked for a while doesn't say `over_limit` first.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_was_idle_knows_at_its_first_refusal() {
    let server = Server::start();
    let (one, two) = (start(&server).await, start(&server).await);
    two.answers(&["slow=b x1 -> ok …"]).await;
    // By then it has looked for the last time.
    tokio::time::sleep(Duration::from_millis(1_600)).await;
    let answer = one.client().should_rate_limit(request("slow=b x10")).await.unwrap().into_inner();
    one.answers(&[&format!("lease_id={} x400 -> bare", lease_of(&answer).unwrap())]).await;
    until("what is free to be paid", async || {
        let limit = one.get("/v1/limits/d%3Aslow=b%3Atokens").await.json();
        if limit["used"] == 100 { Ok(()) } else { Err(limit.to_string()) }
    })
    .await;
    two.answers(&["slow=b x1 -> debt d:slow=b:tokens; over 0/100 hour tokens"]).await;
}

/// What a completion took within the window is not owed when it is sent again after the window, to an instance that does not
/// know of the first one.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_is_sent_again_late_owes_nothing_more() {
    let server = Server::start();
    let (one, two) = (start(&server).await, start(&server).await);
    // All of it fits; a part does not; less was used than was reserved.
    let rows = [("a", 10, 40, 40), ("b", 10, 140, 140), ("c", 10, 4, 40)];
    let mut leases = Vec::new();
    for (tenant, reserved, used, _) in rows {
        let ask = request(&format!("bills={tenant} x{reserved}"));
        let lease = lease_of(&one.client().should_rate_limit(ask).await.unwrap().into_inner()).unwrap();
        one.answers(&[&format!("lease_id={lease} x{used} -> bare")]).await;
        leases.push(lease);
    }
    let balance = async |tenant: &str| {
        let limit = two.get(&format!("/v1/limits/d%3Abills={tenant}%3Atokens")).await.json();
        (limit["used"].as_u64().unwrap(), limit["debt"].as_u64().unwrap())
    };
    for ((tenant, .., again), lease) in rows.iter().zip(&leases) {
        until("the window to end", async || match balance(tenant).await {
            (0, _) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        let before = balance(tenant).await;
        two.answers(&[&format!("lease_id={lease} x{again} -> bare")]).await;
        assert_eq!(balance(tenant).await, before, "{tenant}");
    }
    // One that was never completed is owed, once, whoever is told of it.
    let ask = request("bills=d x10");
    let lease = lease_of(&one.client().should_rate_limit(ask).await.unwrap().into_inner()).unwrap();
    tokio::time::sleep(Duration::from_millis(2_100)).await;
    for app in [&one, &two, &one] {
        app.answers(&[&format!("lease_id={lease} x40 -> bare")]).await;
        assert_eq!(balance("d").await, (0, 30));
    }
}

/// A process on this server, which a test kills.
async fn process_on(server: &Server) -> Sluice {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let ledger = format!("tigerbeetle:0@{}", server.address());
    let addresses = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--ledger", &ledger];
    let command = serve(dir.path(), &addresses);
    Sluice::start(dir, command).await
}

/// 100 in two seconds, and 350 more are used: 90 are paid at once, and then 100, 100 and 60 every two seconds, whether or not the
/// one who recorded it lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_debt_outlives_kill_9() {
    let server = Server::start();
    let mut killed = process_on(&server).await;
    let key = "d:tenant=a:tokens";
    let reserve = json!({"requirements": [{"key": key, "amount": 10}]}).to_string();
    let mut token = serde_json::Value::Null;
    until("a lease", async || {
        let answer = http::post(killed.admin, "/v1/reserve", &reserve).await;
        token = answer.json()["lease_token"].clone();
        if token.is_string() { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
    let complete = json!({"lease_token": token, "actuals": [{"key": key, "actual_amount": 360}]}).to_string();
    assert_eq!(http::post(killed.admin, "/v1/complete", &complete).await.json()["ok"], true);
    let started = clock::instant();
    killed.process.signal("KILL");
    killed.process.exit().await;

    let app = start(&server).await;
    let debt = async || app.get("/v1/limits/d%3Atenant=a%3Atokens").await.json()["debt"].as_u64().unwrap();
    until("all to be paid", async || {
        let said = app.say("tenant=a x1").await;
        let elapsed = started.elapsed();
        if said.starts_with("ok") {
            assert!(elapsed > Duration::from_secs(4), "let in after {elapsed:?}");
            return Ok(());
        }
        assert!(said.starts_with("debt ") || said.starts_with("OVER "), "{said}");
        // 260 after what is paid at once, and 100 in every two seconds at most.
        let most = 100 * (elapsed.as_secs() / 2 + 1);
        assert!(debt().await + most >= 260, "after {elapsed:?}");
        Err(said)
    })
    .await;
    assert_eq!(debt().await, 0);
}

/// Requests that are under way when it is killed.
const CHARGES: u32 = 200;

/// A request of 250 is refused by a limit of 100: it takes the 100 and owes 150, both or neither, whenever it is killed. Whoever was
/// answered has been charged.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_charge_is_whole_or_nothing_after_kill_9() {
    let server = Server::start();
    let mut killed = process_on(&server).await;
    until("it to be ready", async || match http::get(killed.admin, "/readyz").await {
        answer if answer.status == 200 => Ok(()),
        answer => Err(answer.body),
    })
    .await;
    let charge = |n: u32| {
        let entry = json!({"key": "late-and-owed", "value": n.to_string()});
        let body = json!({"domain": "d", "descriptors": [{"entries": [entry]}], "hitsAddend": 250});
        let (admin, body) = (killed.admin, body.to_string());
        // It may be cut off in the middle of its answer.
        tokio::spawn(async move {
            let answer = http::try_send(admin, "POST", "/json", &[], body).await;
            answer.is_ok_and(|answer| answer.status == 429)
        })
    };
    let mut charges: Vec<_> = (0..CHARGES).map(charge).collect();
    // Many of the others are on their way now.
    assert!((&mut charges[0]).await.unwrap(), "the first is refused, and charged");
    killed.process.signal("KILL");
    killed.process.exit().await;

    let app = start(&server).await;
    let mut charged = 0;
    for (n, charge) in charges.into_iter().enumerate() {
        let was_answered = n == 0 || charge.await.unwrap();
        let limit = app.get(&format!("/v1/limits/d%3Alate-and-owed={n}%3Atokens")).await.json();
        let (used, debt) = (limit["used"].as_u64().unwrap(), limit["debt"].as_u64().unwrap());
        assert!([(0, 0), (100, 150)].contains(&(used, debt)), "{n}: {used} used, {debt} owed");
        assert!(!was_answered || used == 100, "{n} was answered and not charged");
        charged += u32::from(used == 100);
    }
    println!("{charged} of {CHARGES} were charged");
    assert!(charged < CHARGES, "it was killed too late");
}
