//! Notices that the hot files are different, and hands them over once they have come to rest.
//!
//! Events of the file system only wake it early. What counts is the content, which is read and compared in any case: so
//! edits are found that give no event (network file systems, links to elsewhere), that keep size and time (`cp -p`), or
//! that swap a directory under a link (Kubernetes). Refuses to know what is in the files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ahash::AHashSet;
use notify::event::{AccessKind, AccessMode};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::Control;
use crate::config::Sources;

/// How often the content is looked at without an event. With the rest below it is live well within two seconds.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Files are at rest when two looks, this far apart, see the same: editors write in several steps, and a directory that is
/// swapped while it is read gives a mixture.
const REST: Duration = Duration::from_millis(100);

/// A file that is gone may be about to be written again, and its limits would not hold in between: more looks.
const LOOKS: u32 = 1;
const LOOKS_WHEN_GONE: u32 = 5;

/// Then it is taken as it is, although it never rests: 8 × 100 ms.
const LOOKS_MAX: u32 = 8;

/// A burst of events is one look.
const BURST: Duration = Duration::from_millis(20);

/// Watches a configuration directory for as long as it runs. `seen` is what is live.
pub async fn run(control: Arc<Control>, dir: PathBuf, mut seen: Sources) {
    let wake = Arc::new(Notify::new());
    let was_there = dir.exists() || seen != Sources::default();
    let files = Files { events: Events::new(&dir, &wake), was_there, dir };
    let files = Arc::new(Mutex::new(files));
    loop {
        // Either way we look.
        drop(tokio::time::timeout(CHECK_INTERVAL, wake.notified()).await);
        tokio::time::sleep(BURST).await;
        let sources = at_rest(&files, &seen).await;
        if sources != seen {
            control.reload(sources.clone()).await;
            seen = sources;
        }
    }
}

/// Looks until nothing moves any more.
async fn at_rest(files: &Arc<Mutex<Files>>, seen: &Sources) -> Sources {
    let mut now = look(files).await;
    let mut same = 0;
    for _ in 0..LOOKS_MAX {
        if now == *seen || same >= if is_missing(&now, seen) { LOOKS_WHEN_GONE } else { LOOKS } {
            break;
        }
        tokio::time::sleep(REST).await;
        let again = look(files).await;
        same = if again == now { same + 1 } else { 0 };
        now = again;
    }
    now
}

fn is_missing(now: &Sources, seen: &Sources) -> bool {
    let names: AHashSet<String> = now.names().into_iter().collect();
    seen.names().iter().any(|name| !names.contains(name))
}

/// Reads all of them, on a thread that may wait.
async fn look(files: &Arc<Mutex<Files>>) -> Sources {
    let files = Arc::clone(files);
    tokio::task::spawn_blocking(move || files.lock().read()).await.expect("reading files must not panic")
}

/// The directory, and what wakes us when it changes. Locked by the one thread that looks.
struct Files {
    dir: PathBuf,
    /// Until it is, it need not be: without a directory, all is default.
    was_there: bool,
    events: Option<Events>,
}

impl Files {
    fn read(&mut self) -> Sources {
        if let Some(events) = &mut self.events {
            events.follow();
        }
        self.was_there = self.was_there || self.dir.exists();
        if self.was_there { Sources::read(&self.dir) } else { Sources::default() }
    }
}

/// Events of the directories that hold hot files.
struct Events {
    watcher: RecommendedWatcher,
    watched: Vec<(PathBuf, Option<Identity>)>,
}

/// Which directory a path leads to: after a swap it leads to another.
type Identity = (u64, u64);

impl Events {
    fn new(dir: &Path, wake: &Arc<Notify>) -> Option<Self> {
        let wake = Arc::clone(wake);
        let on_event = move |event: notify::Result<notify::Event>| {
            if event.map_or(true, |event| is_change(&event.kind)) {
                wake.notify_one();
            }
        };
        let watcher = notify::recommended_watcher(on_event)
            .inspect_err(
                |error| tracing::warn!(%error, "no file events: files are only looked at twice a second"),
            )
            .ok()?;
        let mut events = Self { watcher, watched: vec![(dir.to_owned(), None), (dir.join("limits"), None)] };
        events.follow();
        Some(events)
    }

    /// Watches what the paths lead to now.
    fn follow(&mut self) {
        for (path, watched) in &mut self.watched {
            let identity = std::fs::metadata(&*path).ok().map(|found| (found.dev(), found.ino()));
            if identity == *watched {
                continue;
            }
            // Of a directory that is gone there may be nothing left to remove.
            let _ = self.watcher.unwatch(path);
            *watched = identity;
            if identity.is_some()
                && let Err(error) = self.watcher.watch(path, RecursiveMode::NonRecursive)
            {
                tracing::debug!(%error, path = %path.display(), "no events: it is only looked at twice a second");
            }
        }
    }
}

/// Our own reading is no change.
fn is_change(kind: &EventKind) -> bool {
    !matches!(kind, EventKind::Access(access) if *access != AccessKind::Close(AccessMode::Write))
}
