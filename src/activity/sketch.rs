//! The heaviest of many keys in little memory: the space-saving sketch of Metwally, Agrawal and El Abbadi. Pure.
//!
//! The sketch has a fixed number of places. A new key takes the place of the key with the lowest count, and takes over that
//! count as its error: the new key may have been counted up to that often before, while it had no place. So the true count of
//! a key is between `count - error` and `count`, and that of a key without a place is at most the lowest count.

use std::collections::BTreeSet;
use std::sync::Arc;

use ahash::AHashMap;

#[derive(Debug)]
pub(super) struct Sketch {
    places_max: usize,
    places: Vec<Place>,
    by_key: AHashMap<Arc<str>, usize>,
    /// Counts and the places that have them, the lightest first.
    order: BTreeSet<(u64, usize)>,
}

#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) key: Arc<str>,
    pub(super) domain: Arc<str>,
    pub(super) count: u64,
    pub(super) error: u64,
}

impl Sketch {
    pub(super) fn new(places_max: usize) -> Self {
        Self { places_max, places: Vec::new(), by_key: AHashMap::new(), order: BTreeSet::new() }
    }

    pub(super) fn offer(&mut self, key: &Arc<str>, domain: &Arc<str>, count: u64) {
        if count == 0 {
            return;
        }
        let place = match self.by_key.get(key) {
            Some(&place) => place,
            None if self.places.len() < self.places_max => {
                let (key, domain) = (Arc::clone(key), Arc::clone(domain));
                self.by_key.insert(Arc::clone(&key), self.places.len());
                self.places.push(Place { key, domain, count: 0, error: 0 });
                self.places.len() - 1
            }
            None => {
                let Some(&(lightest, place)) = self.order.first() else { return };
                let new = Place {
                    key: Arc::clone(key),
                    domain: Arc::clone(domain),
                    count: lightest,
                    error: lightest,
                };
                let old = std::mem::replace(&mut self.places[place], new);
                self.by_key.remove(&old.key);
                self.by_key.insert(Arc::clone(key), place);
                place
            }
        };
        let entry = &mut self.places[place];
        self.order.remove(&(entry.count, place));
        entry.count = entry.count.saturating_add(count);
        entry.domain = Arc::clone(domain);
        self.order.insert((entry.count, place));
    }

    pub(super) fn places(&self) -> &[Place] {
        &self.places
    }

    #[cfg(test)]
    fn has(&self, key: &str) -> bool {
        self.by_key.contains_key(key)
    }

    /// What a key without a place may have been counted at most.
    pub(super) fn unseen_max(&self) -> u64 {
        let is_full = self.places.len() >= self.places_max;
        self.order.first().filter(|_| is_full).map_or(0, |&(count, _)| count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offered(places: usize, offers: &[(&str, u64)]) -> Sketch {
        let mut sketch = Sketch::new(places);
        for (key, count) in offers {
            sketch.offer(&Arc::from(*key), &Arc::from("d"), *count);
        }
        sketch
    }

    fn read(sketch: &Sketch) -> Vec<(String, u64, u64)> {
        let mut all: Vec<_> =
            sketch.places().iter().map(|it| (it.key.to_string(), it.count, it.error)).collect();
        all.sort();
        all
    }

    #[test]
    fn the_lightest_gives_its_place_to_a_newcomer() {
        let sketch = offered(2, &[("a", 5), ("b", 2), ("a", 1), ("c", 1)]);
        assert_eq!(read(&sketch), [("a".to_owned(), 6, 0), ("c".to_owned(), 3, 2)]);
        assert_eq!(sketch.unseen_max(), 3);
        assert!(!sketch.has("b"));
        assert_eq!(offered(3, &[("a", 5)]).unseen_max(), 0, "there is a place for everybody");
    }

    #[test]
    fn the_truth_is_between_count_minus_error_and_count() {
        let mut truth: AHashMap<String, u64> = AHashMap::new();
        let mut sketch = Sketch::new(20);
        let mut dice = fastrand::Rng::with_seed(7);
        for _ in 0..20_000 {
            // Few are heavy, many are light.
            let key = format!("k{:.0}", dice.f64().powi(4) * 500.0);
            let count = dice.u64(1..5);
            *truth.entry(key.clone()).or_default() += count;
            sketch.offer(&Arc::from(key), &Arc::from("d"), count);
        }
        assert_eq!(sketch.places().len(), 20);
        for place in sketch.places() {
            let true_count = truth[&*place.key];
            assert!(
                place.count - place.error <= true_count && true_count <= place.count,
                "{place:?} {true_count}"
            );
        }
        for (key, count) in truth.iter().filter(|(key, _)| !sketch.has(key)) {
            assert!(*count <= sketch.unseen_max(), "{key}");
        }
    }
}
