//! Counts by a label that clients can make up: a bounded table.
//!
//! When it is full, a label that was not counted lately makes room. Its counts are added to a common count of all such labels, so
//! that the sum over all never falls. Refuses to know what is counted.

use std::hash::Hash;
use std::ops::AddAssign;

use ahash::AHashMap;

/// Which row makes room is decided as by a clock's hand: it passes rows that were counted into since it last came by, and
/// takes the first that was not. So a label in use stays, however many new ones come along.
#[derive(Debug)]
pub(super) struct Bounded<K, C> {
    rows_max: usize,
    index: AHashMap<K, usize>,
    rows: Vec<Row<K, C>>,
    hand: usize,
    other: C,
}

#[derive(Debug)]
struct Row<K, C> {
    label: K,
    counts: C,
    /// Counted into since the hand last came by.
    warm: bool,
}

impl<K: Hash + Eq + Clone, C: Default + AddAssign> Bounded<K, C> {
    pub(super) fn new(rows_max: usize) -> Self {
        Self { rows_max, index: AHashMap::new(), rows: Vec::new(), hand: 0, other: C::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The counts of a label; `owned` makes it if it is new.
    pub(super) fn of<Q: ?Sized + Hash + Eq>(&mut self, label: &Q, owned: impl FnOnce() -> K) -> &mut C
    where
        K: std::borrow::Borrow<Q>,
    {
        if let Some(&place) = self.index.get(label) {
            let row = &mut self.rows[place];
            row.warm = true;
            return &mut row.counts;
        }
        let label = owned();
        let new = Row { label: label.clone(), counts: C::default(), warm: false };
        let place = if self.rows.len() < self.rows_max {
            self.rows.push(new);
            self.rows.len() - 1
        } else {
            let place = self.coldest();
            let Row { label, counts, .. } = std::mem::replace(&mut self.rows[place], new);
            self.index.remove(label.borrow());
            self.other += counts;
            place
        };
        self.index.insert(label, place);
        &mut self.rows[place].counts
    }

    /// The row that makes room. The hand goes round at most once, because it leaves all rows behind it cold.
    fn coldest(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.rows.len();
            if !std::mem::take(&mut self.rows[place].warm) {
                return place;
            }
        }
    }

    /// Every label, and at last all that had to make room, which have none.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Option<&K>, &C)> {
        let rows = self.rows.iter().map(|row| (Some(&row.label), &row.counts));
        rows.chain([(None, &self.other)])
    }
}
