//! The ledger that this process was started with: one that holds balances itself, or hubs that reach one.
//!
//! Only passes calls on. A new ledger is one more variant.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::hub::{FleetLine, Hub};
use super::memory::Memory;
use super::tigerbeetle::TigerBeetle;
use super::{
    Account, Balance, Chain, Ledger, LedgerError, Lender, LoanEnd, Outcome, Schedule, SlabHeld, SlabTake,
    Want,
};
use crate::limit::LimitSpec;

#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a process has one")]
pub enum Backend {
    Memory(Memory),
    TigerBeetle(TigerBeetle),
    Hub(Hub),
}

/// The same for each of them.
macro_rules! each {
    ($self:ident, $ledger:ident => $answer:expr) => {
        match $self {
            Backend::Memory($ledger) => $answer,
            Backend::TigerBeetle($ledger) => $answer,
            Backend::Hub($ledger) => $answer,
        }
    };
}

impl Backend {
    /// Where places in line are kept, if that is not here.
    pub(super) fn line(&self) -> Option<FleetLine> {
        match self {
            Backend::Memory(_) | Backend::TigerBeetle(_) => None,
            Backend::Hub(hub) => Some(hub.line()),
        }
    }
}

impl Ledger for Backend {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        match self {
            Backend::Memory(ledger) => ledger.apply(chain).await,
            // On the heap: compared with a round trip that costs nothing, and decisions on the memory ledger need no space for it.
            Backend::TigerBeetle(ledger) => Box::pin(ledger.apply(chain)).await,
            Backend::Hub(ledger) => Box::pin(ledger.apply(chain)).await,
        }
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        each!(self, ledger => ledger.complete(chain).await)
    }

    fn give_back(&self, chain: Chain) {
        each!(self, ledger => ledger.give_back(chain));
    }

    async fn take_slab(&self, chain: &Chain, window_seconds: NonZeroU32) -> Result<SlabTake, LedgerError> {
        each!(self, ledger => ledger.take_slab(chain, window_seconds).await)
    }

    fn end_loan(&self, lender: Lender, end: LoanEnd) {
        each!(self, ledger => ledger.end_loan(lender, end));
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        each!(self, ledger => ledger.peek(account, spec))
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        each!(self, ledger => ledger.sample(account, spec))
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        each!(self, ledger => ledger.is_decreasing(account, spec))
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        each!(self, ledger => ledger.provision(wants).await)
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        each!(self, ledger => ledger.balances(wants).await)
    }

    async fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, LedgerError> {
        each!(self, ledger => ledger.schedule(account, lifetime_seconds).await)
    }

    fn comes_back(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<Schedule> {
        each!(self, ledger => ledger.comes_back(account, spec))
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        each!(self, ledger => ledger.is_used_up(account, spec))
    }

    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64 {
        each!(self, ledger => ledger.owed(account, spec))
    }

    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64> {
        each!(self, ledger => ledger.repaid_in_ms(account, spec, amount))
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        each!(self, ledger => ledger.forgive(want).await)
    }

    fn ready(&self) -> Result<(), String> {
        each!(self, ledger => ledger.ready())
    }

    fn is_shared(&self) -> bool {
        each!(self, ledger => ledger.is_shared())
    }

    fn tell_slabs(&self, held: impl FnOnce() -> Vec<SlabHeld>) {
        each!(self, ledger => ledger.tell_slabs(held));
    }

    fn sweep(&self) -> usize {
        each!(self, ledger => ledger.sweep())
    }

    async fn close(&self) {
        each!(self, ledger => ledger.close().await);
    }
}
