//! The worker: one loop that sends what has gathered while the last request was under way.
//!
//! An idle system answers at once, a busy one batches by itself; there is no timer. Chains whose accounts are not ready go
//! to the provisioner and come back. A chain that landed after its caller left is given back with the next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::batch::Batch;
use super::session::{Session, SessionError};
use super::wire::{self, Landed};
use super::{Shared, Step, Work, can_be_given_back, patiently, provision};
use crate::clock;
use crate::ledger::{Action, Chain, Code, LedgerError, Outcome, Refusal, Verdict};
use crate::retry::backoff::Backoff;
use crate::telemetry::LeaseEvent;

struct Worker {
    shared: Arc<Shared>,
    session: Arc<Session>,
    provisioner: mpsc::Sender<provision::Request>,
    events_max: usize,
    /// What must be in the next batch: chains to give back, claims, and what had no room in the last one.
    next: VecDeque<Work>,
}

/// Why the worker woke.
enum Wake {
    Work,
    /// The session failed in other hands.
    Lost,
    /// Closing, and nothing is left.
    End,
}

/// Where work comes from.
pub struct Inbox {
    pub queued: mpsc::Receiver<Work>,
    pub abandoned: mpsc::UnboundedReceiver<Chain>,
}

impl Inbox {
    async fn wait(
        &mut self,
        gathered: &mut Vec<Work>,
        most: usize,
        shared: &Shared,
        closing: &CancellationToken,
    ) -> Wake {
        // Callers that left come first: what they hold is wanted by those who wait.
        tokio::select! {
            biased;
            Some(chain) = self.abandoned.recv() => {
                gathered.push(give_back(chain));
                Wake::Work
            }
            count = self.queued.recv_many(gathered, most) => if count > 0 { Wake::Work } else { Wake::End },
            () = shared.writer_lost.notified() => Wake::Lost,
            // Only when there is nothing left, so that what was promised lands.
            () = closing.cancelled() => Wake::End,
        }
    }

    fn take(&mut self, gathered: &mut Vec<Work>, most: usize) {
        while let Ok(chain) = self.abandoned.try_recv() {
            gathered.push(give_back(chain));
        }
        while gathered.len() < most {
            let Ok(work) = self.queued.try_recv() else { break };
            gathered.push(work);
        }
    }
}

fn give_back(chain: Chain) -> Work {
    Work { chain, step: Step::Abandon, reply: None }
}

pub async fn run(
    shared: Arc<Shared>,
    session: Arc<Session>,
    mut inbox: Inbox,
    provisioner: mpsc::Sender<provision::Request>,
    closing: CancellationToken,
) {
    let mut worker = Worker { shared, session, provisioner, events_max: 0, next: VecDeque::new() };
    let mut gathered = Vec::new();
    loop {
        if !worker.shared.writer_ok.load(Ordering::Acquire) {
            let connecting = connect(&worker.shared, &worker.session);
            let Some(events_max) = closing.run_until_cancelled(connecting).await else { return };
            worker.events_max = events_max;
            worker.shared.events_max.store(events_max, Ordering::Relaxed);
        }
        if worker.next.is_empty() {
            match inbox.wait(&mut gathered, worker.events_max, &worker.shared, &closing).await {
                Wake::Work => {}
                Wake::Lost => continue,
                Wake::End => return,
            }
        }
        inbox.take(&mut gathered, worker.events_max);
        let depth = inbox.queued.len();
        worker.shared.metrics.ledger_queue_depth.set(i64::try_from(depth).unwrap_or(i64::MAX));
        worker.next.extend(gathered.drain(..));
        worker.turn().await;
    }
}

/// Waits for the cluster to answer for the first time, and asks how large a request may be.
async fn connect(shared: &Shared, session: &Session) -> usize {
    let mut backoff = Backoff::default();
    loop {
        match patiently(shared, session, &shared.writer_ok, session.events_max()).await {
            Ok(events_max) => {
                tracing::info!(events_max, "connected to TigerBeetle");
                return events_max;
            }
            Err(error) => {
                tracing::warn!(%error, "TigerBeetle can't be used yet");
                tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
            }
        }
    }
}

impl Worker {
    /// One batch: gather, send, settle.
    async fn turn(&mut self) {
        let mut batch = Batch::new(self.events_max);
        while let Some(work) = self.next.pop_front() {
            let events = events_of(&work);
            if !batch.has_room(events) {
                self.next.push_front(work);
                break;
            }
            if let Some(work) = self.admit(work) {
                let ids = self.shared.options.transfer_ids;
                batch.push(work, |out, work| match work.step {
                    Step::Apply => wire::push_chain(out, ids, &work.chain),
                    Step::Claim => out.extend(wire::claim_again(ids, &work.chain)),
                    Step::Abandon if work.chain.keep.is_named() => wire::push_abandon(out, ids, &work.chain),
                    Step::Abandon => wire::push_chain(out, ids, &void_of(&work.chain)),
                });
            }
        }
        if batch.is_empty() {
            return;
        }
        let started = clock::instant();
        let events = batch.events();
        let transfers = batch.take_transfers();
        let call = self.session.create_transfers(transfers);
        let answer = patiently(&self.shared, &self.session, &self.shared.writer_ok, call).await;
        self.shared.metrics.ledger_batch_events.observe(events as f64);
        self.shared.metrics.ledger_batch_seconds.observe(started.elapsed().as_secs_f64());
        match answer {
            Ok(failures) => {
                let mut chains = 0;
                for (work, landed) in batch.settle(failures) {
                    chains += 1;
                    self.settle(work, landed);
                }
                self.shared.drain.record(chains, clock::monotonic_ms());
            }
            Err(error) => self.fail(batch, &error),
        }
    }

    /// What may go to the ledger now. Those that left are dropped, those whose accounts aren't ready go elsewhere.
    fn admit(&self, work: Work) -> Option<Work> {
        if work.step != Step::Apply {
            return Some(work);
        }
        if work.has_left() {
            return None;
        }
        for (index, transfer) in work.chain.transfers.iter().enumerate() {
            let account = &transfer.account;
            let ready = match transfer.action {
                Action::Void => true,
                Action::Debt { .. } => account.has_debt_account(),
                // It takes from what the account has, also while that is being lowered.
                Action::Rereserve(hold) => account.funded().is_some_and(|funded| funded >= hold.capacity),
                Action::Reserve(hold) => {
                    let lowering = account.funded().is_some_and(|funded| funded > hold.capacity);
                    if lowering && account.is_decreasing() {
                        let refusal = Refusal { index, code: Code::LimitDecreasing, failed: 1 << index };
                        work.answer(Ok(outcome(Verdict::Refused(refusal))));
                        return None;
                    }
                    account.funded() == Some(hold.capacity)
                }
            };
            if !ready {
                self.send_to_provisioner(work);
                return None;
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

    fn settle(&mut self, work: Work, landed: Landed) {
        match (work.step, sent_again(&work.chain, landed)) {
            (Step::Abandon, landed) => {
                self.shared.metrics.lease_event(LeaseEvent::VoidedOnCancel);
                tracing::debug!(lease = %work.chain.lease, ?landed, "gave back what its caller left behind");
            }
            (Step::Claim, Landed::Refused(Refusal { code: Code::ExistsWithDifferentFields, .. })) => {
                let refusal = Refusal { index: 0, code: Code::Abandoned, failed: 1 };
                work.answer(Ok(outcome(Verdict::Refused(refusal))));
            }
            (Step::Claim, _) => work.answer(Ok(outcome(Verdict::Done))),
            (Step::Apply, Landed::Done) => self.done(work),
            (Step::Apply, Landed::DoneBefore) if needs_claim(&work.chain) => {
                self.next.push_back(Work { step: Step::Claim, ..work });
            }
            (Step::Apply, Landed::DoneBefore) => work.answer(Ok(outcome(Verdict::Done))),
            (Step::Apply, Landed::Refused(refusal)) => {
                self.touch(&work.chain);
                work.answer(Ok(outcome(Verdict::Refused(refusal))));
            }
            (Step::Apply, Landed::AccountMissing { index }) => {
                // The data file was replaced under us: everything is made again on next use.
                let account = &work.chain.transfers[index].account;
                account.set_funded(None);
                account.set_has_debt_account(false);
                let text = format!("the account of {} is gone and will be made again", account.key);
                work.answer(Err(LedgerError::Unavailable(text)));
            }
            (Step::Apply, Landed::Unexpected { index, kind }) => {
                tracing::error!(lease = %work.chain.lease, index, ?kind, "TigerBeetle refused a transfer");
                work.answer(Err(LedgerError::Unavailable(format!(
                    "TigerBeetle refused a transfer: {kind:?}"
                ))));
            }
        }
    }

    /// It holds. If its caller has left it is given back.
    fn done(&mut self, work: Work) {
        self.touch(&work.chain);
        let Work { chain, reply, .. } = work;
        let Some(reply) = reply else { return };
        if reply.send(Ok(outcome(Verdict::Done))).is_err() && can_be_given_back(&chain) {
            self.give_back(chain);
        }
    }

    fn give_back(&mut self, chain: Chain) {
        self.next.push_back(give_back(chain));
    }

    fn touch(&self, chain: &Chain) {
        chain.transfers.iter().for_each(|transfer| self.shared.touch(&transfer.account));
    }

    /// Nothing is known of the batch: everybody hears so, and what may have been reserved is given back. Nothing is sent
    /// again.
    fn fail(&mut self, batch: Batch<Work>, error: &SessionError) {
        tracing::warn!(%error, "a batch was lost");
        let text = error.to_string();
        for work in batch.into_waiting() {
            if work.step == Step::Apply && can_be_given_back(&work.chain) {
                self.next.push_back(give_back(work.chain.clone()));
            }
            work.answer(Err(LedgerError::Unavailable(text.clone())));
        }
    }
}

/// What a void that is sent again means: it exists however it was linked the first time, and one that failed before had
/// nothing to give back.
fn sent_again(chain: &Chain, landed: Landed) -> Landed {
    let Landed::Refused(refusal) = landed else { return landed };
    let is_void = chain.transfers.get(refusal.index).is_some_and(|transfer| transfer.action == Action::Void);
    match refusal.code {
        Code::ExistsWithDifferentFields if is_void && refusal.index == 0 => Landed::DoneBefore,
        Code::IdAlreadyFailed if is_void => {
            Landed::Refused(Refusal { code: Code::PendingTransferNotFound, ..refusal })
        }
        _ => landed,
    }
}

fn outcome(verdict: Verdict) -> Outcome {
    Outcome { verdict, available: Default::default() }
}

/// A name that its caller chose may be on its way back because an earlier caller of that name left.
fn needs_claim(chain: &Chain) -> bool {
    chain.keep.is_named() && can_be_given_back(chain)
}

fn events_of(work: &Work) -> usize {
    match work.step {
        Step::Apply => work.chain.transfers.len(),
        Step::Claim => 1,
        Step::Abandon => work.chain.transfers.len() + 1,
    }
}

fn void_of(chain: &Chain) -> Chain {
    let mut void = chain.clone();
    void.transfers.iter_mut().for_each(|transfer| transfer.action = Action::Void);
    void
}
