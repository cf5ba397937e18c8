//! A small set of places in a list: bit n stands for place n.
//!
//! Refuses to know what the list is of.

use std::fmt;
use std::ops::{BitOr, BitOrAssign, Sub};

#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct BitSet(u64);

impl BitSet {
    pub const EMPTY: Self = Self(0);

    /// The list has at most so many places.
    pub const SIZE: usize = u64::BITS as usize;

    pub fn one(place: usize) -> Self {
        debug_assert!(place < Self::SIZE);
        Self(1 << place)
    }

    /// The first `count` places.
    pub fn first(count: usize) -> Self {
        (0..count).collect()
    }

    pub fn insert(&mut self, place: usize) {
        *self |= Self::one(place);
    }

    pub fn contains(self, place: usize) -> bool {
        self.0 & (1 << place) != 0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The lowest place.
    pub fn lowest(self) -> Option<usize> {
        (self.0 != 0).then(|| self.0.trailing_zeros() as usize)
    }

    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    pub fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The places from the lowest to the highest.
    pub fn iter(self) -> impl Iterator<Item = usize> {
        let mut left = self;
        std::iter::from_fn(move || {
            let place = left.lowest()?;
            left.0 &= left.0 - 1;
            Some(place)
        })
    }
}

impl FromIterator<usize> for BitSet {
    fn from_iter<I: IntoIterator<Item = usize>>(places: I) -> Self {
        places.into_iter().fold(Self::EMPTY, |set, place| set | Self::one(place))
    }
}

impl BitOr for BitSet {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl BitOrAssign for BitSet {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// What is in the first and not in the second.
impl Sub for BitSet {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl fmt::Debug for BitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_holds_what_was_put_in() {
        let set: BitSet = [0, 5, 63].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 5, 63]);
        assert!(set.contains(63) && !set.contains(62) && set.intersects(BitSet::one(5)));
        assert_eq!((set - BitSet::one(0)).lowest(), Some(5));
        assert_eq!((set - set).lowest(), None);
        assert_eq!(BitSet::first(64).iter().count(), 64);
        assert_eq!(set.intersection(BitSet::first(6)), BitSet::one(0) | BitSet::one(5));
        assert_eq!(format!("{set:?}"), "{0, 5, 63}");
    }
}
