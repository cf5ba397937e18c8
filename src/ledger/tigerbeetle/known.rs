//! What this instance knows of an account of TigerBeetle without asking: written by the tasks of this ledger only.
//!
//! Others take from the same accounts, so all of it may be old. Knows no session and no clock.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::ledger::owing::Owing;
use crate::ledger::sample::{Sample, Watched};
use crate::ledger::{Account, Schedule};
use crate::limit::id::digest_id;

/// "Not known" in the numbers below.
const UNKNOWN: u64 = u64::MAX;

/// How long a capacity stays as low as another instance made it: 2 s, then 4, 8 and 16. Long enough for all instances to
/// load the same files, and short enough that one that is gone is soon forgotten.
const RAISE_AFTER_MS: u64 = 2_000;
const RAISE_DOUBLINGS_MAX: u64 = 3;

/// When the capacity was not disputed for so long, the next dispute counts as the first.
const DISPUTE_OVER_MS: u64 = 60_000;

/// How old a schedule may be, in how many steps it is remembered, and how often it is read.
const SCHEDULE_MS: u64 = 2_000;
const SCHEDULE_STEPS: usize = 32;
const SCHEDULE_ASK_MS: u64 = 500;

#[derive(Debug)]
pub struct KnownAccount {
    /// The capacity that the account was last seen to hold.
    funded: AtomicU64,
    funded_at_ms: AtomicU64,
    /// What the background reader last saw.
    sample: Sample,
    /// The debt account is known to exist.
    has_debt_account: AtomicBool,
    /// What hardly any account has, so that the others don't pay for it.
    rare: OnceLock<Box<Rare>>,
}

#[derive(Debug, Default)]
struct Rare {
    /// How often others have lowered the capacity against this instance's configuration, and when they last did.
    disputes: AtomicU64,
    disputed_at_ms: AtomicU64,
    owing: Owing,
    /// When a transfer was last refused for lack of room.
    refused_at_ms: AtomicU64,
    watched: Watched,
    /// When it gets back what it holds, as it was last read, and when that was. A plain mutex: it is only copied.
    schedule: Mutex<Option<(Schedule, u64)>>,
    /// When that was last asked for.
    schedule_asked_at_ms: AtomicU64,
}

impl Default for KnownAccount {
    fn default() -> Self {
        Self {
            funded: AtomicU64::new(UNKNOWN),
            funded_at_ms: AtomicU64::new(0),
            sample: Sample::default(),
            has_debt_account: AtomicBool::new(false),
            rare: OnceLock::new(),
        }
    }
}

impl Account {
    /// The capacity that TigerBeetle was last seen to hold, for tests.
    pub fn funded(&self) -> Option<u64> {
        self.known.funded()
    }

    /// What its debt account is called: SHA-256 of `acct:debt:<key>`.
    pub(super) fn debt_id(&self) -> u128 {
        digest_id(&["acct:debt:", self.key.as_str()])
    }
}

impl KnownAccount {
    pub(super) fn funded(&self) -> Option<u64> {
        known(self.funded.load(Ordering::Acquire))
    }

    /// This instance found it so, or made it so.
    pub(super) fn set_funded(&self, capacity: u64, now_ms: u64) {
        self.funded_at_ms.store(now_ms, Ordering::Relaxed);
        self.funded.store(capacity, Ordering::Release);
    }

    /// The account is gone.
    pub(super) fn forget(&self) {
        self.funded.store(UNKNOWN, Ordering::Release);
        self.set_has_debt_account(false);
        self.repaying().inspect(|owing| owing.forget());
    }

    fn rare(&self) -> &Rare {
        self.rare.get_or_init(Box::default)
    }

    /// What a limit owes that repays it.
    pub(super) fn owing(&self) -> &Owing {
        &self.rare().owing
    }

    /// The same for any limit: `None` if it never repaid anything.
    pub(super) fn repaying(&self) -> Option<&Owing> {
        self.rare.get().map(|rare| &rare.owing)
    }

    /// Whether a limit pays what it owes first, as far as is known.
    pub(super) fn is_repaying(&self) -> bool {
        self.repaying().is_some_and(|owing| owing.window_seconds().is_some())
    }

    /// Compares what is believed with what was read after `asked_at_ms`. What was believed, if that was wrong: then
    /// another instance has changed the account.
    pub(super) fn correct(&self, capacity: u64, asked_at_ms: u64) -> Option<u64> {
        let believed = self.funded().filter(|believed| *believed != capacity)?;
        if self.funded_at_ms.load(Ordering::Relaxed) >= asked_at_ms {
            // It was changed here while it was being read.
            return None;
        }
        let changed = self.funded.compare_exchange(believed, capacity, Ordering::AcqRel, Ordering::Acquire);
        changed.ok()
    }

    /// Another instance has lowered the capacity below what this one wants: it may be raised again only after a while.
    pub(super) fn dispute(&self, now_ms: u64) {
        let Rare { disputes, disputed_at_ms, .. } = self.rare();
        let last_ms = disputed_at_ms.swap(now_ms, Ordering::Relaxed);
        if now_ms.saturating_sub(last_ms) > DISPUTE_OVER_MS {
            disputes.store(0, Ordering::Relaxed);
        }
        disputes.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether the capacity is to stay as low as another instance made it, for now.
    pub(super) fn is_disputed(&self, now_ms: u64) -> bool {
        let Some(rare) = self.rare.get() else { return false };
        let disputes = rare.disputes.load(Ordering::Relaxed);
        let wait_ms = RAISE_AFTER_MS << disputes.saturating_sub(1).min(RAISE_DOUBLINGS_MAX);
        disputes > 0 && now_ms.saturating_sub(rare.disputed_at_ms.load(Ordering::Relaxed)) < wait_ms
    }

    /// What is free of `capacity`, as far as is known.
    pub(super) fn sample(&self, capacity: u64, lifetime_ms: u64, now_ms: u64) -> Option<u64> {
        self.sample.available(capacity, lifetime_ms, now_ms)
    }

    pub(super) fn set_sample(&self, available: u64, now_ms: u64) {
        self.sample.set(available, now_ms);
    }

    /// Whether nothing was left when the background reader looked, a moment ago.
    pub(super) fn is_used_up(&self, now_ms: u64) -> bool {
        self.rare().watched.note(now_ms);
        self.sample.is_zero(now_ms)
    }

    /// Whether somebody will want to know again that nothing is left: then the reader keeps looking.
    pub(super) fn is_watched(&self, now_ms: u64) -> bool {
        self.rare.get().is_some_and(|rare| rare.watched.is_so(now_ms))
    }

    /// What was just taken here is not free any more.
    pub(super) fn spend_sample(&self, amount: u64) {
        self.sample.spend(amount);
    }

    /// False if somebody has asked for a look already.
    pub(super) fn start_sampling(&self) -> bool {
        self.sample.start_sampling()
    }

    pub(super) fn end_sampling(&self) {
        self.sample.end_sampling();
    }

    pub(super) fn set_schedule(&self, schedule: Schedule, now_ms: u64) {
        *self.rare().schedule.lock() = Some((schedule.coarse(SCHEDULE_STEPS), now_ms));
    }

    /// When it gets back what it holds, if that was read a moment ago.
    pub(super) fn schedule(&self, now_ms: u64) -> Option<Schedule> {
        let mut schedule = self.rare.get()?.schedule.lock();
        let is_old = schedule.as_ref().is_some_and(|(_, at_ms)| now_ms > at_ms.saturating_add(SCHEDULE_MS));
        if is_old {
            *schedule = None;
        }
        schedule.as_ref().map(|(schedule, _)| schedule.clone())
    }

    /// Whether it is time to read it again. True for one caller only, who then has to do it.
    pub(super) fn ask_for_schedule(&self, now_ms: u64) -> bool {
        let due = |asked_ms: u64| {
            let is_due = asked_ms == 0 || now_ms >= asked_ms.saturating_add(SCHEDULE_ASK_MS);
            is_due.then_some(now_ms.max(1))
        };
        self.rare().schedule_asked_at_ms.fetch_update(Ordering::Relaxed, Ordering::Relaxed, due).is_ok()
    }

    pub(super) fn set_refused(&self, now_ms: u64) {
        self.rare().refused_at_ms.store(now_ms, Ordering::Relaxed);
    }

    /// Whether it was full less than `ms` ago.
    pub(super) fn refused_within(&self, ms: u64, now_ms: u64) -> bool {
        let refused_at_ms = self.rare.get().map_or(0, |rare| rare.refused_at_ms.load(Ordering::Relaxed));
        now_ms.saturating_sub(refused_at_ms) < ms
    }

    pub(super) fn has_debt_account(&self) -> bool {
        self.has_debt_account.load(Ordering::Acquire)
    }

    pub(super) fn set_has_debt_account(&self, known: bool) {
        self.has_debt_account.store(known, Ordering::Release);
    }
}

fn known(value: u64) -> Option<u64> {
    (value != UNKNOWN).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_unknown_until_they_are_set() {
        let known = KnownAccount::default();
        assert_eq!((known.funded(), known.sample(9, 1000, 5)), (None, None));
        known.spend_sample(1);
        assert_eq!(known.sample(9, 1000, 5), None);
        known.set_funded(0, 5);
        known.set_sample(7, 5);
        assert_eq!((known.funded(), known.sample(9, 1000, 5)), (Some(0), Some(7)));
        known.forget();
        assert_eq!(known.funded(), None);
    }

    #[test]
    fn what_is_believed_is_corrected_by_what_was_read_after_it() {
        let known = KnownAccount::default();
        assert_eq!(known.correct(5, 100), None, "nothing was believed");
        known.set_funded(10, 100);
        assert_eq!(known.correct(10, 200), None);
        assert_eq!(known.correct(5, 100), None, "it may have been read before it was changed here");
        assert_eq!((known.correct(5, 101), known.funded()), (Some(10), Some(5)));
    }

    #[test]
    fn a_capacity_that_others_keep_low_is_raised_less_and_less_often() {
        let known = KnownAccount::default();
        assert!(!known.is_disputed(1_000_000));
        let mut now_ms = 1_000_000;
        for wait_ms in [2_000, 4_000, 8_000, 16_000, 16_000] {
            known.dispute(now_ms);
            assert!(known.is_disputed(now_ms + wait_ms - 1), "{wait_ms}");
            now_ms += wait_ms;
            assert!(!known.is_disputed(now_ms), "{wait_ms}");
        }
        now_ms += DISPUTE_OVER_MS;
        known.dispute(now_ms);
        assert!(!known.is_disputed(now_ms + 2_000));
    }

    #[test]
    fn a_schedule_is_read_again_after_a_while_and_believed_a_little_longer() {
        let known = KnownAccount::default();
        assert_eq!(known.schedule(100), None);
        assert!(known.ask_for_schedule(100) && !known.ask_for_schedule(599) && known.ask_for_schedule(600));
        known.set_schedule(Schedule { used: 7, ..Schedule::default() }, 700);
        assert_eq!(known.schedule(2_700).map(|schedule| schedule.used), Some(7));
        assert_eq!(known.schedule(2_701), None);
    }
}
