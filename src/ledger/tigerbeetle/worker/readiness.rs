//! Whether a transfer may go to the ledger, from what this instance knows of its account. Pure.

use crate::ledger::{Account, Action, Hold, RefusalCode};
use crate::limit::Overage;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Readiness {
    Ready,
    /// The account has to be made, funded or looked at first.
    NotYet,
    /// It is refused without asking the ledger.
    Refused(RefusalCode),
}

pub(super) fn readiness(account: &Account, action: Action, now_ms: u64) -> Readiness {
    let known = &account.known;
    let when = |is_ready| if is_ready { Readiness::Ready } else { Readiness::NotYet };
    match action {
        Action::Void | Action::VoidTaken | Action::VoidRereserved => Readiness::Ready,
        Action::Debt(_) => when(known.has_debt_account() && known.funded().is_some()),
        // It takes from what the account has, also while that is being lowered.
        Action::Rereserve(hold) => {
            when(known.funded().is_some_and(|funded| funded >= hold.capacity || known.is_disputed(now_ms)))
        }
        Action::TakeUpTo(hold) => funding(account, hold, now_ms),
        Action::Reserve(hold) => match funding(account, hold, now_ms) {
            Readiness::Ready => debt(account, hold),
            other => other,
        },
    }
}

/// Whether the account has the capacity that it should.
fn funding(account: &Account, hold: Hold, now_ms: u64) -> Readiness {
    let is_decreasing = account.known.decrease.since_ms().is_some();
    let is_ready = match account.known.funded() {
        None => false,
        Some(funded) if funded > hold.capacity && is_decreasing => {
            return Readiness::Refused(RefusalCode::LimitDecreasing);
        }
        Some(funded) if funded > hold.capacity => false,
        // Another instance has lowered it: while that is disputed, the lower capacity holds.
        Some(funded) if funded < hold.capacity => account.known.is_disputed(now_ms),
        // It has the right capacity, but a decrease that was cancelled is still being waited for.
        Some(_) => !is_decreasing,
    };
    if is_ready { Readiness::Ready } else { Readiness::NotYet }
}

/// Whether the limit owes something that it pays first.
fn debt(account: &Account, hold: Hold) -> Readiness {
    if hold.overage != Overage::Repay {
        account.known.repaying().inspect(|owing| owing.meet(None));
        return Readiness::Ready;
    }
    let owing = account.known.owing();
    owing.meet(Some(hold.lifetime_seconds));
    match owing.owed() {
        None => Readiness::NotYet,
        Some(0) => Readiness::Ready,
        Some(_) => Readiness::Refused(RefusalCode::InDebt),
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::limit::LimitKey;

    #[test]
    fn a_limit_that_repays_lets_nobody_in_before_its_debt_is_known_and_paid() {
        let account = Account::new(LimitKey::new("k"));
        let hold = |overage| Hold {
            amount: 1,
            lifetime_seconds: NonZeroU32::MIN,
            capacity: 9,
            overage,
            is_exact: true,
        };
        let reserve = |overage| readiness(&account, Action::Reserve(hold(overage)), 0);
        let owing = account.known.owing();
        assert_eq!(reserve(Overage::Repay), Readiness::NotYet, "nobody has made it");
        account.known.set_funded(9, 0);
        assert_eq!(reserve(Overage::Deny), Readiness::Ready);
        assert_eq!(reserve(Overage::Repay), Readiness::NotYet, "nobody has looked");
        owing.read(0, 1);
        assert_eq!(reserve(Overage::Repay), Readiness::Ready);
        owing.add(5, 2);
        assert_eq!(reserve(Overage::Repay), Readiness::Refused(RefusalCode::InDebt));
        for action in [Action::Rereserve(hold(Overage::Deny)), Action::TakeUpTo(hold(Overage::Deny))] {
            assert_eq!(readiness(&account, action, 0), Readiness::Ready, "what was used was used");
        }
        assert_eq!(reserve(Overage::Debt), Readiness::Ready, "its debts stop nobody any more");
        assert_eq!(reserve(Overage::Repay), Readiness::NotYet);
    }

    #[test]
    fn nothing_is_taken_of_a_limit_that_is_being_lowered() {
        let account = Account::new(LimitKey::new("k"));
        let hold = |capacity| Hold {
            amount: 1,
            lifetime_seconds: NonZeroU32::MIN,
            capacity,
            overage: Overage::Deny,
            is_exact: true,
        };
        account.known.set_funded(9, 0);
        account.known.decrease.begin(5);
        let refused = Readiness::Refused(RefusalCode::LimitDecreasing);
        assert_eq!(readiness(&account, Action::Reserve(hold(5)), 0), refused);
        assert_eq!(readiness(&account, Action::TakeUpTo(hold(5)), 0), refused);
        assert_eq!(readiness(&account, Action::Rereserve(hold(5)), 0), Readiness::Ready);
        account.known.decrease.end();
        assert_eq!(readiness(&account, Action::TakeUpTo(hold(5)), 0), Readiness::NotYet);
    }
}
