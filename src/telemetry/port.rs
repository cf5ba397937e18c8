//! What is counted on each port. There are as many label sets as ports and reasons.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::label::words;

words! {
    /// Why a connection was closed from our side.
    pub(crate) enum Closed {
        /// All places were taken.
        ForOthers = "for_others",
        /// Its answers were not taken.
        Unread = "unread",
        /// It did not get through the TLS handshake.
        Handshake = "tls_handshake",
    }
}

words! {
    /// Why a request was turned away before it was read.
    pub(crate) enum Refused {
        /// The requests under way held as much as they may.
        Memory = "memory",
        /// Its body did not come in time.
        Slow = "slow",
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortLabel {
    port: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PortReasonLabels {
    port: &'static str,
    reason: &'static str,
}

/// The metrics of all ports.
#[derive(Debug, Default)]
pub(super) struct Ports {
    connections: Family<PortLabel, Gauge>,
    connections_closed: Family<PortReasonLabels, Counter>,
    requests_refused: Family<PortReasonLabels, Counter>,
    panics: Family<PortLabel, Counter>,
}

impl Ports {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("sluice_connections", "Open connections", self.connections.clone());
        registry.register(
            "sluice_connections_closed",
            "Connections closed for others, because their answers were not taken, or in the TLS handshake",
            self.connections_closed.clone(),
        );
        registry.register(
            "sluice_requests_refused",
            "Requests that held too much or came too slowly to be read",
            self.requests_refused.clone(),
        );
        registry.register(
            "sluice_panics",
            "Connections and calls that ended in a panic, which is a mistake in Sluice",
            self.panics.clone(),
        );
    }

    /// There from the start, so that a rate can be taken of each.
    pub(super) fn of(&self, port: &'static str) -> PortMetrics {
        let counter = |family: &Family<PortReasonLabels, Counter>, reason| {
            family.get_or_create_owned(&PortReasonLabels { port, reason })
        };
        PortMetrics {
            connections: self.connections.get_or_create_owned(&PortLabel { port }),
            closed: Closed::ALL.map(|why| counter(&self.connections_closed, why.name())),
            refused: Refused::ALL.map(|why| counter(&self.requests_refused, why.name())),
            panics: self.panics.get_or_create_owned(&PortLabel { port }),
        }
    }
}

/// One port's counters.
#[derive(Debug)]
pub(crate) struct PortMetrics {
    pub(crate) connections: Gauge,
    /// In the order of [`Closed::ALL`].
    closed: [Counter; Closed::COUNT],
    /// In the order of [`Refused::ALL`].
    refused: [Counter; Refused::COUNT],
    pub(crate) panics: Counter,
}

impl PortMetrics {
    pub(crate) fn closed(&self, why: Closed) {
        self.closed[why as usize].inc();
    }

    pub(crate) fn refused(&self, why: Refused) {
        self.refused[why as usize].inc();
    }
}
