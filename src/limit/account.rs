//! The account behind a LimitKey, and the bounded table that remembers accounts by key.
//!
//! A key is hashed with SHA-256 once, when it is first seen. The table forgets the coldest keys; balances live in
//! the ledger and are never touched by that.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quick_cache::Weighter;

use super::id::digest_id;
use super::key::LimitKey;

/// A key weighs one place of the table per this many bytes, so that long keys can't fill memory.
const KEY_BYTES_PER_PLACE: u64 = 128;

/// "Not known" in the two numbers below.
const UNKNOWN: u64 = u64::MAX;

/// How many holds a mean is of, at most; they take the lowest bits beside it.
const HOLDS_COUNTED_MAX: u64 = 32;
const HOLDS_BITS: u32 = 8;

/// The identity of one limit in the ledger.
pub struct Account {
    pub key: LimitKey,
    /// SHA-256 of `acct:limit:<key>`.
    pub id: u128,
    /// The capacity that the remote ledger was last seen to hold.
    funded: AtomicU64,
    /// What was free when the background reader last looked, less what was taken here since.
    sample: AtomicU64,
    sampled_at_ms: AtomicU64,
    /// The background reader is about to look.
    sampling: AtomicBool,
    /// Since when a ledger has been waiting for room to lower the capacity.
    decreasing_since_ms: AtomicU64,
    /// When the remote ledger last refused it for lack of room.
    refused_at_ms: AtomicU64,
    /// How long holders of a concurrency limit were seen to hold it, on average, and in the lowest bits how many were; 0
    /// if nobody was.
    hold: AtomicU64,
    /// The debt account is known to exist.
    has_debt_account: AtomicBool,
}

impl Account {
    pub fn new(key: LimitKey) -> Self {
        let id = digest_id(&["acct:limit:", key.as_str()]);
        Self {
            key,
            id,
            funded: AtomicU64::new(UNKNOWN),
            sample: AtomicU64::new(UNKNOWN),
            sampled_at_ms: AtomicU64::new(0),
            sampling: AtomicBool::new(false),
            decreasing_since_ms: AtomicU64::new(UNKNOWN),
            refused_at_ms: AtomicU64::new(0),
            hold: AtomicU64::new(0),
            has_debt_account: AtomicBool::new(false),
        }
    }

    /// SHA-256 of `acct:debt:<key>`.
    pub fn debt_id(&self) -> u128 {
        digest_id(&["acct:debt:", self.key.as_str()])
    }

    pub fn funded(&self) -> Option<u64> {
        known(self.funded.load(Ordering::Acquire))
    }

    pub fn set_funded(&self, capacity: Option<u64>) {
        self.funded.store(capacity.unwrap_or(UNKNOWN), Ordering::Release);
    }

    /// What is free of `capacity`, as far as is known. What was held when a sample was taken is back once it is as old
    /// as the holds get.
    pub fn sample(&self, capacity: u64, lifetime_ms: u64, now_ms: u64) -> Option<u64> {
        let age_ms = now_ms.saturating_sub(self.sampled_at_ms.load(Ordering::Relaxed));
        let sample = known(self.sample.load(Ordering::Relaxed))?;
        Some(if age_ms >= lifetime_ms { capacity } else { sample.min(capacity) })
    }

    pub fn set_sample(&self, available: u64, now_ms: u64) {
        self.sampled_at_ms.store(now_ms, Ordering::Relaxed);
        self.sample.store(available, Ordering::Relaxed);
    }

    /// What was just taken here is not free any more.
    pub fn spend_sample(&self, amount: u64) {
        let less = |sample| known(sample).map(|sample| sample.saturating_sub(amount));
        // Without a sample there is nothing to spend.
        let _ = self.sample.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// False if somebody has asked for a look already.
    pub fn start_sampling(&self) -> bool {
        !self.sampling.load(Ordering::Relaxed) && !self.sampling.swap(true, Ordering::Relaxed)
    }

    pub fn end_sampling(&self) {
        self.sampling.store(false, Ordering::Relaxed);
    }

    pub fn is_decreasing(&self) -> bool {
        known(self.decreasing_since_ms.load(Ordering::Acquire)).is_some()
    }

    /// Since when it has been decreasing; from now on if that was not known.
    pub fn decreasing_since_ms(&self, now_ms: u64) -> u64 {
        let set =
            self.decreasing_since_ms.compare_exchange(UNKNOWN, now_ms, Ordering::AcqRel, Ordering::Acquire);
        set.map_or_else(|since_ms| since_ms, |_| now_ms)
    }

    pub fn end_decreasing(&self) {
        // Nearly always there is nothing to end, and a read leaves the line shared between cores.
        if self.is_decreasing() {
            self.decreasing_since_ms.store(UNKNOWN, Ordering::Release);
        }
    }

    pub fn set_refused(&self, now_ms: u64) {
        self.refused_at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether it was full less than `ms` ago.
    pub fn refused_within(&self, ms: u64, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.refused_at_ms.load(Ordering::Relaxed)) < ms
    }

    pub fn mean_hold_ms(&self) -> Option<u64> {
        let hold = self.hold.load(Ordering::Relaxed);
        (hold != 0).then_some(hold >> HOLDS_BITS)
    }

    /// Somebody gave it back after so long. The mean of the first holds, then of about the last 32, so that one odd
    /// holder doesn't change a promise.
    pub fn saw_hold(&self, ms: u64) {
        let ms = ms.clamp(1, u64::MAX >> (2 * HOLDS_BITS));
        let more = |old: u64| {
            let (mean, count) = (old >> HOLDS_BITS, old & ((1 << HOLDS_BITS) - 1));
            let count = (count + 1).min(HOLDS_COUNTED_MAX);
            Some((((mean * (count - 1) + ms) / count) << HOLDS_BITS) | count)
        };
        // It always has a new value.
        let _ = self.hold.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    pub fn has_debt_account(&self) -> bool {
        self.has_debt_account.load(Ordering::Acquire)
    }

    pub fn set_has_debt_account(&self, known: bool) {
        self.has_debt_account.store(known, Ordering::Release);
    }
}

fn known(value: u64) -> Option<u64> {
    (value != UNKNOWN).then_some(value)
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", self.key)
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
        let table = quick_cache::sync::Cache::with(
            keys_max,
            keys_max as u64,
            ByKeyLength,
            ahash::RandomState::new(),
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
    fn numbers_are_unknown_until_they_are_set() {
        let account = Account::new(LimitKey::new("a"));
        assert_eq!((account.funded(), account.sample(9, 1000, 5)), (None, None));
        account.spend_sample(1);
        assert_eq!(account.sample(9, 1000, 5), None);
        account.set_funded(Some(0));
        account.set_sample(7, 5);
        assert_eq!((account.funded(), account.sample(9, 1000, 5)), (Some(0), Some(7)));
        account.set_funded(None);
        assert_eq!(account.funded(), None);
    }

    #[test]
    fn a_sample_is_spent_here_and_outlived_by_what_it_saw() {
        let account = Account::new(LimitKey::new("a"));
        account.set_sample(7, 5_000);
        account.spend_sample(3);
        assert_eq!(account.sample(9, 1000, 5_999), Some(4));
        account.spend_sample(30);
        assert_eq!(account.sample(9, 1000, 5_999), Some(0));
        assert_eq!(account.sample(9, 1000, 6_000), Some(9), "all that was held then is back");
        account.set_sample(50, 7_000);
        assert_eq!(account.sample(9, 1000, 7_000), Some(9), "never more than the capacity");
    }
}
