//! A hub that lends: many sidecars that take slabs of one limit get parts of the slabs that the hub has taken for all of them, so that
//! a hot limit costs the ledger the same however many sidecars hand it out. What is decided is decided by the core; here are the clock,
//! the calls to the ledger and the tasks, which are those of the layer.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::guards::PutBack;
use super::{GaveBack, Live, Purpose, Shared, task};
use crate::ledger::slabs::core::{Asks, LendDecision, Need, Settled};
use crate::ledger::slabs::limit::Rules;
use crate::ledger::slabs::times::{LENDS_FROM, Times};
use crate::ledger::{Account, Action, Chain, Ledger, LedgerError, Outcome, Refusal, RefusalCode, Verdict};
use crate::limit::{BitSet, LeaseBits, LimitId, Overage};
use crate::telemetry::Metrics;

/// What a hub lends of, and to whom.
#[derive(Debug)]
pub struct Lending<L> {
    shared: Arc<Shared<L>>,
}

/// What a sidecar gets that asks for a slab.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Lent {
    /// As many units, for so long.
    Units { units: u64, for_ms: u64 },
    /// Nothing, and the ledger is asked again in so long.
    Full { for_ms: u64 },
    /// It has a slab of its own, or none: what the ledger said, or would say.
    Applied(Outcome),
}

impl<L: Ledger + 'static> Lending<L> {
    /// Starts the task that gives back. Without slabs, or where nobody else takes from the ledger, nothing is lent.
    /// `gave_back` hears of every limit that something was given back of.
    pub fn start(
        ledger: L,
        is_on: bool,
        timeout: Duration,
        metrics: Arc<Metrics>,
        gave_back: impl Fn(LimitId) + Send + Sync + 'static,
    ) -> Self {
        let is_on = is_on && ledger.is_shared();
        let units = metrics.hub_slab_units.clone();
        let purpose = Purpose::Lends(GaveBack(Box::new(gave_back)));
        let shared = Shared { purpose, ..Shared::new(ledger, is_on, timeout, metrics, units) };
        let shared = Arc::new(shared);
        if is_on {
            shared.tasks.spawn(task::run(Arc::clone(&shared)));
        }
        Self { shared }
    }

    /// Lends the slab that `chain` describes, of a limit with this window; or applies the chain.
    pub async fn lend(&self, chain: &Chain, window_seconds: NonZeroU32) -> Result<Lent, LedgerError> {
        let shared = &self.shared;
        let is_on = shared.is_on.load(Ordering::Relaxed);
        let Some((need, up_to)) = need_of(chain, window_seconds).filter(|_| is_on) else {
            shared.metrics.hub_slab_answers.ledger.inc();
            return shared.ledger.apply(chain).await.map(Lent::Applied);
        };
        let name = chain.lease.bits();
        let late = |_| LedgerError::TimedOut(u64::try_from(shared.timeout.as_millis()).unwrap_or(u64::MAX));
        let lending = self.lend_need(chain, &need, name, up_to);
        tokio::time::timeout(shared.timeout, lending).await.map_err(late)?
    }

    async fn lend_need(
        &self,
        chain: &Chain,
        need: &Need<Arc<Account>>,
        name: LeaseBits,
        up_to: bool,
    ) -> Result<Lent, LedgerError> {
        let shared = &self.shared;
        let answers = &shared.metrics.hub_slab_answers;
        let mut waits = 0;
        loop {
            let mut asks = Asks::new();
            let decision = shared.core.lend(need, name, up_to, waits, &mut Live, &mut asks);
            shared.follow_up(asks);
            match decision {
                LendDecision::Lent { units, for_ms } => {
                    answers.slab.inc();
                    return Ok(Lent::Units { units, for_ms });
                }
                LendDecision::Full { for_ms } => {
                    answers.full.inc();
                    return Ok(Lent::Full { for_ms });
                }
                LendDecision::Refused => {
                    answers.full.inc();
                    let refusal = Refusal::one(0, RefusalCode::ExceedsCredits);
                    return Ok(Lent::Applied(Outcome::bare(Verdict::Refused(refusal))));
                }
                LendDecision::Wait(mut notices) => {
                    // It can't fail while somebody waits. If it did, asking again would be right.
                    let _ = notices.changed().await;
                    waits += 1;
                }
                LendDecision::Ledger(aside) => {
                    answers.ledger.inc();
                    let mut aside = PutBack { shared, aside: Some(aside) };
                    let outcome = shared.ledger.apply(chain).await?;
                    if let (Some(aside), Some(units)) = (&mut aside.aside, outcome.taken.first()) {
                        aside.took_up_to(*units);
                    }
                    aside.settle(settled(&outcome));
                    return Ok(Lent::Applied(outcome));
                }
                LendDecision::NotLent => {
                    answers.ledger.inc();
                    return shared.ledger.apply(chain).await.map(Lent::Applied);
                }
            }
        }
    }

    /// A sidecar tells what became of a loan.
    pub fn end_loan(&self, limit: LimitId, name: LeaseBits, spent: u64, last_ago_ms: u64) {
        self.shared.core.end_loan(limit, name, spent, last_ago_ms, &mut Live);
        self.shared.follow_up(Asks::new());
    }

    /// Forgets limits that nobody asks for.
    pub fn sweep(&self) {
        self.shared.core.sweep(&mut Live);
        self.shared.metrics.hub_loans.set(i64::try_from(self.shared.core.loans()).unwrap_or(i64::MAX));
    }

    /// Lends nothing any more, and gives back what nobody has spent when all loans are over.
    pub async fn close(&self) {
        self.shared.close().await;
    }
}

/// What a chain asks for that takes a slab. `None`: it does something else.
fn need_of(chain: &Chain, window_seconds: NonZeroU32) -> Option<(Need<Arc<Account>>, bool)> {
    let [transfer] = &chain.transfers[..] else { return None };
    let (hold, up_to) = match transfer.action {
        Action::Reserve(hold) => (hold, false),
        Action::TakeUpTo(hold) => (hold, true),
        _ => return None,
    };
    // A slab is never of nothing, nor of a limit that makes debts.
    if hold.amount == 0 || hold.overage != Overage::Deny {
        return None;
    }
    let times = Times::of_lender(window_seconds, LENDS_FROM).filter(Times::may_lend)?;
    let account = Arc::clone(&transfer.account);
    let rules = Rules { capacity: hold.capacity, times };
    Some((Need { limit: account.id, account, units: hold.amount, rules }, up_to))
}

/// What the core hears of a chain that went to the ledger.
fn settled(outcome: &Outcome) -> Settled {
    let refused = Settled::Refused { needs: BitSet::one(0) };
    match outcome.verdict {
        Verdict::Done if outcome.taken.first() == Some(&0) => refused,
        Verdict::Done => Settled::Admitted,
        Verdict::Refused(Refusal { code: RefusalCode::ExceedsCredits, .. }) => refused,
        Verdict::Refused(_) | Verdict::NotAsked => Settled::Failed,
    }
}
