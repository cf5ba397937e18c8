//! What became of spans.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::label::ResultLabel;

#[derive(Debug, Clone, Default)]
pub(crate) struct TraceMetrics {
    pub(crate) sent: Counter,
    /// There was no room for them.
    pub(crate) dropped: Counter,
    /// The collector refused them, or was away at the end.
    pub(crate) failed: Counter,
}

impl TraceMetrics {
    pub(super) fn register(&mut self, registry: &mut Registry) {
        let spans = Family::<ResultLabel, Counter>::default();
        registry.register("sluice_trace_spans", "What became of spans that were sampled", spans.clone());
        let of = |result| spans.get_or_create_owned(&ResultLabel { result });
        *self = Self { sent: of("sent"), dropped: of("dropped"), failed: of("failed") };
    }
}
