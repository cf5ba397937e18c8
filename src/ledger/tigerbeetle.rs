//! The production ledger: TigerBeetle behind a queue.
//!
//! [`TigerBeetle`] is the cheap handle that callers hold. Behind it one worker turns what has gathered into batches, a
//! provisioner makes and funds accounts, and a reader looks at balances on a session of its own. Every wait of a caller
//! has a deadline; a chain whose caller has gone is given back when it lands.

mod batch;
mod known;
mod provision;
mod reader;
mod session;
mod sum;
mod wire;
mod work;
mod worker;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::known::Known;
use self::session::{EVENTS_MAX_DEVELOPMENT, Session, SessionError};
use self::work::{Step, Waiting, Work, can_be_given_back};
use super::account::Decrease;
pub use super::options::{Cluster, Options, TransferIds};
use super::{
    Account, Action, Balance, CapacityEvent, Chain, Ledger, LedgerError, Outcome, Schedule, Verdict, Want,
};
use crate::clock;
use crate::limit::{LimitSpec, Overage};
use crate::retry::eta::DrainRate;
use crate::telemetry::Metrics;

/// What the tasks know of each other.
#[derive(Debug)]
struct Shared {
    options: Options,
    metrics: Arc<Metrics>,
    drain: DrainRate,
    writer_ok: AtomicBool,
    reader_ok: AtomicBool,
    /// The write session failed and must be tried before anybody uses it again.
    writer_lost: Notify,
    /// Why it is not up.
    reason: ArcSwapOption<String>,
    /// How many events one request may have; the worker finds out.
    events_max: AtomicUsize,
    /// Accounts used since the reader last looked.
    touched: parking_lot::Mutex<Vec<Arc<Account>>>,
}

/// Accounts looked at in one round at most: a part of one request in production mode.
const TOUCHED_MAX: usize = 2_000;

impl Shared {
    fn is_up(&self) -> bool {
        self.writer_ok.load(Ordering::Acquire) && self.reader_ok.load(Ordering::Acquire)
    }

    fn set(&self, side: &AtomicBool, state: Result<(), &SessionError>) {
        let before = self.is_up();
        let mut news = false;
        if let Err(error) = state {
            let reason = Some(Arc::new(error.to_string()));
            news = self.reason.load_full() != reason;
            self.reason.store(reason);
        }
        side.store(state.is_ok(), Ordering::Release);
        let now = self.is_up();
        self.metrics.ledger_up.set(i64::from(now));
        if !before && now {
            self.reason.store(None);
            tracing::info!("the ledger answers");
        } else if !now && (before || news) {
            tracing::warn!(reason = %self.why_down(), "the ledger does not answer");
        }
    }

    fn why_down(&self) -> String {
        self.reason
            .load()
            .as_ref()
            .map_or_else(|| "not connected yet".to_owned(), |reason| reason.to_string())
    }

    fn tell(&self, event: CapacityEvent) {
        if let Some(events) = &self.options.events {
            // Nobody listens only while the process ends.
            drop(events.send(event));
        }
    }

    fn touch(&self, account: &Arc<Account>) {
        if account.known.start_sampling() {
            let mut touched = self.touched.lock();
            if touched.len() < TOUCHED_MAX {
                touched.push(Arc::clone(account));
            } else {
                account.known.end_sampling();
            }
        }
    }
}

/// The handle.
#[derive(Debug, Clone)]
pub struct TigerBeetle {
    queue: mpsc::Sender<Work>,
    /// Given back by callers that left at the last moment; as many as there are callers at most.
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
        let session = Arc::new(Session::new(options.cluster.clone()));
        let read_session = Arc::new(Session::new(options.cluster.clone()));
        let shared = Arc::new(Shared {
            options,
            metrics,
            drain: DrainRate::new(),
            writer_ok: AtomicBool::new(false),
            reader_ok: AtomicBool::new(false),
            writer_lost: Notify::new(),
            reason: ArcSwapOption::empty(),
            events_max: AtomicUsize::new(EVENTS_MAX_DEVELOPMENT),
            touched: parking_lot::Mutex::default(),
        });
        let tasks = TaskTracker::new();
        let closing = CancellationToken::new();
        let works = worker::Inbox { queued, abandoned: given_back };
        tasks.spawn(worker::run(
            Arc::clone(&shared),
            Arc::clone(&session),
            works,
            provisioner.clone(),
            closing.clone(),
        ));
        // Those that only read or prepare have nothing that must land.
        let preparing = provision::run(Arc::clone(&shared), session, wanted, queue.clone());
        tasks.spawn(closing.clone().run_until_cancelled_owned(preparing));
        let reading = reader::run(Arc::clone(&shared), read_session, reads);
        tasks.spawn(closing.clone().run_until_cancelled_owned(reading));
        Ok(Self { queue, abandoned, provisioner, reader, shared, closing, tasks })
    }

    /// Applies a chain within `limit`. A caller that drops this future gets its reservation given back.
    pub async fn apply_within(&self, chain: &Chain, limit: Duration) -> Result<Outcome, LedgerError> {
        if !self.shared.is_up() {
            return Err(LedgerError::Unavailable(self.shared.why_down()));
        }
        let (reply, answer) = oneshot::channel();
        let work = Work { chain: chain.clone(), step: Step::Apply, sum: None, reply: Some(reply) };
        self.queue.try_send(work).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => self.queue_full(),
            mpsc::error::TrySendError::Closed(_) => LedgerError::Unavailable("shutting down".to_owned()),
        })?;
        let mut waiting = Waiting { answer, chain: Some(chain), abandoned: &self.abandoned };
        let answered = tokio::time::timeout(limit, &mut waiting.answer).await;
        match answered {
            Ok(answer) => {
                waiting.chain = None;
                let answer =
                    answer.unwrap_or_else(|_| Err(LedgerError::Unavailable("shutting down".to_owned())));
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
        let gone = || LedgerError::Unavailable("shutting down".to_owned());
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
        if !self.shared.is_up() {
            return Err(LedgerError::Unavailable(self.shared.why_down()));
        }
        let limit = self.shared.options.timeout.max(READ_TIMEOUT);
        let late = LedgerError::TimedOut(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        self.reader
            .try_send(read)
            .map_err(|_| LedgerError::Unavailable("too many reads at once".to_owned()))?;
        match tokio::time::timeout(limit, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(LedgerError::Unavailable("shutting down".to_owned())),
            Err(_) => Err(late),
        }
    }

    fn timeout(&self) -> Duration {
        self.shared.options.timeout
    }
}

impl Ledger for TigerBeetle {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let outcome = self.apply_within(chain, self.timeout()).await?;
        Decrease::note(chain, outcome.verdict, clock::monotonic_ms());
        if outcome.verdict == Verdict::Done {
            for transfer in &chain.transfers {
                if let Action::Reserve(hold) = transfer.action {
                    transfer.account.known.spend_sample(hold.amount);
                }
            }
        }
        Ok(outcome)
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.apply_within(chain, self.timeout().max(COMPLETION_TIMEOUT)).await
    }

    fn give_back(&self, chain: Chain) {
        if can_be_given_back(&chain) && !chain.transfers.is_empty() {
            // Nobody listens only when the process is ending; then it expires by itself.
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
        account.decrease.since_ms().is_some() && is_above()
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

    fn ready(&self) -> Result<(), String> {
        if self.shared.is_up() { Ok(()) } else { Err(format!("ledger: {}", self.shared.why_down())) }
    }

    fn is_shared(&self) -> bool {
        true
    }

    /// What expires here, expires by itself.
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

/// The account is known to be as it should.
fn is_provisioned(want: &Want) -> bool {
    let known = &want.account.known;
    let has_debt_account = want.overage != Overage::Debt || known.has_debt_account();
    known.funded() == Some(want.capacity) && has_debt_account
}

/// What a completion or a change of capacity may take.
const COMPLETION_TIMEOUT: Duration = Duration::from_secs(5);

/// For the last batch, when the process ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads are not on anybody's path.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// Waits for a call as long as it takes, because it can't be taken back; says so when it takes long, and gives up only
/// when the cluster is found to have moved to other addresses.
async fn patiently<T>(
    shared: &Shared,
    session: &Session,
    side: &AtomicBool,
    call: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let stall = (shared.options.timeout * 2).max(Duration::from_millis(500));
    tokio::pin!(call);
    loop {
        match tokio::time::timeout(stall, &mut call).await {
            Ok(Ok(value)) => {
                shared.set(side, Ok(()));
                return Ok(value);
            }
            Ok(Err(error)) => {
                shared.set(side, Err(&error));
                shared.writer_lost.notify_one();
                return Err(error);
            }
            Err(_) => {
                let error = session.no_answer();
                shared.set(side, Err(&error));
                if session.has_moved().await {
                    session.renew();
                    shared.writer_lost.notify_one();
                    return Err(error);
                }
            }
        }
    }
}
