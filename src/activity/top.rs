//! The heaviest limits of the last minutes: a sketch for each minute and each way to count. Pure.

use std::cmp::Reverse;
use std::sync::Arc;

use ahash::AHashMap;

use super::sketch::Sketch;
use super::tally::Counts;

const MINUTE_MS: u64 = 60_000;
const MINUTES: usize = 5;

/// What the counts are of: this minute as far as it has come, and the four before it.
pub(crate) const WINDOW_SECONDS: u64 = MINUTES as u64 * MINUTE_MS / 1000;

/// The longest list that can be asked for, and the places of each sketch: 15 sketches of that many keys of 1 KiB are 16 MB.
pub(crate) const LIST_MAX: usize = 1_000;

/// What makes a limit heavy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum By {
    /// Requests that it denied.
    #[default]
    Denied,
    /// Requests that it admitted.
    Admitted,
    /// Units that it admitted.
    Used,
}

impl By {
    pub(crate) const ALL: [By; 3] = [By::Denied, By::Admitted, By::Used];

    pub(crate) fn named(name: &str) -> Option<By> {
        By::ALL.into_iter().find(|by| by.name() == name)
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            By::Denied => "denied",
            By::Admitted => "admitted",
            By::Used => "used",
        }
    }

    fn of(self, counts: &Counts) -> u64 {
        match self {
            By::Denied => counts.denied,
            By::Admitted => counts.admitted,
            By::Used => counts.used,
        }
    }
}

/// A limit that is heavy: the true count is between `count - error` and `count`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heavy {
    pub(crate) key: Arc<str>,
    pub(crate) domain: Arc<str>,
    pub(crate) count: u64,
    pub(crate) error: u64,
}

#[derive(Debug, Default)]
pub(super) struct Top {
    /// The newest last.
    minutes: Vec<Minute>,
}

#[derive(Debug)]
struct Minute {
    /// Counted from the clock's beginning.
    number: u64,
    /// In the order of [`By::ALL`].
    sketches: [Sketch; 3],
}

impl Top {
    pub(super) fn offer(&mut self, now_ms: u64, key: &Arc<str>, domain: &Arc<str>, counts: &Counts) {
        let minute = self.minute(now_ms / MINUTE_MS);
        for (by, sketch) in By::ALL.into_iter().zip(&mut minute.sketches) {
            sketch.offer(key, domain, by.of(counts));
        }
    }

    fn minute(&mut self, number: u64) -> &mut Minute {
        if self.minutes.last().is_none_or(|last| last.number < number) {
            self.forget(number);
            self.minutes.push(Minute { number, sketches: [(); 3].map(|()| Sketch::new(LIST_MAX)) });
        }
        self.minutes.last_mut().expect("there must be a minute: one was just made")
    }

    fn forget(&mut self, now: u64) {
        self.minutes.retain(|minute| minute.number + (MINUTES as u64) > now);
    }

    pub(super) fn heaviest(
        &mut self,
        by: By,
        domain: Option<&str>,
        places: usize,
        now_ms: u64,
    ) -> Vec<Heavy> {
        self.forget(now_ms / MINUTE_MS);
        let sketches: Vec<&Sketch> =
            self.minutes.iter().map(|minute| &minute.sketches[by as usize]).collect();
        // What a key without a place in some minute may have been counted there.
        let unseen_max = sketches.iter().fold(0u64, |sum, sketch| sum.saturating_add(sketch.unseen_max()));
        let mut sums: AHashMap<&str, Heavy> = AHashMap::new();
        for sketch in &sketches {
            for place in sketch.places().iter().filter(|place| domain.is_none_or(|it| *it == *place.domain)) {
                let sum = sums.entry(&place.key).or_insert_with(|| Heavy {
                    key: Arc::clone(&place.key),
                    domain: Arc::clone(&place.domain),
                    count: unseen_max,
                    error: unseen_max,
                });
                sum.count = sum.count.saturating_sub(sketch.unseen_max()).saturating_add(place.count);
                sum.error = sum.error.saturating_sub(sketch.unseen_max()).saturating_add(place.error);
            }
        }
        let mut heavy: Vec<Heavy> = sums.into_values().collect();
        heavy.sort_unstable_by(|a, b| (Reverse(a.count), &a.key).cmp(&(Reverse(b.count), &b.key)));
        heavy.truncate(places);
        heavy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(admitted: u64, denied: u64, used: u64) -> Counts {
        Counts { admitted, denied, used }
    }

    fn listed(top: &mut Top, by: By, domain: Option<&str>, now_ms: u64) -> Vec<(String, u64, u64)> {
        let heavy = top.heaviest(by, domain, 10, now_ms);
        heavy.iter().map(|it| (it.key.to_string(), it.count, it.error)).collect()
    }

    fn row(key: &str, count: u64) -> (String, u64, u64) {
        (key.to_owned(), count, 0)
    }

    #[test]
    fn minutes_are_added_up_and_forgotten() {
        let mut top = Top::default();
        let (a, b, d) = (Arc::from("a"), Arc::from("b"), Arc::from("d"));
        top.offer(0, &a, &d, &counts(1, 2, 30));
        top.offer(61_000, &a, &d, &counts(1, 1, 1));
        top.offer(61_000, &b, &Arc::from("e"), &counts(7, 0, 7));
        assert_eq!(listed(&mut top, By::Denied, None, 61_000), [row("a", 3)]);
        assert_eq!(listed(&mut top, By::Used, None, 61_000), [row("a", 31), row("b", 7)]);
        assert_eq!(listed(&mut top, By::Admitted, Some("e"), 61_000), [row("b", 7)]);
        assert_eq!(listed(&mut top, By::Admitted, Some("no"), 61_000), []);
        // The first minute ends, and its five are over.
        assert_eq!(listed(&mut top, By::Denied, None, 299_999), [row("a", 3)]);
        assert_eq!(listed(&mut top, By::Denied, None, 300_000), [row("a", 1)]);
        assert_eq!(listed(&mut top, By::Used, None, 360_000), []);
    }

    /// Amounts are what callers say: a limit may have room for nearly all numbers.
    #[test]
    fn the_largest_amounts_are_counted_too() {
        let mut top = Top::default();
        let d: Arc<str> = Arc::from("d");
        for minute in 0..2 {
            for n in 0..=LIST_MAX {
                top.offer(minute * 60_000, &Arc::from(format!("k{n}")), &d, &counts(0, 0, u64::MAX));
            }
        }
        assert_eq!(top.heaviest(By::Used, None, 1, 60_000)[0].count, u64::MAX);
    }

    #[test]
    fn a_key_that_lost_its_place_in_one_minute_has_that_as_its_error() {
        let mut top = Top::default();
        let d: Arc<str> = Arc::from("d");
        for n in 0..LIST_MAX {
            top.offer(0, &Arc::from(format!("heavy{n}")), &d, &counts(0, 5, 0));
        }
        top.offer(60_000, &Arc::from("late"), &d, &counts(0, 9, 0));
        let late = top.heaviest(By::Denied, None, 1, 60_000);
        assert_eq!((&*late[0].key, late[0].count, late[0].error), ("late", 14, 5));
    }
}
