//! What the server is asked, for those who record it: every decision becomes a line in the queue of each reader.
//!
//! A decision asks one atomic whether anybody is there, and nearly always nobody is. A reader that is slow misses lines;
//! how many is counted and told to it. Knows nothing of requests, limits and HTTP.

mod line;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use bytes::Bytes;
use parking_lot::RwLock;
use serde::Serialize;
use tokio::sync::mpsc;

pub(crate) use self::line::{Descriptor, Message, Override, RecordEntry, RecordLine, time_text};

/// Those who record at the same time. Every one of them makes each decision cost more.
const READERS_MAX: usize = 4;

/// What may wait for one reader: 8 MB are some 40,000 lines, and four readers hold 32 MB at most.
const WAITING_BYTES_MAX: usize = 8 << 20;
const WAITING_LINES_MAX: usize = 65_536;

/// What a reader wants to have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// Tenants whose number is at most this.
    pub(crate) sample: Sample,
    /// Values that no file mentions are replaced by hashes.
    pub(crate) hash_values: bool,
}

/// A share of all tenants. A tenant is in it or not, at every instance and at any time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    highest: u64,
}

impl Sample {
    /// `None` if it is not above 0 and at most 1.
    pub(crate) fn of(share: f64) -> Option<Self> {
        let is_share = share > 0.0 && share <= 1.0;
        // A float that is too large becomes the largest number, which is what all of them means.
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "it is between 0 and 2^64"
        )]
        is_share.then_some(Self { highest: (share * u64::MAX as f64) as u64 })
    }

    pub(crate) fn has(self, number: u64) -> bool {
        number <= self.highest
    }
}

/// Everybody who records.
#[derive(Debug, Default)]
pub(crate) struct Recorders {
    count: AtomicUsize,
    readers: RwLock<Vec<Arc<Reader>>>,
}

/// One reader, as seen by those who send to it.
#[derive(Debug)]
struct Reader {
    wanted: Wanted,
    queue: mpsc::Sender<Bytes>,
    waiting_bytes: AtomicUsize,
    missed: AtomicU64,
}

/// Too many record already.
#[derive(Debug)]
pub(crate) struct TooManyRecorders;

/// What one of them reads, until it is dropped.
#[derive(Debug)]
pub(crate) struct Recording {
    recorders: Arc<Recorders>,
    reader: Arc<Reader>,
    lines: mpsc::Receiver<Bytes>,
}

impl Recorders {
    pub(crate) fn is_anybody_there(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// From now on.
    pub(crate) fn listen(self: &Arc<Self>, wanted: Wanted) -> Result<Recording, TooManyRecorders> {
        let mut readers = self.readers.write();
        if readers.len() >= READERS_MAX {
            return Err(TooManyRecorders);
        }
        let (queue, lines) = mpsc::channel(WAITING_LINES_MAX);
        let (waiting_bytes, missed) = (AtomicUsize::new(0), AtomicU64::new(0));
        let reader = Arc::new(Reader { wanted, queue, waiting_bytes, missed });
        readers.push(Arc::clone(&reader));
        self.count.store(readers.len(), Ordering::Relaxed);
        Ok(Recording { recorders: Arc::clone(self), reader, lines })
    }

    /// The tenant with this number has asked for something. `message` makes the line for a reader, from what that reader wants.
    pub(crate) fn tell_asked<'m>(&self, number: u64, message: impl Fn(Wanted) -> Message<'m>) {
        let readers = self.readers.read();
        let concerned = readers.iter().filter(|reader| reader.wanted.sample.has(number));
        concerned.for_each(|reader| reader.send(&message(reader.wanted)));
    }

    /// The request that has this lease is over. Readers who never heard of that request ignore this.
    pub(crate) fn tell_done(&self, lease: &str, duration_ms: u64) {
        let message = Message::Done { lease: lease.into(), duration_ms };
        self.readers.read().iter().for_each(|reader| reader.send(&message));
    }

    fn remove(&self, reader: &Arc<Reader>) {
        let mut readers = self.readers.write();
        readers.retain(|other| !Arc::ptr_eq(other, reader));
        self.count.store(readers.len(), Ordering::Relaxed);
    }
}

impl Reader {
    fn send(&self, message: &Message<'_>) {
        let line = written(message);
        let length = line.len();
        // Counted before it is there, so that the reader never takes away what was not added.
        let before = self.waiting_bytes.fetch_add(length, Ordering::Relaxed);
        if before + length > WAITING_BYTES_MAX || self.queue.try_send(line).is_err() {
            self.waiting_bytes.fetch_sub(length, Ordering::Relaxed);
            if matches!(message, Message::Asked { .. }) {
                self.missed.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

impl Recording {
    /// The next line, with its end.
    pub(crate) async fn next(&mut self) -> Option<Bytes> {
        let missed = self.reader.missed.swap(0, Ordering::Relaxed);
        if missed > 0 {
            return Some(written(&Message::Missed(missed)));
        }
        let line = self.lines.recv().await?;
        self.reader.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
        Some(line)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        self.recorders.remove(&self.reader);
    }
}

fn written(message: &impl Serialize) -> Bytes {
    let mut line = serde_json::to_vec(message).unwrap_or_default();
    line.push(b'\n');
    line.into()
}

#[cfg(test)]
mod tests;
