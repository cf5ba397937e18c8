//! The batcher against a small server: what is summed, and that nobody can tell.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;

use tb::transfer::Flags;

use super::*;
use crate::ledger::{Account, Action, Chain, Hold, Keep, Transfer};
use crate::limit::{LimitKey, Overage};

/// What TigerBeetle does with pending transfers and their voids.
#[derive(Default)]
struct FakeServer {
    free: HashMap<u128, u128>,
    pending: HashMap<u128, (u128, u128)>,
    /// Ids that were refused once stay refused.
    refused: HashSet<u128>,
}

impl FakeServer {
    fn create_transfers(&mut self, transfers: &[tb::Transfer]) -> Vec<(usize, Kind)> {
        let mut failures = Vec::new();
        let mut start = 0;
        while start < transfers.len() {
            let length = transfers[start..].iter().position(|t| !t.flags().contains(Flags::LINKED));
            let end = start + length.expect("the last chain must end") + 1;
            let before = (self.free.clone(), self.pending.clone());
            let failed = (start..end).find_map(|n| Some((n, self.create(&transfers[n]).err()?)));
            if let Some((at, kind)) = failed {
                (self.free, self.pending) = before;
                if matches!(kind, Kind::ExceedsCredits) {
                    self.refused.insert(transfers[at].id());
                }
                let kind = |n| if n == at { kind } else { Kind::LinkedEventFailed };
                failures.extend((start..end).map(|n| (n, kind(n))));
            }
            start = end;
        }
        failures
    }

    fn create(&mut self, transfer: &tb::Transfer) -> Result<(), Kind> {
        if transfer.flags().contains(Flags::VOID_PENDING_TRANSFER) {
            let found = self.pending.remove(&transfer.pending_id());
            let (account, amount) = found.ok_or(Kind::PendingTransferNotFound)?;
            *self.free.get_mut(&account).unwrap() += amount;
            return Ok(());
        }
        let (account, amount) = (transfer.debit_account_id(), transfer.amount());
        let free = self.free.get_mut(&account).ok_or(Kind::DebitAccountNotFound)?;
        if self.pending.contains_key(&transfer.id()) {
            return Err(Kind::Exists);
        }
        if self.refused.contains(&transfer.id()) {
            return Err(Kind::IdAlreadyFailed);
        }
        *free = free.checked_sub(amount).ok_or(Kind::ExceedsCredits)?;
        self.pending.insert(transfer.id(), (account, amount));
        Ok(())
    }
}

fn now(monotonic_ms: u64) -> Now {
    Now { ids: TransferIds::TimeOrdered, unix_ms: 1, monotonic_ms, entropy: || fastrand::u128(..) }
}

fn account(name: &str) -> Arc<Account> {
    Arc::new(Account::new(LimitKey::new(name)))
}

const CAPACITY: u64 = 1_000_000;

fn work(keep: Keep, holds: &[(&Arc<Account>, u64)]) -> Work {
    let transfers = holds.iter().map(|(account, amount)| {
        let lifetime_seconds = NonZeroU32::new(60).unwrap();
        let (amount, capacity, overage) = (*amount, CAPACITY, Overage::Deny);
        let hold = Hold { amount, lifetime_seconds, capacity, overage, is_exact: true };
        Transfer { account: Arc::clone(account), action: Action::Reserve(hold) }
    });
    let lease = LeaseId::fresh(1, fastrand::u128(..));
    apply(Chain { lease, keep, transfers: transfers.collect() })
}

fn apply(chain: Chain) -> Work {
    Work { chain, kind: WorkKind::Apply, sum: None, reply: None, is_completion: false, link: None }
}

/// What everybody was told, by name; and what is held in sums.
struct Answers {
    answers: HashMap<LeaseId, Option<Refusal>>,
    sums: HashMap<LeaseId, Arc<Sum>>,
}

/// Decides everything in batches of some size, as the worker does.
fn decide(server: &mut FakeServer, works: &[Work], sums: bool, batch_size: usize) -> Answers {
    let mut told = Answers { answers: HashMap::new(), sums: HashMap::new() };
    let mut next: std::collections::VecDeque<Work> =
        works.iter().map(|work| apply(work.chain.clone())).collect();
    let mut turn = 0;
    while !next.is_empty() {
        turn += 1;
        let now_ms = 1_000_000 + turn * 100;
        let mut batch = Batch::new(10_000, sums);
        (0..batch_size).map_while(|_| next.pop_front()).for_each(|work| batch.push(work));
        let transfers = batch.write(now(now_ms));
        let mut again = Vec::new();
        for (work, result) in batch.settle(server.create_transfers(&transfers), false, 1_000_000) {
            let refusal = match result {
                MemberResult::Alone(ChainResult::Done) => None,
                MemberResult::Alone(ChainResult::Refused(refusal)) => Some(refusal),
                MemberResult::InSum(sum) => {
                    told.sums.insert(work.chain.lease.clone(), sum);
                    None
                }
                MemberResult::SendAgain { index } => {
                    work.chain.transfers[index].account.known.set_refused(now_ms);
                    again.push(work);
                    continue;
                }
                other => panic!("{other:?}"),
            };
            assert!(told.answers.insert(work.chain.lease, refusal).is_none(), "answered twice");
        }
        again.into_iter().rev().for_each(|work| next.push_front(work));
    }
    told
}

/// Limits that are often full, sets that overlap, amounts that differ, names in between; callers that leave.
#[test]
fn nobody_can_tell_a_sum_from_one_by_one() {
    for seed in 0..400 {
        let mut random = fastrand::Rng::with_seed(seed);
        let accounts: Vec<_> = (0..4).map(|n| account(&format!("{seed}:{n}"))).collect();
        let free: HashMap<u128, u128> =
            accounts.iter().map(|account| (account.id.bits(), u128::from(random.u64(0..120)))).collect();
        let sets: [&[usize]; 5] = [&[0], &[0, 1], &[1, 0], &[2], &[2, 3]];
        let few_sets = random.usize(1..=sets.len());
        let amounts = random.u64(1..4);
        let works: Vec<Work> = (0..random.usize(1..120))
            .map(|_| {
                let keep = if random.u8(..20) == 0 { Keep::Name } else { Keep::Nothing };
                let set = sets[random.usize(..few_sets)];
                let amount = random.u64(1..=amounts);
                let holds: Vec<_> = set.iter().map(|&n| (&accounts[n], amount * (1 + n as u64))).collect();
                work(keep, &holds)
            })
            .collect();
        let batch_size = random.usize(1..100);
        let mut alone = FakeServer { free: free.clone(), ..Default::default() };
        let one_by_one = decide(&mut alone, &works, false, batch_size);
        let mut summed = FakeServer { free, ..Default::default() };
        let together = decide(&mut summed, &works, true, batch_size);
        assert_eq!(one_by_one.answers, together.answers, "seed {seed}");
        assert_eq!(alone.free, summed.free, "seed {seed}");

        // Some leave, one after the other: what they hold comes back, and nothing else.
        let mut back = 0;
        for work in works.iter().filter(|_| random.u8(..3) == 0) {
            let Some(sum) = together.sums.get(&work.chain.lease) else { continue };
            let mut batch = Batch::new(100, true);
            batch.push(Work::give_back(work.chain.clone(), Some(Arc::clone(sum))));
            let failures = summed.create_transfers(&batch.write(now(2_000_000)));
            assert!(failures.is_empty(), "{failures:?}");
            for transfer in &work.chain.transfers {
                let Action::Reserve(hold) = transfer.action else { unreachable!() };
                *alone.free.get_mut(&transfer.account.id.bits()).unwrap() += u128::from(hold.amount);
            }
            back += 1;
        }
        assert_eq!(alone.free, summed.free, "seed {seed}, {back} left");
    }
}

fn written(works: Vec<Work>) -> usize {
    let mut batch = Batch::new(10_000, true);
    works.into_iter().for_each(|work| batch.push(work));
    batch.write(now(1_000_000)).len()
}

#[test]
fn what_goes_as_one() {
    let (a, b, c) = (account("a"), account("b"), account("c"));
    let plain = |amount| work(Keep::Nothing, &[(&a, amount), (&b, 1)]);
    assert_eq!(written((0..500).map(|_| plain(1)).collect()), 2);
    assert_eq!(written((0..500).map(plain).collect()), 2, "amounts may differ");
    let between = |n: u64| if n == 7 { work(Keep::Nothing, &[(&c, 1)]) } else { plain(1) };
    assert_eq!(written((0..20).map(between).collect()), 3, "what touches other limits doesn't matter");
    let between = |n: u64| if n == 10 { work(Keep::Nothing, &[(&a, 1)]) } else { plain(1) };
    assert_eq!(written((0..20).map(between).collect()), 2 * 4 + 1 + 2, "halves of ten, the other, nine");
    let keeps = [Keep::ForUndo, Keep::ForCompletion, Keep::Name, Keep::ForRetries];
    for keep in keeps {
        assert_eq!(written((0..5).map(|_| work(keep, &[(&a, 1)])).collect()), 5, "{keep:?}");
    }
    a.known.set_refused(1_000_000 - TIGHT_MS + 1);
    assert_eq!(written((0..500).map(|_| plain(1)).collect()), 2 * 9, "full a moment ago");
    a.known.set_refused(1_000_000 - TIGHT_MS);
    assert_eq!(written((0..500).map(|_| plain(CAPACITY / 2)).collect()), 2 * 9, "more than there can be");
}

/// Sums that 64 bits don't hold are refused, not wrapped.
#[test]
fn amounts_that_overflow_are_not_admitted() {
    let limit = account("huge");
    let mut server = FakeServer { free: HashMap::from([(limit.id.bits(), 1 << 63)]), ..Default::default() };
    let works: Vec<_> = (0..5).map(|_| work(Keep::Nothing, &[(&limit, 1 << 62)])).collect();
    let told = decide(&mut server, &works, true, 10);
    assert_eq!(told.answers.values().filter(|refusal| refusal.is_none()).count(), 2);
    assert_eq!(server.free[&limit.id.bits()], 0);
}

/// Whether the answer of the first sending was lost or the first sending itself, the second tells what is true.
#[test]
fn a_request_that_is_sent_again_comes_to_the_same() {
    let (roomy, tight) = (account("roomy"), account("tight"));
    let works = || {
        let mut works: Vec<Work> = (0..10).map(|_| work(Keep::Nothing, &[(&roomy, 1)])).collect();
        works.extend((0..5).map(|_| work(Keep::ForCompletion, &[(&roomy, 1), (&tight, 2)])));
        works.extend((0..5).map(|_| work(Keep::Nothing, &[(&tight, 1)])));
        works
    };
    for has_landed in [false, true] {
        let free = HashMap::from([(roomy.id.bits(), 100), (tight.id.bits(), 7)]);
        let mut server = FakeServer { free, ..Default::default() };
        let mut batch = Batch::new(100, true);
        works().into_iter().for_each(|work| batch.push(work));
        let transfers = batch.write(now(1_000_000));
        if has_landed {
            server.create_transfers(&transfers);
        }
        let settled = batch.settle(server.create_transfers(&transfers), true, 1_000_000);
        let told: String = settled
            .iter()
            .map(|(_, result)| match result {
                MemberResult::Alone(ChainResult::Done) => 'd',
                MemberResult::InSum(_) => 's',
                MemberResult::Alone(ChainResult::Refused(Refusal {
                    code: RefusalCode::ExceedsCredits,
                    ..
                })) => 'r',
                MemberResult::SendAgain { .. } => 'a',
                MemberResult::Alone(_) => '?',
            })
            .collect();
        assert_eq!(told, "ssssssssssdddrraaaaa", "{has_landed}");
        assert_eq!(server.free, HashMap::from([(roomy.id.bits(), 87), (tight.id.bits(), 1)]), "{has_landed}");
    }
}

/// Somebody else may have sent a name too, so what exists may be theirs.
#[test]
fn a_name_that_exists_when_it_is_sent_again_may_be_anybodys() {
    let limit = account("named");
    let mut server = FakeServer { free: HashMap::from([(limit.id.bits(), 10)]), ..Default::default() };
    let mut batch = Batch::new(100, true);
    batch.push(work(Keep::ForRetries, &[(&limit, 1)]));
    let transfers = batch.write(now(1_000_000));
    server.create_transfers(&transfers);
    let settled = batch.settle(server.create_transfers(&transfers), true, 1_000_000);
    assert!(matches!(settled[0].1, MemberResult::Alone(ChainResult::DoneBefore)), "{settled:?}");
}

#[test]
fn the_rest_of_a_sum_lasts_as_long_as_it_would_have() {
    let limit = account("rest");
    let (one, two) = (work(Keep::Nothing, &[(&limit, 1)]), work(Keep::Nothing, &[(&limit, 2)]));
    let lease = || LeaseId::fresh(1, fastrand::u128(..));
    for (age_ms, seconds) in [(0, 60), (999, 60), (1_000, 59), (59_999, 1), (100_000, 1)] {
        let sum = Sum::of([&one.chain, &two.chain].into_iter(), lease(), 5_000).unwrap();
        let (_, rest) = sum.take_out(&one.chain, lease(), 5_000 + age_ms);
        let Action::Reserve(hold) = rest.unwrap().transfers[0].action else { unreachable!() };
        assert_eq!((hold.amount, hold.lifetime_seconds.get()), (2, seconds), "{age_ms}");
    }
}

/// The ledger's clock starts when the batch lands, which may be long after it was written: what is left may last longer
/// than it had to, never shorter.
#[test]
fn the_rest_of_a_sum_is_counted_from_when_it_landed() {
    let limit = account("late");
    let (one, two) = (work(Keep::Nothing, &[(&limit, 1)]), work(Keep::Nothing, &[(&limit, 2)]));
    let lease = || LeaseId::fresh(1, fastrand::u128(..));
    let sum = Sum::of([&one.chain, &two.chain].into_iter(), lease(), 5_000).unwrap();
    sum.landed(8_000);
    let (_, rest) = sum.take_out(&one.chain, lease(), 8_000);
    let Action::Reserve(hold) = rest.unwrap().transfers[0].action else { unreachable!() };
    assert_eq!(hold.lifetime_seconds.get(), 60);
}

/// A limit whose window is over must not keep the others from being given back.
#[test]
fn each_account_is_given_back_on_its_own() {
    let (a, b) = (account("second"), account("day"));
    let (one, two) = (work(Keep::Nothing, &[(&a, 1), (&b, 1)]), work(Keep::Nothing, &[(&a, 2), (&b, 2)]));
    let sum = Sum::of([&one.chain, &two.chain].into_iter(), LeaseId::fresh(1, 7), 5_000).unwrap();
    let linked = |work: Work| {
        let mut batch = Batch::new(100, true);
        batch.push(work);
        let written = batch.write(now(1_000_000));
        written.iter().map(|transfer| transfer.flags().contains(Flags::LINKED)).collect::<Vec<_>>()
    };
    let part = one.chain.clone();
    assert_eq!(linked(Work::give_back(one.chain, None)), [false, false]);
    assert_eq!(
        linked(Work::give_back(part, Some(sum))),
        [true, false, true, false],
        "void and rest, by account"
    );
}

fn batch(sizes: &[usize]) -> Batch {
    let mut batch = Batch::new(100, false);
    for &size in sizes {
        let accounts: Vec<_> = (0..size).map(|n| account(&n.to_string())).collect();
        let holds: Vec<_> = accounts.iter().map(|account| (account, 1)).collect();
        batch.push(work(Keep::Nothing, &holds));
    }
    batch.write(now(1_000_000));
    batch
}

fn refused(index: usize, code: RefusalCode) -> ChainResult {
    ChainResult::Refused(Refusal::one(index, code))
}

#[test]
fn failures_reach_the_chain_they_belong_to() {
    let failures = vec![
        (1, Kind::LinkedEventFailed),
        (2, Kind::ExceedsCredits),
        (3, Kind::LinkedEventFailed),
        (6, Kind::Exists),
        (7, Kind::LinkedEventFailed),
    ];
    let fates: Vec<_> = batch(&[1, 3, 2, 2])
        .settle(failures, false, 1_000_000)
        .into_iter()
        .map(|(_, result)| result)
        .collect();
    let expected = [
        ChainResult::Done,
        refused(1, RefusalCode::ExceedsCredits),
        ChainResult::Done,
        ChainResult::DoneBefore,
    ]
    .map(MemberResult::Alone);
    assert_eq!(format!("{fates:?}"), format!("{expected:?}"));
}

#[test]
fn no_failures_is_done_for_all() {
    let settled = batch(&[2, 2, 1]).settle(Vec::new(), false, 1_000_000);
    assert!(settled.iter().all(|(_, result)| matches!(result, MemberResult::Alone(ChainResult::Done))));
}

#[test]
fn every_result_code_is_read_right() {
    for (failures, expected) in [
        (vec![(0, Kind::Exists), (1, Kind::LinkedEventFailed)], ChainResult::DoneBefore),
        (vec![(0, Kind::ExistsWithDifferentTimeout)], ChainResult::DoneBefore),
        (
            vec![(0, Kind::LinkedEventFailed), (1, Kind::Exists)],
            refused(1, RefusalCode::ExistsWithDifferentFields),
        ),
        (vec![(0, Kind::ExistsWithDifferentAmount)], refused(0, RefusalCode::ExistsWithDifferentFields)),
        (
            vec![(0, Kind::LinkedEventFailed), (1, Kind::IdAlreadyFailed)],
            refused(1, RefusalCode::IdAlreadyFailed),
        ),
        (vec![(0, Kind::PendingTransferExpired)], refused(0, RefusalCode::PendingTransferExpired)),
        (vec![(0, Kind::PendingTransferNotFound)], refused(0, RefusalCode::PendingTransferNotFound)),
        (
            vec![(0, Kind::PendingTransferAlreadyVoided)],
            refused(0, RefusalCode::PendingTransferAlreadyVoided),
        ),
        (
            vec![(0, Kind::LinkedEventFailed), (1, Kind::DebitAccountNotFound)],
            ChainResult::AccountMissing { index: 1 },
        ),
        (
            vec![(0, Kind::OverflowsTimeout)],
            ChainResult::Unexpected { index: 0, kind: Kind::OverflowsTimeout },
        ),
    ] {
        assert_eq!(format!("{:?}", chain_result(&failures)), format!("{expected:?}"), "{failures:?}");
    }
}

#[test]
fn a_chain_that_does_not_fit_waits_for_the_next_batch() {
    let (a, b) = (account("a"), account("b"));
    let mut batch = Batch::new(3, true);
    batch.push(work(Keep::Nothing, &[(&a, 1), (&b, 1)]));
    assert!(!batch.has_room(&work(Keep::Nothing, &[(&a, 1), (&b, 1)])));
    assert!(batch.has_room(&work(Keep::Nothing, &[(&a, 1)])));
}
