//! Seeded random load on a ledger, audited step by step by a model that is too simple to be wrong.
//!
//! The model is a list of reservations. After every chain: the ledger said what the model expects, nobody holds more
//! than the capacity, a refused chain changed nothing, and every balance is the model's sum.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use sluice::ledger::{Account, Action, Balance, Chain, Hold, Keep, RefusalCode, Transfer, Verdict};
use sluice::limit::{LeaseId, LimitKey, Overage};

use crate::rotation::OnBoth;
use crate::scenario::{Bench, OnMemory};

const CAPACITIES: [u64; 4] = [1, 5, 20, 100];
const LIFETIMES: [u32; 4] = [1, 2, 5, 60];
/// Whether what is owed is paid first.
const REPAYS: [bool; 4] = [false, true, true, false];

/// One step of the load.
#[derive(Debug, Clone)]
pub enum Step {
    Reserve {
        lease: u8,
        named: bool,
        holds: Vec<(usize, u64)>,
    },
    Void {
        lease: u8,
        limit: usize,
    },
    Settle {
        lease: u8,
        limit: usize,
        amount: u64,
    },
    /// As much as there is.
    Take {
        limit: usize,
        amount: u64,
    },
    Debt {
        limit: usize,
        amount: u64,
    },
    Wait {
        ms: u64,
    },
}

#[derive(Debug, Clone)]
struct Held {
    lease: Option<u8>,
    limit: usize,
    amount: u64,
    until_ms: u64,
}

/// What the ledger should hold. Counts a reservation as gone only once the ledger must have freed it.
struct Model {
    held: Vec<Held>,
    owed: [u64; CAPACITIES.len()],
    /// Leases that reserved, and what each asked: a name is used once in this load.
    used_names: Vec<u8>,
    now_ms: u64,
}

impl Model {
    fn used(&self, limit: usize) -> u64 {
        self.held
            .iter()
            .filter(|held| held.limit == limit && held.until_ms > self.now_ms)
            .map(|h| h.amount)
            .sum()
    }

    fn free(&self, limit: usize) -> u64 {
        CAPACITIES[limit] - self.used(limit)
    }

    /// Goes from one end of a reservation to the next, and pays each time with what came back.
    fn wait(&mut self, ms: u64) {
        let until = self.now_ms + ms;
        loop {
            let ends = self.held.iter().map(|held| held.until_ms).filter(|at| *at > self.now_ms);
            self.now_ms = ends.min().filter(|at| *at <= until).unwrap_or(until);
            self.held.retain(|held| held.until_ms > self.now_ms);
            self.pay();
            if self.now_ms == until {
                return;
            }
        }
    }

    fn pay(&mut self) {
        for limit in (0..CAPACITIES.len()).filter(|limit| REPAYS[*limit]) {
            let amount = self.owed[limit].min(self.free(limit));
            self.owed[limit] -= amount;
            let until_ms = self.now_ms + u64::from(LIFETIMES[limit]) * 1000;
            self.held.push(Held { lease: None, limit, amount, until_ms });
        }
    }

    fn first_over(&self, holds: &[(usize, u64)]) -> Option<(usize, RefusalCode)> {
        let mut asked = [0; CAPACITIES.len()];
        holds.iter().enumerate().find_map(|(index, &(limit, amount))| {
            asked[limit] += amount;
            if REPAYS[limit] && self.owed[limit] > 0 {
                return Some((index, RefusalCode::InDebt));
            }
            (asked[limit] > self.free(limit)).then_some((index, RefusalCode::ExceedsCredits))
        })
    }
}

fn step() -> impl Strategy<Value = Step> {
    let holds = prop::collection::vec((0..CAPACITIES.len(), 0..8u64), 1..5);
    prop_oneof![
        5 => (any::<u8>(), any::<bool>(), holds).prop_map(|(lease, named, holds)| Step::Reserve { lease, named, holds }),
        2 => (any::<u8>(), 0..CAPACITIES.len()).prop_map(|(lease, limit)| Step::Void { lease, limit }),
        2 => (any::<u8>(), 0..CAPACITIES.len(), 0..8u64)
            .prop_map(|(lease, limit, amount)| Step::Settle { lease, limit, amount }),
        1 => (0..CAPACITIES.len(), 0..30u64).prop_map(|(limit, amount)| Step::Take { limit, amount }),
        1 => (0..CAPACITIES.len(), 0..30u64).prop_map(|(limit, amount)| Step::Debt { limit, amount }),
        2 => (1..3000u64).prop_map(|ms| Step::Wait { ms }),
    ]
}

fn hold(limit: usize, amount: u64, lifetime: u32) -> Hold {
    Hold {
        amount,
        lifetime_seconds: NonZeroU32::new(lifetime).unwrap(),
        capacity: CAPACITIES[limit],
        is_exact: true,
        overage: if REPAYS[limit] { Overage::Repay } else { Overage::Debt },
    }
}

/// A ledger whose time is moved by hand.
pub trait OnVirtualTime: Bench {
    fn at(now_ms: u64) -> Self;
    fn pass(&mut self, ms: u64);
}

impl OnVirtualTime for OnMemory {
    fn at(now_ms: u64) -> Self {
        Self { now_ms, ..Default::default() }
    }

    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
    }
}

struct Audit<B> {
    bench: B,
    accounts: Vec<Arc<Account>>,
    model: Model,
}

impl<B: OnVirtualTime> Audit<B> {
    fn new() -> Self {
        let accounts =
            (0..CAPACITIES.len()).map(|n| Arc::new(Account::new(LimitKey::new(&format!("m{n}"))))).collect();
        let now_ms = 1_000_000;
        Self {
            bench: B::at(now_ms),
            accounts,
            model: Model { held: Vec::new(), owed: [0; 4], used_names: Vec::new(), now_ms },
        }
    }

    fn chain(&self, lease: Option<u8>, actions: Vec<(usize, Action)>) -> Chain {
        let id = match lease {
            Some(lease) => LeaseId::parse(&format!("lease-{lease}")),
            None => LeaseId::fresh(1, fastrand::u128(..)),
        };
        let keep = if lease.is_some() { Keep::ForCompletion } else { Keep::Nothing };
        let transfers =
            actions.into_iter().map(|(n, action)| Transfer { account: self.accounts[n].clone(), action });
        Chain { lease: id, keep, transfers: transfers.collect() }
    }

    async fn take(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match step {
            Step::Wait { ms } => {
                self.model.wait(*ms);
                self.bench.pass(*ms);
            }
            Step::Take { limit, amount } => self.take_up_to(*limit, *amount).await?,
            Step::Debt { limit, amount } => self.owe(*limit, *amount).await?,
            Step::Reserve { lease, named, holds } => self.reserve(*lease, *named, holds).await?,
            Step::Void { lease, limit } => self.give_back(*lease, *limit, None).await?,
            Step::Settle { lease, limit, amount } => self.give_back(*lease, *limit, Some(*amount)).await?,
        }
        self.audit().await
    }

    async fn reserve(&mut self, lease: u8, named: bool, holds: &[(usize, u64)]) -> Result<(), TestCaseError> {
        let mut limits: Vec<usize> = holds.iter().map(|(limit, _)| *limit).collect();
        limits.sort_unstable();
        limits.dedup();
        let unique = limits.len() == holds.len();
        // A name stands for one request; what happens to one that is used twice is in the rows.
        let lease = (named && unique && !self.model.used_names.contains(&lease)).then_some(lease);
        let actions =
            holds.iter().map(|&(n, amount)| (n, Action::Reserve(hold(n, amount, LIFETIMES[n])))).collect();
        let verdict = self.bench.apply(self.chain(lease, actions)).await.verdict;
        match self.model.first_over(holds) {
            None => {
                prop_assert_eq!(verdict, Verdict::Done);
                self.model.used_names.extend(lease);
                let now_ms = self.model.now_ms;
                self.model.held.extend(holds.iter().map(|&(limit, amount)| {
                    let until_ms = now_ms + u64::from(LIFETIMES[limit]) * 1000;
                    Held { lease, limit, amount, until_ms }
                }));
            }
            Some((index, code)) => match verdict {
                Verdict::NotAsked => panic!("a ledger must be asked"),
                Verdict::Refused(refusal) => {
                    prop_assert_eq!((refusal.code, refusal.index), (code, index));
                }
                Verdict::Done => return Err(TestCaseError::fail("over-admitted")),
            },
        }
        Ok(())
    }

    async fn take_up_to(&mut self, limit: usize, amount: u64) -> Result<(), TestCaseError> {
        let action = Action::TakeUpTo(hold(limit, amount, LIFETIMES[limit]));
        let outcome = self.bench.apply(self.named_once(limit, action)).await;
        let taken = amount.min(self.model.free(limit));
        prop_assert_eq!((outcome.verdict, &outcome.taken[..]), (Verdict::Done, &[taken][..]));
        let until_ms = self.model.now_ms + u64::from(LIFETIMES[limit]) * 1000;
        self.model.held.push(Held { lease: None, limit, amount: taken, until_ms });
        Ok(())
    }

    async fn owe(&mut self, limit: usize, amount: u64) -> Result<(), TestCaseError> {
        let action = Action::Debt(hold(limit, amount, LIFETIMES[limit]));
        let outcome = self.bench.apply(self.named_once(limit, action)).await;
        prop_assert_eq!(outcome.verdict, Verdict::Done);
        self.model.owed[limit] += amount;
        self.model.pay();
        Ok(())
    }

    /// A chain of one transfer with a name that no other has.
    fn named_once(&self, limit: usize, action: Action) -> Chain {
        let transfers = [Transfer { account: self.accounts[limit].clone(), action }];
        let lease = LeaseId::fresh(2, fastrand::u128(..));
        Chain { lease, keep: Keep::ForRetries, transfers: transfers.into_iter().collect() }
    }

    /// Voids, and with an amount re-reserves it in the same chain.
    async fn give_back(&mut self, lease: u8, limit: usize, again: Option<u64>) -> Result<(), TestCaseError> {
        let now_ms = self.model.now_ms;
        let found = self
            .model
            .held
            .iter()
            .position(|held| held.lease == Some(lease) && held.limit == limit && held.until_ms > now_ms);
        let mut actions = vec![(limit, Action::Void)];
        actions.extend(again.map(|amount| (limit, Action::Rereserve(hold(limit, amount, 1)))));
        let verdict = self.bench.apply(self.chain(Some(lease), actions)).await.verdict;
        let Some(found) = found else {
            prop_assert_ne!(verdict, Verdict::Done, "gave back what nobody holds");
            return Ok(());
        };
        let others = self.model.used(limit) - self.model.held[found].amount;
        if again.is_some_and(|amount| others + amount > CAPACITIES[limit]) {
            prop_assert!(
                matches!(verdict, Verdict::Refused(r) if r.code == RefusalCode::ExceedsCredits && r.index == 1)
            );
            return Ok(());
        }
        prop_assert_eq!(verdict, Verdict::Done);
        self.model.held.remove(found);
        let until_ms = now_ms + 1000;
        // Under a lease that no step can void again: the void is spent.
        self.model.held.extend(again.map(|amount| Held { lease: None, limit, amount, until_ms }));
        self.model.pay();
        Ok(())
    }

    async fn audit(&mut self) -> Result<(), TestCaseError> {
        for (limit, account) in self.accounts.clone().iter().enumerate() {
            let balance = self.bench.balance(account, CAPACITIES[limit]).await;
            prop_assert_eq!(balance.used, self.model.used(limit), "limit {}", limit);
            prop_assert_eq!(balance.debt, self.model.owed[limit], "limit {}", limit);
            prop_assert!(balance.used <= CAPACITIES[limit], "limit {} over its capacity", limit);
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..Default::default() })]

    #[test]
    fn memory_agrees_with_the_model(steps in prop::collection::vec(step(), 1..200)) {
        agrees::<OnMemory>(&steps)?;
    }

    /// So do two of them, of which one replaces the other.
    #[test]
    fn both_agree_with_the_model(steps in prop::collection::vec(step(), 1..200)) {
        agrees::<OnBoth>(&steps)?;
    }
}

fn agrees<B: OnVirtualTime>(steps: &[Step]) -> Result<(), TestCaseError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    runtime.expect("a runtime must start").block_on(async {
        let mut audit = Audit::<B>::new();
        for step in steps {
            audit.take(step).await?;
        }
        // In the end everything comes back by itself.
        let most = (0..4).filter(|n| REPAYS[*n]);
        let windows = most.map(|n| (audit.model.owed[n] / CAPACITIES[n] + 2) * u64::from(LIFETIMES[n]));
        audit.take(&Step::Wait { ms: 61_000.max(windows.max().unwrap_or(0) * 1000) }).await?;
        for (limit, account) in audit.accounts.clone().iter().enumerate() {
            let Balance { used, debt, .. } = audit.bench.balance(account, CAPACITIES[limit]).await;
            prop_assert!(used == 0 && (debt == 0 || !REPAYS[limit]), "limit {}", limit);
        }
        Ok(())
    })
}
