//! Request ids that this instance has answered or is answering, so that the same id again is free. Pure.

use std::collections::VecDeque;

use ahash::AHashMap;

/// How long an id is remembered: as long as its name in the ledger would be the same.
const REMEMBERED_MS: u64 = 1 << 16;

/// The last so many: about 30 MB with what is said to each.
pub const IDS_MAX: usize = 1 << 18;

/// What is known of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen<V> {
    /// Nothing: it is under way from now on. The caller must end it.
    New,
    /// Its first call has no answer yet.
    UnderWay,
    Answered(V),
}

/// Ids in the order in which they first came.
#[derive(Debug)]
pub struct Requests<V> {
    /// Nothing is known yet of the answer of those under way.
    answers: AHashMap<u128, Option<V>>,
    order: VecDeque<(u64, u128)>,
    ids_max: usize,
}

impl<V: Clone> Requests<V> {
    pub fn new(ids_max: usize) -> Self {
        Self { answers: AHashMap::new(), order: VecDeque::new(), ids_max }
    }

    pub fn begin(&mut self, id: u128, now_ms: u64) -> Seen<V> {
        self.forget_old(now_ms);
        match self.answers.get(&id) {
            Some(None) => return Seen::UnderWay,
            Some(Some(answer)) => return Seen::Answered(answer.clone()),
            None => {}
        }
        while self.order.len() >= self.ids_max {
            self.forget_first();
        }
        self.answers.insert(id, None);
        self.order.push_back((now_ms, id));
        Seen::New
    }

    /// The first call was answered; with `None` it failed or its caller left, and the next one is a first call again.
    pub fn end(&mut self, id: u128, answer: Option<V>) {
        // It may have been pushed out by newer ones meanwhile.
        let Some(place) = self.answers.get_mut(&id) else { return };
        if answer.is_some() {
            *place = answer;
        } else {
            self.answers.remove(&id);
            if let Some(at) = self.order.iter().rposition(|(_, other)| *other == id) {
                self.order.remove(at);
            }
        }
    }

    pub fn is_under_way(&self, id: u128) -> bool {
        self.answers.get(&id).is_some_and(Option::is_none)
    }

    fn forget_old(&mut self, now_ms: u64) {
        while self.order.front().is_some_and(|(came_ms, _)| now_ms.saturating_sub(*came_ms) >= REMEMBERED_MS)
        {
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        if let Some((_, id)) = self.order.pop_front() {
            self.answers.remove(&id);
        }
    }

    pub fn len(&self) -> usize {
        self.answers.len()
    }

    pub fn is_empty(&self) -> bool {
        self.answers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_answered_once_and_remembered_for_a_while() {
        let mut requests = Requests::new(10);
        assert_eq!(requests.begin(7, 1_000), Seen::New);
        assert_eq!(requests.begin(7, 1_001), Seen::UnderWay);
        requests.end(7, Some("yes"));
        assert_eq!(requests.begin(7, 1_000 + REMEMBERED_MS - 1), Seen::Answered("yes"));
        assert_eq!(requests.begin(7, 1_000 + REMEMBERED_MS), Seen::New);
    }

    #[test]
    fn one_that_failed_is_new_again() {
        let mut requests = Requests::<()>::new(10);
        assert_eq!(requests.begin(7, 0), Seen::New);
        assert_eq!(requests.begin(8, 0), Seen::New);
        requests.end(7, None);
        assert_eq!(requests.len(), 1);
        assert_eq!(requests.begin(7, 0), Seen::New);
        requests.end(9, None);
        requests.end(8, Some(()));
        assert_eq!((requests.len(), requests.order.len()), (2, 2));
    }

    #[test]
    fn only_the_last_ones_are_remembered() {
        let mut requests = Requests::new(3);
        for id in 0..5 {
            requests.begin(id, 0);
            requests.end(id, Some(id));
        }
        assert_eq!(requests.len(), 3);
        assert_eq!(requests.begin(2, 0), Seen::Answered(2));
        assert_eq!(requests.begin(1, 0), Seen::New);
    }
}
