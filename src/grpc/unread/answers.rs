//! The answers of one HTTP/2 connection that tell of leases, from the moment at which the library takes them. Pure.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use ahash::AHashMap;
use parking_lot::Mutex;

/// A caller that has not reset its stream by then has read its answer.
const UNREAD_AT_MOST_MS: u64 = 1000;

/// Leases remembered at most; beyond that the oldest count as read. As many as a connection may have calls at once.
const LEASES_MAX: usize = 4096;

/// No answer waits to be written.
const NONE: u64 = u64::MAX;

/// An answer is found by its place: that of its last byte among the bytes of all answers.
///
/// Hardly any answer tells of a lease. One that doesn't only moves the counters. These are atomic because answers are shared. But
/// only the connection's own task calls this, so adding needs no locked instruction.
#[derive(Debug)]
pub(super) struct Answers<L> {
    /// Bytes of answers that the library has taken.
    taken_bytes: AtomicU64,
    /// Bytes of DATA frames that were written, and the stream of the last of them.
    written_bytes: AtomicU64,
    written_to: AtomicU32,
    /// The place of the first of those that were taken and not written; [`NONE`] if there is none.
    next_place: AtomicU64,
    has_written: AtomicBool,
    /// A plain mutex: a section is a few look-ups.
    remembered: Mutex<Remembered<L>>,
}

/// Answers that tell of leases.
#[derive(Debug)]
struct Remembered<L> {
    /// Taken and not written, by place.
    taken: VecDeque<(u64, Vec<L>)>,
    /// Streams that were reset meanwhile.
    resets: Vec<u32>,
    /// The leases of those that were written, by stream, and when each was written, oldest first.
    written: AHashMap<u32, VecDeque<L>>,
    written_at: VecDeque<(u64, u32)>,
}

/// What has become of some leases, if anything has.
#[derive(Debug)]
pub(super) struct News<L> {
    pub(super) sent: Vec<L>,
    /// Their caller has left without them.
    pub(super) lost: Vec<L>,
}

impl<L> News<L> {
    fn new() -> Self {
        Self { sent: Vec::new(), lost: Vec::new() }
    }
}

impl<L> Default for Answers<L> {
    fn default() -> Self {
        let remembered = Remembered {
            taken: VecDeque::new(),
            resets: Vec::new(),
            written: AHashMap::new(),
            written_at: VecDeque::new(),
        };
        Self {
            taken_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            written_to: AtomicU32::new(0),
            next_place: AtomicU64::new(NONE),
            has_written: AtomicBool::new(false),
            remembered: Mutex::new(remembered),
        }
    }
}

fn add(counter: &AtomicU64, bytes: usize) -> u64 {
    let sum = counter.load(Ordering::Relaxed) + bytes as u64;
    counter.store(sum, Ordering::Relaxed);
    sum
}

impl<L> Answers<L> {
    /// The library has taken so many bytes more, and with them all of an answer that tells of these.
    #[inline]
    pub(super) fn take(&self, bytes: usize, leases: Vec<L>, now_ms: impl FnOnce() -> u64) -> Option<News<L>> {
        let place = add(&self.taken_bytes, bytes);
        if leases.is_empty() {
            return None;
        }
        self.on_remembered(|remembered| {
            if place <= self.written_bytes.load(Ordering::Relaxed) {
                // The library writes a long answer before it reports the bytes as taken. So this answer was the last that was written.
                return remembered.wrote(self.written_to.load(Ordering::Relaxed), leases, now_ms());
            }
            remembered.taken.push_back((place, leases));
            News::new()
        })
    }

    #[inline]
    pub(super) fn wrote(&self, stream: u32, bytes: usize, now_ms: impl FnOnce() -> u64) -> Option<News<L>> {
        let written_bytes = add(&self.written_bytes, bytes);
        self.written_to.store(stream, Ordering::Relaxed);
        if written_bytes < self.next_place.load(Ordering::Relaxed) {
            return None;
        }
        self.on_remembered(|remembered| remembered.wrote_next(stream, now_ms()))
    }

    pub(super) fn reset(&self, stream: u32, now_ms: impl FnOnce() -> u64) -> Option<News<L>> {
        self.on_remembered(|remembered| remembered.reset(stream, now_ms()))
    }

    /// What was written long ago counts as read. To be called now and then.
    #[inline]
    pub(super) fn forget_old(&self, now_ms: impl FnOnce() -> u64) -> Option<News<L>> {
        if !self.has_written.load(Ordering::Relaxed) {
            return None;
        }
        self.on_remembered(|remembered| remembered.forget_old(now_ms()))
    }

    /// The connection ends: what it has written was read, as far as this side can know.
    pub(super) fn end(&self) -> Option<News<L>> {
        self.on_remembered(Remembered::end)
    }

    fn on_remembered(&self, act: impl FnOnce(&mut Remembered<L>) -> News<L>) -> Option<News<L>> {
        let mut remembered = self.remembered.lock();
        let news = act(&mut remembered);
        let next_place = remembered.taken.front().map_or(NONE, |(place, _)| *place);
        self.next_place.store(next_place, Ordering::Relaxed);
        self.has_written.store(!remembered.written_at.is_empty(), Ordering::Relaxed);
        Some(news)
    }
}

impl<L> Remembered<L> {
    fn wrote_next(&mut self, stream: u32, now_ms: u64) -> News<L> {
        let Some((_, leases)) = self.taken.pop_front() else { return News::new() };
        let news = self.wrote(stream, leases, now_ms);
        if self.taken.is_empty() {
            self.resets.clear();
        }
        news
    }

    fn wrote(&mut self, stream: u32, leases: Vec<L>, now_ms: u64) -> News<L> {
        let mut news = self.forget_old(now_ms);
        if self.resets.contains(&stream) {
            news.lost.extend(leases);
            return news;
        }
        for lease in leases {
            if self.written_at.len() >= LEASES_MAX {
                self.forget_oldest(&mut news);
            }
            self.written_at.push_back((now_ms, stream));
            self.written.entry(stream).or_default().push_back(lease);
        }
        news
    }

    fn reset(&mut self, stream: u32, now_ms: u64) -> News<L> {
        let mut news = self.forget_old(now_ms);
        // The time of writing stays in the other list and is forgotten later; nothing more is written to this stream.
        news.lost.extend(self.written.remove(&stream).unwrap_or_default());
        if !self.taken.is_empty() && self.resets.len() < LEASES_MAX {
            self.resets.push(stream);
        }
        news
    }

    fn forget_old(&mut self, now_ms: u64) -> News<L> {
        let mut news = News::new();
        while self.written_at.front().is_some_and(|(at_ms, _)| at_ms + UNREAD_AT_MOST_MS <= now_ms) {
            self.forget_oldest(&mut news);
        }
        news
    }

    fn forget_oldest(&mut self, news: &mut News<L>) {
        let Some((_, stream)) = self.written_at.pop_front() else { return };
        let Some(leases) = self.written.get_mut(&stream) else { return };
        // A stream may tell of several, one after the other.
        news.sent.extend(leases.pop_front());
        if leases.is_empty() {
            self.written.remove(&stream);
        }
    }

    fn end(&mut self) -> News<L> {
        let mut news = News::new();
        while !self.written_at.is_empty() {
            self.forget_oldest(&mut news);
        }
        news.lost.extend(self.taken.drain(..).flat_map(|(_, leases)| leases));
        news
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(news: Option<News<u32>>) -> (Vec<u32>, Vec<u32>) {
        news.map_or_else(nothing, |news| (news.sent, news.lost))
    }

    fn nothing() -> (Vec<u32>, Vec<u32>) {
        (Vec::new(), Vec::new())
    }

    /// Two answers of 10 bytes to the streams 1 and 3, between others that tell of nothing.
    fn two_written() -> Answers<u32> {
        let answers = Answers::default();
        for leases in [vec![], vec![10], vec![], vec![30, 31]] {
            assert_eq!(heard(answers.take(10, leases, || 0)), nothing());
        }
        for stream in [7, 1, 9, 3] {
            assert_eq!(heard(answers.wrote(stream, 4, || 0)), nothing());
            assert_eq!(heard(answers.wrote(stream, 6, || 0)), nothing());
        }
        answers
    }

    #[test]
    fn a_reset_loses_the_answer_of_its_stream() {
        let answers = two_written();
        assert_eq!(heard(answers.reset(9, || 10)), nothing(), "it told of nothing");
        assert_eq!(heard(answers.reset(3, || 10)), (vec![], vec![30, 31]));
        assert_eq!(heard(answers.reset(3, || 10)), nothing());
        assert_eq!(heard(answers.end()), (vec![10], vec![]));
    }

    #[test]
    fn an_answer_is_read_after_a_second() {
        let answers = two_written();
        assert_eq!(heard(answers.reset(1, || UNREAD_AT_MOST_MS)), (vec![10, 30, 31], vec![]));
    }

    #[test]
    fn a_reset_that_comes_before_the_answer_is_written_loses_it() {
        let answers = Answers::default();
        assert_eq!(heard(answers.take(10, vec![10], || 0)), nothing());
        assert_eq!(heard(answers.take(10, vec![30], || 0)), nothing());
        assert_eq!(heard(answers.reset(1, || 0)), nothing(), "nobody knows yet whose it is");
        assert_eq!(heard(answers.wrote(1, 10, || 0)), (vec![], vec![10]));
        assert_eq!(heard(answers.end()), (vec![], vec![30]), "never written");
    }

    #[test]
    fn long_answers_are_counted_when_they_were_written() {
        let answers = Answers::default();
        assert_eq!(heard(answers.wrote(5, 600, || 0)), nothing());
        assert_eq!(heard(answers.take(600, vec![], || 0)), nothing());
        assert_eq!(heard(answers.wrote(5, 400, || 0)), nothing());
        assert_eq!(heard(answers.take(400, vec![50], || 0)), nothing());
        assert_eq!(heard(answers.reset(5, || 0)), (vec![], vec![50]));
    }

    #[test]
    fn each_lease_of_a_stream_has_its_own_second() {
        let answers = Answers::default();
        for (lease, at_ms) in [(50, 0), (51, 900)] {
            assert_eq!(heard(answers.take(10, vec![lease], || at_ms)), nothing());
            assert_eq!(heard(answers.wrote(5, 10, || at_ms)), nothing());
        }
        assert_eq!(heard(answers.reset(5, || UNREAD_AT_MOST_MS)), (vec![50], vec![51]));
    }

    #[test]
    fn what_a_quiet_connection_has_written_is_forgotten_too() {
        let answers = two_written();
        assert_eq!(heard(answers.forget_old(|| UNREAD_AT_MOST_MS - 1)), nothing());
        assert_eq!(heard(answers.forget_old(|| UNREAD_AT_MOST_MS)), (vec![10, 30, 31], vec![]));
        assert_eq!(heard(answers.forget_old(|| unreachable!("nothing is left"))), nothing());
    }

    #[test]
    fn an_answer_without_a_lease_only_moves_the_counters() {
        let answers: Answers<u32> = Answers::default();
        let _locked = answers.remembered.lock();
        for _ in 0..3 {
            answers.take(10, vec![], || unreachable!("nobody needs the time"));
            answers.wrote(1, 10, || unreachable!("nobody needs the time"));
            answers.forget_old(|| unreachable!("nobody needs the time"));
        }
        assert_eq!(answers.taken_bytes.load(Ordering::Relaxed), 30);
        assert_eq!(answers.written_bytes.load(Ordering::Relaxed), 30);
    }

    #[test]
    fn only_so_many_are_remembered() {
        let (answers, mut sent) = (Answers::default(), Vec::new());
        let leases_max = u32::try_from(LEASES_MAX).unwrap();
        for batch in 0..=leases_max / 256 {
            let leases: Vec<u32> = (batch * 256..(batch + 1) * 256).collect();
            sent.append(&mut heard(answers.take(1, leases, || 0)).0);
            sent.append(&mut heard(answers.wrote(batch, 1, || 0)).0);
        }
        assert_eq!(sent, (0..256).collect::<Vec<_>>());
        assert_eq!(answers.remembered.lock().written_at.len(), LEASES_MAX);
    }
}
