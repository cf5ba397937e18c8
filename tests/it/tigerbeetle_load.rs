//! Many at once on the real TigerBeetle server: sidecars, callers, and callers that leave.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluice::ledger::tigerbeetle::{TigerBeetle, TransferIds};
use sluice::ledger::{
    Account, Action, Balance, Chain, Hold, Keep, Ledger, LedgerError, Outcome, RefusalCode, Transfer,
    Verdict, Want,
};
use sluice::limit::{LeaseId, Overage};

use crate::scenario::{Bench, OnMemory};
use crate::stall::steadily;
use crate::tigerbeetle::{Server, apply, until_ready};
use crate::tigerbeetle_rows::OnTigerBeetle;
pub use crate::work::{account, chain, fresh, reserve};

pub async fn balance(ledger: &TigerBeetle, account: &Arc<Account>, capacity: u64) -> Balance {
    let lifetime_seconds = NonZeroU32::MIN;
    let want = Want { account: Arc::clone(account), capacity, overage: Overage::Debt, lifetime_seconds };
    ledger.balances(vec![want]).await.expect("the ledger must answer")[0]
}

/// Waits until the account holds exactly this much.
pub async fn until_used(ledger: &TigerBeetle, account: &Arc<Account>, used: u64) {
    let mut last = None;
    for _ in 0..200 {
        let (overage, lifetime_seconds) = (Overage::Deny, NonZeroU32::MIN);
        let want = Want { account: Arc::clone(account), capacity: 0, overage, lifetime_seconds };
        last = Some(ledger.balances(vec![want]).await.map(|balances| balances[0].used));
        if last == Some(Ok(used)) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{} should hold {used}, last seen: {last:?}", account.key);
}

/// Each sidecar knows the limit only by its key.
#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_and_two_hundred_callers_admit_exactly_the_capacity() {
    let server = Server::start();
    let sidecars = [server.ledger().await, server.ledger().await];
    for (round, ids) in [("ulid", true), ("named", false)] {
        let accounts = [account(round), account(round)];
        let other = [account(&format!("{round}:other")), account(&format!("{round}:other"))];
        let mut callers = tokio::task::JoinSet::new();
        for n in 0..200 {
            let (ledger, limit, other) =
                (sidecars[n % 2].clone(), accounts[n % 2].clone(), other[n % 2].clone());
            let lease = if ids { fresh() } else { LeaseId::parse(&format!("{round}-{n}")) };
            callers.spawn(async move {
                // The roomy limit first: it must be given back when the tight one refuses.
                let transfers = vec![reserve(&other, 1, 1_000, 3600), reserve(&limit, 1, 50, 3600)];
                apply(&ledger, chain(lease, Keep::ForRetries, transfers), Duration::from_secs(20))
                    .await
                    .unwrap()
                    .verdict
            });
        }
        let verdicts = callers.join_all().await;
        let admitted = verdicts.iter().filter(|verdict| **verdict == Verdict::Done).count();
        assert_eq!(admitted, 50);
        assert_eq!(
            balance(&sidecars[0], &accounts[0], 50).await,
            Balance { capacity: 50, used: 50, debt: 0 }
        );
        assert_eq!(
            balance(&sidecars[1], &other[1], 1_000).await,
            Balance { capacity: 1_000, used: 50, debt: 0 }
        );
    }
}

/// Ten sidecars make, raise and lower one limit at the same time; each change happens once.
#[tokio::test(flavor = "multi_thread")]
async fn ten_sidecars_apply_one_change_once() {
    let server = Server::start();
    let mut sidecars = Vec::new();
    for _ in 0..10 {
        sidecars.push(server.ledger().await);
    }
    let accounts: Vec<_> = sidecars.iter().map(|_| account("shared")).collect();
    for capacity in [100, 250, 40, 41, 0, 7] {
        let mut changes = tokio::task::JoinSet::new();
        for (ledger, account) in sidecars.iter().cloned().zip(accounts.clone()) {
            let want = Want { account, capacity, overage: Overage::Debt, lifetime_seconds: NonZeroU32::MIN };
            changes.spawn(async move { ledger.provision_within(vec![want], Duration::from_secs(20)).await });
        }
        for changed in changes.join_all().await {
            assert_eq!(changed, Ok(()), "to {capacity}");
        }
        assert_eq!(balance(&sidecars[3], &accounts[3], capacity).await.capacity, capacity);
        for account in &accounts {
            assert_eq!(account.funded(), Some(capacity));
        }
    }
}

/// A caller that leaves gets its reservation given back, whenever it leaves.
#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_hold_nothing() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("left");
    // Known, so that the race is about the reserve alone.
    let first = chain(fresh(), Keep::Nothing, vec![reserve(&limit, 1, 1_000_000, 3600)]);
    assert_eq!(apply(&ledger, first, Duration::from_secs(5)).await.unwrap().verdict, Verdict::Done);
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..300u64 {
        let (ledger, limit) = (ledger.clone(), limit.clone());
        let keep = if n % 2 == 0 { Keep::ForRetries } else { Keep::ForCompletion };
        callers.spawn(async move {
            let work = chain(fresh(), keep, vec![reserve(&limit, 1, 1_000_000, 3600)]);
            let call = apply(&ledger, work, Duration::from_secs(5));
            // From before it is sent to long after it landed.
            match tokio::time::timeout(Duration::from_micros(n * 37 % 6_000), call).await {
                Ok(answer) => u64::from(answer.unwrap().verdict == Verdict::Done),
                Err(_) => 0,
            }
        });
    }
    let kept: u64 = callers.join_all().await.into_iter().sum();
    until_used(&ledger, &limit, 1 + kept).await;
}

/// A name that is sent again after its first caller left must not be admitted on what is being given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_was_given_back_is_not_admitted_without_a_charge() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let other = server.ledger().await;
    let mut held = 0;
    let limit = account("again");
    for n in 0..100u64 {
        let work = || {
            chain(
                LeaseId::parse(&format!("again-{n}")),
                Keep::ForRetries,
                vec![reserve(&limit, 1, 1_000, 3600)],
            )
        };
        let first = apply(&ledger, work(), Duration::from_secs(5));
        let left = tokio::time::timeout(Duration::from_micros(n * 61 % 3_000), first).await;
        let again = apply(&other, work(), Duration::from_secs(5)).await.unwrap();
        match again.verdict {
            Verdict::Done => held += 1,
            Verdict::NotAsked => panic!("TigerBeetle must be asked"),
            Verdict::Refused(refusal) => {
                assert_eq!(refusal.code, RefusalCode::Abandoned);
                assert!(left.is_err(), "nobody left, so nothing was given back");
            }
        }
    }
    until_used(&ledger, &limit, held).await;
}

/// The same seeded load on both ledgers, event by event.
#[tokio::test(flavor = "multi_thread")]
async fn agrees_with_the_memory_ledger_event_by_event() {
    let server = Server::start();
    let ledger = server.ledger().await;
    for (seed, ids) in [(1, TransferIds::TimeOrdered), (2, TransferIds::Sha256)] {
        let ledger = if ids == TransferIds::Sha256 {
            server.ledger_with(Duration::from_secs(5), ids)
        } else {
            ledger.clone()
        };
        until_ready(&ledger, Duration::from_secs(20)).await;
        agrees_with_memory(&mut OnTigerBeetle { ledger }, seed).await;
    }
}

/// The same seeded load on a ledger and on the one in memory.
pub async fn agrees_with_memory(bench: &mut impl Bench, seed: u64) {
    steadily(async |run| agrees_once(bench, seed + 1000 * (run as u64 - 1)).await).await;
}

async fn agrees_once(bench: &mut impl Bench, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut memory = OnMemory { now_ms: 1_000_000, ..Default::default() };
    let limits: Vec<_> =
        (0..5).map(|n| (account(&format!("agree{seed}:{n}")), [3, 10, 25, 60, 400][n])).collect();
    let mut names = Vec::new();
    for event in 0..400 {
        if event % 130 == 129 {
            // Everything of two seconds has expired on both; a margin for the server's pulse.
            memory.now_ms += 2_500;
            tokio::time::sleep(Duration::from_millis(2_500)).await;
        }
        let work = random_chain(&mut random, seed, event, &limits, &mut names);
        let on_memory = memory.apply(work.clone()).await;
        let there = bench.apply(work.clone()).await;
        assert_eq!(said(&on_memory), said(&there), "event {event} of seed {seed}: {work:?}");
        assert_eq!(on_memory.taken, there.taken, "event {event} of seed {seed}: {work:?}");
    }
    for (limit, capacity) in &limits {
        let there = bench.balance(limit, *capacity).await;
        assert_eq!(memory.balance(limit, *capacity).await, there, "{}", limit.key);
        assert!(there.used <= *capacity);
    }
}

pub fn said(outcome: &Outcome) -> Option<(usize, RefusalCode)> {
    match outcome.verdict {
        Verdict::Done => None,
        Verdict::Refused(refusal) => Some((refusal.index, refusal.code)),
        Verdict::NotAsked => panic!("TigerBeetle must be asked"),
    }
}

fn random_chain(
    random: &mut fastrand::Rng,
    seed: u64,
    event: u64,
    limits: &[(Arc<Account>, u64)],
    names: &mut Vec<(LeaseId, Vec<Transfer>)>,
) -> Chain {
    let again = (!names.is_empty()).then(|| names[random.usize(..names.len())].clone());
    match (random.u8(..12), again) {
        (10, _) | (11, None) => {
            let (limit, capacity) = &limits[random.usize(..limits.len())];
            let mut transfers =
                vec![reserve(limit, random.u64(1..20), *capacity, [2, 3600][random.usize(..2)])];
            if let Action::Reserve(hold) = transfers[0].action {
                transfers[0].action = Action::TakeUpTo(hold);
            }
            let lease =
                LeaseId::fresh(sluice::clock::unix_ms(), (u128::from(seed) << 64) | u128::from(event));
            names.push((lease.clone(), transfers.clone()));
            chain(lease, Keep::ForRetries, transfers)
        }
        // What doesn't fit is taken as far as there is, or owed.
        (11, Some((lease, transfers))) => {
            let mut transfers = vec![transfers[random.usize(..transfers.len())].clone()];
            if let Action::Reserve(hold) | Action::TakeUpTo(hold) = transfers[0].action {
                let hold = Hold { overage: Overage::Debt, ..hold };
                let actions = [Action::Rereserve(hold), Action::Debt(hold), Action::TakeUpTo(hold)];
                transfers[0].action = actions[random.usize(..3)];
                // A part of it is taken and the rest owed, both or neither.
                if transfers[0].action == Action::Debt(hold) && random.bool() {
                    let taken = Hold { amount: random.u64(..=hold.amount), ..hold };
                    transfers.push(Transfer { action: Action::Rereserve(taken), ..transfers[0].clone() });
                }
            }
            chain(lease, Keep::ForRetries, transfers)
        }
        // The same name with the same request.
        (0, Some((lease, transfers))) => chain(lease, Keep::ForRetries, transfers),
        (1 | 2, Some((lease, transfers))) => {
            let mut transfers = vec![transfers[random.usize(..transfers.len())].clone()];
            transfers[0].action = Action::Void;
            chain(lease, Keep::ForRetries, transfers)
        }
        (3 | 4, Some((lease, transfers))) => {
            let mut transfers = vec![transfers[random.usize(..transfers.len())].clone(); 2];
            if let Action::Reserve(hold) | Action::TakeUpTo(hold) = transfers[1].action {
                transfers[0].action = Action::Void;
                transfers[1].action = Action::Rereserve(Hold { amount: random.u64(..6), ..hold });
            }
            chain(lease, Keep::ForRetries, transfers)
        }
        _ => {
            let mut order: Vec<usize> = (0..limits.len()).collect();
            random.shuffle(&mut order);
            order.truncate(random.usize(1..=3));
            let transfers: Vec<Transfer> = order
                .iter()
                .map(|&n| reserve(&limits[n].0, random.u64(1..6), limits[n].1, [2, 3600][random.usize(..2)]))
                .collect();
            let ms = sluice::clock::unix_ms();
            let lease = LeaseId::fresh(ms, (u128::from(seed) << 64) | u128::from(event));
            names.push((lease.clone(), transfers.clone()));
            chain(lease, Keep::ForRetries, transfers)
        }
    }
}

/// A full queue answers at once, and says how long the line is.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_answers_at_once() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limit = account("full");
    let small = server.ledger_queue(4);
    until_ready(&small, Duration::from_secs(20)).await;
    server.signal("STOP");
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let (small, limit) = (small.clone(), limit.clone());
        callers.spawn(async move {
            let work = chain(fresh(), Keep::Nothing, vec![reserve(&limit, 1, 1_000, 3600)]);
            apply(&small, work, Duration::from_millis(400)).await
        });
    }
    let answers = callers.join_all().await;
    server.signal("CONT");
    let full = answers
        .iter()
        .filter(|answer| matches!(answer, Err(LedgerError::QueueFull { waiting: 4, .. })))
        .count();
    assert!(full >= 20, "{answers:?}");
    until_used(&ledger, &limit, 0).await;
}
