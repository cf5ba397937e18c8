//! Says in the log when a limit gets into debt and out of it: a line a second at most, because tenants may be many.
//!
//! Refuses to know how debts are kept or paid.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::limit::LimitKey;

/// Between two lines.
const INTERVAL_MS: u64 = 1000;

#[derive(Debug, Default)]
pub(super) struct DebtLog {
    /// When the next line may be written.
    next_ms: AtomicU64,
    /// Changes that were not worth a line.
    unsaid: AtomicU64,
}

/// A limit that got into debt, or out of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DebtChange {
    Owes { key: LimitKey, amount: u64 },
    Paid { key: LimitKey },
}

impl DebtLog {
    pub(super) fn write(&self, change: &DebtChange, now_ms: u64) {
        let Some(unsaid) = self.due(now_ms) else { return };
        match change {
            DebtChange::Owes { key, amount } => {
                tracing::info!(limit = %key, amount, unsaid, "a limit is in debt");
            }
            DebtChange::Paid { key } => {
                tracing::info!(limit = %key, unsaid, "a limit is out of debt");
            }
        }
    }

    /// If a line may be written now, how many changes had none since the last line.
    fn due(&self, now_ms: u64) -> Option<u64> {
        let next_ms = self.next_ms.load(Ordering::Relaxed);
        let takes = |next_ms| {
            let new_ms = now_ms + INTERVAL_MS;
            self.next_ms.compare_exchange(next_ms, new_ms, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        };
        if now_ms < next_ms || !takes(next_ms) {
            self.unsaid.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.unsaid.swap(0, Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_second_and_it_says_how_many_it_stands_for() {
        let log = DebtLog::default();
        assert_eq!([5, 6, 1004, 1005, 1005, 3000].map(|now_ms| log.due(now_ms)), {
            [Some(0), None, None, Some(2), None, Some(1)]
        });
    }
}
