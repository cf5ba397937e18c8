//! The ledger of a sidecar: hubs, each of which applies chains to the ledger that all of them share.
//!
//! [`Hub`] is the cheap handle that callers hold. Behind it there is one stream to each hub ([`stream`]), and a task that
//! keeps what is known of accounts up to date ([`sampler`]). A chain goes to the home of its first limit ([`homes`]). If that
//! hub is lost before it has answered, the chain is sent once more under the same name to the next one ([`asking`]).
//! Any hub may apply any chain: homes are for efficiency, the ledger behind the hubs is the truth.

mod asking;
mod homes;
mod known;
pub(crate) mod line;
mod lowering;
pub mod pb;
mod peer;
mod sampler;
mod sending;
mod shared;
mod stream;
pub(crate) mod wire;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::metadata::AsciiMetadataValue;

pub use self::known::KnownBehindHub;
pub use self::line::FleetLine;
use self::pb::answer::What as Answer;
use self::pb::ask::What as Ask;
use self::peer::Peer;
use self::sending::{Manner, applied};
use self::shared::Shared;
use super::{
    Account, Balance, CapacityEvent, Chain, Ledger, LedgerError, Lender, LoanEnd, Outcome, Refusal,
    RefusalCode, Schedule, SlabHeld, SlabTake, Verdict, Want,
};
use crate::clock;
use crate::limit::{LimitSpec, Overage};
use crate::retry::schedule::paid_in_ms;
use crate::telemetry::Metrics;
use crate::tls::ClientTls;

/// What a completion or a change of capacity may take.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads are not on anybody's path.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// For what is under way, when the process ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// For hubs to hear which loans are over, when the process ends.
const LOANS_TOLD_WITHIN: Duration = Duration::from_secs(1);

/// How often it is looked whether that has landed.
const CLOSE_LOOK: Duration = Duration::from_millis(5);

/// How it is set up.
#[derive(Debug, Clone)]
pub struct Options {
    /// `host:port` of each hub; hosts may be names.
    pub addresses: Vec<String>,
    /// What hubs call this instance.
    pub name: String,
    /// Absent: streams are in the clear.
    pub tls: Option<Arc<ClientTls>>,
    /// Sent with every stream.
    pub authorization: Option<AsciiMetadataValue>,
    /// Bounds every call of a caller.
    pub timeout: Duration,
    /// Chains that may wait for one hub.
    pub queue_max: usize,
    /// Where capacity changes that take time are told.
    pub events: Option<mpsc::UnboundedSender<CapacityEvent>>,
}

/// The handle.
#[derive(Debug)]
pub struct Hub {
    shared: Arc<Shared>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl Hub {
    /// Starts the tasks. The hubs may be away.
    pub fn start(options: Options, metrics: Arc<Metrics>) -> Self {
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        let mut queues = Vec::new();
        let mut peers = Vec::new();
        for address in &options.addresses {
            let (sender, receiver) = mpsc::channel(options.queue_max);
            peers.push(Arc::new(Peer::new(address.clone(), sender)));
            queues.push(receiver);
        }
        let shared = Arc::new(Shared::new(options, peers, metrics));
        for (peer, queue) in shared.peers.iter().zip(queues) {
            let streaming = stream::run(Arc::clone(&shared), Arc::clone(peer), queue);
            tasks.spawn(closing.clone().run_until_cancelled_owned(streaming));
        }
        let hub = Self { shared, closing, tasks };
        let sampling = sampler::run(hub.handle());
        hub.tasks.spawn(hub.closing.clone().run_until_cancelled_owned(sampling));
        hub
    }

    /// Another handle on the same hubs.
    fn handle(&self) -> Self {
        Self { shared: Arc::clone(&self.shared), closing: self.closing.clone(), tasks: self.tasks.clone() }
    }

    /// Returns when every hub that has lent something, and is there, has heard which loans are over.
    async fn tell_loan_ends(&self) {
        let there = self.shared.peers.iter().filter(|peer| peer.has_lent() && peer.is_there());
        let told = there.map(async |peer| {
            // What is asked after them is answered after them.
            let asked = peer.ask(Ask::Samples(pb::Wants::default()), None);
            if let Some(mut asked) = asked {
                drop(tokio::time::timeout(LOANS_TOLD_WITHIN, asked.answer()).await);
            }
        });
        join_all(told).await;
    }

    /// What hubs say of each want, asked in parts.
    async fn about_wants(
        &self,
        wants: &[Want],
        what: impl Fn(pb::Wants) -> Ask,
        within: Duration,
    ) -> Result<Vec<Balance>, LedgerError> {
        let parts = wants.chunks(wire::WANTS_MAX.min(WANTS_PER_ASK)).map(async |part| {
            let message = |_| what(pb::Wants { wants: part.iter().map(wire::want).collect() });
            let answered = self.ask(part[0].account.id, message, None, within).await?;
            let Answer::Balances(balances) = answered.expect()? else { return Err(unexpected()) };
            wire::read_balances(balances, part.len()).map_err(LedgerError::Unavailable)
        });
        Ok(try_join_all(parts).await?.concat())
    }
}

/// Of one ask, so that it stays far below what a hub takes.
const WANTS_PER_ASK: usize = 256;

fn unexpected() -> LedgerError {
    LedgerError::Unavailable("the hub answered something else than it was asked".to_owned())
}

impl Ledger for Hub {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let outcome = applied(self.send(chain, Manner::Apply).await?)?;
        self.note_applied(chain, outcome.verdict);
        Ok(outcome)
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        applied(self.send(chain, Manner::Complete).await?)
    }

    async fn take_slab(&self, chain: &Chain, window_seconds: NonZeroU32) -> Result<SlabTake, LedgerError> {
        let take = self.send(chain, Manner::TakeSlab(window_seconds)).await?;
        let verdict = match &take {
            SlabTake::Applied(outcome) => outcome.verdict,
            SlabTake::Lent(_) => Verdict::Done,
            SlabTake::Full { .. } => Verdict::Refused(Refusal::one(0, RefusalCode::ExceedsCredits)),
        };
        self.note_applied(chain, verdict);
        Ok(take)
    }

    fn end_loan(&self, lender: Lender, end: LoanEnd) {
        let peer = usize::try_from(lender.0).ok().and_then(|at| self.shared.peers.get(at));
        if let Some(peer) = peer {
            peer.end_loan(end);
        }
    }

    fn give_back(&self, chain: Chain) {
        if chain.can_be_given_back() && !chain.transfers.is_empty() {
            self.shared.give_back_all(vec![chain]);
        }
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        let lifetime_ms = u64::from(spec.kind.lifetime_seconds().get()) * 1000;
        account.behind_hub().sample.available(spec.capacity, lifetime_ms, clock::monotonic_ms())
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.shared.touch(account, spec);
        self.peek(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        let is_above = || account.behind_hub().capacity().is_none_or(|capacity| capacity > spec.capacity);
        account.known.decrease.since_ms().is_some() && is_above()
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        let balances = self.about_wants(&wants, Ask::Provision, COMPLETION_TIMEOUT).await?;
        for (want, balance) in wants.into_iter().zip(balances) {
            want.account.behind_hub().set_capacity(balance.capacity);
            if balance.capacity > want.capacity {
                want.account.known.decrease.begin(clock::monotonic_ms());
                self.shared.lowering.begin(want);
            } else {
                want.account.known.decrease.end();
            }
        }
        Ok(())
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        self.about_wants(&wants, Ask::Balances, self.shared.options.timeout.max(READ_TIMEOUT)).await
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        let (account, overage) = (Arc::clone(account), Overage::Deny);
        let capacity = account.behind_hub().capacity().unwrap_or(0);
        let id = account.id;
        let want = wire::want(&Want { account, capacity, overage, lifetime_seconds });
        let within = self.shared.options.timeout.max(READ_TIMEOUT);
        let answered = self.ask(id, |_| Ask::Schedule(want.clone()), None, within).await?;
        match answered.expect()? {
            Answer::Schedule(schedule) => Ok(wire::read_schedule(schedule)),
            _ => Err(unexpected()),
        }
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        let now_ms = clock::monotonic_ms();
        account.behind_hub().watched.note(now_ms);
        self.shared.touch(account, spec);
        account.behind_hub().sample.is_zero(now_ms)
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        if spec.overage != Overage::Repay {
            return 0;
        }
        account.behind_hub().owing.meet(Some(spec.kind.lifetime_seconds()));
        self.shared.touch(account, spec);
        account.behind_hub().owing.owed().unwrap_or(0)
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        let now_ms = clock::monotonic_ms();
        let window_ms = u64::from(spec.kind.lifetime_seconds().get()) * 1000;
        let known = account.behind_hub();
        let paid_in_ms = || paid_in_ms(known.owing.owed().unwrap_or(0), spec.capacity, window_ms);
        known.fits_at_ms(amount).map(|at_ms| at_ms.saturating_sub(now_ms)).or_else(paid_in_ms)
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        let message = wire::want(&want);
        let what = |_| Ask::Forgive(message.clone());
        self.ask(want.account.id, what, None, COMPLETION_TIMEOUT).await?.expect()?;
        want.account.behind_hub().owing.set(0, clock::monotonic_ms());
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        if self.shared.is_ready() { Ok(()) } else { Err(format!("ledger: {}", self.shared.why_away())) }
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn tell_slabs(&self, held: impl FnOnce() -> Vec<SlabHeld>) {
        if self.shared.is_report_due(clock::monotonic_ms()) {
            self.shared.report(held());
        }
    }

    /// What expires behind the hubs, expires by itself.
    fn sweep(&self) -> usize {
        self.shared.count_waiting();
        0
    }

    async fn close(&self) {
        self.tell_loan_ends().await;
        let settled = async {
            while self.shared.count_waiting() > 0 {
                tokio::time::sleep(CLOSE_LOOK).await;
            }
        };
        if tokio::time::timeout(CLOSE_TIMEOUT, settled).await.is_err() {
            tracing::warn!("the hubs did not answer all that they were asked");
        }
        self.closing.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
