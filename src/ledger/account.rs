//! The account behind a LimitKey, and the bounded table that remembers accounts by key.
//!
//! A key is hashed with SHA-256 once, when it is first seen. The table forgets the coldest keys; balances live in
//! the ledger and are never touched by that. What an account carries belongs to its owners, and each keeps its part
//! private: the ledgers how far they are with lowering it, TigerBeetle what it knows of the remote account, and
//! [`retry`](crate::retry) what hints depend on.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use quick_cache::Weighter;

use super::hub;
use super::tigerbeetle::KnownAccount;
use super::{Action, Chain, Refusal, RefusalCode, Transfer, Verdict};
use crate::activity::{Tallied, Tally};
use crate::limit::{LimitId, LimitKey};
use crate::retry::Hints;

/// A key weighs one place of the table per this many bytes, so that long keys can't fill memory.
const KEY_BYTES_PER_PLACE: u64 = 128;

/// The identity of one limit in the ledger.
pub struct Account {
    pub key: LimitKey,
    pub id: LimitId,
    pub hints: Hints,
    /// What was decided about it lately.
    pub(crate) tally: Tally,
    pub(super) known: OnFirstUse<Remote>,
}

impl Account {
    pub fn new(key: LimitKey) -> Self {
        let id = LimitId::of(&key);
        Self::with_id(key, id)
    }

    fn with_id(key: LimitKey, id: LimitId) -> Self {
        Self { key, id, hints: Hints::default(), tally: Tally::default(), known: OnFirstUse::default() }
    }

    /// The same limit in the ledger that replaces this one's, which knows other things of it.
    pub(super) fn twin(&self) -> Arc<Account> {
        Arc::clone(self.known.twin.get_or_init(|| Arc::new(Self::with_id(self.key.clone(), self.id))))
    }

    /// What is known of the account of a ledger behind hubs.
    pub(super) fn behind_hub(&self) -> &hub::KnownBehindHub {
        &self.known.behind_hub
    }

    /// Since when a ledger has been waiting for room to lower its capacity, if one is.
    pub(crate) fn decreasing_since_ms(&self) -> Option<u64> {
        let known = self.known.0.get()?;
        let of_twin = || known.twin.get()?.known.0.get()?.decrease.since_ms();
        known.decrease.since_ms().or_else(of_twin)
    }
}

/// What remote ledgers know of an account. The memory ledger needs hardly any of it.
#[derive(Debug, Default)]
pub(super) struct Remote {
    tigerbeetle: KnownAccount,
    behind_hub: hub::KnownBehindHub,
    pub(super) decrease: Decrease,
    /// The same limit in the ledger that replaces this one's.
    twin: OnceLock<Arc<Account>>,
}

impl Deref for Remote {
    type Target = KnownAccount;

    fn deref(&self) -> &KnownAccount {
        &self.tigerbeetle
    }
}

impl Tallied for Account {
    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn key(&self) -> &LimitKey {
        &self.key
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({}, {:?})", self.key, self.known)
    }
}

/// What only one of the ledgers needs: an account costs nothing for it before that ledger has something to note.
#[derive(Debug, Default)]
pub(super) struct OnFirstUse<T>(OnceLock<Box<T>>);

impl<T: Default> Deref for OnFirstUse<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.get_or_init(Box::default)
    }
}

/// Whether a ledger waits for room to lower the capacity of an account. Ledgers note when it begins and ends; everybody
/// else may ask.
#[derive(Debug)]
pub(super) struct Decrease {
    since_ms: AtomicU64,
}

/// No time.
const NEVER: u64 = u64::MAX;

impl Default for Decrease {
    fn default() -> Self {
        Self { since_ms: AtomicU64::new(NEVER) }
    }
}

impl Decrease {
    /// Notes what the answer to a chain says: if its reserve was done, the limit is not decreasing.
    pub(super) fn note(chain: &Chain, verdict: Verdict, now_ms: u64) {
        match verdict {
            Verdict::Done => {
                let is_reserve = |transfer: &&Transfer| {
                    matches!(transfer.action, Action::Reserve(_) | Action::TakeUpTo(_))
                };
                let reserves = chain.transfers.iter().filter(is_reserve);
                let known = reserves.filter_map(|transfer| transfer.account.known.0.get());
                known.for_each(|known| known.decrease.end());
            }
            Verdict::Refused(Refusal { index, code: RefusalCode::LimitDecreasing, .. }) => {
                chain.transfers[index].account.known.decrease.begin(now_ms);
            }
            Verdict::Refused(_) | Verdict::NotAsked => {}
        }
    }

    /// Something was refused because of it. If it has begun already, nothing changes.
    pub(super) fn begin(&self, now_ms: u64) {
        // If another thread was faster, it has noted the same.
        let _ = self.since_ms.compare_exchange(NEVER, now_ms, Ordering::AcqRel, Ordering::Acquire);
    }

    pub(super) fn end(&self) {
        // Nearly always there is nothing to end, and a read leaves the line shared between cores.
        if self.since_ms().is_some() {
            self.since_ms.store(NEVER, Ordering::Release);
        }
    }

    pub(super) fn since_ms(&self) -> Option<u64> {
        let since_ms = self.since_ms.load(Ordering::Acquire);
        (since_ms != NEVER).then_some(since_ms)
    }
}

/// Accounts by key text; bounded.
pub struct Accounts {
    table: quick_cache::sync::Cache<LimitKey, Arc<Account>, ByKeyLength, ahash::RandomState>,
}

#[derive(Clone)]
struct ByKeyLength;

impl Weighter<LimitKey, Arc<Account>> for ByKeyLength {
    fn weight(&self, key: &LimitKey, _: &Arc<Account>) -> u64 {
        1 + key.as_str().len() as u64 / KEY_BYTES_PER_PLACE
    }
}

impl Accounts {
    pub fn new(keys_max: usize) -> Self {
        Self::with_hash(keys_max, ahash::RandomState::new())
    }

    /// With given keys for the hash, so that a simulation forgets the same accounts each time.
    pub(crate) fn with_hash(keys_max: usize, hash: ahash::RandomState) -> Self {
        let table = quick_cache::sync::Cache::with(
            keys_max,
            keys_max as u64,
            ByKeyLength,
            hash,
            quick_cache::sync::DefaultLifecycle::default(),
        );
        Self { table }
    }

    /// The account of `key`, made if it isn't known.
    pub fn of(&self, key: &str) -> Arc<Account> {
        if let Some(account) = self.table.get(key) {
            return account;
        }
        let key = LimitKey::new(key);
        let account = Arc::new(Account::new(key.clone()));
        // Two threads may meet here: the later one wins, both are right.
        self.table.insert(key, Arc::clone(&account));
        account
    }

    /// The accounts that are remembered now.
    pub(crate) fn all(&self) -> Vec<Arc<Account>> {
        self.table.iter().map(|(_, account)| account).collect()
    }

    /// How many keys are remembered now.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Accounts({} known)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_key_is_one_account() {
        let accounts = Accounts::new(100);
        assert!(Arc::ptr_eq(&accounts.of("a"), &accounts.of("a")));
        assert_ne!(accounts.of("a").id, accounts.of("b").id);
    }

    #[test]
    fn keys_seen_once_never_grow_the_table_past_its_bound() {
        let accounts = Accounts::new(1_000);
        for n in 0..20_000 {
            accounts.of(&format!("d:tenant={n}:minute"));
        }
        assert!(accounts.len() <= 1_000, "{}", accounts.len());
        for n in 0..2_000 {
            accounts.of(&format!("d:tenant={}{n}:minute", "x".repeat(10_000)));
        }
        assert!(accounts.len() <= 1_000, "{}", accounts.len());
    }

    #[test]
    fn a_decrease_begins_once_and_ends() {
        let decrease = Decrease::default();
        assert_eq!(decrease.since_ms(), None);
        decrease.begin(5);
        decrease.begin(9);
        assert_eq!(decrease.since_ms(), Some(5));
        decrease.end();
        assert_eq!(decrease.since_ms(), None);
    }
}
