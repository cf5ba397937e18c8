//! Lines on their way into a file: in the order of their times, each with its duration if that comes soon enough.
//!
//! Decisions are made on several threads, so that lines come nearly in order. Pure: `now` is an argument.

use std::collections::{BTreeMap, HashMap};

use crate::record::RecordLine;

/// How long after a line an earlier one may still come.
const LATE_MS: u64 = 1_000;

/// How long a line waits for the end of its request. Requests that last longer are written without their duration.
const HELD_MS: u64 = 60_000;

/// What may wait: some 300,000 lines.
const BYTES_MAX: usize = 64 << 20;

/// A line without its texts, and its places in the two maps.
const LINE_BYTES: usize = 400;

/// A time, and how many lines had come before.
type Place = (String, u64);

#[derive(Debug, Default)]
pub(super) struct Order {
    lines: BTreeMap<Place, HeldLine>,
    /// Where the lines are whose requests are not over, by lease.
    open: HashMap<String, Place>,
    bytes: usize,
    count: u64,
    /// The time of the last line that was handed on: an earlier one would be out of order.
    last: String,
}

#[derive(Debug)]
struct HeldLine {
    line: RecordLine<'static>,
    lease: Option<String>,
    come_ms: u64,
    bytes: usize,
}

impl Order {
    /// False if it comes too late to be in order, and so was left out.
    pub(super) fn push(&mut self, line: RecordLine<'static>, lease: Option<String>, now_ms: u64) -> bool {
        if line.time < self.last {
            return false;
        }
        self.count += 1;
        let place = (line.time.clone(), self.count);
        if let Some(lease) = &lease {
            self.open.insert(lease.clone(), place.clone());
        }
        let bytes = LINE_BYTES + length(&line);
        self.bytes += bytes;
        self.lines.insert(place, HeldLine { line, lease, come_ms: now_ms, bytes });
        true
    }

    /// The request with this lease is over.
    pub(super) fn done(&mut self, lease: &str, duration_ms: u64) {
        let waiting = self.open.remove(lease).and_then(|place| self.lines.get_mut(&place));
        if let Some(waiting) = waiting {
            waiting.line.duration_ms = Some(duration_ms);
            waiting.lease = None;
        }
    }

    /// The next line, if it is complete.
    pub(super) fn next(&mut self, now_ms: u64) -> Option<RecordLine<'static>> {
        let (_, first) = self.lines.first_key_value()?;
        let held_ms = if first.lease.is_some() { HELD_MS } else { LATE_MS };
        let is_complete = now_ms.saturating_sub(first.come_ms) >= held_ms || self.bytes > BYTES_MAX;
        if is_complete { self.pop() } else { None }
    }

    /// The next line, however it is.
    pub(super) fn pop(&mut self) -> Option<RecordLine<'static>> {
        let (place, HeldLine { line, lease, bytes, .. }) = self.lines.pop_first()?;
        if let Some(lease) = lease
            && self.open.get(&lease) == Some(&place)
        {
            self.open.remove(&lease);
        }
        self.bytes -= bytes;
        (self.last, _) = place;
        Some(line)
    }
}

/// The texts of a line.
fn length(line: &RecordLine<'_>) -> usize {
    let entries = line.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
    line.domain.len() + entries.map(|entry| 64 + entry.key.len() + entry.value.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{Descriptor, RecordEntry, time_text};

    fn line(at_ms: u64) -> RecordLine<'static> {
        let time = time_text(at_ms * 1_000_000);
        RecordLine { time, domain: "d".into(), descriptors: Vec::new(), status: 200, duration_ms: None }
    }

    fn next(order: &mut Order, now_ms: u64) -> Option<(String, Option<u64>)> {
        order.next(now_ms).map(|line| (line.time, line.duration_ms))
    }

    fn expected(at_ms: u64, duration_ms: Option<u64>) -> Option<(String, Option<u64>)> {
        Some((line(at_ms).time, duration_ms))
    }

    #[test]
    fn lines_are_written_in_order_and_what_comes_too_late_is_not() {
        let mut order = Order::default();
        for at_ms in [30, 10, 20, 20] {
            assert!(order.push(line(at_ms), None, 0));
        }
        assert_eq!(next(&mut order, 999), None, "an earlier one may come");
        assert_eq!(next(&mut order, 1000), expected(10, None));
        assert!(!order.push(line(9), None, 1000));
        assert!(order.push(line(15), None, 1000));
        assert_eq!(next(&mut order, 1500), None, "it came just now");
        let rest: Vec<_> = std::iter::from_fn(|| next(&mut order, 2000)).collect();
        assert_eq!(rest, [15, 20, 20, 30].map(|at_ms| expected(at_ms, None).unwrap()));
        assert_eq!((order.bytes, order.open.len()), (0, 0));
    }

    #[test]
    fn a_line_waits_for_its_end_but_not_for_ever() {
        let mut order = Order::default();
        order.push(line(1), Some("a".to_owned()), 0);
        order.push(line(2), None, 0);
        order.push(line(3), Some("b".to_owned()), 0);
        assert_eq!(next(&mut order, 5000), None);
        order.done("a", 4321);
        order.done("nobody", 1);
        assert_eq!(next(&mut order, 5000), expected(1, Some(4321)));
        assert_eq!(next(&mut order, 5000), expected(2, None));
        assert_eq!(next(&mut order, 59_999), None);
        assert_eq!(next(&mut order, 60_000), expected(3, None));
        order.done("b", 60_001);
        assert_eq!(next(&mut order, 70_000), None);
        assert_eq!((order.bytes, order.open.len()), (0, 0));
    }

    #[test]
    fn what_waits_is_bounded() {
        let mut order = Order::default();
        let large = || {
            let entry = RecordEntry { key: "k".into(), value: "v".repeat(BYTES_MAX / 4).into() };
            let descriptors = vec![Descriptor { entries: vec![entry], limit: None, hits_addend: None }];
            RecordLine { descriptors, ..line(1) }
        };
        for lease in ["a", "b", "c"] {
            order.push(large(), Some(lease.to_owned()), 0);
        }
        assert_eq!(next(&mut order, 0), None);
        order.push(large(), None, 0);
        assert_eq!(next(&mut order, 0), expected(1, None), "there is no room to wait for its end");
        assert_eq!(next(&mut order, 0), None);
    }
}
