//! When an account gets back what it holds, and so when something fits. Pure: knows neither ledger nor clock.

/// When an account gets back by itself what it holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Schedule {
    pub used: u64,
    /// In the order of time.
    pub releases: Vec<Release>,
    /// Nothing of what is used is missing in `releases`.
    pub is_whole: bool,
}

/// An amount that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Release {
    /// On the monotonic clock.
    pub at_ms: u64,
    pub amount: u64,
}

impl Schedule {
    /// When an amount fits into a capacity if nobody else takes any: now if that is so already, `None` if that
    /// can't be told.
    pub fn fits_at_ms(&self, amount: u64, capacity: u64, now_ms: u64) -> Option<u64> {
        let room = capacity.checked_sub(amount)?;
        let mut lacking = self.used.saturating_sub(room);
        if lacking == 0 {
            return Some(now_ms);
        }
        let enough = |release: &&Release| {
            lacking = lacking.saturating_sub(release.amount);
            lacking == 0
        };
        self.releases.iter().find(enough).map(|release| release.at_ms)
    }
}
