//! Events of the directories that hold hot files: that something changed, and whether somebody is still writing.
//!
//! Refuses to know contents.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ahash::AHashSet;
use notify::event::{AccessKind, AccessMode, CreateKind, ModifyKind};
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Files that may be known to be open; beyond that we know nothing. Nobody writes so many limits files at once.
const OPEN_MAX: usize = 1_000;

/// What the file system has told. Shared with the thread that hears it; every section is a few instructions.
#[derive(Debug, Default)]
pub(super) struct Heard {
    wake: Notify,
    told: Mutex<OpenFiles>,
}

#[derive(Debug, Default)]
struct OpenFiles {
    /// Files that were written to and have not been closed since.
    open: AHashSet<PathBuf>,
    /// Something was closed, renamed or removed since the files were last at rest.
    finished: bool,
}

/// Whether somebody is still writing.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// A file was written to and has not been closed.
    Open,
    /// All that was written to has been closed.
    Closed,
    /// Nothing was told.
    Unknown,
}

impl Heard {
    /// Returns when something has changed since it last returned.
    pub(super) async fn change(&self) {
        self.wake.notified().await;
    }

    pub(super) fn writers(&self) -> Writers {
        let told = self.told.lock();
        match (told.open.is_empty(), told.finished) {
            (false, _) => Writers::Open,
            (true, true) => Writers::Closed,
            (true, false) => Writers::Unknown,
        }
    }

    /// The files don't change any more, even if somebody still has them open. Forgets all events so far.
    pub(super) fn forget(&self) {
        *self.told.lock() = OpenFiles::default();
    }

    fn take(&self, event: notify::Result<Event>) {
        let Ok(event) = event else { return self.wake.notify_one() };
        let mut told = self.told.lock();
        match event.kind {
            // Our own reading is no change.
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => told.finish(&event.paths),
            EventKind::Access(_) => return,
            EventKind::Modify(ModifyKind::Name(_)) | EventKind::Remove(_) => told.finish(&event.paths),
            EventKind::Create(CreateKind::File) | EventKind::Modify(ModifyKind::Data(_)) => {
                told.open.extend(event.paths.into_iter().filter(|path| is_hot(path)));
                if told.open.len() > OPEN_MAX {
                    *told = OpenFiles::default();
                }
            }
            // Events were lost, or this one says little.
            _ if event.need_rescan() => *told = OpenFiles::default(),
            _ => {}
        }
        drop(told);
        self.wake.notify_one();
    }
}

impl OpenFiles {
    fn finish(&mut self, paths: &[PathBuf]) {
        self.open.retain(|path| !paths.contains(path));
        self.finished = true;
    }
}

/// Editors keep files of their own open beside those that count.
fn is_hot(path: &Path) -> bool {
    let yaml = path.extension().is_some_and(|extension| extension == "yaml" || extension == "yml");
    yaml && path.file_name().is_some_and(|name| !name.as_encoded_bytes().starts_with(b"."))
}

/// The watches.
pub(super) struct Events {
    watcher: RecommendedWatcher,
    watched: Vec<(PathBuf, Option<Identity>)>,
}

/// Device and inode of the directory that a path leads to. After a link was swapped they are others.
type Identity = (u64, u64);

impl Events {
    pub(super) fn new(dirs: Vec<PathBuf>, heard: &Arc<Heard>) -> Option<Self> {
        let heard = Arc::clone(heard);
        let watcher = notify::recommended_watcher(move |event| heard.take(event))
            .inspect_err(
                |error| tracing::warn!(%error, "no file events: files are only looked at twice a second"),
            )
            .ok()?;
        let mut events = Self { watcher, watched: dirs.into_iter().map(|dir| (dir, None)).collect() };
        events.follow();
        Some(events)
    }

    /// Watches what the paths lead to now.
    pub(super) fn follow(&mut self) {
        for (path, watched) in &mut self.watched {
            let identity = std::fs::metadata(&*path).ok().map(|found| (found.dev(), found.ino()));
            if identity == *watched {
                continue;
            }
            // If the directory is gone, its watch may be gone too; that is fine.
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

#[cfg(test)]
mod tests {
    use notify::event::{DataChange, RenameMode};

    use super::*;

    const WRITTEN: EventKind = EventKind::Modify(ModifyKind::Data(DataChange::Any));
    const CLOSED: EventKind = EventKind::Access(AccessKind::Close(AccessMode::Write));
    const MADE: EventKind = EventKind::Create(CreateKind::File);
    const RENAMED: EventKind = EventKind::Modify(ModifyKind::Name(RenameMode::To));

    fn after(events: &[(EventKind, &str)]) -> Writers {
        let heard = Heard::default();
        for (kind, path) in events {
            heard.take(Ok(Event::new(*kind).add_path(PathBuf::from(path))));
        }
        heard.writers()
    }

    #[test]
    fn a_file_is_open_from_its_first_change_until_it_is_closed() {
        for (events, expected) in [
            (&[][..], Writers::Unknown),
            (&[(WRITTEN, "l/a.yaml")], Writers::Open),
            (&[(MADE, "l/a.yaml")], Writers::Open),
            (&[(MADE, "l/a.yaml"), (WRITTEN, "l/a.yaml"), (CLOSED, "l/a.yaml")], Writers::Closed),
            (&[(WRITTEN, "l/a.yaml"), (WRITTEN, "l/b.yml"), (CLOSED, "l/a.yaml")], Writers::Open),
            (&[(WRITTEN, "l/.a.yaml.swp"), (RENAMED, "l/a.yaml")], Writers::Closed),
            (&[(WRITTEN, "l/notes.txt")], Writers::Unknown),
        ] {
            assert_eq!(after(events), expected, "{events:?}");
        }
    }

    #[test]
    fn more_open_files_than_can_be_kept_are_not_known() {
        let paths: Vec<String> = (0..=OPEN_MAX).map(|n| format!("l/{n}.yaml")).collect();
        let events: Vec<_> = paths.iter().map(|path| (WRITTEN, path.as_str())).collect();
        assert_eq!(after(&events), Writers::Unknown);
    }
}
