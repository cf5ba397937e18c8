//! One reservation, or one name, as the embedded ledger remembers it.

use super::store::NONE;
use crate::limit::LeaseBits;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Reserve,
    Take,
    Rereserve,
    Debt,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Takes its amount from the account.
    Counted,
    Voided,
    Expired,
    Refused,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Record {
    pub(super) lease: LeaseBits,
    pub amount: u64,
    pub(super) until_ms: u64,
    pub(super) account: u32,
    /// Neighbours among the records that end at the same time.
    pub(super) before: u32,
    pub(super) after: u32,
    pub(super) next_of_lease: u32,
    /// Neighbours among the records of the same account.
    pub(super) before_of_account: u32,
    pub(super) after_of_account: u32,
    pub(super) purpose: Purpose,
    pub fate: Fate,
    pub for_retries: bool,
    /// A second sending of its name was told that it has it.
    pub is_shared: bool,
}

impl Record {
    pub(super) fn counted(
        lease: LeaseBits,
        account: u32,
        purpose: Purpose,
        amount: u64,
        for_retries: bool,
    ) -> Self {
        let fate = Fate::Counted;
        Self { fate, for_retries, ..Self::name_only(lease, account, purpose, fate, amount) }
    }

    /// A record that only remembers what became of a name.
    pub(super) fn name_only(
        lease: LeaseBits,
        account: u32,
        purpose: Purpose,
        fate: Fate,
        amount: u64,
    ) -> Self {
        let (until_ms, before, after, next_of_lease) = (0, NONE, NONE, NONE);
        let (before_of_account, after_of_account) = (NONE, NONE);
        Self {
            lease,
            amount,
            until_ms,
            account,
            before,
            after,
            next_of_lease,
            before_of_account,
            after_of_account,
            purpose,
            fate,
            for_retries: false,
            is_shared: false,
        }
    }

    pub(super) fn is_anonymous(&self) -> bool {
        self.lease == LeaseBits::NONE
    }
}
