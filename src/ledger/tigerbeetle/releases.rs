//! When an account gets back what it holds, read from its transfers on the session that only reads.

use std::num::NonZeroU32;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use ahash::AHashSet;
use tigerbeetle_unofficial as tb;

use super::session::SessionError;
use super::shared::{Shared, Side};
use super::wire;
use crate::clock;
use crate::ledger::{Account, Release, Schedule};

/// An expiry lags behind its time by up to a pulse of 100 ms, and by more under load. Beyond this much it has been.
const EXPIRY_LAG_MS: u64 = 300;

/// What an account's pending transfers give back and when. Those that were voided or have expired are left out.
pub(super) async fn read(
    shared: &Shared,
    account: &Account,
    lifetime_seconds: NonZeroU32,
) -> Result<Schedule, SessionError> {
    let (now_ms, now_unix_ms) = (clock::monotonic_ms(), clock::unix_ms());
    let lifetime_ms = u64::from(lifetime_seconds.get()) * 1000;
    let since_ms = now_unix_ms.saturating_sub(lifetime_ms + EXPIRY_LAG_MS);
    let most = u32::try_from(shared.events_max.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
    let since = UNIX_EPOCH + Duration::from_millis(since_ms);
    let session = &shared.reader.session;
    let read = || session.debits_since(account.id.bits(), since, most);
    let debits = shared.ask_again(Side::Reader, read).await?;
    // After those, so that what expires in between is missing rather than there twice.
    let look = || session.lookup_accounts(vec![account.id.bits()]);
    let found = shared.ask_again(Side::Reader, look).await?;
    let (capacity, used) = found.first().map_or((0, 0), wire::capacity_and_used);
    if !found.is_empty() {
        account.known.set_sample(capacity.saturating_sub(used), clock::monotonic_ms());
    }
    let voided: AHashSet<u128> = debits.iter().map(tb::Transfer::pending_id).filter(|id| *id != 0).collect();
    let mut releases = Vec::new();
    for debit in &debits {
        let is_pending = debit.flags().contains(tb::transfer::Flags::PENDING) && debit.amount() > 0;
        let made_unix_ms = debit.timestamp().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let ends_unix_ms = u64::try_from(made_unix_ms).unwrap_or(0) + u64::from(debit.timeout()) * 1000;
        let has_ended = ends_unix_ms + EXPIRY_LAG_MS < now_unix_ms;
        if is_pending && !has_ended && !voided.contains(&debit.id()) {
            let at_ms = now_ms + ends_unix_ms.saturating_sub(now_unix_ms);
            releases.push(Release { at_ms, amount: u64::try_from(debit.amount()).unwrap_or(u64::MAX) });
        }
    }
    releases.sort_unstable();
    Ok(Schedule { used, releases, is_whole: debits.len() < most as usize })
}
