//! What an account will get back by itself, and when something fits. Pure: knows neither ledger nor clock.

/// What an account will get back by itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outlook {
    pub used: u64,
    /// In the order of time.
    pub frees: Vec<Free>,
    /// Nothing of what is used is missing in `frees`.
    pub is_whole: bool,
}

/// An amount that comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Free {
    /// On the monotonic clock.
    pub at_ms: u64,
    pub amount: u64,
}

impl Outlook {
    /// When an amount fits into a capacity if nobody else takes any: now if that is so already, `None` if that
    /// can't be told.
    pub fn fits_at_ms(&self, amount: u64, capacity: u64, now_ms: u64) -> Option<u64> {
        let room = capacity.checked_sub(amount)?;
        let mut lacking = self.used.saturating_sub(room);
        if lacking == 0 {
            return Some(now_ms);
        }
        let enough = |free: &&Free| {
            lacking = lacking.saturating_sub(free.amount);
            lacking == 0
        };
        self.frees.iter().find(enough).map(|free| free.at_ms)
    }
}
