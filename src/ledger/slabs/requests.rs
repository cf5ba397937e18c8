//! Request ids that this instance has answered or is answering, so that the same id again is free. Pure.

use std::collections::VecDeque;

use ahash::AHashMap;

use crate::limit::LeaseBits;

/// How long an id is remembered: as long as its name in the ledger would be the same.
const REMEMBERED_MS: u64 = 1 << 16;

/// So many ids are remembered, the last ones, also those that failed: about 30 MB with their answers.
pub const IDS_MAX: usize = 1 << 18;

/// Old ids that one call forgets at most. Each call adds one, so that they become fewer; and no call pays for all that came
/// before a pause.
const FORGET_MAX: usize = 4;

/// What is known of an id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestState<V> {
    /// Nothing: it is under way from now on. The caller must end it.
    New,
    /// Its first call has no answer yet.
    UnderWay,
    Answered(V),
}

/// Ids in the order in which they first came. No call takes longer the more ids there are.
#[derive(Debug)]
pub struct Requests<V> {
    answers: AHashMap<LeaseBits, KnownRequest<V>>,
    /// When each came. One that failed stays here, and means nothing any more.
    order: VecDeque<(u64, LeaseBits)>,
    ids_max: usize,
}

#[derive(Debug)]
struct KnownRequest<V> {
    came_ms: u64,
    /// `None` while it is under way.
    answer: Option<V>,
}

impl<V: Clone> Requests<V> {
    pub fn new(ids_max: usize) -> Self {
        Self { answers: AHashMap::new(), order: VecDeque::new(), ids_max }
    }

    pub fn begin(&mut self, id: LeaseBits, now_ms: u64) -> RequestState<V> {
        self.forget_old(now_ms);
        match self.answers.get(&id) {
            Some(known) if is_old(known.came_ms, now_ms) => {}
            Some(KnownRequest { answer: None, .. }) => return RequestState::UnderWay,
            Some(KnownRequest { answer: Some(answer), .. }) => return RequestState::Answered(answer.clone()),
            None => {}
        }
        if self.order.len() >= self.ids_max {
            self.forget_first();
        }
        self.answers.insert(id, KnownRequest { came_ms: now_ms, answer: None });
        self.order.push_back((now_ms, id));
        RequestState::New
    }

    /// The first call was answered; with `None` it failed or its caller left, and the next one is a first call again.
    pub fn end(&mut self, id: LeaseBits, answer: Option<V>) {
        // It may have been pushed out by newer ones meanwhile.
        let Some(known) = self.answers.get_mut(&id) else { return };
        if answer.is_some() {
            known.answer = answer;
        } else {
            self.answers.remove(&id);
        }
    }

    pub fn is_under_way(&self, id: LeaseBits) -> bool {
        self.answers.get(&id).is_some_and(|known| known.answer.is_none())
    }

    fn forget_old(&mut self, now_ms: u64) {
        for _ in 0..FORGET_MAX {
            if self.order.front().is_none_or(|(came_ms, _)| !is_old(*came_ms, now_ms)) {
                return;
            }
            self.forget_first();
        }
    }

    fn forget_first(&mut self) {
        let Some((came_ms, id)) = self.order.pop_front() else { return };
        // One that failed, or was old, may have come again since.
        if self.answers.get(&id).is_some_and(|known| known.came_ms == came_ms) {
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

fn is_old(came_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(came_ms) >= REMEMBERED_MS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An id of that number.
    fn bits(number: u128) -> LeaseBits {
        LeaseBits::new(number)
    }

    #[test]
    fn an_id_is_answered_once_and_remembered_for_a_while() {
        let mut requests = Requests::new(10);
        assert_eq!(requests.begin(bits(7), 1_000), RequestState::New);
        assert_eq!(requests.begin(bits(7), 1_001), RequestState::UnderWay);
        requests.end(bits(7), Some("yes"));
        assert_eq!(requests.begin(bits(7), 1_000 + REMEMBERED_MS - 1), RequestState::Answered("yes"));
        assert_eq!(requests.begin(bits(7), 1_000 + REMEMBERED_MS), RequestState::New);
    }

    #[test]
    fn one_that_failed_is_new_again() {
        let mut requests = Requests::<()>::new(10);
        assert_eq!(requests.begin(bits(7), 0), RequestState::New);
        assert_eq!(requests.begin(bits(8), 0), RequestState::New);
        requests.end(bits(7), None);
        assert_eq!(requests.len(), 1);
        assert_eq!(requests.begin(bits(7), 0), RequestState::New);
        requests.end(bits(9), None);
        requests.end(bits(8), Some(()));
        assert_eq!(requests.len(), 2);
    }

    #[test]
    fn one_that_failed_and_came_again_is_remembered_from_then_on() {
        let mut requests = Requests::new(10);
        requests.begin(bits(7), 0);
        requests.end(bits(7), None);
        requests.begin(bits(7), 1_000);
        requests.end(bits(7), Some("yes"));
        // Its first coming is old now, and is forgotten; its second is not.
        assert_eq!(requests.begin(bits(8), REMEMBERED_MS), RequestState::New);
        assert_eq!(requests.begin(bits(7), REMEMBERED_MS), RequestState::Answered("yes"));
        assert_eq!(requests.begin(bits(7), REMEMBERED_MS + 1_000), RequestState::New);
    }

    #[test]
    fn after_a_pause_old_ids_mean_nothing_and_go_a_few_at_a_time() {
        let mut requests = Requests::new(100);
        for id in 0..100 {
            requests.begin(bits(id), 0);
            requests.end(bits(id), Some(id));
        }
        assert_eq!(requests.begin(bits(99), REMEMBERED_MS), RequestState::New);
        assert_eq!(requests.len(), 100 - FORGET_MAX);
        for id in 1_000..1_050 {
            assert_eq!(requests.begin(bits(id), REMEMBERED_MS), RequestState::New);
        }
        assert_eq!((requests.len(), requests.order.len()), (51, 51), "only the new ones are left");
        assert!(requests.is_under_way(bits(99)));
    }

    #[test]
    fn those_that_fail_take_no_more_memory_than_others() {
        let mut requests = Requests::<()>::new(3);
        for id in 0..100 {
            requests.begin(bits(id), 0);
            requests.end(bits(id), None);
        }
        assert_eq!((requests.len(), requests.order.len()), (0, 3));
    }

    #[test]
    fn only_the_last_ones_are_remembered() {
        let mut requests = Requests::new(3);
        for id in 0..5 {
            requests.begin(bits(id), 0);
            requests.end(bits(id), Some(id));
        }
        assert_eq!(requests.len(), 3);
        assert_eq!(requests.begin(bits(2), 0), RequestState::Answered(2));
        assert_eq!(requests.begin(bits(1), 0), RequestState::New);
    }
}
