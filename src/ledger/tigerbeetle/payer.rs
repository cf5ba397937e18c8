//! The payer: what a limit owes is paid from what it has free. Any number of instances pay at once, and each part is paid once.
//!
//! A payment is one chain: an amount is posted to the debt account, and as much is reserved of the limit for a window. The
//! first of the two is named by what has been paid so far, so of all who see the same only one pays; the others find
//! that it exists and look again. The debt itself is in the ledger: whoever meets it goes on where another has stopped.
//!
//! A limit is looked at when something of it should have come back, and once a second.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ahash::{AHashMap, AHashSet};
use smallvec::SmallVec;
use tb::error::CreateTransferErrorKind as Kind;
use tigerbeetle_unofficial as tb;

use super::debtors::Due;
use super::releases;
use super::session::SessionError;
use super::shared::{Shared, Side, Task};
use super::wire::{self, ChainResult};
use crate::clock;
use crate::ledger::{Account, LedgerError, Release, Schedule};
use crate::limit::{LeaseId, LimitId};

/// Accounts looked at in one round at most; a limit and its debt are two.
const ROUND_MAX: usize = 100;

/// Looks at one account in one round, while others take from it or pay for it.
const ATTEMPTS_MAX: u32 = 4;

/// How late an expiry usually is, and how late it may be: that is TigerBeetle's pulse while nobody asks it for anything.
const EXPIRY_LAG_MS: u64 = 30;
const EXPIRY_LAG_MS_MAX: u64 = 100;

/// The time between two looks at something that should have come back already.
const IMPATIENT_MS: u64 = 50;

/// How long we take to find out when something comes back.
const FORESEE_TIMEOUT: Duration = Duration::from_secs(1);

/// The pause between two tries while the cluster is away.
const AWAY: Duration = Duration::from_millis(250);

/// A limit and its debt, as they were read.
struct OwingLimit {
    account: Arc<Account>,
    window_seconds: NonZeroU32,
    capacity: u64,
    used: u64,
    owed: u64,
    /// All that was ever paid to its debt account.
    paid: u128,
}

pub(super) async fn run(shared: Arc<Shared>) {
    loop {
        let now_ms = clock::monotonic_ms();
        let due = shared.debtors.take_due(ROUND_MAX, now_ms);
        if due.is_empty() {
            let pause = shared.debtors.next_due_ms().map(|at_ms| at_ms.saturating_sub(now_ms).max(1));
            let pause = Duration::from_millis(pause.unwrap_or(u64::from(u32::MAX)));
            tokio::select! {
                () = shared.debtors.hurry.notified() => {}
                () = tokio::time::sleep(pause) => {}
            }
            continue;
        }
        shared.panic_point(Task::Payer);
        if let Err(error) = round(&shared, due).await {
            tracing::debug!(%error, "debts could not be paid yet");
            tokio::time::sleep(AWAY).await;
        }
    }
}

/// Pays what those that are due can pay.
async fn round(shared: &Shared, due: Vec<Due>) -> Result<(), SessionError> {
    let mut without_forecast: AHashSet<LimitId> =
        due.iter().filter(|due| due.needs_forecast).map(|due| due.account.id).collect();
    let mut accounts: Vec<Arc<Account>> = due.into_iter().map(|due| due.account).collect();
    let mut owing = Vec::new();
    for _ in 0..ATTEMPTS_MAX {
        let (mut paying, mut transfers) = (Vec::new(), Vec::new());
        for seen in look(shared, std::mem::take(&mut accounts)).await? {
            let amount = seen.payment();
            if amount == 0 {
                owing.push(seen);
                continue;
            }
            let fresh = LeaseId::fresh(clock::unix_ms(), fastrand::u128(..));
            let names = (shared.options.transfer_ids, &fresh);
            transfers.extend(wire::payment(names, &seen.account, seen.paid, amount, seen.window_seconds));
            paying.push((seen, amount));
        }
        if transfers.is_empty() {
            break;
        }
        let transfers: Arc<[tb::Transfer]> = transfers.into();
        let session = &shared.writer.session;
        let failures =
            shared.ask_again(Side::Writer, || session.create_transfers(Arc::clone(&transfers))).await?;
        for (index, (mut seen, amount)) in paying.into_iter().enumerate() {
            without_forecast.insert(seen.account.id);
            match paid(&failures, index) {
                ChainResult::Done => {
                    let now_ms = clock::monotonic_ms();
                    let left = seen.account.known.owing().pay(amount, now_ms);
                    (seen.used, seen.owed) = (seen.used + amount, left.max(seen.owed - amount));
                    if seen.owed > 0 {
                        owing.push(seen);
                    } else {
                        shared.debtors.remove(&seen.account, now_ms);
                    }
                }
                ChainResult::AccountMissing { .. } => {
                    // The data file was replaced: nothing is owed in the new one.
                    seen.account.known.forget();
                    shared.debtors.remove(&seen.account, clock::monotonic_ms());
                }
                // Somebody else has paid, or has taken what was free.
                _ => accounts.push(seen.account),
            }
        }
    }
    for seen in owing.iter().filter(|seen| without_forecast.contains(&seen.account.id)) {
        // Payments don't wait long for forecasts.
        if let Ok(foreseen) = tokio::time::timeout(FORESEE_TIMEOUT, foresee(shared, seen)).await {
            foreseen?;
        }
    }
    Ok(())
}

/// What became of payment number `index`.
fn paid(failures: &[(usize, Kind)], index: usize) -> ChainResult {
    let own = failures.iter().filter(|(at, _)| at / 2 == index).map(|(at, kind)| (at % 2, *kind));
    wire::chain_result(&own.collect::<SmallVec<[_; 2]>>())
}

impl OwingLimit {
    /// How much can be paid now. What a limit needs to be lowered is not taken.
    fn payment(&self) -> u64 {
        let is_decreasing = self.account.known.decrease.since_ms().is_some();
        if is_decreasing { 0 } else { self.owed.min(self.capacity.saturating_sub(self.used)) }
    }
}

/// Reads limits and their debts; those that owe something.
async fn look(shared: &Shared, accounts: Vec<Arc<Account>>) -> Result<Vec<OwingLimit>, SessionError> {
    let asked_at_ms = clock::monotonic_ms();
    let ids = accounts.iter().flat_map(|account| [account.id.bits(), account.debt_id()]).collect();
    let found = look_up(shared, ids).await?;
    let mut owing = Vec::new();
    for account in accounts {
        let owed = found.get(&account.debt_id()).map_or(0, wire::owed);
        account.known.owing().read(owed, asked_at_ms);
        let window_seconds = account.known.owing().window_seconds();
        let (Some(window_seconds), Some(limit), Some(debt)) = (
            window_seconds.filter(|_| owed > 0),
            found.get(&account.id.bits()),
            found.get(&account.debt_id()),
        ) else {
            shared.debtors.remove(&account, asked_at_ms);
            continue;
        };
        let (capacity, used) = wire::capacity_and_used(limit);
        let paid = debt.credits_posted();
        owing.push(OwingLimit { account, window_seconds, capacity, used, owed, paid });
    }
    Ok(owing)
}

/// Finds out when something comes back, and so when it is worth another look and what callers are told.
async fn foresee(shared: &Shared, seen: &OwingLimit) -> Result<(), SessionError> {
    let schedule = releases::read(shared, &seen.account, seen.window_seconds).await?;
    let now_ms = clock::monotonic_ms();
    let expected_ms = schedule.releases.first().map(|release| release.at_ms + EXPIRY_LAG_MS);
    let expected_ms = expected_ms.map(|at_ms| at_ms.max(now_ms + IMPATIENT_MS));
    // What callers are told is rather a little late than too early, and every window that a debt takes adds to it.
    let window_ms = u64::from(seen.window_seconds.get()) * 1000 + EXPIRY_LAG_MS_MAX;
    let late = |it: Release| Release { at_ms: it.at_ms + EXPIRY_LAG_MS_MAX, ..it };
    let releases = schedule.releases.into_iter().map(late).collect();
    let forecast = Schedule { releases, ..schedule }.after_debt(seen.owed, seen.capacity, window_ms, now_ms);
    shared.debtors.foresee(&seen.account, expected_ms, forecast);
    Ok(())
}

async fn look_up(shared: &Shared, ids: Vec<u128>) -> Result<AHashMap<u128, tb::Account>, SessionError> {
    let mut found = AHashMap::with_capacity(ids.len());
    for part in ids.chunks(shared.events_max.load(Ordering::Relaxed)) {
        let session = &shared.writer.session;
        let accounts = shared.ask_again(Side::Writer, || session.lookup_accounts(part.to_vec())).await?;
        found.extend(accounts.into_iter().map(|account| (account.id(), account)));
    }
    Ok(found)
}

/// Posts all that a limit owes to its debt account, and reserves nothing for it. It has the name of the next payment, so
/// that nothing is paid twice.
pub(super) async fn forgive(shared: &Shared, account: &Arc<Account>) -> Result<(), LedgerError> {
    let lost = |error: SessionError| LedgerError::Unavailable(error.to_string());
    loop {
        let found = look_up(shared, vec![account.debt_id()]).await.map_err(lost)?;
        let debt = found.get(&account.debt_id());
        let Some(debt) = debt.filter(|debt| wire::owed(debt) > 0) else {
            if account.known.is_repaying() {
                account.known.owing().set(0, clock::monotonic_ms());
            }
            shared.debtors.remove(account, clock::monotonic_ms());
            return Ok(());
        };
        let transfer: Arc<[tb::Transfer]> = [wire::forgiveness(account, debt)].into();
        let session = &shared.writer.session;
        let post = || session.create_transfers(Arc::clone(&transfer));
        // If it failed somebody has paid meanwhile: the next look tells what is left.
        shared.ask_again(Side::Writer, post).await.map_err(lost)?;
    }
}
