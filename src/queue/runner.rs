//! The loop that serves the queue: wait for one event, ask [`super::step`] what has to be done, carry that out.
//!
//! Decides nothing, and refuses to know how a reserve is made: it asks for that through [`Attempts`].

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, Either, join_all};
use futures_util::stream::FuturesUnordered;

use super::place::{Failure, JobId, LimitId, Place, PlaceState, Reserved};
use super::step::{Attempt, Attempted, QueueStep, Work};
use super::{Queue, up_to};
use crate::lease::Lease;
use crate::ledger::Account;
use crate::ledger::Schedule;
use crate::limit::LimitSpec;
use crate::retry::policy::Queue as Policy;
use crate::telemetry::QueueEvent;

/// What serving the queue needs of the rest of the server.
pub(crate) trait Attempts: Send + Sync + 'static {
    fn queue(&self) -> &Queue;

    /// The settings that hold now.
    fn policy(&self) -> Policy;

    /// Milliseconds that never go back.
    fn now_ms(&self) -> u64;

    /// Tries to reserve all that a job wants.
    fn attempt(&self, attempt: Attempt) -> impl Future<Output = Attempted> + Send;

    /// When an account gets back what; `None` if the ledger doesn't say.
    fn schedule(
        &self,
        account: &Arc<Account>,
        spec: &LimitSpec,
    ) -> impl Future<Output = Option<Schedule>> + Send;

    /// What was last seen free of an account; `None` where nobody but this process gives back to it.
    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64>;

    /// Makes out to the holder of a place what was reserved for it.
    fn hand_out(&self, place: &Place, lease: Option<Box<Lease>>) -> Reserved;

    /// Gives back a lease that nobody was told of.
    fn release(self: &Arc<Self>, lease: Lease) -> impl Future<Output = ()> + Send;

    /// Whether the ledger can be asked now.
    fn is_ready(&self) -> bool;
}

/// What was under way and is done.
enum Done {
    Attempted(JobId, Attempted),
    Scheduled(LimitId, Option<Schedule>),
    Released,
}

struct Runner<A> {
    server: Arc<A>,
    under_way: FuturesUnordered<BoxFuture<'static, Done>>,
}

/// Serves the queue until it closes; then releases what nobody has picked up.
pub(crate) async fn run<A: Attempts>(server: Arc<A>) {
    let mut runner = Runner { server: Arc::clone(&server), under_way: FuturesUnordered::new() };
    let queue = server.queue();
    while !queue.closing.is_cancelled() {
        let work = runner.step(|step| step.work(|account, spec| server.sample(account, spec)));
        work.into_iter().for_each(|work| runner.start(work));
        runner.wait().await;
    }
    runner.close().await;
    queue.closed.cancel();
}

impl<A: Attempts> Runner<A> {
    fn step<R>(&self, step: impl FnOnce(&mut QueueStep<'_>) -> R) -> R {
        self.server.queue().step(&self.server.policy(), self.server.now_ms(), step)
    }

    fn start(&self, work: Work) {
        let server = Arc::clone(&self.server);
        self.under_way.push(match work {
            Work::Attempt(attempt) => Box::pin(async move {
                let id = attempt.id;
                Done::Attempted(id, server.attempt(attempt).await)
            }),
            Work::Schedule(account, spec) => {
                Box::pin(async move { Done::Scheduled(account.id, server.schedule(&account, &spec).await) })
            }
            Work::Release(lease) => Box::pin(async move {
                // Closing doesn't wait for a ledger that is away: what is not released then expires.
                let closing = server.queue().closing.clone();
                closing.run_until_cancelled(server.release(lease)).await;
                Done::Released
            }),
        });
    }

    async fn wait(&mut self) {
        let server = Arc::clone(&self.server);
        let queue = server.queue();
        let sleep = match queue.next_due_ms() {
            Some(due_ms) => {
                let left_ms = due_ms.saturating_sub(server.now_ms());
                Either::Left(tokio::time::sleep(Duration::from_millis(left_ms)))
            }
            None => Either::Right(std::future::pending()),
        };
        tokio::select! {
            Some(done) = self.under_way.next() => self.on_done(done),
            () = queue.wake.notified() => {}
            () = sleep => {}
            () = queue.closing.cancelled() => {}
        }
    }

    fn on_done(&self, done: Done) {
        match done {
            Done::Attempted(id, attempted) => {
                let hand_out = |place: &Place, lease| self.server.hand_out(place, lease);
                let work = self.step(|step| step.attempted(id, attempted, hand_out, up_to));
                work.into_iter().for_each(|work| self.start(work));
            }
            Done::Scheduled(limit, schedule) => self.step(|step| step.scheduled(limit, schedule, up_to)),
            Done::Released => {}
        }
    }

    /// No job is attempted any more. What is under way lands, and what nobody was told of is released.
    async fn close(&mut self) {
        while let Some(done) = self.under_way.next().await {
            self.on_done(done);
        }
        let unclaimed = self.step(|step| {
            let mut unclaimed = step.places.take_releases();
            for id in step.places.open() {
                let state = PlaceState::Failed(Failure::Stopping);
                unclaimed.extend(step.end(id, state, QueueEvent::Failed).map(|lease| *lease));
            }
            unclaimed
        });
        // A ledger that is away now would hold up the end; then the leases expire.
        if self.server.is_ready() {
            join_all(unclaimed.into_iter().map(|lease| self.server.release(lease))).await;
        }
    }
}
