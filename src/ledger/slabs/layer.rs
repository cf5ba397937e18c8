//! The layer: a ledger over a shared one that answers for hot limits from slabs.
//!
//! All that it decides is decided by [`Core`]; here are the clock, the calls to the ledger below, those who wait, and one
//! task that gives back what is due. A chain of which nothing may come from a slab passes through untouched.

mod chain;
mod guards;
mod lending;
mod outside;
mod task;

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::chain::{Split, is_final};
use self::guards::{EndId, PutBack};
pub use self::lending::{Lending, Lent};
use self::outside::{Live, WatchNotifier};
use super::core::{Aside, Asks, Core, Decision, Settled};
use super::limit::{Outside, Shown};
use super::requests::{IDS_MAX, RequestState, Requests};
use crate::clock;
use crate::ledger::{
    Account, Balance, Chain, Keep, Ledger, LedgerError, Outcome, Refusal, RefusalCode, Schedule, SlabHeld,
    Verdict, Want,
};
use crate::limit::{LimitId, LimitSpec};
use crate::telemetry::{Metrics, SlabUnits};

/// A ledger that answers for hot limits by itself.
#[derive(Debug)]
pub struct Slabs<L> {
    shared: Arc<Shared<L>>,
}

#[derive(Debug)]
struct Shared<L> {
    ledger: L,
    core: Core<Arc<Account>, WatchNotifier>,
    ids: Mutex<Requests<Verdict>>,
    /// A request with an id was answered.
    id_answered: Notify,
    /// Something may be due earlier than the task thinks.
    news: Notify,
    /// False if the settings say so, or nobody else takes from the ledger below.
    may_have_slabs: bool,
    /// False also when it is being closed.
    is_on: AtomicBool,
    purpose: Purpose,
    timeout: Duration,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

/// What slabs are taken for.
#[derive(Debug)]
enum Purpose {
    /// To be handed out here. They may be borrowed from a hub.
    HandsOut,
    /// To be lent. They may not be borrowed themselves: what is lent on would go back too early.
    Lends(GaveBack),
}

/// Hears of every limit that something was given back of.
struct GaveBack(Box<dyn Fn(LimitId) + Send + Sync>);

impl fmt::Debug for GaveBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GaveBack")
    }
}

/// What has to be done for a chain next.
#[allow(clippy::large_enum_variant, reason = "moved once, and never kept")]
enum NextStep {
    Answered(Outcome),
    Wait(watch::Receiver<()>),
    /// The ledger has to be asked for what slabs don't have.
    Ask(Aside),
}

/// How long the end of the process waits for slabs that are still asked for, and for unspent units to be given back.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

impl<L: Ledger + 'static> Slabs<L> {
    /// Starts the task that gives back. `timeout` bounds every call.
    pub fn start(ledger: L, is_on: bool, timeout: Duration, metrics: Arc<Metrics>) -> Self {
        let is_on = is_on && ledger.is_shared();
        let units = metrics.slab_units.clone();
        let shared = Arc::new(Shared::new(ledger, is_on, timeout, metrics, units));
        if is_on {
            shared.tasks.spawn(task::run(Arc::clone(&shared)));
        }
        Self { shared }
    }
}

impl<L> Shared<L> {
    fn new(ledger: L, is_on: bool, timeout: Duration, metrics: Arc<Metrics>, units: SlabUnits) -> Self {
        Self {
            ledger,
            core: Core::new(units),
            ids: Mutex::new(Requests::new(IDS_MAX)),
            id_answered: Notify::new(),
            news: Notify::new(),
            may_have_slabs: is_on,
            is_on: AtomicBool::new(is_on),
            purpose: Purpose::HandsOut,
            timeout,
            metrics,
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        }
    }
}

impl<L: Ledger + 'static> Shared<L> {
    /// Asks the core about a chain of which something may come from slabs.
    fn decide(self: &Arc<Self>, split: &Split, waits: u32) -> NextStep {
        let mut asks = Asks::new();
        let decision = self.core.request(&split.needs, split.has_exact(), waits, &mut Live, &mut asks);
        self.follow_up(asks);
        match decision {
            Decision::Admitted => {
                self.metrics.slab_answers.slab.inc();
                NextStep::Answered(Outcome::bare(Verdict::Done))
            }
            Decision::Full { index } => {
                self.metrics.slab_answers.full.inc();
                let refusal = Refusal::one(split.places[index], RefusalCode::ExceedsCredits);
                NextStep::Answered(Outcome::bare(Verdict::Refused(refusal)))
            }
            Decision::Wait(notices) => NextStep::Wait(notices),
            Decision::Ledger(aside) => {
                self.metrics.slab_answers.ledger.inc();
                NextStep::Ask(aside)
            }
        }
    }

    /// Follows a chain to its answer, from its first step on.
    async fn answer(
        self: &Arc<Self>,
        chain: &Chain,
        split: &Split,
        mut step: NextStep,
    ) -> Result<Outcome, LedgerError> {
        let mut waits = 0;
        loop {
            match step {
                NextStep::Answered(outcome) => return Ok(outcome),
                NextStep::Ask(aside) => return self.ask_ledger(chain, split, aside).await,
                NextStep::Wait(mut notices) => {
                    // This can't fail, because a limit is not forgotten while somebody waits for it. If it did, asking again would be right.
                    let _ = notices.changed().await;
                    waits += 1;
                    step = self.decide(split, waits);
                }
            }
        }
    }

    /// The rests, and whatever slabs may not answer, as one chain. If it is refused the parts are put back.
    async fn ask_ledger(
        self: &Arc<Self>,
        chain: &Chain,
        split: &Split,
        aside: Aside,
    ) -> Result<Outcome, LedgerError> {
        let (rest, places) = split.rest(chain, aside.rests(), || Live.fresh_name());
        let mut aside = PutBack { shared: self, aside: Some(aside) };
        let outcome = self.ledger.apply(&rest).await?;
        match outcome.verdict {
            // Another instance has admitted this request, and charged it.
            Verdict::Done if outcome.is_repeat => aside.settle(Settled::Failed),
            Verdict::Done => aside.settle(Settled::Admitted),
            Verdict::Refused(refusal) => {
                let refused = if refusal.code == RefusalCode::ExceedsCredits {
                    split.needs_of(&places, refusal.failed)
                } else {
                    Default::default()
                };
                aside.settle(Settled::Refused { needs: refused });
                let failed = refusal.failed.iter().map(|place| places[place]).collect();
                let refusal = Refusal { index: places[refusal.index], failed, ..refusal };
                return Ok(Outcome::bare(Verdict::Refused(refusal)));
            }
            Verdict::NotAsked => aside.settle(Settled::Failed),
        }
        Ok(Outcome { is_repeat: outcome.is_repeat, ..Outcome::bare(outcome.verdict) })
    }

    /// The same for a request with an id, which is charged once however often it is sent.
    async fn answer_once(self: &Arc<Self>, chain: &Chain, split: &Split) -> Result<Outcome, LedgerError> {
        let id = chain::request_bits(&chain.lease);
        loop {
            let answered = self.id_answered.notified();
            tokio::pin!(answered);
            answered.as_mut().enable();
            let seen = self.ids.lock().begin(id, clock::monotonic_ms());
            match seen {
                RequestState::Answered(verdict) => {
                    self.metrics.slab_answers.slab.inc();
                    return Ok(Outcome { is_repeat: true, ..Outcome::bare(verdict) });
                }
                RequestState::UnderWay => answered.await,
                RequestState::New => {
                    let mut ending = EndId { shared: self, id, verdict: None };
                    let outcome = self.answer(chain, split, self.decide(split, 0)).await?;
                    ending.verdict = Some(outcome.verdict).filter(is_final);
                    return Ok(outcome);
                }
            }
        }
    }

    /// Gives everything back that nobody spent. What was spent comes back by the ledger's timeout.
    async fn close(self: &Arc<Self>) {
        if !self.is_on.swap(false, Ordering::AcqRel) {
            return;
        }
        self.core.close(&mut Live, |_| true);
        self.follow_up(Asks::new());
        if tokio::time::timeout(CLOSE_TIMEOUT, task::settled(self)).await.is_err() {
            tracing::warn!("some slabs were not given back; the ledger's timeout does it");
        }
        self.closing.cancel();
        self.tasks.close();
    }

    /// Carries out what the core wants.
    fn follow_up(self: &Arc<Self>, asks: Asks<Arc<Account>>) {
        for (limit, account, ask) in asks {
            self.tasks.spawn(task::take(Arc::clone(self), limit, account, ask));
        }
        if self.core.take_news() {
            self.news.notify_one();
        }
    }
}

impl<L: Ledger + 'static> Ledger for Slabs<L> {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let shared = &self.shared;
        // In a scope of its own: while it waits, a decision carries no space for any of this.
        let waiting = {
            let split = if shared.is_on.load(Ordering::Relaxed) { Split::of(chain) } else { None };
            // A chain that somebody completes keeps its name in the ledger, which says whether it is a repeat.
            let first = match (&split, chain.keep) {
                (None, _) | (_, Keep::Name) => None,
                (Some(split), _) => Some(shared.decide(split, 0)),
            };
            if let Some(NextStep::Answered(outcome)) = first {
                return Ok(outcome);
            }
            split.map(|split| {
                Box::pin(tokio::time::timeout(shared.timeout, async move {
                    match first {
                        Some(step) => shared.answer(chain, &split, step).await,
                        None => shared.answer_once(chain, &split).await,
                    }
                }))
            })
        };
        let Some(answer) = waiting else { return shared.ledger.apply(chain).await };
        let late = |_| LedgerError::TimedOut(u64::try_from(shared.timeout.as_millis()).unwrap_or(u64::MAX));
        answer.await.map_err(late)?
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.shared.ledger.complete(chain).await
    }

    /// What came from a slab is spent and stays so for its window: nobody remembers which slab a request had its units
    /// from, and remembering it for every request would cost more than the few units that are lost. The rest is known under
    /// its name.
    fn give_back(&self, chain: Chain) {
        let shared = &self.shared;
        if !shared.may_have_slabs {
            return shared.ledger.give_back(chain);
        }
        if chain.keep == Keep::Name {
            // Whoever sends this id again is charged.
            shared.ids.lock().end(chain::request_bits(&chain.lease), None);
        }
        shared.ledger.give_back(chain::to_give_back(chain));
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        self.shared.ledger.peek(account, spec)
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.shared.ledger.sample(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        self.shared.ledger.is_decreasing(account, spec)
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        self.shared.ledger.provision(wants).await
    }

    /// What was taken of limits that are gone, lower or exact now goes back.
    fn limits_changed(&self, spec_of: &dyn Fn(&Account) -> Option<Arc<LimitSpec>>) {
        let rules_of = |account: &Arc<Account>| chain::rules_of_spec(&*spec_of(account)?);
        self.shared.core.recheck(rules_of, &mut Live);
        self.shared.follow_up(Asks::new());
        self.shared.ledger.limits_changed(spec_of);
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        self.shared.ledger.balances(wants).await
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        self.shared.ledger.schedule(account, lifetime_seconds).await
    }

    fn comes_back(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        self.shared.ledger.comes_back(account, spec)
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        // What is held here to be handed out is left.
        let holds_some = self.slab(account).is_some_and(|slab| slab.held > 0);
        !holds_some && self.shared.ledger.is_used_up(account, spec)
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        self.shared.ledger.owed(account, spec)
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        self.shared.ledger.repaid_in_ms(account, spec, amount)
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        self.shared.ledger.forgive(want).await
    }

    fn ready(&self) -> Result<(), String> {
        self.shared.ledger.ready()
    }

    fn is_shared(&self) -> bool {
        self.shared.ledger.is_shared()
    }

    fn slab(&self, account: &Account) -> Option<Shown> {
        self.shared.core.shown(account.id, clock::monotonic_ms())
    }

    fn longest_lifetime_seconds(&self) -> Option<NonZeroU32> {
        self.shared.ledger.longest_lifetime_seconds()
    }

    fn sweep(&self) -> usize {
        if self.shared.is_on.load(Ordering::Relaxed) {
            self.shared.core.sweep(&mut Live);
            let slabs = self.shared.core.slabs();
            self.shared.metrics.slabs.set(i64::try_from(slabs).unwrap_or(i64::MAX));
            let held = |(account, held)| SlabHeld { account, held };
            self.shared.ledger.tell_slabs(|| self.shared.core.held().into_iter().map(held).collect());
        }
        self.shared.ledger.sweep()
    }

    /// Slabs go back before the ledger below closes.
    async fn close(&self) {
        self.shared.close().await;
        self.shared.ledger.close().await;
    }
}

#[cfg(test)]
mod tests;
