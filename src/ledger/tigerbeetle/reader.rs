//! Balances, read in the background on a session of their own: samples for `limit_remaining`, gauges, the admin API.
//!
//! It also asks now and then whether the cluster answers, so that an idle sidecar knows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tigerbeetle_unofficial as tb;
use tokio::sync::{mpsc, oneshot};

use super::session::{Session, SessionError};
use super::{Shared, patiently, wire};
use crate::clock;
use crate::ledger::{Balance, LedgerError, Want};
use crate::limit::Account;

/// Accounts whose balances are wanted.
pub struct Read {
    pub wants: Vec<Want>,
    pub reply: oneshot::Sender<Result<Vec<Balance>, LedgerError>>,
}

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
                let answer = reader.balances(&read.wants).await;
                drop(read.reply.send(answer.map_err(|error| LedgerError::Unavailable(error.to_string()))));
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
    /// Looks at what was used, and with it whether the cluster answers.
    async fn sample(&self, touched: Vec<Arc<Account>>) {
        let mut ids: Vec<u128> = touched.iter().map(|account| account.id).collect();
        ids.push(wire::operator_id());
        let found = self.look_up(ids).await;
        match found {
            Ok(found) => {
                for account in &touched {
                    if let Some(there) = found.get(&account.id) {
                        account.set_sample(balance_of(there, None).available(), clock::monotonic_ms());
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "could not sample balances"),
        }
        touched.iter().for_each(|account| account.end_sampling());
    }

    async fn balances(&self, wants: &[Want]) -> Result<Vec<Balance>, SessionError> {
        let mut ids: Vec<u128> = Vec::with_capacity(wants.len() * 2);
        for want in wants {
            ids.push(want.account.id);
            ids.push(want.account.debt_id());
        }
        let found = self.look_up(ids).await?;
        let balance = |want: &Want| match found.get(&want.account.id) {
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
