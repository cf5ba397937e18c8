//! What the span of a request says of its decision: its limits, the code, and of a denial which limit, why and until when.
//!
//! Where nobody wants traces, each of these is one branch.

use super::{Admission, DecideError, Decision, Denial};
use crate::activity::shown;
use crate::registry::Plan;
use crate::telemetry::Reason;
use crate::trace::{self, Span};

/// Names of attributes. People search for them, so they stay as they are.
const DOMAIN: &str = "sluice.domain";
const LIMITS: &str = "sluice.limits";
const CODE: &str = "sluice.code";
const REASON: &str = "sluice.reason";
const LIMIT: &str = "sluice.limit";
const RETRY_AFTER_MS: &str = "sluice.retry_after_ms";

impl Admission {
    /// The limits that are about to be asked.
    pub(crate) fn trace_limits(&self, plan: &Plan) {
        if self.tracer.is_some() {
            let keys = plan.requirements.iter().map(|requirement| shown(&requirement.account.key));
            trace::note(|span| span.add(LIMITS, keys.map(|key| key.to_string())));
        }
    }

    /// What was decided.
    pub(crate) fn trace(&self, domain: &str, decided: &Result<Decision, DecideError>) {
        if self.tracer.is_some() {
            trace::note(|span| match decided {
                Ok(decision) => say(span, domain, decision.reason, decision.denial.as_ref()),
                Err(DecideError::Invalid(_)) => span.set(DOMAIN, domain),
                Err(DecideError::Ledger(error)) => {
                    span.set(DOMAIN, domain);
                    span.fail(error.to_string());
                }
            });
        }
    }

    /// The same for a reserve that may wait in the queue.
    pub(crate) fn trace_queued(&self, domain: &str, denial: Option<&Denial>) {
        if self.tracer.is_some() {
            trace::note(|span| say(span, domain, Reason::Allowed, denial));
        }
    }
}

fn say(span: &Span, domain: &str, reason: Reason, denial: Option<&Denial>) {
    span.set(DOMAIN, domain);
    match denial {
        // A call may have several decisions. One that is a denial says more than the others.
        None if span.has(CODE) => {}
        None => {
            span.set(CODE, "OK");
            span.set(REASON, reason.name());
        }
        Some(denial) => {
            span.set(CODE, "OVER_LIMIT");
            span.set(REASON, denial.reason.name());
            denial.limit.iter().for_each(|key| span.set(LIMIT, &*shown(key)));
            if let Some(ms) = denial.retry_after_ms {
                span.set(RETRY_AFTER_MS, i64::try_from(ms).unwrap_or(i64::MAX));
            }
        }
    }
}
