//! Which Sluice this is and which configuration is live, as labels of a constant: so that the instances of a fleet can be compared.
//!
//! Refuses to know what a hash is made of.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;

/// The commit that this was built from, if whoever built it said so.
const REVISION: &str = match option_env!("SLUICE_REVISION") {
    Some(revision) => revision,
    None => "unknown",
};

#[derive(Debug)]
pub(super) struct BuildInfo;

impl EncodeMetric for BuildInfo {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", REVISION)];
        ConstGauge::new(1i64).encode(encoder.encode_family(&labels)?)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }
}

/// The hash of the configuration that is live: one at any time. A clone says the same.
#[derive(Debug, Clone, Default)]
pub(super) struct ConfigInfo(Arc<Mutex<String>>);

impl ConfigInfo {
    pub(super) fn set(&self, hash: &str) {
        hash.clone_into(&mut self.0.lock());
    }
}

impl EncodeMetric for ConfigInfo {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        let hash = self.0.lock();
        ConstGauge::new(1i64).encode(encoder.encode_family(&[("hash", hash.as_str())])?)
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}
