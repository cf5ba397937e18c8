//! The embedded ledger: the rules of [`crate::ledger`] in one process.
//!
//! Exact but not durable. Knows nothing of files, hints or the wire. The rules are in [`core`], what they are applied to
//! is in [`store`]; here are the lock and the clock.

mod core;
mod debts;
mod record;
mod store;

use std::num::NonZeroU32;
use std::sync::Arc;

use parking_lot::Mutex;

pub use self::core::Core;
use super::account::Decrease;
use super::debt_log::DebtLog;
use super::{Account, Balance, Chain, Ledger, LedgerError, Outcome, Schedule, Want};
use crate::clock;
use crate::limit::{LeaseId, LimitSpec};

/// Records kept at most: 136 bytes each where every one has an account of its own (tests/it/footprint.rs), so under
/// 2.3 GB in the worst case.
pub const RESERVATIONS_MAX: usize = 1 << 24;

/// How long a name that the caller chose is remembered after its reservation ended. A request id names another lease
/// after this long anyway.
const RETRY_MEMORY_MS: u64 = 1 << 16;

/// Expired records freed by one call at most, unless more are needed to decide.
const EXPIRED_PER_CALL: usize = 256;

/// The embedded ledger as the server shares it. A plain mutex: no section waits for anything. A decision touches a few
/// records; only one that finds much expired looks at many.
#[derive(Debug, Default)]
pub struct Memory {
    core: Mutex<Core>,
    log: DebtLog,
}

impl Memory {
    pub fn apply_at(&self, chain: &Chain, now_ms: u64) -> Result<Outcome, LedgerError> {
        self.on_core(now_ms, |core| core.apply(chain, now_ms))
    }

    /// Does something with the core, and says which limits got into debt or out of it by that.
    fn on_core<T>(&self, now_ms: u64, act: impl FnOnce(&mut Core) -> T) -> T {
        let (answer, changes) = {
            let mut core = self.core.lock();
            (act(&mut core), core.take_debt_changes())
        };
        changes.iter().for_each(|change| self.log.write(change, now_ms));
        answer
    }

    /// Reservations and names held now.
    pub fn records(&self) -> usize {
        self.core.lock().records()
    }

    /// Whether anything of a lease was reserved here, and is remembered.
    pub(super) fn has_reserved(&self, lease: &LeaseId) -> bool {
        self.core.lock().has_reserved(lease)
    }

    fn balance(&self, account: &Account, capacity: u64) -> Balance {
        let now_ms = clock::monotonic_ms();
        self.on_core(now_ms, |core| core.balance(account, capacity, now_ms))
    }
}

impl Ledger for Memory {
    /// The time is read when the lock is held, so that what is decided later has a later time.
    async fn apply(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        let (applied, changes, now_ns) = {
            let mut core = self.core.lock();
            let now_ns = clock::monotonic_ns();
            (core.apply(chain, now_ns / clock::NS_PER_MS), core.take_debt_changes(), now_ns)
        };
        let now_ms = now_ns / clock::NS_PER_MS;
        changes.iter().for_each(|change| self.log.write(change, now_ms));
        let outcome = applied?;
        Decrease::note(chain, outcome.verdict, now_ms);
        Ok(Outcome { decided_at_ns: Some(now_ns), ..outcome })
    }

    async fn complete(&self, chain: &Chain) -> Result<Outcome, LedgerError> {
        self.apply_at(chain, clock::monotonic_ms())
    }

    fn give_back(&self, chain: Chain) {
        let now_ms = clock::monotonic_ms();
        self.on_core(now_ms, |core| core.give_back(&chain, now_ms));
    }

    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        Some(self.balance(account, spec.capacity).available())
    }

    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        self.peek(account, spec)
    }

    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        let is_decreasing = self.balance(account, spec.capacity).capacity > spec.capacity;
        if is_decreasing {
            account.known.decrease.begin(clock::monotonic_ms());
        }
        is_decreasing
    }

    /// An account begins with its first reserve; one that is there is brought to its capacity.
    async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        for want in &wants {
            self.balance(&want.account, want.capacity);
        }
        Ok(())
    }

    async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        Ok(wants.iter().map(|want| self.balance(&want.account, want.capacity)).collect())
    }

    async fn schedule(&self, account: &Arc<Account>, _: NonZeroU32) -> Result<Schedule, LedgerError> {
        loop {
            let now_ms = clock::monotonic_ms();
            let schedule = self.on_core(now_ms, |core| core.schedule(account, now_ms));
            if let Some(mut schedule) = schedule {
                schedule.releases.sort_unstable();
                return Ok(schedule);
            }
            // Each part has the lock for itself only.
            tokio::task::yield_now().await;
        }
    }

    fn comes_back(&self, account: &Arc<Account>, _: &LimitSpec) -> Option<Schedule> {
        let now_ms = clock::monotonic_ms();
        let mut schedule = self.on_core(now_ms, |core| core.schedule(account, now_ms))?;
        // Without the lock.
        schedule.releases.sort_unstable();
        Some(schedule)
    }

    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool {
        self.balance(account, spec.capacity).available() == 0
    }

    fn owed(&self, account: &Arc<Account>, _: &LimitSpec) -> u64 {
        let now_ms = clock::monotonic_ms();
        self.on_core(now_ms, |core| core.owed(account, now_ms))
    }

    fn repaid_in_ms(&self, account: &Account, _: &LimitSpec, amount: u64) -> Option<u64> {
        let now_ms = clock::monotonic_ms();
        self.on_core(now_ms, |core| core.repaid_in_ms(account, amount, now_ms))
    }

    async fn forgive(&self, want: Want) -> Result<(), LedgerError> {
        self.on_core(clock::monotonic_ms(), |core| core.forgive(&want.account));
        Ok(())
    }

    fn ready(&self) -> Result<(), String> {
        if self.core.lock().is_full() {
            return Err(format!("ledger: {}", LedgerError::Full(RESERVATIONS_MAX)));
        }
        Ok(())
    }

    fn is_shared(&self) -> bool {
        false
    }

    /// A part per lock, so that callers get in between.
    fn sweep(&self) -> usize {
        let now_ms = clock::monotonic_ms();
        let part = |core: &mut Core| core.expire(now_ms, EXPIRED_PER_CALL);
        while self.on_core(now_ms, part) == EXPIRED_PER_CALL {}
        self.core.lock().forget_timelines(now_ms);
        self.records()
    }

    /// Whatever was applied has landed.
    async fn close(&self) {}
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use smallvec::smallvec;

    use super::*;
    use crate::ledger::{Action, Hold, Keep, Transfer};
    use crate::limit::{LimitKey, Overage};

    #[tokio::test]
    async fn a_ledger_that_is_full_says_so_until_something_ends() {
        let memory = Memory { core: Mutex::new(Core::new(1)), log: DebtLog::default() };
        let account = Arc::new(Account::new(LimitKey::new("a")));
        let chain = |action| {
            let transfers = smallvec![Transfer { account: Arc::clone(&account), action }];
            Chain { lease: LeaseId::parse("x"), keep: Keep::ForCompletion, transfers }
        };
        let lifetime_seconds = NonZeroU32::new(60).unwrap();
        let hold = Hold { amount: 1, lifetime_seconds, capacity: 9, overage: Overage::Deny, is_exact: true };
        assert_eq!(memory.ready(), Ok(()));
        memory.apply(&chain(Action::Reserve(hold))).await.unwrap();
        assert!(memory.ready().is_err());
        memory.complete(&chain(Action::Void)).await.unwrap();
        assert_eq!(memory.ready(), Ok(()));
    }
}
