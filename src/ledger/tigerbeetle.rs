//! The production ledger: TigerBeetle behind a queue.
//!
//! [`TigerBeetle`] is the cheap handle that callers hold. Behind it one worker turns what has gathered into batches, a
//! provisioner makes and funds accounts, and a reader looks at balances on a session of its own. Every wait of a caller
//! has a deadline; a chain whose caller has gone is given back when it lands.

mod work;
mod worker;
mod batch;
mod sum;
mod provision;
mod capacity;
mod reader;
mod releases;
mod payer;
mod debtors;
mod known;
mod shared;
mod restart;
mod link;
mod outage;
mod session;
mod addresses;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::known::KnownAccount;
use self::restart::restart_on_panic;
use self::shared::Shared;
pub use self::shared::Task;
use self::work::{WaitingCaller, Work, WorkKind};
use super::account::Decrease;
pub use super::options::{Cluster, Options, TransferIds};
use super::{
    Account, Action, Balance, Chain, Hold, Ledger, LedgerError, Outcome, Refusal, RefusalCode, Schedule,
    Transfer, Verdict, Want,
};
use crate::clock;
use crate::limit::{LimitSpec, Overage};
use crate::retry::schedule::paid_in_ms;
use crate::telemetry::Metrics;
use crate::trace;

/// The handle.
#[derive(Debug, Clone)]
pub struct TigerBeetle {
    queue: mpsc::Sender<Work>,
    /// Chains of callers that left when the answer was already there, to be given back. At most one for each caller.
    abandoned: mpsc::UnboundedSender<Work>,
    provisioner: mpsc::Sender<provision::Request>,
    reader: mpsc::Sender<reader::Read>,
    shared: Arc<Shared>,
    closing: CancellationToken,
    tasks: TaskTracker,
}

impl TigerBeetle {
    /// Starts the tasks. The cluster may be away. Fails only in a build without this ledger.
    pub fn start(options: Options, metrics: Arc<Metrics>) -> Result<Self, String> {
        let (queue, queued) = mpsc::channel(options.queue_max);
        let (abandoned, given_back) = mpsc::unbounded_channel();
        let (provisioner, wanted) = mpsc::channel(options.queue_max);
        let (reader, reads) = mpsc::channel(1024);
        let shared = Arc::new(Shared::new(options, metrics));
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let (all, works) = (Arc::clone(&shared), provisioner.clone());
        let next = VecDeque::new();
        let inbox = Arc::new(Mutex::new(worker::Inbox { queued, abandoned: given_back, next }));
        let until = closing.clone();
        let working = move || worker::run(Arc::clone(&all), Arc::clone(&inbox), works.clone(), until.clone());
        tasks.spawn(restart_on_panic(Arc::clone(&shared), Task::Worker, working));
        // These tasks only read or prepare, so they may be cut off: nothing of theirs must land.
        let (all, works, until) = (Arc::clone(&shared), queue.clone(), closing.clone());
        let inbox = provision::Inbox { requests: wanted, lowering: HashMap::new() };
        let inbox = Arc::new(Mutex::new(inbox));
        let preparing = move || {
            let preparing = provision::run(Arc::clone(&all), Arc::clone(&inbox), works.clone());
            drop_output(until.clone().run_until_cancelled_owned(preparing))
        };
        tasks.spawn(restart_on_panic(Arc::clone(&shared), Task::Provisioner, preparing));
        let (all, works, until) = (Arc::clone(&shared), provisioner.clone(), closing.clone());
        let reads = Arc::new(Mutex::new(reads));
        let reading = move || {
            let reading = reader::run(Arc::clone(&all), Arc::clone(&reads), works.clone());
            drop_output(until.clone().run_until_cancelled_owned(reading))
        };
        tasks.spawn(restart_on_panic(Arc::clone(&shared), Task::Reader, reading));
        // A payment is one request. If it is cut off, the next look, or another instance, goes on.
        let (all, until) = (Arc::clone(&shared), closing.clone());
        let paying =
            move || drop_output(until.clone().run_until_cancelled_owned(payer::run(Arc::clone(&all))));
        tasks.spawn(restart_on_panic(Arc::clone(&shared), Task::Payer, paying));
        Ok(Self { queue, abandoned, provisioner, reader, shared, closing, tasks })
    }

    /// Applies a chain within `limit`. A caller that drops this future gets its reservation given back.
    pub async fn apply_within(&self, chain: &Chain, limit: Duration) -> Result<Outcome, LedgerError> {
        self.send(chain, limit, false).await
    }

    async fn send(
        &self,
        chain: &Chain,
        limit: Duration,
        is_completion: bool,
    ) -> Result<Outcome, LedgerError> {
        // That balances can't be read stops nobody.
        if !self.shared.writer.is_up() {
            return Err(LedgerError::Unavailable(self.shared.writer.why_down()));
        }
        let (reply, answer) = oneshot::channel();
        let (chain_sent, kind) = (chain.clone(), WorkKind::Apply);
        let link = trace::link();
        let work = Work { chain: chain_sent, kind, sum: None, reply: Some(reply), is_completion, link };
        self.queue.try_send(work).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.queue_full(),
            mpsc::error::TrySendError::Closed(_) => LedgerError::Unavailable("shutting down".to_owned()),
        })?;
        let to_give_back = (!is_completion).then_some(chain);
        let mut waiting = WaitingCaller { answer, chain: to_give_back, abandoned: &self.abandoned };
        let answered = tokio::time::timeout(limit, &mut waiting.answer).await;
        match answered {
            Ok(answer) => {
                waiting.chain = None;
                let answer =
                    answer.unwrap_or_else(|_| Err(LedgerError::Unavailable("it was interrupted".to_owned())));
                answer.map(|answer| answer.outcome)
            }
            // Dropping `waiting` gives back what landed at this very moment.
            Err(_) => Err(LedgerError::TimedOut(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))),
        }
    }

    fn queue_full(&self) -> LedgerError {
        let waiting = self.shared.options.queue_max;
        LedgerError::QueueFull { waiting, per_second: self.shared.drain.per_second(clock::monotonic_ms()) }
    }

    /// Makes and funds accounts, in as few round trips as can be.
    pub async fn provision_within(&self, wants: Vec<Want>, limit: Duration) -> Result<(), LedgerError> {
        let (reply, done) = oneshot::channel();
        let request = provision::Request::Wants { wants, reply };
        let gone = || LedgerError::Unavailable("it was interrupted".to_owned());
        self.provisioner.send(request).await.map_err(|_| gone())?;
        match tokio::time::timeout(limit, done).await {
            Ok(done) => done.map_err(|_| gone())?,
            Err(_) => Err(LedgerError::TimedOut(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX))),
        }
    }

    async fn read<T>(
        &self,
        read: reader::Read,
        answer: oneshot::Receiver<Result<T, LedgerError>>,
    ) -> Result<T, LedgerError> {
        if !self.shared.reader.is_up() {
            return Err(LedgerError::Unavailable(self.shared.reader.why_down()));
        }
        let limit = self.shared.options.timeout.max(READ_TIMEOUT);
        let late = LedgerError::TimedOut(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        self.reader
            .try_send(read)
            .map_err(|_| LedgerError::Unavailable("too many reads at once".to_owned()))?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LedgerError::Unavailable("the read was interrupted".to_owned())),
            Err(_) => Err(late),
        }
    }

    fn timeout(&self) -> Duration {
        self.shared.options.timeout
    }

    /// A limit that repays may be full because another instance owes something. If nobody here has looked for a second, it is
    /// looked before the refusal is told, so that its reason is the true one.
    async fn look_for_debt(&self, chain: &Chain, refusal: &mut Refusal, within: Duration) {
        let Transfer { account, action: Action::Reserve(hold) } = &chain.transfers[refusal.index] else {
            return;
        };
        let asked_at_ms = clock::monotonic_ms();
        let may_owe = refusal.code == RefusalCode::ExceedsCredits && hold.overage == Overage::Repay;
        if !may_owe || !account.known.owing().is_to_be_looked_at(asked_at_ms) {
            return;
        }
        let Hold { capacity, overage, lifetime_seconds, .. } = *hold;
        let want = Want { account: Arc::clone(account), capacity, overage, lifetime_seconds };
        let looked = tokio::time::timeout(within, self.balances(vec![want])).await;
        // If it can't be read now, the background reader does it soon.
        let Ok(Ok(balances)) = looked else { return };
        let owed = balances[0].debt;
        self.shared.found_debt(account, owed, asked_at_ms);
        if owed > 0 {
            refusal.code = RefusalCode::InDebt;
        }
    }

    /// A task panics the next time it has something to do. For tests, and not in a release.
    #[cfg(debug_assertions)]
    pub fn make_panic(&self, task: Task) {
        self.shared.make_panic(task);
    }

    /// How often a task failed and was started again, for tests.
    pub fn restarts(&self) -> u64 {
        self.shared.restarts.load(Ordering::Relaxed)
    }

    /// How many times the session that decides was replaced, for tests.
    pub fn renewals(&self) -> u64 {
        self.shared.writer.session.number()
    }
}

impl Ledger for TigerBeetle {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let started = clock::instant();
        let mut outcome = self.apply_within(chain, self.timeout()).await?;
        if let Verdict::Refused(refusal) = &mut outcome.verdict {
            let within = self.timeout().saturating_sub(started.elapsed());
            self.look_for_debt(chain, refusal, within).await;
        }
        Decrease::note(chain, outcome.verdict, clock::monotonic_ms());
        if outcome.verdict == Verdict::Done {
            for (account, amount) in chain.amounts_taken(&outcome.taken) {
                account.known.spend_sample(amount);
            }
        }
        Ok(outcome)
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.send(chain, self.timeout().max(COMPLETION_TIMEOUT), true).await
    }

    fn give_back(&self, chain: Chain) {
        if chain.can_be_given_back() && !chain.transfers.is_empty() {
            // If nobody listens, the process is ending. What was reserved then expires by itself.
            drop(self.abandoned.send(Work::give_back(chain, None)));
        }
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        let lifetime_ms = u64::from(spec.kind.lifetime_seconds().get()) * 1000;
        account.known.sample(spec.capacity, lifetime_ms, clock::monotonic_ms())
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.shared.touch(account);
        self.peek(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        let is_above = || account.known.funded().is_some_and(|funded| funded > spec.capacity);
        account.known.decrease.since_ms().is_some() && is_above()
    }

    async fn provision(&self, mut wants: Vec<Want>) -> Result<(), LedgerError> {
        wants.retain(|want| !is_provisioned(want));
        if wants.is_empty() { Ok(()) } else { self.provision_within(wants, COMPLETION_TIMEOUT).await }
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        let (reply, answer) = oneshot::channel();
        self.read(reader::Read::Balances { wants, reply }, answer).await
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        let (reply, answer) = oneshot::channel();
        let account = Arc::clone(account);
        self.read(reader::Read::Schedule { account, lifetime_seconds, reply }, answer).await
    }

    /// As it was read a moment ago. The reader is asked to look again, for one account at a time.
    fn comes_back(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        let now_ms = clock::monotonic_ms();
        let is_idle = self.reader.capacity() == self.reader.max_capacity();
        if !spec.kind.is_concurrency() && is_idle && account.known.ask_for_schedule(now_ms) {
            let (account, lifetime_seconds) = (Arc::clone(account), spec.kind.lifetime_seconds());
            // If it is busy, the next one that is refused asks again.
            drop(self.reader.try_send(reader::Read::Remember { account, lifetime_seconds }));
        }
        account.known.schedule(now_ms)
    }

    fn is_used_up(&self, account: &Arc<Account>, _: &LimitSpec) -> bool {
        self.shared.touch(account);
        account.known.is_used_up(clock::monotonic_ms())
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        if spec.overage != Overage::Repay {
            return 0;
        }
        let owing = account.known.owing();
        owing.meet(Some(spec.kind.lifetime_seconds()));
        self.shared.touch(account);
        owing.owed().unwrap_or(0)
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        let now_ms = clock::monotonic_ms();
        let fits_at_ms = self.shared.debtors.fits_at_ms(account, amount, spec.capacity, now_ms);
        let window_ms = u64::from(spec.kind.lifetime_seconds().get()) * 1000;
        let owed = account.known.owing().owed().unwrap_or(0);
        let paid_in_ms = || paid_in_ms(owed, spec.capacity, window_ms);
        fits_at_ms.map(|at_ms| at_ms.saturating_sub(now_ms)).or_else(paid_in_ms)
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        if !self.shared.writer.is_up() {
            return Err(LedgerError::Unavailable(self.shared.writer.why_down()));
        }
        let forgiving = payer::forgive(&self.shared, &want.account);
        let late = u64::try_from(COMPLETION_TIMEOUT.as_millis()).unwrap_or(u64::MAX);
        let done = tokio::time::timeout(COMPLETION_TIMEOUT, forgiving).await;
        done.unwrap_or(Err(LedgerError::TimedOut(late)))
    }

    fn ready(&self) -> Result<(), String> {
        if self.shared.is_up() { Ok(()) } else { Err(format!("ledger: {}", self.shared.why_down())) }
    }

    fn is_shared(&self) -> bool {
        true
    }

    /// Nothing to do: TigerBeetle frees by itself what has expired.
    fn sweep(&self) -> usize {
        0
    }

    async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        if tokio::time::timeout(CLOSE_TIMEOUT, self.tasks.wait()).await.is_err() {
            tracing::warn!("the last batch did not land in time");
        }
    }
}

/// Whether the account is known to be as it should.
fn is_provisioned(want: &Want) -> bool {
    let known = &want.account.known;
    let has_debt_account = match want.overage {
        Overage::Deny => true,
        Overage::Debt => known.has_debt_account(),
        Overage::Repay => known.has_debt_account() && known.owing().owed().is_some(),
    };
    // If it is being lowered, what it is lowered to may have changed: then it must be asked for again.
    let is_settled = want.account.known.decrease.since_ms().is_none();
    known.funded() == Some(want.capacity) && is_settled && has_debt_account
}

/// What a completion or a change of capacity may take.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

/// For the last batch, when the process ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads are not on anybody's path.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

async fn drop_output<T>(task: impl Future<Output = T>) {
    drop(task.await);
}
