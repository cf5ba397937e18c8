//! What each policy answers, and where what was reserved meanwhile comes back. The ledger below is one that can be
//! switched off.

use std::sync::atomic::{AtomicBool, Ordering};

use smallvec::smallvec;

use super::*;
use crate::ledger::{Hold, Transfer};
use crate::limit::{LimitKey, Overage};

/// The embedded ledger while it answers, and what it was asked to give back.
#[derive(Default)]
struct Switched {
    memory: Memory,
    is_away: AtomicBool,
    /// What it is asked to reserve lands, and is answered too late.
    is_late: AtomicBool,
    given_back: parking_lot::Mutex<Vec<LeaseId>>,
}

impl Switched {
    fn answers(&self) -> Result<(), LedgerError> {
        let is_away = self.is_away.load(Ordering::Relaxed);
        if is_away { Err(LedgerError::Unavailable("switched off".to_owned())) } else { Ok(()) }
    }
}

impl Ledger for Switched {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.answers()?;
        let outcome = self.memory.apply(chain).await?;
        if self.is_late.load(Ordering::Relaxed) { Err(LedgerError::TimedOut(250)) } else { Ok(outcome) }
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.answers()?;
        self.memory.complete(chain).await
    }

    fn give_back(&self, chain: Chain) {
        self.given_back.lock().push(chain.lease.clone());
        self.memory.give_back(chain);
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        self.memory.peek(account, spec)
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.memory.sample(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        self.memory.is_decreasing(account, spec)
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        self.memory.provision(wants).await
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        self.memory.balances(wants).await
    }

    async fn schedule(&self, account: &Arc<Account>, seconds: NonZeroU32) -> Result<Schedule, LedgerError> {
        self.memory.schedule(account, seconds).await
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        self.memory.is_used_up(account, spec)
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        self.memory.owed(account, spec)
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        self.memory.repaid_in_ms(account, spec, amount)
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        self.answers()?;
        self.memory.forgive(want).await
    }

    fn ready(&self) -> Result<(), String> {
        self.answers().map_err(|error| error.to_string())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn sweep(&self) -> usize {
        self.memory.sweep()
    }

    async fn close(&self) {}
}

const CAPACITY: u64 = 10;

/// A limit of 10, of which the local ledger has 5.
struct Bench {
    ledger: Failover<Switched>,
    account: Arc<Account>,
}

impl Bench {
    fn new(on_failure: OnFailure) -> Self {
        let ledger = Failover::new(Switched::default(), on_failure, 0.5, Arc::default());
        Self { ledger, account: Arc::new(Account::new(LimitKey::new("a"))) }
    }

    fn switch(&self, is_away: bool) {
        self.ledger.ledger.is_away.store(is_away, Ordering::Relaxed);
    }

    fn make_late(&self, is_late: bool) {
        self.ledger.ledger.is_late.store(is_late, Ordering::Relaxed);
    }

    fn chain(&self, lease: &str, keep: Keep, action: Action) -> Chain {
        let transfer = Transfer { account: Arc::clone(&self.account), action };
        Chain { lease: LeaseId::parse(lease), keep, transfers: smallvec![transfer] }
    }

    fn reserve(&self, lease: &str, keep: Keep, amount: u64) -> Chain {
        let lifetime_seconds = NonZeroU32::new(600).unwrap();
        let hold =
            Hold { amount, lifetime_seconds, capacity: CAPACITY, overage: Overage::Deny, is_exact: true };
        self.chain(lease, keep, Action::Reserve(hold))
    }

    async fn apply(&self, chain: &Chain) -> Result<Verdict, LedgerError> {
        self.ledger.apply(chain).await.map(|outcome| outcome.verdict)
    }

    async fn complete(&self, lease: &str) -> Result<Verdict, LedgerError> {
        let chain = self.chain(lease, Keep::ForCompletion, Action::Void);
        self.ledger.complete(&chain).await.map(|outcome| outcome.verdict)
    }

    /// What is held on the real ledger, and on the local one.
    async fn used(&self) -> (u64, u64) {
        let used = async |ledger: &Memory| {
            let schedule = ledger.schedule(&self.account, NonZeroU32::MIN).await;
            schedule.expect("memory must answer").used
        };
        (used(&self.ledger.ledger.memory).await, used(&self.ledger.local).await)
    }
}

fn refused(code: RefusalCode) -> Result<Verdict, LedgerError> {
    Ok(Verdict::Refused(Refusal::one(0, code)))
}

#[tokio::test]
async fn each_policy_answers_only_while_the_ledger_is_away() {
    let away = Err(LedgerError::Unavailable("switched off".to_owned()));
    for (policy, expected) in [
        (OnFailure::Error, away.clone()),
        (OnFailure::Allow, Ok(Verdict::NotAsked)),
        (OnFailure::Deny, refused(RefusalCode::NotAsked)),
        (OnFailure::Local, Ok(Verdict::Done)),
    ] {
        let bench = Bench::new(policy);
        assert_eq!(bench.apply(&bench.reserve("one", Keep::ForCompletion, 2)).await, Ok(Verdict::Done));
        bench.switch(true);
        let answer = bench.apply(&bench.reserve("two", Keep::ForCompletion, 5)).await;
        assert_eq!(answer, expected, "{policy:?}");
        // A completion of what the real ledger holds waits for it.
        assert_eq!(bench.complete("one").await, away, "{policy:?}");
        bench.switch(false);
        assert_eq!(bench.complete("one").await, Ok(Verdict::Done), "{policy:?}");
        let over = bench.apply(&bench.reserve("three", Keep::ForCompletion, 11)).await;
        assert_eq!(over, refused(RefusalCode::ExceedsCredits), "{policy:?}");
    }
}

#[tokio::test]
async fn what_the_local_ledger_reserved_is_completed_there() {
    let bench = Bench::new(OnFailure::Local);
    bench.switch(true);
    assert_eq!(bench.apply(&bench.reserve("one", Keep::ForCompletion, 5)).await, Ok(Verdict::Done));
    let over = bench.apply(&bench.reserve("two", Keep::ForRetries, 1)).await;
    assert_eq!(over, refused(RefusalCode::ExceedsCredits), "half of 10 is there");
    bench.switch(false);
    // The real ledger is back: it has no part in either.
    assert_eq!(bench.used().await, (0, 5));
    assert_eq!(bench.complete("one").await, Ok(Verdict::Done));
    assert_eq!(bench.used().await, (0, 0));
    // What the local ledger only refused is not its to complete.
    assert_eq!(bench.apply(&bench.reserve("two", Keep::ForRetries, 3)).await, Ok(Verdict::Done));
    assert_eq!(bench.complete("two").await, Ok(Verdict::Done));
    assert_eq!(bench.used().await, (0, 0));
}

#[tokio::test]
async fn what_the_local_ledger_reserved_is_given_back_there() {
    for keep in [Keep::ForUndo, Keep::ForCompletion, Keep::ForRetries] {
        let bench = Bench::new(OnFailure::Local);
        bench.switch(true);
        let chain = bench.reserve("one", keep, 4);
        assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
        bench.switch(false);
        bench.ledger.give_back(chain.clone());
        assert_eq!(bench.used().await, (0, 0), "{keep:?}");
        assert_eq!(*bench.ledger.ledger.given_back.lock(), [], "{keep:?}: the real ledger has nothing of it");
        // And what the real one reserved is its own.
        assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
        bench.ledger.give_back(chain);
        assert_eq!(bench.ledger.ledger.given_back.lock().len(), 1, "{keep:?}");
    }
}

#[tokio::test]
async fn what_was_sent_twice_is_not_given_back_by_one_who_left() {
    let bench = Bench::new(OnFailure::Local);
    bench.switch(true);
    let chain = bench.reserve("one", Keep::ForRetries, 4);
    assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
    assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
    assert_eq!(bench.used().await, (0, 4), "charged once");
    bench.ledger.give_back(chain);
    assert_eq!(bench.used().await, (0, 4), "the second caller has it");
    assert_eq!(bench.complete("one").await, Ok(Verdict::Done));
    assert_eq!(bench.used().await, (0, 0));
}

#[tokio::test]
async fn a_name_that_was_given_back_is_charged_again() {
    let bench = Bench::new(OnFailure::Local);
    bench.switch(true);
    let chain = bench.reserve("one", Keep::ForRetries, 4);
    assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
    bench.ledger.give_back(chain.clone());
    assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
    assert_eq!(bench.used().await, (0, 4));
}

/// The real ledger reserved it, and its answer came too late.
#[tokio::test]
async fn a_name_that_landed_late_is_completed_on_both() {
    let bench = Bench::new(OnFailure::Local);
    bench.make_late(true);
    assert_eq!(bench.apply(&bench.reserve("one", Keep::ForRetries, 4)).await, Ok(Verdict::Done));
    bench.make_late(false);
    assert_eq!(bench.used().await, (4, 4));
    bench.switch(true);
    let away = Err(LedgerError::Unavailable("switched off".to_owned()));
    assert_eq!(bench.complete("one").await, away, "whoever completes it must try again");
    assert_eq!(bench.used().await, (4, 0));
    bench.switch(false);
    assert_eq!(bench.complete("one").await, Ok(Verdict::Done));
    assert_eq!(bench.used().await, (0, 0));
    assert!(matches!(bench.complete("one").await, Ok(Verdict::Done | Verdict::Refused(_))));
    assert_eq!(bench.used().await, (0, 0));
}

#[tokio::test]
async fn what_landed_late_is_the_real_ledgers_to_give_back() {
    let bench = Bench::new(OnFailure::Local);
    bench.make_late(true);
    let chain = bench.reserve("one", Keep::ForRetries, 4);
    assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
    bench.ledger.give_back(chain);
    assert_eq!(bench.used().await.1, 0);
    assert_eq!(*bench.ledger.ledger.given_back.lock(), [], "somebody else may have it there");
}

/// Sent while the real ledger was away, and again when it was back.
#[tokio::test]
async fn a_name_that_both_ledgers_reserved_is_settled_on_both() {
    for is_completed in [true, false] {
        let bench = Bench::new(OnFailure::Local);
        let chain = bench.reserve("one", Keep::ForRetries, 4);
        for is_away in [true, false] {
            bench.switch(is_away);
            assert_eq!(bench.apply(&chain).await, Ok(Verdict::Done));
        }
        assert_eq!(bench.used().await, (4, 4));
        if is_completed {
            assert_eq!(bench.complete("one").await, Ok(Verdict::Done));
        } else {
            bench.ledger.give_back(chain);
        }
        assert_eq!(bench.used().await, (0, 0), "completed: {is_completed}");
    }
}

/// What was really used counts once on each, whatever the other says.
#[tokio::test]
async fn what_was_used_is_settled_on_both() {
    for (used, expected) in [(1, (1, 1)), (6, (6, 4))] {
        let bench = Bench::new(OnFailure::Local);
        let reserve = bench.reserve("one", Keep::ForRetries, 4);
        for is_away in [true, false] {
            bench.switch(is_away);
            assert_eq!(bench.apply(&reserve).await, Ok(Verdict::Done));
        }
        let Action::Reserve(hold) = reserve.transfers[0].action else { panic!("it reserves") };
        let mut chain = bench.chain("one", Keep::ForRetries, Action::Rereserve(Hold { amount: 2, ..hold }));
        if used < 4 {
            chain = bench.chain("one", Keep::ForCompletion, Action::Void);
            let action = Action::Rereserve(Hold { amount: used, ..hold });
            chain.transfers.push(Transfer { account: Arc::clone(&bench.account), action });
        }
        // The local ledger has room for 5: two more don't fit there.
        assert_eq!(bench.ledger.complete(&chain).await.unwrap().verdict, Verdict::Done);
        assert_eq!(bench.used().await, expected);
    }
}

#[test]
fn a_share_is_rounded_down_and_leaves_room_for_one() {
    for (capacity, share, expected) in [(10, 0.35, 3), (1, 0.1, 1), (0, 0.5, 0), (5, 1.0, 5), (9, 0.1, 1)] {
        assert_eq!(shared(capacity, share), expected, "{share} of {capacity}");
    }
}
