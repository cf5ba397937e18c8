//! What is counted of slabs. Refuses to know what slabs are.

use prometheus_client::metrics::counter::Counter;

/// Requests of limits that may have slabs, by who answered.
#[derive(Debug, Clone, Default)]
pub struct SlabAnswers {
    pub slab: Counter,
    pub ledger: Counter,
    pub full: Counter,
}

/// Units of slabs: taken = handed_out + given_back + what is held.
#[derive(Debug, Clone, Default)]
pub struct SlabUnits {
    pub taken: Counter,
    pub handed_out: Counter,
    pub given_back: Counter,
}
