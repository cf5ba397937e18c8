//! One ledger with several owners: the layers of this process, and the hub port. Only passes calls on.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::{
    Account, Balance, Chain, Ledger, LedgerError, Lender, LoanEnd, Outcome, Schedule, SlabHeld, SlabTake,
    SlabView, Want,
};
use crate::limit::LimitSpec;

impl<L: Ledger> Ledger for Arc<L> {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        (**self).apply(chain).await
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        (**self).complete(chain).await
    }

    fn give_back(&self, chain: Chain) {
        (**self).give_back(chain);
    }

    async fn take_slab(&self, chain: &Chain, window_seconds: NonZeroU32) -> Result<SlabTake, LedgerError> {
        (**self).take_slab(chain, window_seconds).await
    }

    fn end_loan(&self, lender: Lender, end: LoanEnd) {
        (**self).end_loan(lender, end);
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        (**self).peek(account, spec)
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        (**self).sample(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        (**self).is_decreasing(account, spec)
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        (**self).provision(wants).await
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        (**self).balances(wants).await
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        (**self).schedule(account, lifetime_seconds).await
    }

    fn comes_back(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        (**self).comes_back(account, spec)
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        (**self).is_used_up(account, spec)
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        (**self).owed(account, spec)
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        (**self).repaid_in_ms(account, spec, amount)
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        (**self).forgive(want).await
    }

    fn ready(&self) -> Result<(), String> {
        (**self).ready()
    }

    fn is_shared(&self) -> bool {
        (**self).is_shared()
    }

    fn slab(&self, account: &Account) -> Option<SlabView> {
        (**self).slab(account)
    }

    fn tell_slabs(&self, held: impl FnOnce() -> Vec<SlabHeld>) {
        (**self).tell_slabs(held);
    }

    fn limits_changed(&self, spec_of: &dyn Fn(&Account) -> Option<Arc<LimitSpec>>) {
        (**self).limits_changed(spec_of);
    }

    fn longest_lifetime_seconds(&self) -> Option<NonZeroU32> {
        (**self).longest_lifetime_seconds()
    }

    fn sweep(&self) -> usize {
        (**self).sweep()
    }

    async fn close(&self) {
        (**self).close().await;
    }
}
