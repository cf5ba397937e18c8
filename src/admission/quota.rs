//! Quota descriptors: a request with some is denied for them only when all of them are over.
//!
//! One that is over is left out of the reserve, together with the limits that nothing else of the request needs.

use super::findings::Findings;
use crate::limit::RequirementSet;
use crate::registry::{Enforcement, Plan, Wanted};

impl Findings {
    /// Leaves out the quota descriptors that `failed` puts over. False if that doesn't help: a limit that is nobody's
    /// quota failed, or no quota descriptor is left.
    pub(super) fn leave_out(&mut self, plan: &Plan, failed: RequirementSet) -> bool {
        let quotas = quotas(plan);
        if !(failed - quotas).is_empty() {
            return false;
        }
        let mut is_one_left = false;
        let mut still_needed = RequirementSet::EMPTY;
        for wanted in &plan.descriptors {
            if let Wanted::Limited { requirements, enforcement } = *wanted {
                let is_over = requirements.intersects(failed | self.left_out);
                if enforcement == Enforcement::Quota && !is_over {
                    is_one_left = true;
                }
                if enforcement != Enforcement::Quota || !is_over {
                    still_needed |= requirements;
                }
            }
        }
        if is_one_left {
            self.failed |= failed;
            self.left_out |= failed | (quotas - still_needed);
        }
        is_one_left
    }
}

fn quotas(plan: &Plan) -> RequirementSet {
    let quotas = plan.requirements.iter().enumerate().filter(|(_, r)| r.enforcement == Enforcement::Quota);
    quotas.map(|(index, _)| index).collect()
}
