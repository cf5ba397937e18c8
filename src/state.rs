//! What Sluice itself must remember over a restart, in files that nobody edits:
//!
//! * `limits.json`, and `limits.journal` when that is large: the LimitStates of limits that were made through the admin API,
//!   and of those that are decreasing;
//! * `retry_policy.json`: the override of the retry policy, as it was put.
//!
//! Without a directory nothing is kept: what is remembered lasts as long as the process. A file is replaced whole or not at all, and a
//! write that has returned is on the disk. A file that can't be understood stops the start and is left untouched. Refuses to know when any
//! of it changes, and what is live.

mod disk;
mod format;
mod limits_file;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use self::limits_file::LimitsFile;
use crate::ledger::CapacityEvent;
use crate::limit::{LimitKey, LimitSpec, Origin};

const RETRY_POLICY: &str = "retry_policy.json";

/// Limits made through the admin API at most. A definition is at most 16 KiB, most are below 300 bytes: 3 MB.
pub(crate) const API_LIMITS_MAX: usize = 10_000;

/// How many limits are remembered in all. Limits of files are remembered while they decrease, if there is room; the decrease of others goes
/// on after a restart with the next request that asks for the limit.
const LIMITS_MAX: usize = 2 * API_LIMITS_MAX;

/// All that is remembered. A change is made on a clone, which is saved first and then takes the place of the original.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    /// `None`: nothing is kept over a restart.
    dir: Option<PathBuf>,
    limits: BTreeMap<LimitKey, LimitState>,
    /// Limits that were changed since they were last saved.
    unsaved: BTreeSet<LimitKey>,
    /// What is on the disk, for all clones. Locked while it is written, which happens one at a time.
    file: Arc<Mutex<LimitsFile>>,
    /// What was put over the retry policy of the file, in part or whole.
    pub(crate) retry_override: Option<serde_json::Value>,
}

/// One limit: what it should be, and whether it still gets there.
#[derive(Debug, Clone)]
pub(crate) struct LimitState {
    pub(crate) spec: Arc<LimitSpec>,
    /// The capacity that still holds, above the one of `spec`.
    pub(crate) decreasing_from: Option<u64>,
}

impl LimitState {
    fn is_api(&self) -> bool {
        self.spec.origin == Origin::Api
    }
}

/// A file that Sluice wrote and can't read any more.
#[derive(Debug, thiserror::Error)]
#[error(
    "{}: {what}. It is left as it is. Put back a copy of it, or move it away to start without it: \
     then {lost}",
    path.display()
)]
pub struct Broken {
    path: PathBuf,
    what: String,
    lost: &'static str,
}

/// Whether something can be kept there; makes the directory.
pub(crate) fn is_writable(dir: &Path) -> bool {
    disk::write(dir, ".writable", "").and_then(|()| disk::remove(dir, ".writable")).is_ok()
}

impl State {
    /// Reads what is there; nothing is remembered if nothing is.
    pub(crate) fn load(dir: Option<&Path>) -> Result<Self, Broken> {
        let Some(dir) = dir else { return Ok(Self::default()) };
        let broken = |name: &str, what, lost| Broken { path: dir.join(name), what, lost };
        let (file, limits) = LimitsFile::load(dir).map_err(|(name, what)| broken(name, what, LIMITS_LOST))?;
        let retry_override = disk::read(&dir.join(RETRY_POLICY))
            .and_then(|text| text.map(|text| format::parse_override(&text)).transpose())
            .map_err(|what| broken(RETRY_POLICY, what, OVERRIDE_LOST))?;
        let file = Arc::new(Mutex::new(file));
        Ok(Self { dir: Some(dir.to_owned()), limits, unsaved: BTreeSet::new(), file, retry_override })
    }

    /// Whether anything outlasts this process.
    pub(crate) fn is_kept(&self) -> bool {
        self.dir.is_some()
    }

    /// The override can be read, but doesn't fit what it is put over.
    pub(crate) fn override_does_not_fit(&self, why: &str) -> Broken {
        let what = format!("the retry policy that it makes together with the file is wrong: {why}");
        Broken { path: self.dir.clone().unwrap_or_default().join(RETRY_POLICY), what, lost: OVERRIDE_LOST }
    }

    pub(crate) fn save_limits(&mut self) -> io::Result<()> {
        if self.is_kept() {
            self.file.lock().save(&self.limits, &self.unsaved)?;
        }
        self.unsaved.clear();
        Ok(())
    }

    /// Leaves everything in the one file of record.
    pub(crate) fn settle_limits(&mut self) -> io::Result<()> {
        if self.is_kept() { self.file.lock().settle(&self.limits).map(drop) } else { Ok(()) }
    }

    pub(crate) fn save_override(&mut self) -> io::Result<()> {
        match (&self.dir, &self.retry_override) {
            (None, _) => Ok(()),
            (Some(dir), Some(patch)) => disk::write(dir, RETRY_POLICY, &format::write_override(patch)?),
            (Some(dir), None) => disk::remove(dir, RETRY_POLICY),
        }
    }

    /// Limits that were made through the admin API.
    pub(crate) fn api_limits(&self) -> impl Iterator<Item = (&LimitKey, &Arc<LimitSpec>)> {
        let api = self.limits.iter().filter(|(_, limit)| limit.is_api());
        api.map(|(key, limit)| (key, &limit.spec))
    }

    /// Limits that did not have their new capacity when that was last looked at.
    pub(crate) fn decreasing(&self) -> impl Iterator<Item = &LimitKey> {
        self.limits.iter().filter(|(_, limit)| limit.decreasing_from.is_some()).map(|(key, _)| key)
    }

    /// Makes or changes a limit of the admin API; false if there is no room for another.
    pub(crate) fn put(&mut self, key: &LimitKey, spec: Arc<LimitSpec>) -> bool {
        let there = self.limits.get(key);
        if there.is_none_or(|there| !there.is_api()) && self.api_limits().count() >= API_LIMITS_MAX {
            return false;
        }
        // Still on its way down, unless this raises it.
        let decreasing_from = there.and_then(|there| there.decreasing_from);
        let decreasing_from = decreasing_from.filter(|from| *from > spec.capacity);
        self.set(key, LimitState { spec, decreasing_from });
        true
    }

    /// Forgets a limit. Whether there was one.
    pub(crate) fn remove(&mut self, key: &str) -> bool {
        let removed = self.limits.remove_entry(key);
        removed.map(|(key, _)| self.unsaved.insert(key)).is_some()
    }

    fn set(&mut self, key: &LimitKey, limit: LimitState) {
        self.unsaved.insert(key.clone());
        self.limits.insert(key.clone(), limit);
    }

    /// Takes note of what the ledger says; `spec` is what the limit should be now, if it still is one. Whether anything is
    /// different.
    pub(crate) fn note(&mut self, event: &CapacityEvent, spec: Option<&Arc<LimitSpec>>) -> bool {
        match (event, spec) {
            (CapacityEvent::Decreasing { key, from, to }, Some(spec)) if *to == spec.capacity => {
                if !self.limits.contains_key(key) && self.limits.len() >= LIMITS_MAX {
                    return false;
                }
                let limit = LimitState { spec: Arc::clone(spec), decreasing_from: Some(*from) };
                self.set(key, limit);
                true
            }
            // It was told to become something else in the meantime, which will be told as well.
            (CapacityEvent::Decreasing { .. }, _) => false,
            (CapacityEvent::Settled { key, .. }, _) => self.settled(key),
        }
    }

    /// A limit that is decreasing should now be this. Whether anything is different.
    pub(crate) fn refresh(&mut self, key: &LimitKey, spec: &Arc<LimitSpec>) -> bool {
        let known = self.limits.get(key).filter(|limit| limit.spec.capacity != spec.capacity);
        let changed = known.map(|limit| LimitState { spec: Arc::clone(spec), ..limit.clone() });
        changed.map(|limit| self.set(key, limit)).is_some()
    }

    /// A limit has the capacity it should have, or is none any more. Whether anything is different.
    pub(crate) fn settled(&mut self, key: &LimitKey) -> bool {
        match self.limits.get(key).cloned() {
            None => false,
            Some(limit) if !limit.is_api() => self.remove(key.as_str()),
            Some(LimitState { decreasing_from: None, .. }) => false,
            Some(limit) => {
                self.set(key, LimitState { decreasing_from: None, ..limit });
                true
            }
        }
    }
}

const LIMITS_LOST: &str = "limits made with PUT /v1/limits are gone";
const OVERRIDE_LOST: &str = "the retry policy is the file's again";
