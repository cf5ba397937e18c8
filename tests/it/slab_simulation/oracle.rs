//! What must hold, seen from outside: it knows when units were admitted and what the ledger holds, and nothing of slabs.

use std::collections::VecDeque;

/// The admissions of one limit during its last window.
#[derive(Debug)]
pub struct Oracle {
    window_us: u64,
    /// By time.
    admitted: VecDeque<(u64, u64)>,
    units: u64,
    /// Over the whole run.
    pub total: u64,
}

impl Oracle {
    pub fn new(window_seconds: u32) -> Self {
        let window_us = u64::from(window_seconds) * 1_000_000;
        Self { window_us, admitted: VecDeque::new(), units: 0, total: 0 }
    }

    /// Units that were admitted at `at_us`, which may be a little ago.
    pub fn admit(&mut self, units: u64, at_us: u64) {
        let place = self.admitted.partition_point(|(other_us, _)| *other_us <= at_us);
        self.admitted.insert(place, (at_us, units));
        self.units += units;
        self.total += units;
    }

    /// Every unit admitted during the last window must be held by the ledger now. The ledger never holds more than the
    /// capacity, so no window sees more than that.
    pub fn check(&mut self, now_us: u64, pending: u64, capacity: u64) -> Result<(), String> {
        while let Some((at_us, units)) = self.admitted.front().copied() {
            if at_us + self.window_us > now_us {
                break;
            }
            self.admitted.pop_front();
            self.units -= units;
        }
        if pending > capacity {
            return Err(format!("the ledger holds {pending} of {capacity}"));
        }
        if self.units > pending {
            let units = self.units;
            return Err(format!("{units} were admitted in this window, of which the ledger holds {pending}"));
        }
        Ok(())
    }
}
