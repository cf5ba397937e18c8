//! ShouldRateLimit: what it completes first, then the decision on what it asks for, and a lease if that needs one.
//!
//! Takes and returns domain values. Refuses to know the wire.

use std::sync::Arc;

use smallvec::SmallVec;

use super::Service;
use super::unsent::UnsentLease;
use crate::admission::{DecideError, Denial, DescriptorStatus, Request};
use crate::lease::Report;
use crate::registry::{Ask, Metadata, Registry};
use crate::retry::budget::marks_retry;

/// One call: every descriptor is an ask or a completion.
#[derive(Debug)]
pub(crate) struct Check<'a> {
    pub(crate) domain: &'a str,
    pub(crate) asks: SmallVec<[Ask<'a>; 2]>,
    pub(crate) completions: Vec<Completion<'a>>,
    /// What the caller calls this request, so that sending it twice charges once.
    pub(crate) request_id: Option<&'a str>,
}

/// A descriptor that completes a lease.
#[derive(Debug)]
pub(crate) struct Completion<'a> {
    /// Its place among all descriptors of the call.
    pub(crate) index: usize,
    pub(crate) report: Report<'a>,
}

pub(crate) use crate::config::settings::ratelimit::LimitHeaders;

/// What answers tell beside the decision.
#[derive(Debug, Default)]
pub(crate) struct Tells {
    pub(crate) dynamic_metadata: bool,
    pub(crate) limit_headers: Option<LimitHeaders>,
}

/// What is told of one descriptor.
#[derive(Debug, Default)]
pub(crate) struct ToldDescriptor {
    /// Its limit is in quota mode.
    pub(crate) is_quota: bool,
    pub(crate) is_over: bool,
    /// What the files say beside its limit.
    pub(crate) metadata: Option<Arc<Metadata>>,
}

/// The answer.
#[derive(Debug)]
pub(crate) struct Checked {
    /// One per descriptor, in the order of the call. That of a completion is always OK.
    pub(crate) statuses: SmallVec<[DescriptorStatus; 2]>,
    /// `None`: allowed.
    pub(crate) denial: Option<Denial>,
    /// If a completion is needed.
    pub(crate) lease: Option<CheckLease>,
    /// One per descriptor, if it is to be told.
    pub(crate) told: Option<Vec<ToldDescriptor>>,
}

/// The lease of a call.
#[derive(Debug)]
pub(crate) struct CheckLease {
    /// What a completion must name: a token, or the id of a lease that has none.
    pub(crate) handle: String,
    /// Goes with the answer; `None` if nothing is held.
    pub(crate) unsent: Option<UnsentLease>,
}

impl Service {
    /// Entries that mark a retry are taken out of `check`.
    pub(crate) async fn check(self: &Arc<Self>, check: &mut Check<'_>) -> Result<Checked, DecideError> {
        let _call = self.call();
        if !check.completions.is_empty() {
            // First, so that what they give back is there for the rest.
            let reports = check.completions.iter().map(|completion| completion.report);
            Box::pin(self.complete_reports(check.domain, reports)).await;
        }
        let mut checked = if check.asks.is_empty() {
            Checked { statuses: SmallVec::new(), denial: None, lease: None, told: None }
        } else {
            let snapshot = self.live.load_full();
            let is_retry = take_retry_marks(&mut check.asks, &snapshot.retry.budget.descriptor_key);
            let request =
                Request { domain: check.domain, asks: &check.asks, is_retry, request_id: check.request_id };
            let mut decision = self.admission.decide(&snapshot, &request).await?;
            if self.recorders.is_anybody_there() {
                self.record_asked(&snapshot, &request, &decision);
            }
            let late = decision.late.take();
            let lease = decision.lease.zip(decision.undo).map(|(lease, undo)| {
                let issued = self.leases.issue(&lease, "");
                let unsent = if issued.is_some() {
                    Some(UnsentLease::lease(self, lease.id.clone(), undo))
                } else {
                    // The request was sent again after its lease was completed. It is told of that lease, and whatever a
                    // ledger that had forgotten it has reserved again is given back.
                    self.give_back(*undo);
                    None
                };
                let token = issued.map_or_else(|| self.leases.token(&lease), |issued| issued.token);
                // A lease that has no token can still be completed here.
                CheckLease { handle: token.unwrap_or_else(|| lease.id.to_string()), unsent }
            });
            let (statuses, denial) = (decision.statuses, decision.denial);
            if let Some(late) = late {
                // After the lease is tied to its answer: a caller that leaves while this waits gives it back.
                Box::pin(self.charge_late(late)).await;
            }
            let told = self.tells.dynamic_metadata.then(|| told(&snapshot.registry, &request, &statuses));
            Checked { statuses, denial, lease, told }
        };
        if self.tells.dynamic_metadata && checked.told.is_none() {
            checked.told = Some(Vec::new());
        }
        for completion in &check.completions {
            checked.statuses.insert(completion.index, DescriptorStatus::bare());
            if let Some(told) = &mut checked.told {
                told.insert(completion.index, ToldDescriptor::default());
            }
        }
        Ok(checked)
    }
}

/// Looked up once more, so that decisions don't carry what hardly any answer needs.
fn told(
    registry: &Registry,
    request: &Request<'_, '_>,
    statuses: &[DescriptorStatus],
) -> Vec<ToldDescriptor> {
    let tell = |(ask, status): (&Ask<'_>, &DescriptorStatus)| {
        let node = registry.node(request.domain, ask).filter(|node| !node.rules.is_empty());
        ToldDescriptor {
            is_quota: node.is_some_and(|node| node.quota),
            is_over: status.is_over,
            metadata: node.and_then(|node| node.metadata.clone()),
        }
    };
    request.asks.iter().zip(statuses).map(tell).collect()
}

/// Whether an entry says that the caller has tried before. Those entries take no part in matching limits.
pub(crate) fn take_retry_marks(asks: &mut [Ask<'_>], retry_key: &str) -> bool {
    let mut is_retry = false;
    for ask in asks {
        if ask.entries.iter().any(|entry| entry.key == retry_key) {
            ask.entries.retain(|entry| {
                let is_mark = entry.key == retry_key;
                is_retry |= is_mark && marks_retry(entry.value);
                !is_mark
            });
        }
    }
    is_retry
}
