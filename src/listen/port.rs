//! One port's connections: how many there may be, which one goes when there are too many, and what their requests may hold.
//!
//! A peer decides how much it sends and when, so everything that it can make us keep is counted here:
//!
//! * Connections. When all places are taken, the one that is of least use is closed for a newcomer: first those that have
//!   never been answered, then those that wait for nothing from us, then the rest; among equals the one whose last answer
//!   (or whose beginning) is longest ago. A request whose body is not complete waits for nothing from us, and neither does
//!   a peer that only answers pings.
//! * Bytes that requests hold from their first header to their last byte of answer. A connection may hold as much as is
//!   still free on the port, and at most its own maximum. So one connection can't have more than half, and however many
//!   hold as much as they can, a newcomer finds as much free as each of them has.
//! * Answers that the peer doesn't take. A connection with one that is some ten seconds old is closed.
//!
//! Refuses to know protocols.

#[cfg(test)]
mod tests;

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ahash::AHashMap;
use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::seldom::Seldom;
use crate::clock;
use crate::telemetry::{Closed, PortMetrics, Refused};

/// What a port may hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    pub(crate) connections_max: usize,
    /// Of all requests together.
    pub(crate) bytes_max: usize,
    /// Of one connection's requests.
    pub(crate) connection_bytes_max: usize,
}

/// How often answers that nobody takes are looked for.
pub(crate) const SWEEP_INTERVAL: Duration = Duration::from_secs(10);
const SWEEP_MS: u64 = 10_000;

/// Answers are counted by the interval in which they were ready. Those of the last two intervals and of this one are young;
/// the counter of the next interval is left alone because an answer may be counted there while we look.
const INTERVALS: usize = 8;
const YOUNG: u64 = 3;

#[derive(Debug)]
pub(crate) struct Port {
    bounds: Bounds,
    metrics: PortMetrics,
    /// A plain mutex: taken when a connection begins or ends, and by the sweep; the sections never wait.
    connections: Mutex<AHashMap<u64, Arc<Connection>>>,
    next: AtomicU64,
    /// A place has become free.
    freed: Notify,
    bytes: AtomicUsize,
}

/// An open connection.
#[derive(Debug)]
pub(crate) struct Connection {
    port: Arc<Port>,
    bytes: AtomicUsize,
    /// Requests that have come and have no answer yet.
    begun: AtomicU32,
    /// Requests that are complete and not answered yet.
    owed: AtomicU32,
    is_answered: AtomicBool,
    /// When it began, or when an answer was last ready.
    active_ms: AtomicU64,
    /// Answers that are ready and not taken, by interval.
    unread: [AtomicU32; INTERVALS],
    is_closing: AtomicBool,
    close: Notify,
}

/// A connection's place on the port; it ends when this is dropped, which has to be after its socket.
#[derive(Debug)]
pub(crate) struct Place {
    id: u64,
    pub(crate) connection: Arc<Connection>,
}

/// A request until it has an answer.
#[derive(Debug)]
pub(crate) struct Begun(Arc<Connection>);

/// A request and what it holds, from its first header to the end of its answer.
#[derive(Debug)]
pub(crate) struct Call {
    connection: Arc<Connection>,
    bytes: AtomicUsize,
    is_read: AtomicBool,
    /// The interval in which its answer was ready, plus one; 0 before.
    answered_in: AtomicU64,
}

/// The requests of this connection, or of all, hold as much as they may.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too much is being asked at once: the requests under way hold all the memory that they may")]
pub(crate) struct Full;

impl Port {
    pub(crate) fn new(bounds: Bounds, metrics: PortMetrics) -> Arc<Self> {
        Arc::new(Self {
            bounds,
            metrics,
            connections: Mutex::default(),
            next: AtomicU64::new(0),
            freed: Notify::new(),
            bytes: AtomicUsize::new(0),
        })
    }

    /// A place for a new connection; another one is closed for it if need be.
    pub(crate) async fn admit(self: &Arc<Self>) -> Place {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(place) = self.try_admit(clock::monotonic_ms()) {
                return place;
            }
            freed.await;
        }
    }

    fn try_admit(self: &Arc<Self>, now_ms: u64) -> Option<Place> {
        let mut connections = self.connections.lock();
        if connections.len() >= self.bounds.connections_max {
            // One at a time: each that ends wakes us.
            if !connections.values().any(|it| it.is_closing.load(Ordering::Relaxed)) {
                let last = connections.values().min_by_key(|it| it.usefulness());
                last.inspect(|connection| connection.shut(Closed::ForOthers));
            }
            return None;
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let connection = Arc::new(Connection {
            port: Arc::clone(self),
            bytes: AtomicUsize::new(0),
            begun: AtomicU32::new(0),
            owed: AtomicU32::new(0),
            is_answered: AtomicBool::new(false),
            active_ms: AtomicU64::new(now_ms),
            unread: Default::default(),
            is_closing: AtomicBool::new(false),
            close: Notify::new(),
        });
        connections.insert(id, Arc::clone(&connection));
        self.metrics.connections.inc();
        Some(Place { id, connection })
    }

    /// Closes connections whose peer doesn't take its answers.
    pub(crate) fn close_unread(&self, now_ms: u64) {
        for connection in self.connections.lock().values() {
            if connection.has_old_answers(now_ms / SWEEP_MS) {
                connection.shut(Closed::Unread);
            }
        }
    }

    /// Runs a connection, or a call on one, in a task of its own. A panic ends only that; it is logged and counted.
    pub(crate) fn run<F>(self: &Arc<Self>, task: F)
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let ending = Ending(Arc::clone(self));
        drop(tokio::spawn(task.map(|_| drop(ending))));
    }

    /// Counts a connection that did not get through the TLS handshake.
    pub(crate) fn handshake_failed(&self) {
        self.metrics.closed(Closed::Handshake);
    }

    /// Counts a request that was turned away.
    pub(crate) fn refused(&self, why: Refused) {
        self.metrics.refused(why);
    }
}

/// Notices a panic, because it is dropped by it.
struct Ending(Arc<Port>);

impl Drop for Ending {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.metrics.panics.inc();
            tracing::error!("a connection or a call failed by a panic; the others go on");
        }
    }
}

impl Connection {
    pub(crate) fn port(&self) -> &Arc<Port> {
        &self.port
    }

    /// A request has come, or the beginning of one.
    pub(crate) fn begin(self: &Arc<Self>) -> Begun {
        self.begun.fetch_add(1, Ordering::Relaxed);
        Begun(Arc::clone(self))
    }

    /// Whether a request has come that has no answer yet.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed) > 0
    }

    /// The connection with the lowest value is closed first.
    fn usefulness(&self) -> (u8, u64) {
        let is_answered = self.is_answered.load(Ordering::Relaxed);
        let is_owed = self.owed.load(Ordering::Relaxed) > 0;
        let class = match (is_answered, is_owed) {
            (false, _) => 0,
            (true, false) => 1,
            (true, true) => 2,
        };
        (class, self.active_ms.load(Ordering::Relaxed))
    }

    fn has_old_answers(&self, interval: u64) -> bool {
        let slots = INTERVALS as u64;
        // Counts back from this interval, and leaves out the last slot, which is that of the next interval.
        (YOUNG..slots - 1).any(|back| self.unread[slot(interval + slots - back)].load(Ordering::Relaxed) > 0)
    }

    fn shut(&self, why: Closed) {
        if !self.is_closing.swap(true, Ordering::Relaxed) {
            self.port.metrics.closed(why);
            self.close.notify_one();
        }
    }

    /// A request has begun that holds so much before its body.
    pub(crate) fn call(self: &Arc<Self>, bytes: usize) -> Result<Arc<Call>, Full> {
        self.hold(bytes)?;
        Ok(Arc::new(Call {
            connection: Arc::clone(self),
            bytes: AtomicUsize::new(bytes),
            is_read: AtomicBool::new(false),
            answered_in: AtomicU64::new(0),
        }))
    }

    /// Adds first and compares then. So of two that don't fit together both may be refused, but never are both accepted.
    fn hold(&self, bytes: usize) -> Result<(), Full> {
        let bounds = &self.port.bounds;
        let all = self.port.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let own = self.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        let free = bounds.bytes_max.saturating_sub(all);
        if own <= free.min(bounds.connection_bytes_max) {
            return Ok(());
        }
        self.give_back(bytes);
        self.port.refused(Refused::Memory);
        Err(Full)
    }

    fn give_back(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.port.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Place {
    /// Serves a connection in this place until it ends, or has to. Its socket is closed before the place is free.
    pub(crate) async fn keep<E: std::fmt::Display>(self, served: impl Future<Output = Result<(), E>>) {
        tokio::select! {
            biased;
            ended = served => if let Err(error) = ended {
                tracing::debug!(%error, "a connection ended");
            },
            () = Seldom::new(self.connection.close.notified()) => {}
        }
    }
}

impl Call {
    pub(crate) fn port(&self) -> &Port {
        &self.connection.port
    }

    /// More of its body has come.
    pub(crate) fn hold(&self, bytes: usize) -> Result<(), Full> {
        self.connection.hold(bytes)?;
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// All of it is here: from now on we owe the answer.
    pub(crate) fn is_read(&self) {
        if !self.is_read.swap(true, Ordering::Relaxed) {
            self.connection.owed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// There is an answer; `at_once` if all of it is there, so that only the peer can delay its end.
    pub(crate) fn is_answered(&self, at_once: bool, now_ms: u64) {
        self.connection.is_answered.store(true, Ordering::Relaxed);
        self.connection.active_ms.store(now_ms, Ordering::Relaxed);
        if at_once && self.answered_in.load(Ordering::Relaxed) == 0 {
            let interval = now_ms / SWEEP_MS;
            self.answered_in.store(interval + 1, Ordering::Relaxed);
            self.connection.unread[slot(interval)].fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn slot(interval: u64) -> usize {
    usize::try_from(interval % INTERVALS as u64).expect("a remainder of INTERVALS must fit")
}

impl Deref for Begun {
    type Target = Arc<Connection>;

    fn deref(&self) -> &Arc<Connection> {
        &self.0
    }
}

impl Drop for Begun {
    fn drop(&mut self) {
        self.0.begun.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if *self.is_read.get_mut() {
            self.connection.owed.fetch_sub(1, Ordering::Relaxed);
        }
        if let Some(interval) = self.answered_in.get_mut().checked_sub(1) {
            self.connection.unread[slot(interval)].fetch_sub(1, Ordering::Relaxed);
        }
        self.connection.give_back(*self.bytes.get_mut());
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let port = &self.connection.port;
        port.connections.lock().remove(&self.id);
        port.metrics.connections.dec();
        port.freed.notify_one();
    }
}
