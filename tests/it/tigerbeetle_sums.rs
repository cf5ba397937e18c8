//! Reserves that go as one sum, on the real TigerBeetle server: nobody can tell, and whoever leaves holds nothing.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use sluice::ledger::tigerbeetle::TigerBeetle;
use sluice::ledger::{Account, Chain, Keep, Ledger, Verdict, Want};
use sluice::limit::Overage;

use crate::scenario::{Bench, OnMemory};
use crate::tigerbeetle::{Server, apply};
use crate::tigerbeetle_load::{account, balance, chain, fresh, reserve, said, until_used};

const PATIENCE: Duration = Duration::from_secs(30);

async fn provision(ledger: &TigerBeetle, limits: &[(Arc<Account>, u64)]) {
    let want = |(account, capacity): &(Arc<Account>, u64)| Want {
        account: Arc::clone(account),
        capacity: *capacity,
        overage: Overage::Deny,
        lifetime_seconds: NonZeroU32::MIN,
    };
    ledger.provision_within(limits.iter().map(want).collect(), PATIENCE).await.unwrap();
}

/// The same seeded load, decision by decision, on the ledger that sums, on one that doesn't, and on memory. One thread,
/// so that all of a round is queued in order before the worker takes any of it.
#[tokio::test]
async fn sums_decide_as_one_by_one_does() {
    let server = Server::start();
    let summing = server.ledger().await;
    let plain = server.ledger_without_sums().await;
    let mut denied = 0;
    for seed in 0..6 {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut memory = OnMemory { now_ms: 1_000_000, ..Default::default() };
        // Capacities that two rounds use up; a hot set, and others that overlap with it.
        let capacities = [150, 400, 90, 5];
        let limits = |name: &str| -> Vec<(Arc<Account>, u64)> {
            let limit = |(n, capacity)| (account(&format!("{name}{seed}:{n}")), capacity);
            capacities.into_iter().enumerate().map(limit).collect()
        };
        let (ours, theirs) = (limits("summed"), limits("alone"));
        provision(&summing, &ours).await;
        provision(&plain, &theirs).await;
        let sets: [&[usize]; 5] = [&[0, 1], &[0, 1], &[2], &[1], &[3, 2]];
        for round in 0..4 {
            let most = random.u64(1..4);
            let asks: Vec<(usize, u64, Keep)> = (0..100)
                .map(|_| {
                    let keep = if random.u8(..30) == 0 { Keep::Name } else { Keep::Nothing };
                    let set = if round % 2 == 0 { 0 } else { random.usize(..sets.len()) };
                    (set, random.u64(1..=most), keep)
                })
                .collect();
            let chains = |limits: &[(Arc<Account>, u64)]| -> Vec<Chain> {
                let transfers = |set: usize, amount| {
                    sets[set].iter().map(|&n| reserve(&limits[n].0, amount, limits[n].1, 3600)).collect()
                };
                asks.iter().map(|&(set, amount, keep)| chain(fresh(), keep, transfers(set, amount))).collect()
            };
            let summed = chains(&ours).into_iter().map(|chain| apply(&summing, chain, PATIENCE));
            let summed = futures_util::future::join_all(summed).await;
            let alone = chains(&theirs).into_iter().map(|chain| apply(&plain, chain, PATIENCE));
            let alone = futures_util::future::join_all(alone).await;
            for (n, chain) in chains(&ours).into_iter().enumerate() {
                let expected = said(&memory.apply(chain).await);
                denied += usize::from(expected.is_some());
                let place = format!("seed {seed}, round {round}, request {n}: {:?}", asks[n]);
                assert_eq!(said(summed[n].as_ref().unwrap()), expected, "summed, {place}");
                assert_eq!(said(alone[n].as_ref().unwrap()), expected, "one by one, {place}");
            }
        }
        for ((limit, capacity), (other, _)) in ours.iter().zip(&theirs) {
            let there = balance(&summing, limit, *capacity).await;
            assert_eq!(memory.balance(limit, *capacity).await, there, "{}", limit.key);
            assert_eq!(balance(&plain, other, *capacity).await, there, "{}", limit.key);
        }
    }
    assert!((300..2_100).contains(&denied), "{denied} of 2400 were denied: the load says little");
}

/// Two sidecars, many callers, one limit: exactly its capacity is admitted.
#[tokio::test(flavor = "multi_thread")]
async fn two_sidecars_that_sum_admit_exactly_the_capacity() {
    let server = Server::start();
    let sidecars = [server.ledger().await, server.ledger().await];
    let (tight, roomy) = ([account("tight"), account("tight")], [account("roomy"), account("roomy")]);
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..600 {
        let ledger = sidecars[n % 2].clone();
        let transfers = vec![reserve(&roomy[n % 2], 1, 1_000, 3600), reserve(&tight[n % 2], 1, 77, 3600)];
        callers.spawn(async move {
            apply(&ledger, chain(fresh(), Keep::Nothing, transfers), PATIENCE).await.unwrap().verdict
        });
    }
    let verdicts = callers.join_all().await;
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Done).count(), 77);
    until_used(&sidecars[0], &tight[0], 77).await;
    until_used(&sidecars[0], &roomy[0], 77).await;
}

/// A caller that leaves gets its part of the sum given back, whenever it leaves; the others keep theirs.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_a_sum_holds_nothing() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limits = [(account("left:a"), 1_000_000), (account("left:b"), 1_000_000)];
    provision(&ledger, &limits).await;
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..600u64 {
        let (ledger, limits) = (ledger.clone(), limits.clone());
        callers.spawn(async move {
            let holds = limits.iter().map(|(limit, capacity)| reserve(limit, 1 + n % 3, *capacity, 3600));
            let work = chain(fresh(), Keep::Nothing, holds.collect());
            let call = apply(&ledger, work, PATIENCE);
            // From before it is sent to long after it landed.
            match tokio::time::timeout(Duration::from_micros(n * 37 % 9_000), call).await {
                Ok(answer) if answer.as_ref().unwrap().verdict == Verdict::Done => 1 + n % 3,
                _ => 0,
            }
        });
    }
    let kept: u64 = callers.join_all().await.into_iter().sum();
    until_used(&ledger, &limits[0].0, kept).await;
    until_used(&ledger, &limits[1].0, kept).await;
}

/// A whole sum that nobody waits for any more is given back whole.
#[tokio::test(flavor = "multi_thread")]
async fn a_sum_that_lands_after_all_have_left_is_given_back() {
    let server = Server::start();
    let ledger = server.ledger().await;
    let limits = [(account("stall"), 1_000)];
    provision(&ledger, &limits).await;
    server.signal("STOP");
    let work = || chain(fresh(), Keep::Nothing, vec![reserve(&limits[0].0, 1, 1_000, 3600)]);
    let calls = (0..200).map(|_| apply(&ledger, work(), Duration::from_millis(300)));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    server.signal("CONT");
    until_used(&ledger, &limits[0].0, 0).await;
}

/// One limit of an abandoned reserve has ended by itself: the others come back all the same.
#[tokio::test]
async fn what_has_ended_keeps_nothing_from_coming_back() {
    let server = Server::start();
    let ledger = server.ledger().await;
    for keep in [Keep::Nothing, Keep::ForCompletion, Keep::Name, Keep::ForRetries] {
        let limits = ["a", "second", "b"].map(|name| (account(&format!("{keep:?}:{name}")), 10));
        provision(&ledger, &limits).await;
        let seconds = [3600, 1, 3600];
        let transfers =
            limits.iter().zip(seconds).map(|((account, capacity), s)| reserve(account, 1, *capacity, s));
        let chain = chain(fresh(), keep, transfers.collect());
        let outcome = apply(&ledger, chain.clone(), PATIENCE).await.unwrap();
        assert_eq!(outcome.verdict, Verdict::Done);
        until_used(&ledger, &limits[1].0, 0).await;
        ledger.give_back(chain);
        for (account, _) in &limits {
            until_used(&ledger, account, 0).await;
        }
    }
}
