//! Capacities on the real TigerBeetle server that several instances change, and that are changed back.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluice::ledger::tigerbeetle::TigerBeetle;
use sluice::ledger::{Account, Keep, Ledger, Want};
use sluice::limit::Overage;
use sluice::limit::id::digest_id;
use tigerbeetle_unofficial as tb;

use crate::tigerbeetle::{Server, apply};
use crate::tigerbeetle_load::{account, balance, chain, fresh, reserve};

const SECONDS: Duration = Duration::from_secs(5);

async fn provision(ledger: &TigerBeetle, limit: &Arc<Account>, capacity: u64) {
    let (overage, lifetime_seconds) = (Overage::Deny, NonZeroU32::MIN);
    let want = Want { account: Arc::clone(limit), capacity, overage, lifetime_seconds };
    ledger.provision(vec![want]).await.unwrap();
}

/// Asks for one under this capacity; it does not matter what the answer is.
async fn ask(ledger: &TigerBeetle, limit: &Arc<Account>, capacity: u64) {
    let one = chain(fresh(), Keep::Nothing, vec![reserve(limit, 1, capacity, 1)]);
    apply(ledger, one, SECONDS).await.unwrap();
}

async fn until_capacity(ledger: &TigerBeetle, limit: &Arc<Account>, expected: u64, within: Duration) {
    let mut last = None;
    let reached = async {
        while last != Some(expected) {
            tokio::time::sleep(Duration::from_millis(50)).await;
            last = Some(balance(ledger, limit, expected).await.capacity);
        }
    };
    let done = tokio::time::timeout(within, reached).await;
    assert!(done.is_ok(), "{}: {last:?} instead of {expected} after {within:?}", limit.key);
}

/// Eight of ten are held for this long.
async fn hold_eight(ledger: &TigerBeetle, limit: &Arc<Account>, seconds: u32) {
    let eight = chain(fresh(), Keep::Nothing, vec![reserve(limit, 8, 10, seconds)]);
    apply(ledger, eight, SECONDS).await.unwrap();
}

/// New limits arrive all the time; one that waits to be lowered gets its turn all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_decrease_is_finished_while_new_limits_arrive() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("lowered");
    hold_eight(&ledger, &limit, 2).await;
    provision(&ledger, &limit, 5).await;
    let arriving = async {
        for n in 0.. {
            provision(&ledger, &account(&format!("new-{n}")), 7).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        () = arriving => {}
        () = until_capacity(&ledger, &limit, 5, Duration::from_secs(6)) => {}
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decrease_that_was_taken_back_does_not_happen() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limits = [("by file", false), ("by request", true)].map(|(name, by)| (account(name), by));
    for (limit, by_request) in &limits {
        hold_eight(&ledger, limit, 2).await;
        provision(&ledger, limit, 5).await;
        if *by_request {
            ask(&ledger, limit, 10).await;
        } else {
            provision(&ledger, limit, 10).await;
        }
    }
    tokio::time::sleep(Duration::from_millis(3_500)).await;
    for (limit, _) in &limits {
        assert_eq!(balance(&ledger, limit, 10).await.capacity, 10, "{}", limit.key);
        assert_eq!(limit.funded(), Some(10), "{}", limit.key);
    }
}

/// A lowering that lost a race has used up its id for ever. Here all ids that were ever tried for one are used up.
#[tokio::test(flavor = "multi_thread")]
async fn a_decrease_that_lost_every_race_can_still_happen() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("unlucky");
    provision(&ledger, &limit, 10).await;
    let client = tb::Client::new(0, server.address()).unwrap();
    let ids = ["", ":1", ":2", ":3", ":4", ":5", ":6", ":7"];
    let ids = ids.map(|attempt| digest_id(&["xfer:capacity:unlucky:10:0", attempt]));
    let too_much = |id: u128| {
        tb::Transfer::new(id)
            .with_debit_account_id(limit.id.bits())
            .with_credit_account_id(digest_id(&["acct:operator"]))
            .with_ledger(1)
            .with_code(1)
            .with_amount(11)
    };
    client.create_transfers(ids.map(too_much).to_vec()).await.unwrap_err();
    for capacity in [5, 20, 3] {
        provision(&ledger, &limit, capacity).await;
        assert_eq!(balance(&ledger, &limit, capacity).await.capacity, capacity);
    }
    tokio::task::spawn_blocking(move || drop(client)).await.unwrap();
}

/// An instance with an old file comes up for a moment and is gone. The others have traffic, and nobody edits anything.
#[tokio::test(flavor = "multi_thread")]
async fn what_an_old_file_changed_is_put_right() {
    let server = Server::start();
    let (here, gone) = (server.ledger().await, server.ledger().await);
    let put_right = async |(name, old): (&str, u64)| {
        // Whoever only looks believes nothing of it, and puts nothing right.
        let (limit, looked_at) = (account(name), account(name));
        ask(&here, &limit, 5).await;
        provision(&gone, &account(name), old).await;
        assert_eq!(balance(&gone, &looked_at, 5).await.capacity, old);
        let traffic = async {
            loop {
                ask(&here, &limit, 5).await;
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::select! {
            () = traffic => {}
            () = until_capacity(&gone, &looked_at, 5, Duration::from_secs(6)) => {}
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(balance(&gone, &looked_at, 5).await.capacity, 5, "it stays so");
    };
    tokio::join!(put_right(("higher", 10)), put_right(("lower", 2)));
}

/// Two that go on with different files don't fight: the lower one holds, and the other tries less and less often.
#[tokio::test(flavor = "multi_thread")]
async fn instances_that_disagree_do_not_fight() {
    let server = Server::start();
    let (low, high) = (server.ledger().await, server.ledger().await);
    let accounts = [account("disputed"), account("disputed")];
    let watching = server.ledger().await;
    let mut lower = 0;
    // Few at a time, so that there is room for the lower capacity.
    for _ in 0..16 {
        ask(&low, &accounts[0], 5).await;
        ask(&high, &accounts[1], 10).await;
        lower += u32::from(balance(&watching, &account("disputed"), 5).await.capacity == 5);
        tokio::time::sleep(Duration::from_millis(600)).await;
    }
    let client = tb::Client::new(0, server.address()).unwrap();
    let found = client.lookup_accounts(vec![accounts[0].id.bits()]).await.unwrap();
    // Ten at first, and five for every time that it was raised again.
    let raised = (found[0].credits_posted() - 10) / 5;
    println!("raised {raised} times in 10 s, low in {lower} of 16 looks");
    assert!(raised <= 3, "raised {raised} times");
    assert!(lower >= 8, "low in {lower} of 16 looks");
    tokio::task::spawn_blocking(move || drop(client)).await.unwrap();
}
