//! The rules of the memory ledger on a clock that a test moves. Every call waits twice, so that a caller can leave before or
//! after it was applied.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use sluice::ledger::memory::Core;
use sluice::ledger::{Account, Balance, Chain, Ledger, LedgerError, Outcome, Schedule, Verdict, Want};
use sluice::limit::LimitSpec;

#[derive(Debug, Clone, Default)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    pub fn now_ms(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn pass(&self, ms: u64) {
        self.0.fetch_add(ms, Ordering::Relaxed);
    }
}

/// A handle; clones share the ledger.
#[derive(Debug, Clone)]
pub struct VirtualLedger {
    pub clock: Clock,
    core: Arc<Mutex<Core>>,
}

impl VirtualLedger {
    pub fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), core: Arc::default() }
    }

    fn balance(&self, account: &Account, capacity: u64) -> Balance {
        self.core.lock().balance(account, capacity, self.clock.now_ms())
    }
}

/// A caller that leaves while it waits for the answer gets its reservation given back, as the interface says.
struct Leaving<'l> {
    ledger: &'l VirtualLedger,
    chain: Option<&'l Chain>,
}

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain {
            self.ledger.give_back(chain.clone());
        }
    }
}

impl Ledger for VirtualLedger {
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        tokio::task::yield_now().await;
        let outcome = self.core.lock().apply(chain, self.clock.now_ms())?;
        let is_ours = outcome.verdict == Verdict::Done && !outcome.is_repeat;
        let mut leaving = Leaving { ledger: self, chain: is_ours.then_some(chain) };
        tokio::task::yield_now().await;
        leaving.chain = None;
        Ok(outcome)
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.core.lock().apply(chain, self.clock.now_ms())
    }

    fn give_back(&self, chain: Chain) {
        self.core.lock().give_back(&chain, self.clock.now_ms());
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        Some(self.balance(account, spec.capacity).available())
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.peek(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        self.balance(account, spec.capacity).capacity > spec.capacity
    }

    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        self.balances(wants).await.map(|_| ())
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        Ok(wants.iter().map(|want| self.balance(&want.account, want.capacity)).collect())
    }

    async fn schedule(&self, account: &Arc<Account>, _: NonZeroU32) -> Result<Schedule, LedgerError> {
        let schedule = self.core.lock().schedule(account, self.clock.now_ms());
        Ok(schedule.expect("little has expired"))
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        self.balance(account, spec.capacity).available() == 0
    }

    fn owed(&self, account: &Arc<Account>, _: &LimitSpec) -> u64 {
        self.core.lock().owed(account, self.clock.now_ms())
    }

    fn repaid_in_ms(&self, account: &Account, _: &LimitSpec, amount: u64) -> Option<u64> {
        self.core.lock().repaid_in_ms(account, amount, self.clock.now_ms())
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        self.core.lock().forgive(&want.account);
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        Ok(())
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn sweep(&self) -> usize {
        0
    }

    async fn close(&self) {}
}
