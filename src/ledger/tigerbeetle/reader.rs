//! Balances and schedules, read in the background on a session of their own: samples for `limit_remaining`, gauges, the
//! admin API.
//!
//! It also asks now and then whether the cluster answers, so that an idle sidecar knows.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, UNIX_EPOCH};

use ahash::AHashSet;
use tigerbeetle_unofficial as tb;
use tokio::sync::{mpsc, oneshot};

use super::session::{Session, SessionError};
use super::{Shared, patiently, wire};
use crate::clock;
use crate::ledger::{Account, Balance, LedgerError, Release, Schedule, Want};

/// What somebody wants to know.
pub enum Read {
    Balances { wants: Vec<Want>, reply: Reply<Vec<Balance>> },
    Schedule { account: Arc<Account>, lifetime_seconds: NonZeroU32, reply: Reply<Schedule> },
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

/// An expiry lags behind its time by up to a pulse of 100 ms, and by more under load. Beyond this much it has been.
const EXPIRY_LAG_MS: u64 = 300;

/// How old a sample gets.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// Rounds without anything to look at after which an idle cluster is asked whether it is still there: every 5 seconds.
/// Each request costs the cluster some 100 kB of writes, whatever is in it; under load the worker notices at once.
const IDLE_ROUNDS: u32 = 10;

struct Reader {
    shared: Arc<Shared>,
    session: Arc<Session>,
}

pub async fn run(shared: Arc<Shared>, session: Arc<Session>, mut reads: mpsc::Receiver<Read>) {
    let reader = Reader { shared, session };
    let mut rounds = tokio::time::interval(SAMPLE_INTERVAL);
    let mut idle_rounds = 0;
    loop {
        tokio::select! {
            read = reads.recv() => {
                let Some(read) = read else { return };
                reader.answer(read).await;
            }
            _ = rounds.tick() => {
                let touched = std::mem::take(&mut *reader.shared.touched.lock());
                idle_rounds = if touched.is_empty() { idle_rounds + 1 } else { 0 };
                let due = !reader.shared.is_up() || idle_rounds % IDLE_ROUNDS == 0;
                if due || !touched.is_empty() {
                    reader.sample(touched).await;
                }
            }
        }
    }
}

impl Reader {
    async fn answer(&self, read: Read) {
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
        let call =
            self.session.debits_since(account.id.bits(), UNIX_EPOCH + Duration::from_millis(since_ms), most);
        let debits = patiently(&self.shared, &self.session, &self.shared.reader_ok, call).await?;
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
    async fn sample(&self, touched: Vec<Arc<Account>>) {
        let mut ids: Vec<u128> = touched.iter().map(|account| account.id.bits()).collect();
        ids.push(wire::operator_id());
        let found = self.look_up(ids).await;
        match found {
            Ok(found) => {
                for account in &touched {
                    if let Some(there) = found.get(&account.id.bits()) {
                        account.known.set_sample(balance_of(there, None).available(), clock::monotonic_ms());
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "could not sample balances"),
        }
        touched.iter().for_each(|account| account.known.end_sampling());
    }

    async fn balances(&self, wants: &[Want]) -> Result<Vec<Balance>, SessionError> {
        let mut ids: Vec<u128> = Vec::with_capacity(wants.len() * 2);
        for want in wants {
            ids.push(want.account.id.bits());
            ids.push(want.account.debt_id());
        }
        let found = self.look_up(ids).await?;
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
            let call = self.session.lookup_accounts(part.to_vec());
            let accounts = patiently(&self.shared, &self.session, &self.shared.reader_ok, call).await?;
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
