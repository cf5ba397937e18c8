//! Balances and schedules, read in the background on a session of their own: samples for `limit_remaining`, gauges, the
//! admin API.
//!
//! It also compares the capacities that it sees with what this instance believes, because others may change them: by an
//! old file that came up for a moment, or while new files reach one instance after the other. The lower capacity holds until
//! all agree. One that was raised against this instance's configuration is lowered again at once; one that was lowered is
//! left so for a while, and raised again by the next request after that (see [`KnownAccount`](super::KnownAccount)).

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tigerbeetle_unofficial as tb;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::provision;
use super::releases;
use super::session::SessionError;
use super::shared::{Shared, Side, Task};
use super::wire;
use crate::clock;
use crate::ledger::{Account, Balance, LedgerError, Schedule, Want};
use crate::limit::Overage;

/// What somebody wants to know.
#[derive(Debug)]
pub(super) enum Read {
    Balances {
        wants: Vec<Want>,
        reply: Reply<Vec<Balance>>,
    },
    Schedule {
        account: Arc<Account>,
        lifetime_seconds: NonZeroU32,
        reply: Reply<Schedule>,
    },
    /// The same, but nobody waits for it: it is remembered with the account.
    Remember {
        account: Arc<Account>,
        lifetime_seconds: NonZeroU32,
    },
}

type Reply<T> = oneshot::Sender<Result<T, LedgerError>>;

/// How old a sample gets.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(500);

/// After this many rounds without anything to read, something is read all the same, so that the cluster keeps the session: every
/// 15 seconds. It is not done more often, because each request costs the cluster some 100 kB of writes, whatever is in it. The worker
/// notices earlier if the cluster is away.
const IDLE_ROUNDS: u32 = 30;

struct Reader {
    shared: Arc<Shared>,
    provisioner: mpsc::Sender<provision::Request>,
}

pub(super) async fn run(
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
            // The answer is dropped with it, and whoever asked hears that.
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
            Read::Remember { account, lifetime_seconds } => {
                match self.schedule(&account, lifetime_seconds).await {
                    Ok(schedule) => account.known.set_schedule(schedule, clock::monotonic_ms()),
                    Err(error) => tracing::debug!(%error, "could not read a schedule"),
                }
            }
        }
    }

    /// What an account gives back to others and when: what it owes is paid first.
    async fn schedule(
        &self,
        account: &Account,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Schedule, SessionError> {
        let schedule = releases::read(&self.shared, account, lifetime_seconds).await?;
        let owing = account.known.repaying().and_then(|owing| owing.owed().zip(owing.window_seconds()));
        let Some((owed, window_seconds)) = owing else { return Ok(schedule) };
        let (capacity, window_ms) =
            (account.known.funded().unwrap_or(0), u64::from(window_seconds.get()) * 1000);
        Ok(schedule.after_debt(owed, capacity, window_ms, clock::monotonic_ms()))
    }

    /// Looks at what was used, and with it whether the cluster answers.
    async fn sample(&self, touched: Touched) {
        let mut ids: Vec<u128> = touched.0.iter().map(|account| account.id.bits()).collect();
        let repays = |account: &&Arc<Account>| account.known.is_repaying();
        ids.extend(touched.0.iter().filter(repays).map(|account| account.debt_id()));
        ids.push(wire::operator_id());
        let asked_at_ms = clock::monotonic_ms();
        match self.look_up(ids).await {
            Ok(found) => {
                let now_ms = clock::monotonic_ms();
                let mut seen = Vec::with_capacity(touched.0.len());
                let mut watched = Vec::new();
                for account in &touched.0 {
                    if let Some(there) = found.get(&account.id.bits()) {
                        let balance = balance_of(there, None);
                        account.known.set_sample(balance.available(), now_ms);
                        if balance.available() == 0 && account.known.is_watched(now_ms) {
                            watched.push(Arc::clone(account));
                        }
                        seen.push((account, balance.capacity));
                    }
                }
                for account in touched.0.iter().filter(repays) {
                    let owed = found.get(&account.debt_id()).map_or(0, wire::owed);
                    self.shared.found_debt(account, owed, asked_at_ms);
                }
                self.compare(&seen, asked_at_ms, now_ms);
                drop(touched);
                watched.iter().for_each(|account| self.shared.touch(account));
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
            if account.known.decrease.since_ms().is_some() {
                continue;
            }
            if *there < here {
                account.known.dispute(now_ms);
            } else {
                let want = Want {
                    account: Arc::clone(account),
                    capacity: here,
                    overage: Overage::Deny,
                    lifetime_seconds: NonZeroU32::MIN,
                };
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
    let (capacity, used) = wire::capacity_and_used(account);
    Balance { capacity, used, debt: debt.map_or(0, wire::owed) }
}
