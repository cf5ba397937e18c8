//! What must hold after every step of the world, and at its end.

use super::World;
use crate::slab_simulation::instance::limit_id;

impl World<'_> {
    pub(super) fn check(&mut self) -> Result<(), String> {
        for (limit, oracle) in self.oracles.iter_mut().enumerate() {
            oracle
                .check(self.now_us, self.ledger.pending[limit], self.ledger.capacity[limit])
                .map_err(|what| format!("limit {limit} at {}: {what}", self.now_us))?;
        }
        Ok(())
    }

    pub(super) fn all_is_back(&mut self) -> Result<(), String> {
        for (limit, pending) in self.ledger.pending.iter().enumerate() {
            if *pending > 0 {
                return Err(format!("limit {limit}: {pending} never came back"));
            }
            let expired = self.ledger.expired[limit];
            let has_slabs = !self.plan.limits[limit].is_exact;
            // Requests of their own always expire; slabs only when somebody was hindered.
            if has_slabs && self.plan.is_calm && expired > self.tally.from_ledger {
                return Err(format!(
                    "limit {limit}: {expired} reservations were left to the ledger's timeout"
                ));
            }
        }
        let is_reachable = self.plan.hubs == 0 || self.hubs.iter().any(|hub| hub.is_up);
        for (index, instance) in self.instances.iter().enumerate().filter(|(_, instance)| instance.is_up) {
            if is_reachable && !instance.core.is_settled() {
                return Err(format!("instance {index} still holds slabs"));
            }
        }
        for (hub, there) in self.hubs.iter().enumerate().filter(|(_, there)| there.is_up) {
            if !there.lender.core.is_settled() || there.lender.core.loans() > 0 {
                return Err(format!("hub {hub} still has slabs to lend"));
            }
        }
        Ok(())
    }

    /// What the core says of its units must be what its callers saw.
    pub(super) fn count(&mut self, index: usize) -> Result<(), String> {
        let instance = &mut self.instances[index];
        for limit in 0..self.plan.limits.len() {
            let Some((counts, held)) = instance.core.counts(limit_id(limit)) else {
                instance.handed_out[limit] = 0;
                continue;
            };
            if counts.taken != counts.handed_out + counts.given_back + held {
                return Err(format!(
                    "instance {index}, limit {limit}: {counts:?} and {held} held don't add up"
                ));
            }
            if counts.handed_out != instance.handed_out[limit] {
                let seen = instance.handed_out[limit];
                return Err(format!("instance {index}, limit {limit}: {counts:?}, but callers got {seen}"));
            }
        }
        Ok(())
    }
}
