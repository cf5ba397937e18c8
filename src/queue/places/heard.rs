//! Who has heard of a place: one that nobody has heard of is forgotten.

use super::super::place::{JobId, PlaceState};
use super::{Ended, Places};

impl Places {
    /// A call waits for its first answer about a place.
    pub(in crate::queue) fn start_call(&mut self, id: JobId) {
        if let Some(place) = self.places.get_mut(&id) {
            place.callers += 1;
        }
    }

    /// That call was answered, or its caller has gone. A place that nobody has heard of is forgotten.
    pub(in crate::queue) fn end_call(&mut self, id: JobId, is_heard: bool, now_ms: u64) -> Ended {
        let Some(place) = self.places.get_mut(&id) else { return Ended::default() };
        place.callers -= 1;
        place.heard += u32::from(is_heard);
        self.forget_unheard(id, now_ms)
    }

    /// An answer that was counted as heard has reached nobody.
    pub(in crate::queue) fn unheard(&mut self, id: JobId, now_ms: u64) -> Ended {
        match self.places.get_mut(&id) {
            Some(place) if place.heard > 0 && !place.is_over() => {
                place.heard -= 1;
                self.forget_unheard(id, now_ms)
            }
            _ => Ended::default(),
        }
    }

    fn forget_unheard(&mut self, id: JobId, now_ms: u64) -> Ended {
        if self.places.get(&id).is_none_or(|place| place.heard > 0 || place.callers > 0) {
            return Ended::default();
        }
        let Ended { unclaimed, .. } = self.end(id, PlaceState::Cancelled, now_ms);
        self.places.remove(&id);
        Ended { is_news: true, unclaimed }
    }
}
