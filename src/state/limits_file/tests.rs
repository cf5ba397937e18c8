//! What is on the disk after any number of changes, wherever the power went.

use std::fs;
use std::sync::Arc;

use super::*;
use crate::config::limit_from_json;
use crate::state::State;

/// A limit whose definition has some 16 kB.
fn limit(capacity: u64) -> LimitState {
    let json = serde_json::json!({
        "key": "k", "kind": "rolling", "capacity": capacity, "window_seconds": 1, "description": "d".repeat(16_000),
    });
    let (_, spec) = limit_from_json(&json, "test").unwrap();
    LimitState { spec: Arc::new(spec), decreasing_from: None }
}

/// A file, what should be in it, and what it took to write it.
struct Saved {
    dir: tempfile::TempDir,
    file: LimitsFile,
    limits: Limits,
    bytes: usize,
}

impl Saved {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (file, limits) = LimitsFile::load(dir.path()).unwrap();
        Self { dir, file, limits, bytes: 0 }
    }

    fn put(&mut self, key: &str, capacity: u64) {
        self.limits.insert(LimitKey::new(key), limit(capacity));
        self.save(key);
    }

    fn remove(&mut self, key: &str) {
        self.limits.remove(key);
        self.save(key);
    }

    fn save(&mut self, key: &str) {
        self.bytes += self.file.save(&self.limits, &BTreeSet::from([LimitKey::new(key)])).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What somebody who starts now would find.
    fn loaded(&self) -> Result<Vec<(String, u64)>, Fault> {
        LimitsFile::load(self.dir.path()).map(|(_, limits)| capacities(&limits))
    }
}

fn capacities(limits: &Limits) -> Vec<(String, u64)> {
    limits.iter().map(|(key, limit)| (key.to_string(), limit.spec.capacity)).collect()
}

/// Large enough for a journal, and with some changes in it.
fn with_journal() -> Saved {
    let mut saved = Saved::new();
    (0..6).for_each(|n| saved.put(&format!("k{n}"), n));
    assert!(saved.path(JOURNAL).exists());
    saved
}

#[test]
fn a_change_costs_what_it_changes() {
    let mut saved = Saved::new();
    (0..300).for_each(|n| saved.put(&format!("k{n:03}"), n));
    let (changed, written) = (300 * 16_200, saved.bytes);
    assert!(written < 5 * changed, "{written} bytes were written for {changed}");
    assert_eq!(saved.loaded().unwrap(), capacities(&saved.limits));
}

/// The file that people and scripts look at is the only one, as long as it is small.
#[test]
fn a_small_file_needs_no_journal() {
    let mut saved = Saved::new();
    (0..100).for_each(|n| saved.put("k", n));
    assert!(!saved.path(JOURNAL).exists());
    assert_eq!(saved.loaded().unwrap(), [("k".to_owned(), 99)]);
}

#[test]
fn what_the_journal_says_counts() {
    let mut saved = with_journal();
    saved.put("k1", 100);
    saved.remove("k2");
    let expected = capacities(&saved.limits);
    assert_eq!(saved.loaded().unwrap(), expected);
    // Somebody else goes on with it.
    let (file, limits) = LimitsFile::load(saved.dir.path()).unwrap();
    (saved.file, saved.limits) = (file, limits);
    saved.put("k3", 300);
    assert_eq!(saved.loaded().unwrap(), capacities(&saved.limits));
}

#[test]
fn in_the_end_it_is_one_file() {
    let mut saved = with_journal();
    saved.file.settle(&saved.limits).unwrap();
    assert!(!saved.path(JOURNAL).exists());
    assert_eq!(saved.loaded().unwrap(), capacities(&saved.limits));
    assert_eq!(saved.file.settle(&saved.limits).unwrap(), 0, "there is nothing to do");
}

/// Cut anywhere, it is what it was before a save or after it; and it can be gone on with.
#[test]
fn a_journal_that_was_being_written_is_as_good_as_its_whole_lines() {
    let mut saved = with_journal();
    let before = capacities(&saved.limits);
    let (kept, text) = (fs::read(saved.path(JOURNAL)).unwrap().len(), saved.path(JOURNAL));
    saved.put("k0", 1_000);
    let (after, whole) = (capacities(&saved.limits), fs::read(&text).unwrap());
    for cut in (kept..whole.len()).step_by(997).chain([whole.len() - 1]) {
        fs::write(&text, &whole[..cut]).unwrap();
        assert_eq!(saved.loaded().unwrap(), before, "{cut}");
        // Blocks that never reached the disk are zeros.
        let zeros = [&whole[..cut], &vec![0; whole.len() - cut]].concat();
        fs::write(&text, zeros).unwrap();
        assert_eq!(saved.loaded().unwrap(), before, "{cut}");
    }
    let (mut file, mut limits) = LimitsFile::load(saved.dir.path()).unwrap();
    limits.insert(LimitKey::new("k5"), limit(5_000));
    file.save(&limits, &BTreeSet::from([LimitKey::new("k5")])).unwrap();
    assert_eq!(saved.loaded().unwrap(), capacities(&limits), "nothing follows half a line");
    fs::write(&text, &whole).unwrap();
    assert_ne!(saved.loaded().unwrap(), after, "the file was written whole, and this one goes with another");
}

#[test]
fn damage_before_the_end_stops_the_start() {
    let mut saved = with_journal();
    saved.put("k1", 100);
    let mut journal = fs::read(saved.path(JOURNAL)).unwrap();
    assert!(journal.iter().filter(|byte| **byte == b'\n').count() > 1);
    journal[1_000] ^= 1;
    fs::write(saved.path(JOURNAL), &journal).unwrap();
    assert_eq!(saved.loaded().unwrap_err(), (JOURNAL, "line 1 is damaged".to_owned()));
    let broken = State::load(Some(saved.dir.path())).unwrap_err().to_string();
    assert!(broken.contains("limits.journal: line 1 is damaged. It is left as it is."), "{broken}");
    assert_eq!(fs::read(saved.path(JOURNAL)).unwrap(), journal);
}

/// The power went after the new file and before its journal was removed, or somebody put a copy of the file back.
#[test]
fn a_journal_of_another_file_does_not_count() {
    let mut saved = with_journal();
    let old = fs::read(saved.path(JOURNAL)).unwrap();
    saved.file.settle(&saved.limits).unwrap();
    saved.put("k0", 7);
    saved.file.settle(&saved.limits).unwrap();
    fs::write(saved.path(JOURNAL), &old).unwrap();
    let expected = capacities(&saved.limits);
    assert_eq!(saved.loaded().unwrap(), expected);
    let (mut file, mut limits) = LimitsFile::load(saved.dir.path()).unwrap();
    limits.insert(LimitKey::new("k9"), limit(9));
    file.save(&limits, &BTreeSet::from([LimitKey::new("k9")])).unwrap();
    assert_eq!(saved.loaded().unwrap(), capacities(&limits));
    // Moved away, as the error says, it starts without anything.
    fs::remove_file(saved.path(LIMITS)).unwrap();
    fs::write(saved.path(JOURNAL), &old).unwrap();
    assert_eq!(saved.loaded().unwrap(), []);
}

/// The next save after one that failed leaves all of it on the disk.
#[test]
fn a_save_that_failed_spoils_nothing() {
    let mut saved = with_journal();
    let aside = saved.path("aside");
    fs::rename(saved.path(JOURNAL), &aside).unwrap();
    fs::create_dir(saved.path(JOURNAL)).unwrap();
    saved.limits.insert(LimitKey::new("k1"), limit(11));
    assert!(saved.file.save(&saved.limits, &BTreeSet::from([LimitKey::new("k1")])).is_err());
    fs::remove_dir(saved.path(JOURNAL)).unwrap();
    fs::rename(&aside, saved.path(JOURNAL)).unwrap();
    saved.put("k2", 22);
    assert_eq!(saved.loaded().unwrap(), capacities(&saved.limits));
}
