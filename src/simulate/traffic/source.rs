//! One file, in the order of its times.
//!
//! An access log is written when requests end, so its lines are nearly in the order in which they began. Some lines are held
//! back and sorted; one that is later than that is broken.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::batch::Batch;
use super::lines::{LINE_BYTES_MAX, Lines, Next};
use super::map::Map;
use super::{Wrong, json, log, name_of};
use crate::config::Problem;

/// Lines that are held back, of one file or of all of them together, and the least for each.
const HELD_MAX: usize = 1 << 13;
const ALL_HELD_MAX: usize = 1 << 16;
const HELD_MIN: usize = 1 << 9;

/// Words of held lines at most.
const HELD_BYTES_MAX: usize = 8 << 20;

/// Lines that can't be read, named so far and the rest counted.
#[derive(Debug, Default)]
pub(super) struct Broken {
    pub(super) named: Vec<Problem>,
    pub(super) count: u64,
}

/// Named between two looks at most. Nobody reads more.
const NAMED_MAX: usize = 1_000;

impl Broken {
    fn add(&mut self, file: &Arc<str>, line: u64, wrong: Wrong) {
        self.count += 1;
        if self.named.len() < NAMED_MAX {
            let line = u32::try_from(line).unwrap_or(u32::MAX);
            let Wrong { field, message } = wrong;
            self.named.push(Problem { file: Arc::clone(file), line, field, message });
        }
    }
}

#[derive(Debug)]
pub(super) struct Source {
    file: u32,
    name: Arc<str>,
    lines: Lines,
    map: Option<Arc<Map>>,
    held: Batch,
    /// The requests that are held, the earliest first, and how many of them were taken.
    order: Vec<u32>,
    taken: usize,
    spare: Batch,
    held_max: usize,
    /// The last one that was taken.
    last_ms: u64,
    is_over: bool,
}

impl Source {
    pub(super) fn open(
        path: &Path,
        (file, files): (usize, usize),
        map: Option<Arc<Map>>,
        bytes: Arc<AtomicU64>,
    ) -> Result<Self, Problem> {
        let name = name_of(path);
        let lines = Lines::open(path, bytes);
        let lines = lines.map_err(|error| Problem::of_file(&name, format!("can't be read: {error}")))?;
        Ok(Self {
            file: u32::try_from(file).unwrap_or(u32::MAX),
            name: name.into(),
            lines,
            map,
            held: Batch::default(),
            order: Vec::new(),
            taken: 0,
            spare: Batch::default(),
            held_max: (ALL_HELD_MAX / files).clamp(HELD_MIN, HELD_MAX),
            last_ms: 0,
            is_over: false,
        })
    }

    /// When the next request is; `None` at the end.
    pub(super) fn next_ms(&mut self, broken: &mut Broken) -> Option<u64> {
        if !self.is_over && (self.order.len() - self.taken) * 4 <= self.order.len() {
            self.fill(broken);
        }
        let next = *self.order.get(self.taken)?;
        Some(self.held.get(next as usize).time_ms)
    }

    /// Moves the next request to `out`.
    pub(super) fn take(&mut self, out: &mut Batch) {
        let Some(&next) = self.order.get(self.taken) else { return };
        self.last_ms = self.held.get(next as usize).time_ms;
        out.copy(&self.held, next as usize);
        self.taken += 1;
    }

    /// Keeps what was not taken yet, and reads as much as there is room for.
    fn fill(&mut self, broken: &mut Broken) {
        self.spare.clear();
        for &index in &self.order[self.taken..] {
            self.spare.copy(&self.held, index as usize);
        }
        std::mem::swap(&mut self.held, &mut self.spare);
        while self.held.len() < self.held_max && self.held.bytes() < HELD_BYTES_MAX {
            if !self.read_line(broken) {
                self.is_over = true;
                break;
            }
        }
        let (held, order) = (&self.held, &mut self.order);
        order.clear();
        order.extend(0..u32::try_from(held.len()).unwrap_or(u32::MAX));
        let time_ms = |index: &u32| held.get(*index as usize).time_ms;
        if !order.is_sorted_by_key(time_ms) {
            // Lines of the same time stay in their order.
            order.sort_by_key(time_ms);
        }
        self.taken = 0;
    }

    /// False at the end of the file.
    fn read_line(&mut self, broken: &mut Broken) -> bool {
        let (number, read) = match self.lines.next() {
            Next::End => return false,
            Next::Unreadable(number, error) => {
                broken.add(
                    &self.name,
                    number,
                    Wrong::line(format!("can't be read, nor what follows: {error}")),
                );
                return false;
            }
            Next::TooLong(number) => {
                let words = format!("is longer than {LINE_BYTES_MAX} bytes");
                (number, Err(Wrong::line(words)))
            }
            Next::Line(number, line) => {
                let before = self.held.mark();
                let read = match &self.map {
                    Some(map) => log::read(map, line, self.file, number, &mut self.held).map(|()| true),
                    None => json::read(line, self.file, number, &mut self.held),
                };
                let in_order = |is_there: bool| {
                    let late_ms = match is_there {
                        true => self.last_ms.saturating_sub(self.held.get(self.held.len() - 1).time_ms),
                        false => 0,
                    };
                    if late_ms == 0 {
                        return Ok(());
                    }
                    self.held.drop_last(before);
                    let (seconds, lines) = (late_ms as f64 / 1000.0, self.held_max / 4);
                    Err(Wrong::line(format!(
                        "is {seconds} s earlier than what came before it: traffic must be sorted by time, \
                         to within {lines} lines"
                    )))
                };
                (number, read.and_then(in_order))
            }
        };
        if let Err(wrong) = read {
            broken.add(&self.name, number, wrong);
        }
        true
    }
}
