//! The queue: jobs that can wait get a place, an estimate of when their turn comes, and their lease in order.
//!
//! [`Queue`] is the part that the server shares: callers take a place, follow it and leave it here. A job that has a place
//! waits in [`order`] until [`runner`] attempts to reserve what it wants. It leaves the order when it is served, when its
//! holder leaves, when its deadline comes, when it can't be served any more, or when this instance stops; its place is
//! remembered for a while after that. [`limits`] says when an attempt is worth it, [`forecast`] how long it will take,
//! and [`share`] what requests that don't queue may take meanwhile.
//!
//! Refuses to know the wire, and how a reserve is decided: the runner is told through [`runner::Attempts`].

mod place;
pub mod places;
mod order;
mod limits;
pub mod share;
pub mod step;
pub(crate) mod runner;
pub(crate) mod fleet;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::place::{
    Failure, JobId, LimitId, Need, NewPlace, Place, PlaceState, PlaceStatus, QueueFull, Reserved, Terms,
    TimedOut, Wants,
};
use self::places::{Ended, Places};
pub use self::share::Share;
use self::step::QueueStep;
use crate::clock;
use crate::lease::Lease;
use crate::limit::{LeaseId, LimitKey};
use crate::retry::policy::Queue as Policy;
use crate::telemetry::{Metrics, QueueEvent};

/// The queue as the server shares it. A plain mutex: sections walk one line at most and never wait.
#[derive(Debug)]
pub struct Queue {
    places: Mutex<Places>,
    /// How many jobs wait, read without the lock.
    depth: AtomicUsize,
    share: Arc<Share>,
    metrics: Arc<Metrics>,
    /// Something happened that the runner has to look at.
    wake: Notify,
    closing: CancellationToken,
    closed: CancellationToken,
}

/// Why a job has no place.
#[derive(Debug)]
pub enum NoPlace {
    Full(QueueFull),
    /// The name has a place that was taken for something else.
    NameUsed,
    /// This instance stops.
    Closing,
}

/// Jobs that wait at a limit.
#[derive(Debug, Clone)]
pub(crate) struct WaitingJobs {
    pub(crate) limit: LimitKey,
    pub(crate) jobs: usize,
    /// What they need of it together.
    pub(crate) amount: u64,
}

/// What happens to one who leaves.
#[derive(Debug)]
pub enum Leaving {
    /// The place has ended now, or had before. What it held that nobody was told of has to be released.
    Out(Option<Box<Lease>>),
    /// It has been served and picked up: that is completed, not left.
    Holds,
    /// There is no such place.
    Unknown,
}

impl Queue {
    /// `is_shared`: others than this process use the ledger.
    pub(crate) fn new(is_shared: bool, share: Arc<Share>, metrics: Arc<Metrics>) -> Self {
        Self {
            places: Mutex::new(Places::new(is_shared)),
            depth: AtomicUsize::new(0),
            share,
            metrics,
            wake: Notify::new(),
            closing: CancellationToken::new(),
            closed: CancellationToken::new(),
        }
    }

    /// No job waits at these limits, and this one has no place yet: it may be attempted without one.
    pub(crate) fn may_skip(&self, id: JobId, limits: impl Iterator<Item = LimitId>) -> bool {
        let places = self.places.lock();
        places.get(id).is_none() && !places.has_queue(limits)
    }

    /// Takes a place, or finds the one that the same job has. [`Queue::end_call`] must follow, when the caller was
    /// told of it or has gone.
    pub(crate) fn take_place(&self, new: NewPlace, policy: &Policy) -> Result<JobId, NoPlace> {
        let id = JobId::of(&new.id);
        let mut places = self.places.lock();
        // Under the lock: whoever closes the queue sees all places that were taken before.
        if self.closing.is_cancelled() {
            return Err(NoPlace::Closing);
        }
        match places.get(id) {
            Some(there) if there.wants != new.wants || there.terms.is_some() != new.terms.is_some() => {
                return Err(NoPlace::NameUsed);
            }
            Some(_) => {}
            None => {
                let joined = places.join(new, policy, &self.share, clock::monotonic_ms());
                joined.map_err(NoPlace::Full).inspect_err(|_| self.metrics.queue_event(QueueEvent::Full))?;
                self.metrics.queue_event(QueueEvent::Joined);
            }
        }
        places.start_call(id);
        self.changed(&places);
        Ok(id)
    }

    /// Returns when a job was served, or its position is known.
    pub(crate) async fn first_answer(&self, id: JobId) {
        let unanswered = || {
            let places = self.places.lock();
            let place = places.get(id)?;
            let is_open =
                place.state == PlaceState::Processing || (place.state.is_waiting() && !place.is_placed);
            is_open.then(|| Arc::clone(&place.changed))
        };
        while let Some(changed) = unanswered() {
            // A change that comes before this is enabled is seen by the second call of `unanswered`: changes are made under the same lock.
            let mut notified = std::pin::pin!(changed.notified());
            notified.as_mut().enable();
            if unanswered().is_none() {
                return;
            }
            notified.await;
        }
    }

    /// The caller that took a place was told of it, or has gone. A place that no caller has heard of is forgotten.
    pub(crate) fn end_call(&self, id: JobId, is_heard: bool) {
        let mut places = self.places.lock();
        let Ended { is_news, unclaimed } = places.end_call(id, is_heard, clock::monotonic_ms());
        places.release_later(unclaimed);
        if is_news {
            self.metrics.queue_event(QueueEvent::Abandoned);
            self.changed(&places);
        }
    }

    /// An answer that was counted as heard has reached nobody. A place that no caller has heard of is forgotten.
    pub(crate) fn unheard(&self, id: JobId) {
        let mut places = self.places.lock();
        let Ended { is_news, unclaimed } = places.unheard(id, clock::monotonic_ms());
        places.release_later(unclaimed);
        if is_news {
            self.metrics.queue_event(QueueEvent::Abandoned);
            self.changed(&places);
        }
    }

    /// What the holder of a place is told. A holder that hears that it was served has picked its lease up.
    pub(crate) fn status(&self, id: JobId, is_holder: bool, policy: &Policy) -> Option<PlaceStatus> {
        let mut places = self.places.lock();
        if is_holder {
            places.picked_up(id);
        }
        places.status(id, policy, &self.share, clock::monotonic_ms(), clock::unix_ms())
    }

    /// The holder of a place has heard what it holds: that, if nobody had before.
    pub(crate) fn picked_up(&self, id: JobId) -> Option<Box<Lease>> {
        self.places.lock().picked_up(id)
    }

    /// It turned out that nobody has heard what a place holds.
    pub(crate) fn not_picked_up(&self, id: JobId, unclaimed: Box<Lease>) {
        let mut places = self.places.lock();
        places.end(id, PlaceState::TimedOut(TimedOut::NotPickedUp), clock::monotonic_ms());
        places.release_later(Some(unclaimed));
        self.metrics.queue_event(QueueEvent::Abandoned);
        self.changed(&places);
    }

    /// The same, where another instance gives back what the place held.
    pub(crate) fn not_picked_up_elsewhere(&self, id: JobId) {
        let mut places = self.places.lock();
        if places.get(id).is_some_and(|place| matches!(place.state, PlaceState::Reserved(_))) {
            let state = PlaceState::TimedOut(TimedOut::NotPickedUp);
            let Ended { unclaimed, .. } = places.end(id, state, clock::monotonic_ms());
            places.release_later(unclaimed);
            self.metrics.queue_event(QueueEvent::Abandoned);
            self.changed(&places);
        }
    }

    /// Other instances now say that limits have these capacities.
    pub(crate) fn capacities_are(&self, capacities: impl Iterator<Item = (LimitId, u64)>) {
        if self.depth.load(Ordering::Acquire) > 0 {
            let mut places = self.places.lock();
            for (limit, capacity) in capacities {
                if places.limits.capacity_is(limit, capacity) {
                    places.freed(limit);
                    self.wake.notify_one();
                }
            }
        }
    }

    /// Whether there is a place of this name that another instance sent here.
    pub(crate) fn has_of_another(&self, id: JobId) -> bool {
        self.places.lock().get(id).is_some_and(|place| place.terms.is_some())
    }

    /// Whether there is a place of this name.
    pub(crate) fn has(&self, id: JobId) -> bool {
        self.places.lock().get(id).is_some()
    }

    /// The limits that most jobs wait at.
    pub(crate) fn lines(&self, places: usize) -> Vec<WaitingJobs> {
        let locked = self.places.lock();
        let waiting = locked.order.lines().filter_map(|(limit, jobs, amount)| {
            let limit = locked.limits.get(limit)?.account.key.clone();
            Some(WaitingJobs { limit, jobs, amount })
        });
        let mut lines: Vec<WaitingJobs> = waiting.collect();
        drop(locked);
        lines.sort_by(|a, b| b.jobs.cmp(&a.jobs).then_with(|| a.limit.cmp(&b.limit)));
        lines.truncate(places);
        lines
    }

    /// Tells when a place changes; `None` if there is none.
    pub(crate) fn changes(&self, id: JobId) -> Option<Arc<Notify>> {
        self.places.lock().get(id).map(|place| Arc::clone(&place.changed))
    }

    pub(crate) fn is_waiting(&self, id: JobId) -> bool {
        self.depth.load(Ordering::Acquire) > 0
            && self.places.lock().get(id).is_some_and(|place| place.state.is_waiting())
    }

    /// The holder of a place leaves. What was reserved for it and not picked up goes to the next.
    pub(crate) fn leave(&self, id: JobId) -> Leaving {
        let mut places = self.places.lock();
        match places.get(id).map(|place| &place.state) {
            None => Leaving::Unknown,
            Some(PlaceState::Reserved(reserved)) if reserved.is_picked_up => Leaving::Holds,
            Some(_) => {
                let ended = places.end(id, PlaceState::Cancelled, clock::monotonic_ms());
                if ended.is_news {
                    self.metrics.queue_event(QueueEvent::Cancelled);
                    self.changed(&places);
                }
                Leaving::Out(ended.unclaimed)
            }
        }
    }

    /// Something of these limits came back.
    pub(crate) fn freed(&self, limits: impl Iterator<Item = LimitId>) {
        if self.depth.load(Ordering::Acquire) > 0 {
            let mut places = self.places.lock();
            limits.for_each(|limit| places.freed(limit));
            drop(places);
            self.wake.notify_one();
        }
    }

    /// A lease was completed; if a job waited for it, its place has ended.
    pub(crate) fn completed(&self, lease: &LeaseId) {
        let mut places = self.places.lock();
        if let Some(id) = places.of_lease(lease) {
            places.end(id, PlaceState::Completed, clock::monotonic_ms());
        }
    }

    /// The limits or the policy have changed.
    pub(crate) fn snapshot_changed(&self, policy: &Policy) {
        let mut places = self.places.lock();
        if places.depth() > 0 || places.next_due_ms().is_some() {
            places.policy_changed(policy);
            places.freed_all();
            drop(places);
            self.wake.notify_one();
        }
    }

    /// Gives no more places and tells those who have one. Returns when nothing is under way any more.
    pub(crate) async fn close(&self, limit: Duration) {
        self.closing.cancel();
        if tokio::time::timeout(limit, self.closed.cancelled()).await.is_err() {
            tracing::warn!("the queue did not empty in time");
        }
    }

    fn next_due_ms(&self) -> Option<u64> {
        self.places.lock().next_due_ms()
    }

    fn step<R>(&self, policy: &Policy, now_ms: u64, step: impl FnOnce(&mut QueueStep<'_>) -> R) -> R {
        let mut places = self.places.lock();
        let (share, metrics) = (&*self.share, &*self.metrics);
        let done = step(&mut QueueStep { places: &mut places, share, policy, metrics, now_ms });
        self.count(&places);
        done
    }

    /// Tells the runner of a change, which may have changed the number of jobs that wait.
    fn changed(&self, places: &Places) {
        self.count(places);
        self.wake.notify_one();
    }

    fn count(&self, places: &Places) {
        self.depth.store(places.depth(), Ordering::Release);
        self.metrics.queue_depth.set(i64::try_from(places.depth()).unwrap_or(i64::MAX));
    }
}

/// Jitter; nothing secret.
fn up_to(n: u64) -> u64 {
    fastrand::u64(0..=n)
}
