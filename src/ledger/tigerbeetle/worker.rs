//! The worker: one loop that sends what has gathered while the last request was under way.
//!
//! An idle system answers at once, a busy one batches by itself; there is no timer. Chains whose accounts are not ready go
//! to the provisioner and come back. A chain that landed after its caller left is given back with the next batch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::batch::{Batch, Fate, Now};
use super::session::{Session, SessionError};
use super::sum::{self, Sum};
use super::wire::{self, Landed};
use super::work::{Answer, Step, Work, can_be_given_back};
use super::{Shared, patiently, provision};
use crate::clock;
use crate::ledger::{Action, Chain, Keep, LedgerError, Outcome, Refusal, RefusalCode, Verdict};
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
    pub abandoned: mpsc::UnboundedReceiver<Work>,
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
            Some(left) = self.abandoned.recv() => {
                gathered.push(left);
                Wake::Work
            }
            count = self.queued.recv_many(gathered, most) => if count > 0 { Wake::Work } else { Wake::End },
            () = shared.writer_lost.notified() => Wake::Lost,
            // Only when there is nothing left, so that what was promised lands.
            () = closing.cancelled() => Wake::End,
        }
    }

    fn take(&mut self, gathered: &mut Vec<Work>, most: usize) {
        while let Ok(left) = self.abandoned.try_recv() {
            gathered.push(left);
        }
        while gathered.len() < most {
            let Ok(work) = self.queued.try_recv() else { break };
            gathered.push(work);
        }
    }
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
        // What waits from before counts, or the queue's bound would be none.
        inbox.take(&mut gathered, worker.events_max.saturating_sub(worker.next.len()));
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
        let mut batch = Batch::new(self.events_max, self.shared.options.sums);
        while let Some(work) = self.next.pop_front() {
            if !batch.has_room(&work) {
                self.next.push_front(work);
                break;
            }
            if let Some(work) = self.admit(work) {
                batch.push(work);
            }
        }
        if batch.is_empty() {
            return;
        }
        let started = clock::instant();
        let transfers = batch.write(Now {
            ids: self.shared.options.transfer_ids,
            unix_ms: clock::unix_ms(),
            monotonic_ms: clock::monotonic_ms(),
            entropy: || fastrand::u128(..),
        });
        let events = transfers.len();
        let call = self.session.create_transfers(transfers);
        let answer = patiently(&self.shared, &self.session, &self.shared.writer_ok, call).await;
        self.shared.metrics.ledger_batch_events.observe(events as f64);
        self.shared.metrics.ledger_batch_seconds.observe(started.elapsed().as_secs_f64());
        match answer {
            Ok(failures) => self.settle_all(batch.settle(failures, clock::monotonic_ms())),
            Err(error) => self.fail(batch, &error),
        }
    }

    fn settle_all(&mut self, settled: Vec<(Work, Fate)>) {
        let now_ms = clock::monotonic_ms();
        let mut decided = 0;
        let mut again = Vec::new();
        let mut left = None;
        for (work, fate) in settled {
            decided += 1;
            match fate {
                Fate::Landed(landed) => self.settle(work, landed, now_ms),
                Fate::Shares(sum) => self.done_together(work, sum, &mut left),
                Fate::Again { index } => {
                    decided -= 1;
                    work.chain.transfers[index].account.known.set_refused(now_ms);
                    again.push(work);
                }
            }
        }
        self.next.extend(left.map(|(chain, sum)| Work::give_back(chain, Some(sum))));
        // Before all that came after them.
        again.into_iter().rev().for_each(|work| self.next.push_front(work));
        self.shared.drain.record(decided, now_ms);
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
            let known = &account.known;
            let ready = match transfer.action {
                Action::Void => true,
                Action::Debt { .. } => known.has_debt_account(),
                // It takes from what the account has, also while that is being lowered.
                Action::Rereserve(hold) => known.funded().is_some_and(|funded| funded >= hold.capacity),
                Action::Reserve(hold) => {
                    let lowering = known.funded().is_some_and(|funded| funded > hold.capacity);
                    if lowering && account.decrease.since_ms().is_some() {
                        let refusal = Refusal::one(index, RefusalCode::LimitDecreasing);
                        work.answer(Ok(Outcome::bare(Verdict::Refused(refusal))));
                        return None;
                    }
                    known.funded() == Some(hold.capacity)
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

    fn settle(&mut self, work: Work, landed: Landed, now_ms: u64) {
        match (work.step, sent_again(&work.chain, landed)) {
            (
                Step::Abandon,
                Landed::Refused(Refusal {
                    code: RefusalCode::PendingTransferExpired,
                    index: index @ 1..,
                    ..
                }),
            ) if work.chain.keep.is_named() => self.give_back_the_others(work, index - 1),
            (Step::Abandon, landed) => {
                if matches!(landed, Landed::Done | Landed::DoneBefore) {
                    self.shared.metrics.lease_event(LeaseEvent::VoidedOnCancel);
                }
                tracing::debug!(lease = %work.chain.lease, ?landed, "gave back what its caller left behind");
            }
            (Step::Claim, Landed::Refused(Refusal { code: RefusalCode::ExistsWithDifferentFields, .. })) => {
                let refusal = Refusal::one(0, RefusalCode::Abandoned);
                work.answer(Ok(Outcome::bare(Verdict::Refused(refusal))));
            }
            (Step::Claim, _) if work.chain.keep == Keep::ForRetries => {
                self.next.push_back(Work { step: Step::Verify, ..work });
            }
            (Step::Claim, _) => work.answer(Ok(Outcome::bare(Verdict::Done))),
            (Step::Verify, landed) => {
                let verdict = wire::verified(landed, work.chain.transfers.len());
                work.answer(Ok(Outcome::bare(verdict)));
            }
            (Step::Apply, Landed::Done) => self.done(work),
            (Step::Apply, Landed::DoneBefore) if needs_claim(&work.chain) => {
                self.next.push_back(Work { step: Step::Claim, ..work });
            }
            (Step::Apply, Landed::DoneBefore) => work.answer(Ok(Outcome::bare(Verdict::Done))),
            (Step::Apply, Landed::Refused(refusal)) => {
                self.touch(&work.chain);
                if refusal.code == RefusalCode::ExceedsCredits {
                    work.chain.transfers[refusal.index].account.known.set_refused(now_ms);
                }
                work.answer(Ok(Outcome::bare(Verdict::Refused(refusal))));
            }
            (Step::Apply, Landed::AccountMissing { index }) => {
                // The data file was replaced under us: everything is made again on next use.
                let account = &work.chain.transfers[index].account;
                account.known.set_funded(None);
                account.known.set_has_debt_account(false);
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

    /// One of those to give back has ended by itself, and kept the others from it: they go without it.
    fn give_back_the_others(&mut self, mut work: Work, ended: usize) {
        let mut left = work.chain.transfers.iter_mut().filter_map(|transfer| match &mut transfer.action {
            Action::Reserve(hold) if hold.amount > 0 => Some(hold),
            _ => None,
        });
        if let Some(hold) = left.nth(ended) {
            hold.amount = 0;
        }
        let is_left = |action| matches!(action, Action::Reserve(hold) if hold.amount > 0);
        if work.chain.transfers.iter().any(|transfer| is_left(transfer.action)) {
            self.next.push_back(work);
        }
    }

    /// It holds. If its caller has left it is given back.
    fn done(&mut self, work: Work) {
        self.touch(&work.chain);
        let Work { chain, reply, .. } = work;
        let Some(reply) = reply else { return };
        let answer = Answer { outcome: Outcome::bare(Verdict::Done), sum: None };
        if reply.send(Ok(answer)).is_err() && can_be_given_back(&chain) {
            self.next.push_back(Work::give_back(chain, None));
        }
    }

    /// It is part of a sum that holds. What those hold who have `left` the same sum is given back together.
    fn done_together(&mut self, work: Work, sum: Arc<Sum>, left: &mut Option<(Chain, Arc<Sum>)>) {
        self.touch(&work.chain);
        let Some(reply) = work.reply else { return };
        let answer = Answer { outcome: Outcome::bare(Verdict::Done), sum: Some(Arc::clone(&sum)) };
        if reply.send(Ok(answer)).is_ok() {
            return;
        }
        match left {
            Some((part, from)) if Arc::ptr_eq(from, &sum) => {
                self.shared.metrics.lease_event(LeaseEvent::VoidedOnCancel);
                sum::add(part, &work.chain, 1);
            }
            _ => {
                let before = left.replace((work.chain, sum));
                self.next.extend(before.map(|(part, from)| Work::give_back(part, Some(from))));
            }
        }
    }

    fn touch(&self, chain: &Chain) {
        chain.transfers.iter().for_each(|transfer| self.shared.touch(&transfer.account));
    }

    /// Nothing is known of the batch: everybody hears so, and what may have been reserved is given back. Nothing is sent
    /// again.
    fn fail(&mut self, batch: Batch, error: &SessionError) {
        tracing::warn!(%error, "a batch was lost");
        let text = error.to_string();
        let (works, sums) = batch.into_lost();
        for (work, is_summed) in works {
            if work.step == Step::Apply && can_be_given_back(&work.chain) && !is_summed {
                self.next.push_back(Work::give_back(work.chain.clone(), None));
            }
            work.answer(Err(LedgerError::Unavailable(text.clone())));
        }
        self.next.extend(sums.into_iter().map(|sum| Work::give_back(sum.chain(), Some(sum))));
    }
}

/// What a void that is sent again means: it exists however it was linked the first time, and one that failed before had
/// nothing to give back.
fn sent_again(chain: &Chain, landed: Landed) -> Landed {
    let Landed::Refused(refusal) = landed else { return landed };
    let is_void = chain.transfers.get(refusal.index).is_some_and(|transfer| transfer.action == Action::Void);
    match refusal.code {
        RefusalCode::ExistsWithDifferentFields if is_void && refusal.index == 0 => Landed::DoneBefore,
        RefusalCode::IdAlreadyFailed if is_void => {
            Landed::Refused(Refusal { code: RefusalCode::PendingTransferNotFound, ..refusal })
        }
        _ => landed,
    }
}

/// A name that its caller chose may be on its way back because an earlier caller of that name left.
fn needs_claim(chain: &Chain) -> bool {
    chain.keep.is_named() && can_be_given_back(chain)
}
