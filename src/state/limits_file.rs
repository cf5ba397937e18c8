//! `limits.json`, the file of record, and `limits.journal` beside it: what has changed since the file was last written whole.
//!
//! So a change costs what it changes, and not all that is remembered. A small file is written whole every time; a large one
//! when its journal has grown as long as itself, so that all writing together stays within some times what was changed.
//! Refuses to know what a limit is: that is [`format`]'s.
//!
//! A save is one line of the journal, and names the digest of the file that it goes with. A crash between the new file and
//! the removal of its journal, or a copy of the file that somebody put back, leaves one that goes with another file: it
//! doesn't count. Every line has a digest of its own. If the last one is wrong it was being written when the power went, and
//! nobody was told that it is saved. An earlier one that is wrong is damage, and stops the start.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::{LimitState, disk, format};
use crate::limit::LimitKey;

pub(super) const LIMITS: &str = "limits.json";
pub(super) const JOURNAL: &str = "limits.journal";

/// Up to here the whole file is written: it takes no longer than waiting for the disk.
const WHOLE_BYTES_MAX: usize = 64 << 10;

/// Hexadecimal digits of a digest: 64 bits find every accident.
const DIGEST_CHARS: usize = 16;

type Limits = BTreeMap<LimitKey, LimitState>;

/// What is on the disk.
#[derive(Debug, Default)]
pub(super) struct LimitsFile {
    dir: PathBuf,
    /// `None` if there is no file.
    whole: Option<Whole>,
    /// The length of a journal that goes with the file and can be continued.
    journal_bytes: Option<usize>,
    /// There may be a journal, whether or not it counts.
    has_journal: bool,
}

#[derive(Debug)]
struct Whole {
    digest: String,
    bytes: usize,
}

impl Whole {
    fn of(text: &str) -> Self {
        Self { digest: digest(text), bytes: text.len() }
    }
}

/// Which file is broken, and how.
pub(super) type Fault = (&'static str, String);

impl LimitsFile {
    /// Reads what is there; nothing is remembered if nothing is.
    pub(super) fn load(dir: &Path) -> Result<(Self, Limits), Fault> {
        let text = disk::read(&dir.join(LIMITS)).map_err(|what| (LIMITS, what))?;
        let mut file = Self { dir: dir.to_owned(), ..Self::default() };
        let mut limits = match &text {
            Some(text) => format::parse_limits(text).map_err(|what| (LIMITS, what))?,
            None => Limits::new(),
        };
        file.whole = text.as_deref().map(Whole::of);
        let journal = disk::read_bytes(&dir.join(JOURNAL)).map_err(|what| (JOURNAL, what))?;
        file.has_journal = journal.is_some();
        if let (Some(whole), Some(journal)) = (&file.whole, journal) {
            let continued = replay(&journal, &whole.digest, &mut limits).map_err(|what| (JOURNAL, what))?;
            file.journal_bytes = continued.then_some(journal.len());
        }
        Ok((file, limits))
    }

    /// Brings the disk to `limits`, which differ in `changed` from what was saved last. How many bytes that took.
    pub(super) fn save(&mut self, limits: &Limits, changed: &BTreeSet<LimitKey>) -> io::Result<usize> {
        match self.whole.as_ref().filter(|whole| whole.bytes > WHOLE_BYTES_MAX) {
            Some(whole) if self.journal_bytes.unwrap_or(0) < whole.bytes && !self.is_spoilt() => {
                self.append(limits, changed)
            }
            _ => self.write_whole(limits),
        }
    }

    /// Writes the file whole if there is anything in its journal. How many bytes that took.
    pub(super) fn settle(&mut self, limits: &Limits) -> io::Result<usize> {
        if self.has_journal { self.write_whole(limits) } else { Ok(0) }
    }

    /// There is a journal that can't be continued.
    fn is_spoilt(&self) -> bool {
        self.has_journal && self.journal_bytes.is_none()
    }

    fn write_whole(&mut self, limits: &Limits) -> io::Result<usize> {
        let text = format::write_limits(limits)?;
        disk::write(&self.dir, LIMITS, &text)?;
        self.whole = Some(Whole::of(&text));
        self.journal_bytes = None;
        if self.has_journal {
            // One that stays goes with another file, and is removed next time.
            self.has_journal = disk::remove(&self.dir, JOURNAL).is_err();
        }
        Ok(text.len())
    }

    fn append(&mut self, limits: &Limits, changed: &BTreeSet<LimitKey>) -> io::Result<usize> {
        let goes_with = self.whole.as_ref().map_or("", |whole| &whole.digest);
        let changes = changed.iter().map(|key| (key, limits.get(key)));
        let json = format::write_changes(goes_with, changes)?;
        let text = format!("{} {json}\n", digest(&json));
        let before = self.journal_bytes.take();
        self.has_journal = true;
        // If this fails there may be half a line. Nothing is appended after it, because the next save writes the whole file.
        self.write_journal(before, &text)?;
        self.journal_bytes = Some(before.unwrap_or(0) + text.len());
        Ok(text.len())
    }

    fn write_journal(&self, before: Option<usize>, text: &str) -> io::Result<()> {
        let path = self.dir.join(JOURNAL);
        let mut file = match before {
            Some(_) => OpenOptions::new().append(true).open(&path)?,
            None => File::create(&path)?,
        };
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        let written = written.and_then(|()| if before.is_none() { disk::sync(&self.dir) } else { Ok(()) });
        if written.is_err() {
            // The caller is told that it isn't saved, so it must not be there after a restart.
            let _ = file.set_len(before.unwrap_or(0) as u64);
        }
        written
    }
}

fn digest(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(DIGEST_CHARS / 2).map(|byte| format!("{byte:02x}")).collect()
}

/// Brings `limits` to what the journal says, if it goes with the file. Whether it can be continued.
fn replay(journal: &[u8], whole: &str, limits: &mut Limits) -> Result<bool, String> {
    let mut rest = journal;
    let mut number = 0;
    while !rest.is_empty() {
        let end = rest.iter().position(|byte| *byte == b'\n').map_or(rest.len(), |end| end + 1);
        let (line, after) = rest.split_at(end);
        (number, rest) = (number + 1, after);
        let Some(json) = checked(line) else {
            return if after.is_empty() { Ok(false) } else { Err(format!("line {number} is damaged")) };
        };
        let (goes_with, changes) =
            format::parse_changes(json).map_err(|what| format!("line {number}: {what}"))?;
        if goes_with != whole {
            return Ok(false);
        }
        for (key, limit) in changes {
            match limit {
                Some(limit) => drop(limits.insert(key, limit)),
                None => drop(limits.remove(&key)),
            }
        }
    }
    Ok(number > 0)
}

/// What a whole line says.
fn checked(line: &[u8]) -> Option<&str> {
    let (sum, json) = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?.split_once(' ')?;
    (sum == digest(json)).then_some(json)
}

#[cfg(test)]
mod tests;
