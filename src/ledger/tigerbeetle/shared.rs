//! What the tasks of this ledger share: two sessions and how they are, and what the reader is to look at.
//!
//! The writer decides. The reader only looks: that it is away makes this instance unready, and stops no decision.
//!
//! Every wait for the client library is here. A call can't be taken back, so it is awaited for as long as its session
//! lasts. Meanwhile the cluster is looked at from outside, and the session is given up when a new one would do better: then
//! the call ends, and may have been applied.

use std::convert::Infallible;
use std::sync::Arc;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::time::Duration;

use tokio::sync::Notify;

use super::Options;
use super::debtors::Debtors;
use super::link::Link;
use super::outage::Reason;
use super::session::{EVENTS_MAX_DEVELOPMENT, SessionError};
use crate::clock;
use crate::ledger::{Account, CapacityEvent};
use crate::retry::eta::DrainRate;
use crate::telemetry::Metrics;

/// What the tasks know of each other.
#[derive(Debug)]
pub(super) struct Shared {
    pub options: Options,
    pub metrics: Arc<Metrics>,
    pub drain: DrainRate,
    pub writer: Link,
    pub reader: Link,
    /// The writer failed and must be tried before anybody uses it again.
    pub writer_lost: Notify,
    /// How many events one request may have; the worker finds out.
    pub events_max: AtomicUsize,
    /// Accounts used since the reader last looked.
    pub touched: parking_lot::Mutex<Vec<Arc<Account>>>,
    pub debtors: Debtors,
    /// How often a task was started again.
    pub restarts: AtomicU64,
    /// The task that a test wants to fail.
    #[cfg(debug_assertions)]
    panics: AtomicU8,
}

/// Accounts looked at in one round at most: a part of one request in production mode.
const TOUCHED_MAX: usize = 2_000;

/// Which of the two sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Writer,
    Reader,
}

/// One that runs as long as the ledger does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Task {
    Worker = 1,
    Provisioner,
    Reader,
    Payer,
}

impl Task {
    /// The session that counts as failed while this task does not run.
    pub fn side(self) -> Side {
        match self {
            Task::Worker | Task::Provisioner | Task::Payer => Side::Writer,
            Task::Reader => Side::Reader,
        }
    }
}

impl Shared {
    pub(super) fn new(options: Options, metrics: Arc<Metrics>) -> Self {
        Self {
            writer: Link::new(options.cluster.clone()),
            reader: Link::new(options.cluster.clone()),
            options,
            metrics,
            drain: DrainRate::new(),
            writer_lost: Notify::new(),
            events_max: AtomicUsize::new(EVENTS_MAX_DEVELOPMENT),
            touched: parking_lot::Mutex::default(),
            debtors: Debtors::default(),
            restarts: AtomicU64::new(0),
            #[cfg(debug_assertions)]
            panics: AtomicU8::new(0),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.writer.is_up() && self.reader.is_up()
    }

    pub(super) fn why_down(&self) -> String {
        if self.writer.is_up() {
            format!("balances can't be read: {}", self.reader.why_down())
        } else {
            self.writer.why_down()
        }
    }

    /// Notes how a session is, and says so when that changes.
    pub(super) fn set(&self, side: Side, state: Result<(), &SessionError>) {
        let before = self.is_up();
        let (link, _) = self.link(side);
        if !link.set(state) {
            return;
        }
        let now = self.is_up();
        if now && !before {
            tracing::info!("the ledger answers");
        } else if !now && state.is_err() {
            tracing::warn!(reason = %self.why_down(), "the ledger does not answer");
        }
    }

    /// Notes whether the cluster has a connection left for a session.
    fn set_full(&self, link: &Link, is_full: bool) {
        if link.set_full(is_full) {
            let sessions = &self.metrics.ledger_no_connection;
            if is_full {
                sessions.inc()
            } else {
                sessions.dec()
            };
        }
    }

    fn link(&self, side: Side) -> (&Link, &Link) {
        match side {
            Side::Writer => (&self.writer, &self.reader),
            Side::Reader => (&self.reader, &self.writer),
        }
    }

    /// Waits for a call for as long as its session lasts.
    pub(super) async fn ask<T>(
        &self,
        side: Side,
        call: impl Future<Output = Result<T, SessionError>>,
    ) -> Result<T, SessionError> {
        let answer = tokio::select! {
            biased;
            answer = call => answer,
            never = self.look_after(side) => match never {},
        };
        match &answer {
            Ok(_) => {
                self.set_full(self.link(side).0, false);
                self.set(side, Ok(()));
            }
            // The cluster may be as well as ever; whoever uses the new session finds out.
            Err(error) if error.is_lost() => {}
            Err(error) => self.set(side, Err(error)),
        }
        if answer.is_err() && side == Side::Writer {
            self.writer_lost.notify_one();
        }
        answer
    }

    /// What is done while a call takes long.
    async fn look_after(&self, side: Side) -> Infallible {
        let asked_at_ms = clock::monotonic_ms();
        let (link, other) = self.link(side);
        let mut pause = (self.options.timeout * 2).max(Duration::from_millis(500));
        loop {
            tokio::time::sleep(pause).await;
            self.set(side, Err(&link.silence()));
            let look = link.look(asked_at_ms, &other.session).await;
            self.set_full(link, look.is_full);
            // The cluster may have no more than one connection for the two: then the writer needs it.
            if side == Side::Writer && look.given_up == Some(Reason::AnswersAnother) {
                other.pause(clock::monotonic_ms());
            }
            pause = look.next;
        }
    }

    /// The same for a call that may be made twice: it is made again when its session was lost.
    pub(super) async fn ask_again<T, F>(&self, side: Side, call: impl Fn() -> F) -> Result<T, SessionError>
    where
        F: Future<Output = Result<T, SessionError>>,
    {
        loop {
            match self.ask(side, call()).await {
                Err(error) if error.is_lost() && !self.must_wait(side) => {}
                answer => return answer,
            }
        }
    }

    /// The reader waits for the writer to have a connection first.
    pub(super) fn must_wait(&self, side: Side) -> bool {
        let has_never_answered = self.writer.session.answered_at_ms() == 0;
        let is_paused = self.reader.is_paused(clock::monotonic_ms());
        side == Side::Reader && !self.writer.is_up() && (has_never_answered || is_paused)
    }

    pub(super) fn tell(&self, event: CapacityEvent) {
        if let Some(events) = &self.options.events {
            // Nobody listens only while the process ends.
            drop(events.send(event));
        }
    }

    pub(super) fn touch(&self, account: &Arc<Account>) {
        if account.known.start_sampling() {
            let mut touched = self.touched.lock();
            if touched.len() < TOUCHED_MAX {
                touched.push(Arc::clone(account));
            } else {
                account.known.end_sampling();
            }
        }
    }

    /// A limit that repays was seen to owe this much, by a look that began at `asked_at_ms`.
    pub(super) fn found_debt(&self, account: &Arc<Account>, owed: u64, asked_at_ms: u64) {
        account.known.owing().read(owed, asked_at_ms);
        if owed > 0 {
            self.debtors.add(account, owed, clock::monotonic_ms());
        }
    }

    /// A debt was recorded here; 0 if it was there already.
    pub(super) fn owes_more(&self, account: &Arc<Account>, amount: u64) {
        let now_ms = clock::monotonic_ms();
        if amount > 0 {
            account.known.owing().add(amount, now_ms);
        }
        self.debtors.owes_more(account, amount, now_ms);
    }

    /// A task panics the next time it has something to do. For tests, and not in a release.
    #[cfg(debug_assertions)]
    pub(super) fn make_panic(&self, task: Task) {
        self.panics.store(task as u8, Ordering::Relaxed);
    }

    /// Here tasks panic that a test wants to.
    #[cfg(debug_assertions)]
    #[allow(clippy::panic, reason = "this is what a test asks for")]
    pub(super) fn panic_point(&self, task: Task) {
        if self.panics.compare_exchange(task as u8, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
            panic!("a test wanted the {task:?} to fail");
        }
    }

    #[cfg(not(debug_assertions))]
    pub(super) fn panic_point(&self, _: Task) {}
}
