//! What is counted of slabs. Refuses to know what slabs are.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::label::{EventLabel, FromLabel};

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

impl SlabAnswers {
    pub(super) fn register(r: &mut Registry, name: &str, help: &str) -> Self {
        let answers = Family::<FromLabel, Counter>::default();
        r.register(name, help, answers.clone());
        let from = |from| answers.get_or_create_owned(&FromLabel { from });
        Self { slab: from("slab"), ledger: from("ledger"), full: from("full") }
    }
}

impl SlabUnits {
    pub(super) fn register(r: &mut Registry, name: &str, help: &str) -> Self {
        let units = Family::<EventLabel, Counter>::default();
        r.register(name, help, units.clone());
        let event = |event| units.get_or_create_owned(&EventLabel { event });
        Self { taken: event("taken"), handed_out: event("handed_out"), given_back: event("given_back") }
    }
}
