//! The limits that are being lowered, as far as this sidecar knows: the ledger behind the hubs lowers them when there is room,
//! and this notices when it has. No I/O.

use std::sync::Arc;

use ahash::AHashMap;
use parking_lot::Mutex;

use crate::ledger::{Balance, CapacityEvent, Want};
use crate::limit::LimitId;

/// As many as are remembered over a restart.
const LOWERING_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub(super) struct Lowering {
    /// A plain mutex: taken where a limit is refused for a decrease, and once a second.
    all: Mutex<AHashMap<LimitId, Lowered>>,
}

#[derive(Debug)]
struct Lowered {
    want: Want,
    /// From what to what, as it was told.
    told: Option<(u64, u64)>,
}

impl Lowering {
    /// A limit has more than it should.
    pub(super) fn begin(&self, want: Want) {
        let mut all = self.all.lock();
        if let Some(lowered) = all.get_mut(&want.account.id) {
            lowered.want = want;
        } else if all.len() < LOWERING_MAX {
            all.insert(want.account.id, Lowered { want, told: None });
        }
    }

    pub(super) fn wants(&self) -> Vec<Want> {
        self.all.lock().values().map(|lowered| lowered.want.clone()).collect()
    }

    /// A limit was seen to have this balance: what is to be told of it.
    pub(super) fn saw(&self, want: &Want, balance: &Balance) -> Option<CapacityEvent> {
        let key = want.account.key.clone();
        want.account.behind_hub().set_capacity(balance.capacity);
        let mut all = self.all.lock();
        let lowered =
            all.get_mut(&want.account.id).filter(|it| Arc::ptr_eq(&it.want.account, &want.account))?;
        let to = lowered.want.capacity;
        if balance.capacity > to {
            let change = (balance.capacity, to);
            let is_new = lowered.told.replace(change) != Some(change);
            return is_new.then_some(CapacityEvent::Decreasing { key, from: change.0, to });
        }
        all.remove(&want.account.id);
        want.account.known.decrease.end();
        Some(CapacityEvent::Settled { key, capacity: balance.capacity })
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::ledger::Account;
    use crate::limit::{LimitKey, Overage};

    #[test]
    fn a_decrease_is_told_when_it_begins_and_when_it_ends() {
        let (lowering, key) = (Lowering::default(), LimitKey::new("a"));
        let account = Arc::new(Account::new(key.clone()));
        let want = |capacity| Want {
            account: Arc::clone(&account),
            capacity,
            overage: Overage::Deny,
            lifetime_seconds: NonZeroU32::MIN,
        };
        let saw = |capacity| lowering.saw(&want(5), &Balance { capacity, used: 0, debt: 0 });
        assert_eq!(saw(8), None, "nobody wants it lower");
        account.known.decrease.begin(1);
        lowering.begin(want(5));
        let decreasing = |to| Some(CapacityEvent::Decreasing { key: key.clone(), from: 8, to });
        assert_eq!((saw(8), saw(8)), (decreasing(5), None));
        lowering.begin(want(3));
        assert_eq!((saw(8), account.known.decrease.since_ms()), (decreasing(3), Some(1)));
        assert_eq!(saw(3), Some(CapacityEvent::Settled { key: key.clone(), capacity: 3 }));
        assert_eq!((lowering.wants().len(), account.known.decrease.since_ms()), (0, None));
    }
}
