//! All files as one stream, in the order of their times. They are read and merged on a thread of their own, so that reading
//! and deciding go on side by side.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use super::batch::Batch;
use super::source::{Broken, Source};
use super::{FILES_MAX, Files};
use crate::config::Problem;

/// Requests of one batch, and batches that wait to be decided.
const BATCH_REQUESTS: usize = 1_024;
const BATCHES_MAX: usize = 4;

/// A batch, and the lines before its end that could not be read.
#[derive(Debug)]
pub(crate) struct Part {
    pub(crate) batch: Batch,
    pub(crate) broken: Vec<Problem>,
    pub(crate) broken_count: u64,
}

/// The requests of all files. The reader ends when it is dropped: it finds that nobody listens.
#[derive(Debug)]
pub(crate) struct Stream {
    parts: Receiver<Part>,
    spent: SyncSender<Batch>,
    read: Arc<AtomicU64>,
}

impl Stream {
    /// Opens all files, so that one that is not there is named before anything is decided.
    pub(crate) fn open<'scope>(
        scope: &'scope Scope<'scope, '_>,
        files: &Files,
    ) -> Result<Self, Vec<Problem>> {
        let count = files.paths.len();
        if count > FILES_MAX {
            let words = format!("is one of {count} files; at most {FILES_MAX} can be read at once");
            return Err(vec![Problem::of_file(&super::name_of(&files.paths[FILES_MAX]), words)]);
        }
        let read = Arc::new(AtomicU64::new(0));
        let open = |(place, path): (usize, &PathBuf)| {
            Source::open(path, (place, count), files.map.clone(), Arc::clone(&read))
        };
        let opened: Vec<Result<Source, Problem>> = files.paths.iter().enumerate().map(open).collect();
        let problems: Vec<Problem> =
            opened.iter().filter_map(|source| source.as_ref().err().cloned()).collect();
        if !problems.is_empty() {
            return Err(problems);
        }
        let sources = opened.into_iter().flatten().collect();
        let (send, parts) = sync_channel(BATCHES_MAX);
        let (spent, recycled) = sync_channel(BATCHES_MAX + 2);
        scope.spawn(move || merge(sources, &send, &recycled));
        Ok(Self { parts, spent, read })
    }

    /// The next batch, for one that is not needed any more; `None` at the end.
    pub(crate) fn next(&mut self, spent: Option<Batch>) -> Option<Part> {
        if let Some(spent) = spent {
            // If the reader has enough of them, or has ended, it is not needed.
            let _ = self.spent.try_send(spent);
        }
        self.parts.recv().ok()
    }

    /// Bytes that were read so far, of the files as they are on disk.
    pub(crate) fn bytes_read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }
}

fn merge(mut sources: Vec<Source>, parts: &SyncSender<Part>, recycled: &Receiver<Batch>) {
    let mut broken = Broken::default();
    loop {
        let mut batch = recycled.try_recv().unwrap_or_default();
        batch.clear();
        while batch.len() < BATCH_REQUESTS {
            // Of the same time, the file that was named first.
            let nexts = sources.iter_mut().enumerate();
            let nexts = nexts.filter_map(|(place, source)| Some((source.next_ms(&mut broken)?, place)));
            match nexts.min() {
                Some((_, place)) => sources[place].take(&mut batch),
                None => break,
            }
        }
        let is_last = batch.len() < BATCH_REQUESTS;
        let Broken { named, count } = std::mem::take(&mut broken);
        let part = Part { batch, broken: named, broken_count: count };
        if parts.send(part).is_err() || is_last {
            return;
        }
    }
}
