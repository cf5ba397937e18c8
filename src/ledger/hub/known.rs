//! What this sidecar knows of an account without asking a hub. Others take from the same accounts, so all of it may be old.
//! Knows no clock.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ledger::owing::Owing;
use crate::ledger::sample::{Sample, Watched};

/// Nobody has read it yet.
const UNKNOWN: u64 = u64::MAX;

#[derive(Debug)]
pub struct KnownBehindHub {
    pub(super) sample: Sample,
    pub(super) watched: Watched,
    pub(super) owing: Owing,
    /// The capacity that the ledger was last seen to hold.
    capacity: AtomicU64,
    /// The one that this sidecar last wanted it to have.
    wanted: AtomicU64,
    /// While something is owed: the amounts that were asked about, and when each fits. A plain mutex: some are read or
    /// replaced.
    repaid: Mutex<Vec<(u64, u64)>>,
}

impl Default for KnownBehindHub {
    fn default() -> Self {
        Self {
            sample: Sample::default(),
            watched: Watched::default(),
            owing: Owing::default(),
            capacity: AtomicU64::new(UNKNOWN),
            wanted: AtomicU64::new(0),
            repaid: Mutex::default(),
        }
    }
}

impl KnownBehindHub {
    pub(super) fn capacity(&self) -> Option<u64> {
        Some(self.capacity.load(Ordering::Relaxed)).filter(|capacity| *capacity != UNKNOWN)
    }

    pub(super) fn set_capacity(&self, capacity: u64) {
        self.capacity.store(capacity, Ordering::Relaxed);
    }

    pub(super) fn wanted(&self) -> u64 {
        self.wanted.load(Ordering::Relaxed)
    }

    /// This runs for every request, so it mostly only reads.
    pub(super) fn want(&self, capacity: u64) {
        if self.wanted() != capacity {
            self.wanted.store(capacity, Ordering::Relaxed);
        }
    }

    /// So much fits at these times, in the order of the amounts.
    pub(super) fn set_repaid(&self, steps: Vec<(u64, u64)>) {
        *self.repaid.lock() = steps;
    }

    /// When an amount fits, as far as was told: never early.
    pub(super) fn fits_at_ms(&self, amount: u64) -> Option<u64> {
        self.repaid.lock().iter().find(|(most, _)| *most >= amount).map(|(_, at_ms)| *at_ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_amount_fits_when_one_that_is_at_least_as_large_does() {
        let known = KnownBehindHub::default();
        assert_eq!((known.fits_at_ms(1), known.capacity()), (None, None));
        known.set_repaid(vec![(1, 100), (10, 500)]);
        assert_eq!(
            [1, 2, 10, 11].map(|amount| known.fits_at_ms(amount)),
            [Some(100), Some(500), Some(500), None]
        );
    }
}
