//! The worker: one loop that sends what has gathered while the last request was under way.
//!
//! An idle system answers at once, a busy one batches by itself; there is no timer. Chains whose accounts are not ready go
//! to the provisioner and come back. A chain that landed after its caller left is given back with the next batch.
//!
//! A request whose session is lost is sent again on the next one, exactly as it was, before anything else. Its transfers
//! are named, so they happen once, whenever the first sending lands; and what they came to is known afterwards for all
//! but reserves whose name somebody else may have sent too (see [`settlement`]).

mod readiness;
mod settlement;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tigerbeetle_unofficial as tb;
use tokio::sync::{Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use self::readiness::{Readiness, readiness};
use super::batch::{Batch, Now};
use super::provision;
use super::session::SessionError;
use super::shared::{Shared, Side, Task};
use super::wire;
use super::work::{Work, WorkKind};
use crate::clock;
use crate::ledger::{LedgerError, Outcome, Refusal, Verdict};
use crate::retry::backoff::Backoff;
use crate::trace;

/// The cluster drops the session that was silent longest, so one that has nothing to do says something.
const KEEP_ALIVE: Duration = Duration::from_secs(5);

/// Where work comes from.
#[derive(Debug)]
pub(super) struct Inbox {
    pub queued: mpsc::Receiver<Work>,
    pub abandoned: mpsc::UnboundedReceiver<Work>,
    /// What must be in the next batch: chains to give back, claims, and what had no room in the last one.
    pub next: VecDeque<Work>,
}

struct Worker<'i> {
    shared: Arc<Shared>,
    provisioner: mpsc::Sender<provision::Request>,
    inbox: &'i mut Inbox,
    events_max: usize,
    /// The number of the session that said so.
    session: Option<u64>,
    /// A request whose session was lost before it was answered.
    unanswered: Option<Sent>,
    /// Chains that were done and took as much as there was; how much that is has to be looked up.
    took: Vec<Work>,
}

/// A request to TigerBeetle.
struct Sent {
    batch: Batch,
    transfers: Arc<[tb::Transfer]>,
    /// An earlier sending may have landed.
    is_resent: bool,
    /// If one of the calls in it has one.
    span: Option<Box<trace::Batch>>,
}

/// Why the worker woke.
enum Wake {
    Work,
    /// The session failed in other hands.
    Lost,
    /// Nothing to do for a while.
    Idle,
    /// Closing, and nothing is left.
    End,
}

impl Inbox {
    async fn wait(&mut self, most: usize, shared: &Shared, closing: &CancellationToken) -> Wake {
        let mut gathered = Vec::new();
        // Callers that left come first: what they hold is wanted by those who wait.
        let wake = tokio::select! {
            biased;
            Some(left) = self.abandoned.recv() => {
                gathered.push(left);
                Wake::Work
            }
            count = self.queued.recv_many(&mut gathered, most) => if count > 0 { Wake::Work } else { Wake::End },
            () = shared.writer_lost.notified() => Wake::Lost,
            // Only when there is nothing left, so that what was promised lands.
            () = closing.cancelled() => Wake::End,
            () = tokio::time::sleep(KEEP_ALIVE) => Wake::Idle,
        };
        self.next.extend(gathered);
        wake
    }

    /// Takes work from the queue, up to `most` with what waits from before: otherwise the queue's bound would mean nothing.
    fn take(&mut self, most: usize) {
        while let Ok(left) = self.abandoned.try_recv() {
            self.next.push_back(left);
        }
        while self.next.len() < most {
            let Ok(work) = self.queued.try_recv() else { break };
            self.next.push_back(work);
        }
    }
}

pub(super) async fn run(
    shared: Arc<Shared>,
    inbox: Arc<Mutex<Inbox>>,
    provisioner: mpsc::Sender<provision::Request>,
    closing: CancellationToken,
) {
    let mut inbox = inbox.lock().await;
    let mut worker = Worker {
        shared,
        provisioner,
        inbox: &mut inbox,
        events_max: 0,
        session: None,
        unanswered: None,
        took: Vec::new(),
    };
    loop {
        if !worker.is_connected() {
            let Some(()) = closing.run_until_cancelled(worker.connect()).await else { return };
        }
        if worker.unanswered.is_none() {
            if worker.inbox.next.is_empty() {
                match worker.inbox.wait(worker.events_max, &worker.shared, &closing).await {
                    Wake::Work => {}
                    Wake::Lost => continue,
                    Wake::Idle => {
                        worker.say_something().await;
                        continue;
                    }
                    Wake::End => return,
                }
            }
            worker.inbox.take(worker.events_max);
        }
        let depth = worker.inbox.queued.len();
        worker.shared.metrics.ledger_queue_depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
        worker.shared.panic_point(Task::Worker);
        worker.turn().await;
    }
}

impl Worker<'_> {
    fn is_connected(&self) -> bool {
        let writer = &self.shared.writer;
        writer.is_up() && self.session == Some(writer.session.number())
    }

    /// Waits for the cluster to answer, and asks how large a request may be.
    async fn connect(&mut self) {
        let mut backoff = Backoff::default();
        loop {
            let session = &self.shared.writer.session;
            let number = session.number();
            match self.shared.ask(Side::Writer, session.events_max()).await {
                Ok(events_max) => {
                    tracing::info!(events_max, "connected to TigerBeetle");
                    (self.events_max, self.session) = (events_max, Some(number));
                    self.shared.events_max.store(events_max, Ordering::Relaxed);
                    return;
                }
                Err(error) => {
                    tracing::warn!(%error, "TigerBeetle can't be used yet");
                    tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
                }
            }
        }
    }

    /// Keeps the session, and finds out whether it was kept.
    async fn say_something(&self) {
        let call = self.shared.writer.session.lookup_accounts(vec![wire::operator_id()]);
        if let Err(error) = self.shared.ask(Side::Writer, call).await {
            tracing::debug!(%error, "an idle session was not kept");
        }
    }

    /// One request: gather, send, settle.
    async fn turn(&mut self) {
        let Some(mut sent) = self.unanswered.take().or_else(|| self.gather()) else { return };
        if sent.transfers.len() > self.events_max {
            // The server was replaced by one that takes smaller requests, so this request was never applied there.
            return self.fail(sent.batch, "the server takes smaller requests now");
        }
        let started = clock::instant();
        let call = self.shared.writer.session.create_transfers(Arc::clone(&sent.transfers));
        let answer = self.shared.ask(Side::Writer, call).await;
        self.shared.metrics.ledger_batch_events.observe(sent.transfers.len() as f64);
        self.shared.metrics.ledger_batch_seconds.observe(started.elapsed().as_secs_f64());
        match answer {
            Ok(failures) => {
                drop(sent.span);
                let settled = sent.batch.settle(failures, sent.is_resent, clock::monotonic_ms());
                self.settle_all(settled);
                self.look_up_takes().await;
            }
            Err(SessionError::Refused(reason)) => {
                sent.span.iter_mut().for_each(|span| span.fail(&*reason));
                self.fail(sent.batch, &reason);
            }
            Err(error) => {
                tracing::warn!(%error, "a batch will be sent again");
                self.unanswered = Some(Sent { is_resent: sent.is_resent || error.is_lost(), ..sent });
            }
        }
    }

    /// What goes into the next request.
    fn gather(&mut self) -> Option<Sent> {
        let mut batch = Batch::new(self.events_max, self.shared.options.sums);
        let mut links = Vec::new();
        while let Some(work) = self.inbox.next.pop_front() {
            if !batch.has_room(&work) {
                self.inbox.next.push_front(work);
                break;
            }
            if let Some(mut work) = self.admit(work) {
                links.extend(work.link.take());
                batch.push(work);
            }
        }
        if batch.is_empty() {
            return None;
        }
        let transfers = batch.write(Now {
            ids: self.shared.options.transfer_ids,
            unix_ms: clock::unix_ms(),
            monotonic_ms: clock::monotonic_ms(),
            entropy: || fastrand::u128(..),
        });
        let span = trace::Batch::begin("tigerbeetle", transfers.len(), &links);
        Some(Sent { batch, transfers: transfers.into(), is_resent: false, span })
    }

    /// What may go to the ledger now. Those that left are dropped, those whose accounts aren't ready go elsewhere.
    fn admit(&self, work: Work) -> Option<Work> {
        if work.kind != WorkKind::Apply {
            return Some(work);
        }
        if work.has_left() {
            return None;
        }
        let now_ms = clock::monotonic_ms();
        for (index, transfer) in work.chain.transfers.iter().enumerate() {
            match readiness(&transfer.account, transfer.action, now_ms) {
                Readiness::Ready => {}
                Readiness::Refused(code) => {
                    // Look again soon: another instance may have paid the debt.
                    self.shared.touch(&transfer.account);
                    work.answer(Ok(Outcome::bare(Verdict::Refused(Refusal::one(index, code)))));
                    return None;
                }
                Readiness::NotYet => {
                    self.send_to_provisioner(work);
                    return None;
                }
            }
        }
        Some(work)
    }

    fn send_to_provisioner(&self, work: Work) {
        if let Err(error) = self.provisioner.try_send(provision::Request::Work(Box::new(work))) {
            let (mpsc::error::TrySendError::Full(request) | mpsc::error::TrySendError::Closed(request)) =
                error;
            let waiting = self.shared.options.queue_max;
            request.refuse(&LedgerError::QueueFull { waiting, per_second: None });
        }
    }
}
