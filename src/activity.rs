//! Who is denied, and who uses most: a count beside each limit, gathered once a second into a bounded sketch.
//!
//! A decision adds to the [`Tally`] of its limits, which is a few atomic additions, and puts a limit whose tally was empty on
//! a list. [`Activity::gather`] empties the list once a second, and where it is long [`Activity::count_all`] does so before:
//! the counts go into the [`Top`]. The denials of the last second become events. Knows nothing of requests, ledgers and HTTP.

mod event;
mod sketch;
mod tally;
mod top;

use std::fmt;
use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::broadcast;

pub(crate) use self::event::{Denied, Event};
pub(crate) use self::tally::{LastDenial, Tally};
use self::top::Top;
pub(crate) use self::top::{By, Heavy, LIST_MAX, WINDOW_SECONDS};
use crate::limit::{LimitId, LimitKey};

/// Limits whose tallies are counted in one go, so that nobody has to wait long for the sketches.
const COUNTED_MAX: usize = 256;

/// From so many listed limits on, they are counted before the second is over, on a thread of their own: counting one takes some
/// 2,500 instructions, and a decision should pay for none of them.
const PENDING_MANY: usize = 1_024;

/// Listed limits at most. Whoever finds so many counts a part of them: then more than 80,000 limits a second are asked for.
const PENDING_MAX: usize = 16_384;

/// Denied limits whose events wait for the end of the second, at most; those beyond have none.
const DENIED_MAX: usize = 4_096;

/// Events of denials in a second, at most: those of the limits that denied most.
const DENIED_EVENTS_MAX: usize = 100;

/// Events that a reader may be behind; then it misses the oldest.
const EVENTS_BEHIND_MAX: usize = 1_024;

/// How much of a LimitKey is shown, also in a header. The rest is cut: values come from clients, and Envoy drops a response whose
/// headers are too long.
const KEY_BYTES_MAX: usize = 1_024;

/// What has a tally.
pub(crate) trait Tallied {
    fn tally(&self) -> &Tally;
    fn key(&self) -> &LimitKey;
}

/// What happened lately.
pub(crate) struct Activity<A> {
    /// With the domain of the request that put it there. A plain mutex: a push, or some are taken. Never waits for the other
    /// one.
    pending: Mutex<Vec<(Arc<A>, Arc<str>)>>,
    /// A plain mutex: taken once a second, by those who look, and where many limits are counted.
    gathered: Mutex<Gathered>,
    events: broadcast::Sender<Arc<Event>>,
}

#[derive(Default)]
struct Gathered {
    top: Top,
    denied: AHashMap<Arc<str>, Denied>,
}

impl<A> Default for Activity<A> {
    fn default() -> Self {
        let events = broadcast::Sender::new(EVENTS_BEHIND_MAX);
        Self { pending: Mutex::default(), gathered: Mutex::default(), events }
    }
}

impl<A> fmt::Debug for Activity<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Activity({} to be gathered)", self.pending.lock().len())
    }
}

impl<A: Tallied> Activity<A> {
    /// A request of `domain` was admitted and took `amount` of this limit.
    ///
    /// Not inlined, so that its instructions can be counted (`make bench-instructions`).
    #[inline(never)]
    pub(crate) fn admitted(&self, limit: &Arc<A>, domain: &Arc<str>, amount: u64, now_ms: u64) {
        if limit.tally().admit(amount) {
            self.list(limit, domain, now_ms);
        }
    }

    /// This limit denied a request of `domain`.
    pub(crate) fn denied(&self, limit: &Arc<A>, domain: &Arc<str>, last: LastDenial) {
        if limit.tally().deny(last) {
            self.list(limit, domain, last.at_ms);
        }
    }

    /// Not inlined: a limit is put on the list once a second, and counted much more often.
    #[cold]
    fn list(&self, limit: &Arc<A>, domain: &Arc<str>, now_ms: u64) {
        let mut pending = self.pending.lock();
        pending.push((Arc::clone(limit), Arc::clone(domain)));
        if pending.len() >= PENDING_MAX {
            let first = take_first(&mut pending);
            drop(pending);
            self.gathered.lock().count(first, now_ms);
        }
    }

    /// Whether so many limits are listed that they should be counted now, where no decision waits.
    pub(crate) fn has_many(&self) -> bool {
        self.pending.lock().len() >= PENDING_MANY
    }

    /// Counts all that is listed now, and lets others in between.
    pub(crate) fn count_all(&self, now_ms: u64) {
        let mut left = self.pending.lock().len();
        while left > 0 {
            let first = take_first(&mut self.pending.lock());
            left = left.saturating_sub(first.len().max(1));
            self.gathered.lock().count(first, now_ms);
        }
    }

    /// Forgets who is listed, for whoever never gathers. Those limits stay listed, so that they don't come back.
    pub(crate) fn ignore(&self) {
        self.pending.lock().clear();
    }

    /// Counts what was noted since, and tells of the denials. Once a second.
    pub(crate) fn gather(&self, now_ms: u64, now_unix_ms: u64) {
        self.count_all(now_ms);
        let mut denied: Vec<Denied> =
            std::mem::take(&mut self.gathered.lock().denied).into_values().collect();
        denied.sort_unstable_by(|a, b| b.denials.cmp(&a.denials).then_with(|| a.key.cmp(&b.key)));
        denied.truncate(DENIED_EVENTS_MAX);
        for mut event in denied {
            event.time_unix_ms = now_unix_ms.saturating_sub(now_ms.saturating_sub(event.time_unix_ms));
            self.tell(Event::Denied(event));
        }
    }

    /// The heaviest limits, of one domain if it is said.
    pub(crate) fn top(&self, by: By, domain: Option<&str>, places: usize, now_ms: u64) -> Vec<Heavy> {
        self.count_all(now_ms);
        self.gathered.lock().top.heaviest(by, domain, places, now_ms)
    }
}

/// As many as are counted in one go.
fn take_first<T>(pending: &mut Vec<T>) -> Vec<T> {
    pending.drain(..pending.len().min(COUNTED_MAX)).collect()
}

impl Gathered {
    fn count<A: Tallied>(&mut self, listed: Vec<(Arc<A>, Arc<str>)>, now_ms: u64) {
        let Gathered { top, denied } = self;
        for (limit, domain) in listed {
            let counts = limit.tally().take();
            let key = shown(limit.key());
            let domain = limit.key().domain().map_or(domain, Arc::from);
            top.offer(now_ms, &key, &domain, &counts);
            if counts.denied == 0 || (denied.len() >= DENIED_MAX && !denied.contains_key(&key)) {
                continue;
            }
            let last = limit.tally().last_denial(now_ms);
            let event = Denied {
                time_unix_ms: last.at_ms,
                domain,
                key: Arc::clone(&key),
                reason: last.reason,
                retry_after_ms: last.retry_after_ms,
                denials: counts.denied,
            };
            denied.entry(key).and_modify(|before| before.merge(&event)).or_insert(event);
        }
    }
}

impl<A> Activity<A> {
    pub(crate) fn tell(&self, event: Event) {
        // Nearly always nobody listens.
        if self.events.receiver_count() > 0 {
            let _ = self.events.send(Arc::new(event));
        }
    }

    /// What happens from now on. Who is slow misses the oldest.
    pub(crate) fn listen(&self) -> broadcast::Receiver<Arc<Event>> {
        self.events.subscribe()
    }

    /// How many listen.
    pub(crate) fn listeners(&self) -> usize {
        self.events.receiver_count()
    }
}

/// A key as people see it: the whole of it, or where it is too long its beginning and the id of its account, so that it is
/// still nobody else's.
pub(crate) fn shown(key: &LimitKey) -> Arc<str> {
    let text = key.as_str();
    if text.len() <= KEY_BYTES_MAX {
        return key.shared();
    }
    let rest = format!("...{}", LimitId::of(key));
    Arc::from(format!("{}{rest}", &text[..text.floor_char_boundary(KEY_BYTES_MAX - rest.len())]))
}

#[cfg(test)]
mod tests;
