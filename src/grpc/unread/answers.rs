//! The answers of one HTTP/2 connection that tell of leases, from the moment at which the library takes them. Pure.

use std::collections::VecDeque;

use ahash::AHashMap;

/// A caller that has not reset its stream by then has read its answer.
const UNREAD_AT_MOST_MS: u64 = 1000;

/// Answers remembered at most; beyond that the oldest count as read. As many as a connection may have calls at once.
const ANSWERS_MAX: usize = 4096;

#[derive(Debug)]
pub(super) struct Answers<L> {
    /// Bytes of answers that the library has taken.
    taken_bytes: u64,
    /// Bytes of DATA frames that were written, and the stream of the last of them.
    written_bytes: u64,
    written_to: u32,
    /// Answers that were taken and not written, by the place of their last byte.
    taken: VecDeque<(u64, Vec<L>)>,
    /// Streams that were reset meanwhile.
    resets: Vec<u32>,
    /// Answers that were written, by stream, and when, oldest first.
    written: AHashMap<u32, Vec<L>>,
    written_at: VecDeque<(u64, u32)>,
}

/// What has become of some leases.
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
        Self {
            taken_bytes: 0,
            written_bytes: 0,
            written_to: 0,
            taken: VecDeque::new(),
            resets: Vec::new(),
            written: AHashMap::new(),
            written_at: VecDeque::new(),
        }
    }
}

impl<L> Answers<L> {
    /// The library has taken so many bytes more, and with them all of an answer that tells of these.
    pub(super) fn take(&mut self, bytes: usize, leases: Vec<L>, now_ms: impl FnOnce() -> u64) -> News<L> {
        self.taken_bytes += bytes as u64;
        let mut news = News::new();
        if leases.is_empty() {
            return news;
        }
        if self.taken_bytes <= self.written_bytes {
            // It writes long answers first and counts them then. So this one was the last to be written.
            self.remember(self.written_to, leases, now_ms(), &mut news);
        } else {
            self.taken.push_back((self.taken_bytes, leases));
        }
        news
    }

    pub(super) fn wrote(&mut self, stream: u32, bytes: usize, now_ms: impl FnOnce() -> u64) -> News<L> {
        self.written_bytes += bytes as u64;
        self.written_to = stream;
        let mut news = News::new();
        if self.taken.front().is_some_and(|(last, _)| *last <= self.written_bytes)
            && let Some((_, leases)) = self.taken.pop_front()
        {
            self.remember(stream, leases, now_ms(), &mut news);
        }
        if self.taken.is_empty() {
            self.resets.clear();
        }
        news
    }

    fn remember(&mut self, stream: u32, leases: Vec<L>, now_ms: u64, news: &mut News<L>) {
        self.forget_old(now_ms, news);
        if self.resets.contains(&stream) {
            return news.lost.extend(leases);
        }
        if self.written_at.len() >= ANSWERS_MAX {
            self.forget_oldest(news);
        }
        self.written_at.push_back((now_ms, stream));
        // A stream may tell of several leases, one after the other.
        self.written.entry(stream).or_default().extend(leases);
    }

    pub(super) fn reset(&mut self, stream: u32, now_ms: impl FnOnce() -> u64) -> News<L> {
        let mut news = News::new();
        if !self.written.is_empty() {
            self.forget_old(now_ms(), &mut news);
        }
        if let Some(leases) = self.written.remove(&stream) {
            news.lost.extend(leases);
        }
        if !self.taken.is_empty() && self.resets.len() < ANSWERS_MAX {
            self.resets.push(stream);
        }
        news
    }

    fn forget_old(&mut self, now_ms: u64, news: &mut News<L>) {
        while self.written_at.front().is_some_and(|(at_ms, _)| at_ms + UNREAD_AT_MOST_MS <= now_ms) {
            self.forget_oldest(news);
        }
    }

    fn forget_oldest(&mut self, news: &mut News<L>) {
        if let Some((_, stream)) = self.written_at.pop_front() {
            news.sent.extend(self.written.remove(&stream).unwrap_or_default());
        }
    }

    /// The connection ends: what it has written was read, as far as this side can know.
    pub(super) fn end(&mut self) -> News<L> {
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

    fn heard(news: News<u32>) -> (Vec<u32>, Vec<u32>) {
        (news.sent, news.lost)
    }

    fn nothing() -> (Vec<u32>, Vec<u32>) {
        (Vec::new(), Vec::new())
    }

    /// Two answers of 10 bytes to the streams 1 and 3, between others that tell of nothing.
    fn two_written() -> Answers<u32> {
        let mut answers = Answers::default();
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
        let mut answers = two_written();
        assert_eq!(heard(answers.reset(9, || 10)), nothing(), "it told of nothing");
        assert_eq!(heard(answers.reset(3, || 10)), (vec![], vec![30, 31]));
        assert_eq!(heard(answers.reset(3, || 10)), nothing());
        assert_eq!(heard(answers.end()), (vec![10], vec![]));
    }

    #[test]
    fn an_answer_is_read_after_a_second() {
        let mut answers = two_written();
        assert_eq!(heard(answers.reset(1, || UNREAD_AT_MOST_MS)), (vec![10, 30, 31], vec![]));
    }

    #[test]
    fn a_reset_that_comes_before_the_answer_is_written_loses_it() {
        let mut answers = Answers::default();
        assert_eq!(heard(answers.take(10, vec![10], || 0)), nothing());
        assert_eq!(heard(answers.take(10, vec![30], || 0)), nothing());
        assert_eq!(heard(answers.reset(1, || 0)), nothing(), "nobody knows yet whose it is");
        assert_eq!(heard(answers.wrote(1, 10, || 0)), (vec![], vec![10]));
        assert_eq!(heard(answers.end()), (vec![], vec![30]), "never written");
    }

    #[test]
    fn long_answers_are_counted_when_they_were_written() {
        let mut answers = Answers::default();
        assert_eq!(heard(answers.wrote(5, 600, || 0)), nothing());
        assert_eq!(heard(answers.take(600, vec![], || 0)), nothing());
        assert_eq!(heard(answers.wrote(5, 400, || 0)), nothing());
        assert_eq!(heard(answers.take(400, vec![50], || 0)), nothing());
        assert_eq!(heard(answers.reset(5, || 0)), (vec![], vec![50]));
    }

    #[test]
    fn only_so_many_are_remembered() {
        let mut answers = Answers::default();
        let mut sent = Vec::new();
        for stream in 0..=u32::try_from(ANSWERS_MAX).unwrap() {
            let mut news = answers.take(1, vec![stream], || 0);
            sent.append(&mut news.sent);
            sent.append(&mut answers.wrote(stream, 1, || 0).sent);
        }
        assert_eq!(sent, [0]);
        assert_eq!(answers.written.len(), ANSWERS_MAX);
    }
}
