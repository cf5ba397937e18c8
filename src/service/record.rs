//! What is asked, for those who record it: a decided request becomes a line, and so does the end of its lease.
//!
//! Only ShouldRateLimit is recorded, over gRPC and `/json`: reserves of the lease API have no descriptors.

use std::borrow::Cow;
use std::iter;

use sha2::{Digest, Sha256};

use super::Service;
use crate::admission::{Decision, Request};
use crate::clock;
use crate::record::{
    Descriptor, Message, Override, RecordEntry, RecordLine, Recording, TooManyRecorders, Wanted, time_text,
};
use crate::registry::Ask;
use crate::snapshot::Snapshot;

impl Service {
    /// What is asked from now on.
    pub(crate) fn start_recording(&self, wanted: Wanted) -> Result<Recording, TooManyRecorders> {
        self.recorders.listen(wanted)
    }

    /// Out of line: nearly always nobody records.
    #[cold]
    pub(super) fn record_asked(&self, snapshot: &Snapshot, request: &Request<'_, '_>, decision: &Decision) {
        let Some(first) = request.asks.first() else { return };
        let at_ns = decision.decided_at_ns.unwrap_or_else(clock::monotonic_ns);
        let time = time_text(clock::unix_ns_of(at_ns));
        let status = if decision.denial.is_some() { 429 } else { 200 };
        let lease = decision.lease.as_ref().map(|lease| lease.id.to_string());
        self.recorders.tell_asked(tenant_number(first), |wanted| {
            let (time, domain) = (time.clone(), request.domain.into());
            let descriptors = self.descriptors(snapshot, request, wanted.hash_values);
            let line = RecordLine { time, domain, descriptors, status, duration_ms: None };
            Message::Asked { line, lease: lease.as_deref().map(Cow::from) }
        });
    }

    /// The descriptors as they came, except for the entry that marks a retry: it is at the end of the first descriptor.
    fn descriptors<'d, 'w: 'd>(
        &self,
        snapshot: &'d Snapshot,
        request: &Request<'d, 'w>,
        hash_values: bool,
    ) -> Vec<Descriptor<'d>> {
        let mark = &snapshot.retry.budget.descriptor_key;
        let mut marks = request.is_retry.then(|| RecordEntry { key: (&**mark).into(), value: "1".into() });
        let descriptor = |ask: &Ask<'w>| {
            let values = match hash_values {
                true => snapshot.registry.masked(request.domain, ask, |value| self.leases.pseudonym(value)),
                false => ask.entries.iter().map(|entry| entry.value.into()).collect(),
            };
            let entries = iter::zip(&ask.entries, values);
            let entries = entries.map(|(entry, value)| RecordEntry { key: entry.key.into(), value });
            let limit = ask.limit.map(|limit| Override {
                requests_per_unit: limit.requests_per_unit,
                unit: limit.unit.name().to_uppercase().into(),
            });
            let hits_addend = (ask.hits != 1).then(|| ask.hits.to_string());
            Descriptor { entries: entries.chain(marks.take()).collect(), limit, hits_addend }
        };
        request.asks.iter().map(descriptor).collect()
    }
}

/// A number that belongs to a tenant: to the entries of its first descriptor. The same everywhere and always, so that two
/// instances record the same tenants.
fn tenant_number(ask: &Ask<'_>) -> u64 {
    let mut digest = Sha256::new();
    for text in ask.entries.iter().flat_map(|entry| [entry.key, entry.value]) {
        digest.update(text.len().to_be_bytes());
        digest.update(text);
    }
    let digest = digest.finalize();
    digest[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
