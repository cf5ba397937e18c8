//! Two ledgers of which one or both are a real TigerBeetle server: what every ledger must do, and what happens when one of
//! them is away.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sluice::ledger::memory::Memory;
use sluice::ledger::{
    Account, Backend, Balance, Chain, Keep, Ledger, LedgerError, Outcome, RefusalCode, Rotation, Verdict,
    Want,
};
use sluice::limit::{LeaseId, Overage};

use crate::ledger_rows::ROWS;
use crate::scenario::{Bench, run};
use crate::tigerbeetle::Server;
use crate::tigerbeetle_load::{account, chain, fresh, reserve};
use crate::wait::until;

/// Far above what an answer takes, so that a busy machine is not a failure.
const TIMEOUT: Duration = Duration::from_secs(10);

type Both = Arc<Rotation<Backend>>;

fn both(old: Backend, new: Backend) -> Both {
    Arc::new(Rotation::both((old, "old".to_owned()), (new, "new".to_owned()), TIMEOUT))
}

async fn on(server: &Server) -> Backend {
    Backend::TigerBeetle(server.ledger().await)
}

fn memory() -> Backend {
    Backend::Memory(Memory::default())
}

/// `ALL`: the old one names every limit that did not fit.
struct OnBoth<const ALL: bool>(Both);

impl<const ALL: bool> Bench for OnBoth<ALL> {
    const NAMES_ALL: bool = ALL;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        self.0.apply(&chain).await.expect("both must answer")
    }

    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        balance(&self.0, account, capacity).await
    }

    async fn paid(&mut self) {
        // Limits that owe are looked at once a second.
        tokio::time::sleep(Duration::from_millis(1_300)).await;
    }

    async fn wait(&mut self, seconds: u64) {
        // Expiry is never early, and may be a pulse late.
        tokio::time::sleep(Duration::from_millis(seconds * 1000 + 250)).await;
    }
}

async fn balance(ledger: &Both, account: &Arc<Account>, capacity: u64) -> Balance {
    let (overage, lifetime_seconds) = (Overage::Debt, NonZeroU32::MIN);
    let want = Want { account: Arc::clone(account), capacity, overage, lifetime_seconds };
    ledger.balances(vec![want]).await.expect("both must answer")[0]
}

/// All rows at once: they share the servers but no limit.
async fn all_rows<const ALL: bool>(ledger: Both) {
    join_all(ROWS.iter().enumerate().map(async |(index, row)| {
        let mut bench = OnBoth::<ALL>(Arc::clone(&ledger));
        run(&mut bench, &format!("row{index}"), row).await;
    }))
    .await;
    ledger.close().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_memory_to_tigerbeetle() {
    let server = Server::start();
    all_rows::<true>(both(memory(), on(&server).await)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn from_one_tigerbeetle_to_another() {
    let (old, new) = (Server::start(), Server::start());
    all_rows::<false>(both(on(&old).await, on(&new).await)).await;
}

/// What one server holds of a limit, past the layer.
async fn held(ledger: &Backend, key: &str) -> u64 {
    let want = Want {
        account: account(key),
        capacity: 10,
        overage: Overage::Deny,
        lifetime_seconds: NonZeroU32::MIN,
    };
    ledger.balances(vec![want]).await.expect("it must answer")[0].used
}

async fn until_held(ledger: &Backend, key: &str, expected: u64) {
    until(&format!("{key} to hold {expected}"), async || {
        let held = held(ledger, key).await;
        if held == expected { Ok(()) } else { Err(format!("{held}")) }
    })
    .await;
}

/// The new one takes what instances elsewhere have left: what the old one reserved goes back, whatever its name is.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_new_one_refuses_is_given_back_on_the_old_one() {
    let (old, new) = (Server::start(), Server::start());
    let ledger = both(on(&old).await, on(&new).await);
    let (beside_old, beside_new) = (on(&old).await, on(&new).await);
    for keep in [Keep::Nothing, Keep::ForUndo, Keep::ForCompletion, Keep::Name, Keep::ForRetries] {
        let key = format!("{keep:?}");
        let limit = account(&key);
        let full = chain(fresh(), Keep::Nothing, vec![reserve(&account(&key), 8, 10, 3600)]);
        assert_eq!(beside_new.apply(&full).await.expect("it must answer").verdict, Verdict::Done);
        let named = chain(LeaseId::parse(&format!("lease-{key}")), keep, vec![reserve(&limit, 3, 10, 3600)]);
        for sending in ["first", "second"] {
            let outcome = ledger.apply(&named).await.expect("both must answer");
            let Verdict::Refused(refusal) = outcome.verdict else { panic!("{key}: {outcome:?}") };
            let is_final = matches!(refusal.code, RefusalCode::ExceedsCredits | RefusalCode::IdAlreadyFailed);
            // A name that its caller chose stays refused; others are used once.
            assert!(is_final || (sending == "second" && !keep.is_named()), "{key}, {sending}: {refusal:?}");
            until_held(&beside_old, &key, 0).await;
        }
        let fits = chain(fresh(), keep, vec![reserve(&limit, 2, 10, 3600)]);
        assert_eq!(ledger.apply(&fits).await.expect("both must answer").verdict, Verdict::Done, "{key}");
        assert_eq!((held(&beside_old, &key).await, held(&beside_new, &key).await), (2, 10), "{key}");
    }
}

/// A chain that one of them does not answer fails, and is held by neither.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_away_fails_the_chain_and_holds_nothing() {
    let (old, new) = (Server::start(), Server::start());
    let timeout = Duration::from_millis(500);
    let open = |server: &Server| {
        Backend::TigerBeetle(server.ledger_with(timeout, sluice::ledger::TransferIds::TimeOrdered))
    };
    let names = |which: &str| format!("tigerbeetle:{which}");
    let ledger = Rotation::both((open(&old), names("old")), (open(&new), names("new")), timeout);
    until("both to answer", async || ledger.ready()).await;
    let (beside_old, beside_new) = (on(&old).await, on(&new).await);
    let limit = account("away");
    let one = |name: &str| chain(LeaseId::parse(name), Keep::ForRetries, vec![reserve(&limit, 1, 10, 3600)]);
    let before = ledger.apply(&one("before")).await.expect("both must answer");
    assert_eq!(before.verdict, Verdict::Done);

    for (which, server) in [("new", &new), ("old", &old)] {
        server.signal("STOP");
        let answer = ledger.apply(&one(&format!("while {which} is away"))).await;
        assert!(matches!(answer, Err(LedgerError::TimedOut(_))), "{which}: {answer:?}");
        let told = until("readiness to fall", async || ledger.ready().err().ok_or("ready".to_owned())).await;
        assert!(told.starts_with(&format!("ledger: the {which} one, tigerbeetle:{which}: ")), "{told}");
        // The one that reads may have noticed it before the one that writes; until that has, a chain is sent and waited for.
        until("chains to fail at once", async || match ledger.apply(&one("and again")).await {
            Err(LedgerError::Unavailable(why)) if why.contains(&format!("the {which} one")) => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
        server.signal("CONT");
        until("both to answer", async || ledger.ready()).await;
        until_held(&beside_old, "away", 1).await;
        until_held(&beside_new, "away", 1).await;
    }
    let after = ledger.apply(&one("after")).await.expect("both must answer");
    assert_eq!(after.verdict, Verdict::Done);
    assert_eq!((held(&beside_old, "away").await, held(&beside_new, "away").await), (2, 2));
}
