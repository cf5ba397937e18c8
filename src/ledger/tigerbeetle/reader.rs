//! Balances and schedules, read in the background on a session of their own: samples for `limit_remaining`, gauges, the
//! admin API.
//!
//! It also compares the capacities that it sees with what this instance believes, because others may change them: by an
//! old file that came up for a moment, or while new files reach one instance after the other. The lower capacity holds until
//! all agree. One that was raised against this instance's configuration is lowered again at once; one that was lowered is
//! left so for a while, and raised again by the next request after that (see [`Known`](super::Known)).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use ahash::AHashSet;
use tigerbeetle_unofficial as tb;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::provision;
use super::session::SessionError;
use super::shared::{Shared, Side, Task};
use super::wire;
use crate::clock;
use crate::ledger::{Account, Balance, LedgerError, Release, Schedule, Want};
use crate::limit::Overage;

/// What somebody wants to know.
#[derive(Debug)]
pub enum Read {
    Balances { wants: Vec<Want>, reply: Reply<Vec<Balance>> },
    Schedule { account: Arc<Account>, lifetime_seconds: NonZeroU32, reply: Reply<Schedule> },
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

/// An expiry lags behind its time by up to a pulse of 100 ms, and by more under load. Beyond this much it has been.
const EXPIRY_LAG_MS: u64 = 300;

/// How old a sample gets.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Rounds without anything to look at after which something is looked at all the same, so that the session is kept: every
/// 15 seconds. Each request costs the cluster some 100 kB of writes, whatever is in it. That the cluster is away is
/// noticed earlier by the worker.
const IDLE_ROUNDS: u32 = 30;

struct Reader {
    shared: Arc<Shared>,
    provisioner: mpsc::Sender<provision::Request>,
}

pub async fn run(
    shared: Arc<Shared>,
    reads: Arc<Mutex<mpsc::Receiver<Read>>>,
    provisioner: mpsc::Sender<provision::Request>,
) {
    let mut reads = reads.lock().await;
    let reader = Reader { shared, provisioner };
    let mut rounds = tokio::time::interval(SAMPLE_INTERVAL);
    let mut idle_rounds = 0;
    loop {
        tokio::select! {
            read = reads.recv() => {
                let Some(read) = read else { return };
                reader.shared.panic_point(Task::Reader);
                reader.answer(read).await;
            }
            _ = rounds.tick() => {
                let touched = Touched(std::mem::take(&mut *reader.shared.touched.lock()));
                idle_rounds = if touched.0.is_empty() { idle_rounds + 1 } else { 0 };
                let is_due = !reader.shared.is_up() || idle_rounds % IDLE_ROUNDS == 0;
                if (is_due || !touched.0.is_empty()) && !reader.shared.must_wait(Side::Reader) {
                    reader.sample(touched).await;
                }
            }
        }
    }
}

/// Accounts that are being looked at. Whatever becomes of that, they may be looked at again.
struct Touched(Vec<Arc<Account>>);

impl Drop for Touched {
    fn drop(&mut self) {
        self.0.iter().for_each(|account| account.known.end_sampling());
    }
}

impl Reader {
    async fn answer(&self, read: Read) {
        if self.shared.must_wait(Side::Reader) {
            // Who asked hears that it got no answer.
            return;
        }
        let lost = |error: SessionError| LedgerError::Unavailable(error.to_string());
        // Whoever does not wait any more needs no answer.
        match read {
            Read::Balances { wants, reply } => {
                drop(reply.send(self.balances(&wants).await.map_err(lost)));
            }
            Read::Schedule { account, lifetime_seconds, reply } => {
                drop(reply.send(self.schedule(&account, lifetime_seconds).await.map_err(lost)));
            }
        }
    }

    /// What an account's pending transfers give back and when. Those that were voided or have expired are left out.
    async fn schedule(
        &self,
        account: &Account,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, SessionError> {
        let (now_ms, now_unix_ms) = (clock::monotonic_ms(), clock::unix_ms());
        let lifetime_ms = u64::from(lifetime_seconds.get()) * 1000;
        let since_ms = now_unix_ms.saturating_sub(lifetime_ms + EXPIRY_LAG_MS);
        let most = u32::try_from(self.shared.events_max.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
        let since = UNIX_EPOCH + Duration::from_millis(since_ms);
        let session = &self.shared.reader.session;
        let read = || session.debits_since(account.id.bits(), since, most);
        let debits = self.shared.ask_again(Side::Reader, read).await?;
        // After those, so that what expires in between is missing rather than there twice.
        let found = self.look_up(vec![account.id.bits()]).await?;
        let balance = found.get(&account.id.bits()).map(|there| balance_of(there, None));
        if let Some(balance) = balance {
            account.known.set_sample(balance.available(), clock::monotonic_ms());
        }
        let used = balance.map_or(0, |balance| balance.used);
        let voided: AHashSet<u128> =
            debits.iter().map(tb::Transfer::pending_id).filter(|id| *id != 0).collect();
        let mut releases = Vec::new();
        for debit in &debits {
            let is_pending = debit.flags().contains(tb::transfer::Flags::PENDING);
            let made_unix_ms =
                debit.timestamp().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
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

    /// Looks at what was used, and with it whether the cluster answers.
    async fn sample(&self, touched: Touched) {
        let mut ids: Vec<u128> = touched.0.iter().map(|account| account.id.bits()).collect();
        ids.push(wire::operator_id());
        let asked_at_ms = clock::monotonic_ms();
        match self.look_up(ids).await {
            Ok(found) => {
                let now_ms = clock::monotonic_ms();
                let mut seen = Vec::with_capacity(touched.0.len());
                for account in &touched.0 {
                    if let Some(there) = found.get(&account.id.bits()) {
                        let balance = balance_of(there, None);
                        account.known.set_sample(balance.available(), now_ms);
                        seen.push((account, balance.capacity));
                    }
                }
                self.compare(&seen, asked_at_ms, now_ms);
            }
            Err(error) => tracing::debug!(%error, "could not sample balances"),
        }
    }

    /// Finds the accounts whose capacity another instance has changed.
    fn compare(&self, seen: &[(&Arc<Account>, u64)], asked_at_ms: u64, now_ms: u64) {
        let mut first = None;
        let mut count = 0;
        for (account, there) in seen {
            let Some(here) = account.known.correct(*there, asked_at_ms) else { continue };
            // While it is being lowered, others lower it too.
            if account.decrease.since_ms().is_some() {
                continue;
            }
            if *there < here {
                account.known.dispute(now_ms);
            } else {
                let want = Want { account: Arc::clone(account), capacity: here, overage: Overage::Deny };
                // If it is busy, the next request finds the same.
                drop(self.provisioner.try_send(provision::Request::TooHigh(want)));
            }
            first.get_or_insert((account, here, *there));
            count += 1;
        }
        if let Some((account, here, there)) = first {
            tracing::warn!(
                limit = %account.key, here, there, count,
                "another instance has changed capacities: the lower one holds until all have the same configuration"
            );
        }
    }

    async fn balances<'w>(&self, wants: &'w [Want]) -> Result<Vec<Balance>, SessionError> {
        let mut ids: Vec<u128> = Vec::with_capacity(wants.len() * 2);
        for want in wants {
            ids.push(want.account.id.bits());
            ids.push(want.account.debt_id());
        }
        let asked_at_ms = clock::monotonic_ms();
        let found = self.look_up(ids).await?;
        let there = |want: &'w Want| {
            Some((&want.account, balance_of(found.get(&want.account.id.bits())?, None).capacity))
        };
        let seen: Vec<_> = wants.iter().filter_map(there).collect();
        self.compare(&seen, asked_at_ms, clock::monotonic_ms());
        let balance = |want: &Want| match found.get(&want.account.id.bits()) {
            Some(account) => balance_of(account, found.get(&want.account.debt_id())),
            // Not made yet: it will be with this capacity.
            None => Balance { capacity: want.capacity, ..Balance::default() },
        };
        Ok(wants.iter().map(balance).collect())
    }

    async fn look_up(&self, ids: Vec<u128>) -> Result<HashMap<u128, tb::Account>, SessionError> {
        let mut found = HashMap::with_capacity(ids.len());
        for part in ids.chunks(self.shared.events_max.load(Ordering::Relaxed)) {
            let session = &self.shared.reader.session;
            let look = || session.lookup_accounts(part.to_vec());
            let accounts = self.shared.ask_again(Side::Reader, look).await?;
            found.extend(accounts.into_iter().map(|account| (account.id(), account)));
        }
        Ok(found)
    }
}

fn balance_of(account: &tb::Account, debt: Option<&tb::Account>) -> Balance {
    let clamp = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    Balance {
        capacity: clamp(account.credits_posted().saturating_sub(account.debits_posted())),
        used: clamp(account.debits_pending()),
        debt: debt.map_or(0, |debt| clamp(debt.debits_posted())),
    }
}
