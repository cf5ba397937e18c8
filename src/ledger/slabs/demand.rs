//! How much of a limit was admitted here during the last life: what the next slab is sized by. Pure.

/// A life is counted in this many slices.
const SLICES: usize = 4;

/// Units by the slice in which they were admitted. Of the oldest slice only that part counts which is in the last life.
#[derive(Debug, Clone)]
pub struct Demand {
    slice_ms: u64,
    /// The number of the slice that is being counted.
    newest: u64,
    units: [u64; SLICES + 1],
}

impl Demand {
    pub fn new(life_ms: u64) -> Self {
        Self { slice_ms: (life_ms / SLICES as u64).max(1), newest: 0, units: Default::default() }
    }

    pub fn add(&mut self, units: u64, now_ms: u64) {
        self.advance(now_ms);
        let newest = &mut self.units[place(self.newest)];
        *newest = newest.saturating_add(units);
    }

    /// What was admitted in the life that ends now.
    pub fn during_last_life(&mut self, now_ms: u64) -> u64 {
        self.advance(now_ms);
        let oldest = self.units[place(self.newest + 1)];
        let rest = self.units.iter().fold(0u64, |sum, units| sum.saturating_add(*units)) - oldest;
        let left_ms = self.slice_ms - now_ms % self.slice_ms;
        let part = u128::from(oldest) * u128::from(left_ms) / u128::from(self.slice_ms);
        rest.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
    }

    /// Forgets the slices that are too old. A clock that shows an earlier time than before changes nothing.
    fn advance(&mut self, now_ms: u64) {
        let slice = now_ms / self.slice_ms;
        if slice > self.newest + SLICES as u64 {
            self.units = Default::default();
            self.newest = slice;
        }
        while self.newest < slice {
            self.newest += 1;
            self.units[place(self.newest)] = 0;
        }
    }
}

fn place(slice: u64) -> usize {
    usize::try_from(slice % (SLICES as u64 + 1)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_a_life_is_forgotten() {
        let mut demand = Demand::new(100);
        demand.add(10, 1_000);
        demand.add(5, 1_060);
        assert_eq!(demand.during_last_life(1_090), 15);
        assert_eq!(demand.during_last_life(1_112), 5 + 5, "half of the oldest slice");
        assert_eq!(demand.during_last_life(1_125), 5);
        assert_eq!(demand.during_last_life(1_190), 0);
        demand.add(7, 90_000);
        assert_eq!(demand.during_last_life(90_000), 7);
        demand.add(u64::MAX, 90_000);
        assert_eq!(demand.during_last_life(90_000), u64::MAX, "it saturates");
    }

    #[test]
    fn a_steady_rate_is_what_it_is() {
        let mut demand = Demand::new(1_000);
        for ms in 5_000..9_000 {
            demand.add(3, ms);
            if ms > 6_000 {
                let seen = demand.during_last_life(ms);
                assert!((2_990..=3_010).contains(&seen), "{seen} at {ms}");
            }
        }
    }
}
