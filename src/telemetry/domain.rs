//! How requests of one domain were answered.

use prometheus_client::metrics::counter::Counter;

use super::Reason;

/// What is counted as the domain of requests to one that no file has, and of those of the lease API.
pub(crate) const UNKNOWN: &str = "unknown";
pub(crate) const LEASE_API: &str = "lease_api";

/// The counters of one domain, looked up once per reload instead of once per request.
#[derive(Debug)]
pub struct DomainCounters {
    pub(super) allowed: Counter,
    pub(super) allowed_unasked: Counter,
    /// In the order of [`Reason::ALL`], without the first, which is no denial.
    pub(super) denied: [Counter; Reason::COUNT - 1],
    pub(super) unmatched: Counter,
    pub(super) unreported: Counter,
}

impl DomainCounters {
    pub(crate) fn allowed(&self, reason: Reason) {
        if reason == Reason::Allowed {
            self.allowed.inc()
        } else {
            self.allowed_unasked.inc()
        };
    }

    pub(crate) fn denied(&self, reason: Reason) {
        let place = (reason as usize).checked_sub(1).expect("a denial must have a reason");
        self.denied[place].inc();
    }

    /// How often each was counted.
    pub(crate) fn decided(&self) -> Decided {
        let denied = self.denied.each_ref().map(Counter::get);
        Decided { allowed: self.allowed.get() + self.allowed_unasked.get(), denied }
    }

    /// No limit applies to a request.
    pub fn unmatched(&self) {
        self.unmatched.inc();
    }

    /// A lease was completed, and the completion did not say what was used.
    pub fn unreported(&self) {
        self.unreported.inc();
    }
}

/// How requests were answered, since the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Decided {
    pub(crate) allowed: u64,
    denied: [u64; Reason::COUNT - 1],
}

impl Decided {
    /// Denials, by why.
    pub(crate) fn denied(&self) -> impl Iterator<Item = (Reason, u64)> {
        Reason::ALL.into_iter().skip(1).zip(self.denied)
    }
}

impl std::iter::Sum for Decided {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum.allowed += one.allowed;
            sum.denied.iter_mut().zip(one.denied).for_each(|(sum, one)| *sum += one);
            sum
        })
    }
}
