//! Names that are sent again, and what was reserved under a name that nobody was told of.

use smallvec::SmallVec;

use super::Core;
use crate::ledger::memory::record::{Fate, Purpose, Record};
use crate::ledger::{Action, Chain, Keep, RefusalCode, Transfer};
use crate::limit::LeaseId;

impl Core {
    /// Gives back what nobody was told of. A name that was sent again meanwhile is left alone: somebody else has it.
    pub fn give_back(&mut self, chain: &Chain, now_ms: u64) {
        for at in self.reserves_of(chain) {
            let record = self.store.record(at);
            if record.fate == Fate::Counted && !record.is_shared {
                // The name is forgotten as well, so that whoever sends it again is charged.
                self.store.remove(at);
            }
        }
        for transfer in &chain.transfers {
            self.pay(transfer.account.id, now_ms);
        }
    }

    /// A second sending was told that it has what the first one reserved.
    pub(super) fn share(&mut self, chain: &Chain) {
        for at in self.reserves_of(chain) {
            self.store.record_mut(at).is_shared = true;
        }
    }

    /// The records of what a chain reserved under its name.
    fn reserves_of(&self, chain: &Chain) -> SmallVec<[u32; 4]> {
        let place = |transfer: &Transfer| {
            let purpose = match transfer.action {
                Action::Reserve(_) => Purpose::Reserve,
                Action::TakeUpTo(_) => Purpose::Take,
                _ => return None,
            };
            self.place(chain, self.store.account(transfer.account.id), purpose)
        };
        chain.transfers.iter().filter_map(place).collect()
    }

    /// Whether anything of a lease was reserved here, and is remembered.
    pub fn has_reserved(&self, lease: &LeaseId) -> bool {
        self.store.fates(lease.bits()).any(|fate| fate != Fate::Refused)
    }

    /// A reserve that is sent again and that somebody may complete is free only if all of it is still held as it was;
    /// the first transfer that is not.
    pub(super) fn is_still_held(&self, chain: &Chain) -> Result<(), (usize, RefusalCode)> {
        if chain.keep != Keep::ForRetries {
            return Ok(());
        }
        for (index, transfer) in chain.transfers.iter().enumerate() {
            let Action::Reserve(hold) = transfer.action else { continue };
            let slot = self.store.account(transfer.account.id);
            let code = match self.find(chain, slot, Purpose::Reserve) {
                Some(record) if record.amount != hold.amount => RefusalCode::ExistsWithDifferentFields,
                Some(Record { fate: Fate::Counted, .. }) => continue,
                Some(Record { fate: Fate::Voided, .. }) => RefusalCode::PendingTransferAlreadyVoided,
                Some(Record { fate: Fate::Expired, .. }) => RefusalCode::PendingTransferExpired,
                Some(Record { fate: Fate::Refused, .. }) | None => RefusalCode::ExistsWithDifferentFields,
            };
            return Err((index, code));
        }
        Ok(())
    }
}
