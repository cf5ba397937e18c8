//! What is counted of certificates: how often their files were loaded, and when they end.

use std::path::Path;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::label::ResultLabel;

/// As many as the settings name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FileLabel {
    file: String,
}

#[derive(Debug, Default)]
pub(crate) struct TlsMetrics {
    reloads: Family<ResultLabel, Counter>,
    expiry: Family<FileLabel, Gauge>,
}

impl TlsMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register(
            "sluice_tls_reloads",
            "Loads of certificates and keys that changed",
            self.reloads.clone(),
        );
        registry.register(
            "sluice_tls_certificate_expiry_seconds",
            "The Unix time when the certificate in use ends",
            self.expiry.clone(),
        );
        // There before the first mistake, or an alert on its increase would miss that one.
        for ok in [true, false] {
            drop(self.reloads.get_or_create(&ResultLabel::of(ok)));
        }
    }

    pub(crate) fn reloaded(&self, ok: bool) {
        self.reloads.get_or_create(&ResultLabel::of(ok)).inc();
    }

    /// The certificate of this file is in use, and ends then.
    pub(crate) fn expires(&self, file: &Path, unix_seconds: u64) {
        let label = FileLabel { file: file.display().to_string() };
        self.expiry.get_or_create(&label).set(i64::try_from(unix_seconds).unwrap_or(i64::MAX));
    }
}
