//! The files as a source: notices that they have changed, and hands them over once nobody writes to them any more.
//!
//! Events of the file system only wake it early and say whether a file is still being written. What counts is the content,
//! which is read and compared in any case: so edits are found that give no event (network file systems, links to
//! elsewhere), that keep size and time (`cp -p`), or that swap a directory under a link (Kubernetes). Refuses to know what
//! is in the files.

mod events;

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashSet;
use parking_lot::Mutex;

use self::events::{Events, Heard, Writers};
use super::Control;
use crate::config::{Content, Files, Layout, Problem};

/// What this source is called.
pub const SOURCE: &str = "files";

/// How often the content is looked at without an event. Together with the waits below, an edit is live well within two seconds.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// A burst of events is one look.
const BURST: Duration = Duration::from_millis(20);

/// Files are at rest when some looks, this far apart, see the same. Editors write in several steps, and a look at a directory
/// that is being swapped sees a mixture of old and new.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Looks that must see the same after the first, and looks after which the files are taken although they never rest.
struct Patience {
    same: u32,
    all: u32,
}

/// Whoever wrote has closed the file: each look sees a whole one.
const CLOSED: Patience = Patience { same: 1, all: 8 };
/// A file that is gone may be about to be written again, and its limits would not hold in between.
const GONE: Patience = Patience { same: 5, all: 8 };
/// There was no event for the change, so we can't know whether the writer is done. 0.8 s.
const UNKNOWN: Patience = Patience { same: 8, all: 100 };
/// Somebody has the file open and has written to it: it may be half a file. 1.4 s, because some never close it.
const OPEN: Patience = Patience { same: 14, all: 100 };

/// Watches the files for as long as it runs. `live` is what is live of them.
pub(crate) async fn run(control: Arc<Control>, layout: Layout, live: Files) {
    let heard = Arc::new(Heard::default());
    let was_there = layout.exists() || live != Files::default();
    let mut had_limits = !live.content.limits.is_empty();
    let directory = Directory { events: Events::new(layout.watched(), &heard), was_there, layout };
    let directory = Arc::new(Mutex::new(directory));
    let mut seen = live;
    loop {
        // Either way we look.
        drop(tokio::time::timeout(CHECK_INTERVAL, heard.change()).await);
        tokio::time::sleep(BURST).await;
        let files = at_rest(&directory, &heard, &seen).await;
        if files != seen {
            // `update` has reported whatever is wrong with them.
            if control.update(SOURCE, content_of(&files, had_limits)).await.is_ok() {
                had_limits = !files.content.limits.is_empty();
            }
            seen = files;
        }
    }
}

/// What the files say. A directory of limits that has vanished is a mistake: a mount may have been lost.
fn content_of(files: &Files, had_limits: bool) -> Arc<Content> {
    if files.limits_missing && files.content.problems.is_empty() && had_limits {
        let text = "the directory is gone, which would allow everything: put it back, if only an empty one";
        let problems = vec![Problem::of_file("limits", text)];
        return Arc::new(Content { problems, ..Content::default() });
    }
    Arc::clone(&files.content)
}

/// Looks until nothing moves any more.
async fn at_rest(directory: &Arc<Mutex<Directory>>, heard: &Heard, seen: &Files) -> Files {
    let mut now = look(directory).await;
    let (mut same, mut all) = (0, 0);
    while now != *seen {
        let patience = match heard.writers() {
            Writers::Open => OPEN,
            Writers::Unknown => UNKNOWN,
            Writers::Closed if is_missing(&now, seen) => GONE,
            Writers::Closed => CLOSED,
        };
        if same >= patience.same || all >= patience.all {
            break;
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
        let again = look(directory).await;
        same = if again == now { same + 1 } else { 0 };
        all += 1;
        now = again;
    }
    heard.forget();
    now
}

fn is_missing(now: &Files, seen: &Files) -> bool {
    let names: AHashSet<&str> = now.content.names().collect();
    seen.content.names().any(|name| !names.contains(name))
}

/// Reads all of them, on a thread that may wait.
async fn look(directory: &Arc<Mutex<Directory>>) -> Files {
    let directory = Arc::clone(directory);
    let reading = tokio::task::spawn_blocking(move || directory.lock().read());
    reading.await.expect("reading files must not panic")
}

/// The directory, and what wakes us when it changes. Locked by the one thread that looks.
struct Directory {
    layout: Layout,
    /// A directory that never existed may be missing: then all is default.
    was_there: bool,
    events: Option<Events>,
}

impl Directory {
    fn read(&mut self) -> Files {
        if let Some(events) = &mut self.events {
            events.follow();
        }
        self.was_there = self.was_there || self.layout.exists();
        if self.was_there { self.layout.read() } else { Files::default() }
    }
}
