//! Accounts: made, funded, raised and lowered, by any number of sidecars at once, each change exactly once.
//!
//! A change of capacity is named by the posted totals it starts from, so two who see the same totals make the same
//! transfer, and the second finds that it exists. Lowering waits until that much is free and is tried again with backoff;
//! until then the account is `decreasing`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tb::error::{CreateAccountErrorKind, CreateTransferErrorKind as Kind};
use tigerbeetle_unofficial as tb;
use tokio::sync::{mpsc, oneshot};

use super::session::{Session, SessionError};
use super::wire::{self, Change};
use super::work::Work;
use super::{Shared, patiently};
use crate::clock;
use crate::ledger::{
    Account, Action, CapacityEvent, LedgerError, Outcome, Refusal, RefusalCode, Verdict, Want,
};
use crate::limit::{LimitId, Overage};
use crate::retry::backoff::{ATTEMPTS_MAX, Backoff};

/// What the provisioner is asked for.
pub enum Request {
    /// A chain whose accounts are not ready.
    Work(Box<Work>),
    Wants {
        wants: Vec<Want>,
        reply: oneshot::Sender<Result<(), LedgerError>>,
    },
}

impl Request {
    pub fn refuse(self, error: &LedgerError) {
        match self {
            Request::Work(work) => work.answer(Err(error.clone())),
            Request::Wants { reply, .. } => drop(reply.send(Err(error.clone()))),
        }
    }

    fn wants(&self) -> Vec<Want> {
        match self {
            Request::Wants { wants, .. } => wants.clone(),
            Request::Work(work) => work.chain.transfers.iter().filter_map(want_of).collect(),
        }
    }
}

fn want_of(transfer: &crate::ledger::Transfer) -> Option<Want> {
    let account = Arc::clone(&transfer.account);
    match transfer.action {
        Action::Void => None,
        Action::Reserve(hold) | Action::Rereserve(hold) => {
            Some(Want { account, capacity: hold.capacity, overage: Overage::Deny })
        }
        Action::Debt { .. } => {
            // The capacity stays what it is known to be.
            let capacity = account.known.funded().unwrap_or(0);
            Some(Want { account, capacity, overage: Overage::Debt })
        }
    }
}

/// One account on its way to a capacity.
struct Item {
    want: Want,
    credits_posted: u128,
    debits_posted: u128,
    debits_pending: u128,
    attempt: u32,
}

/// What to do about an account that holds what it holds.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Ready,
    Change(Change),
    /// Lowering must wait for this much to come back.
    NoRoom,
}

impl Item {
    fn plan(&self) -> Plan {
        let balance = self.credits_posted.saturating_sub(self.debits_posted);
        let wanted = u128::from(self.want.capacity);
        let amount = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
        if balance == wanted {
            Plan::Ready
        } else if balance < wanted {
            Plan::Change(Change::Raise(amount(wanted - balance)))
        } else if balance.saturating_sub(self.debits_pending) >= balance - wanted {
            Plan::Change(Change::Lower(amount(balance - wanted)))
        } else {
            Plan::NoRoom
        }
    }

    /// What the account holds now, as it was read.
    fn capacity_now(&self) -> u64 {
        u64::try_from(self.credits_posted.saturating_sub(self.debits_posted)).unwrap_or(u64::MAX)
    }
}

struct Provisioner {
    shared: Arc<Shared>,
    session: Arc<Session>,
    queue: mpsc::Sender<Work>,
    /// Accounts that wait to be lowered.
    lowering: HashMap<LimitId, Want>,
}

pub async fn run(
    shared: Arc<Shared>,
    session: Arc<Session>,
    mut wanted: mpsc::Receiver<Request>,
    queue: mpsc::Sender<Work>,
) {
    let mut provisioner = Provisioner { shared, session, queue, lowering: HashMap::new() };
    let mut backoff = Backoff::default();
    let mut gathered = Vec::new();
    loop {
        let check = async {
            if provisioner.lowering.is_empty() {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
        };
        tokio::select! {
            count = wanted.recv_many(&mut gathered, 1024) => {
                if count == 0 {
                    return;
                }
                provisioner.serve(&mut gathered).await;
            }
            () = check => {
                let before = provisioner.lowering.len();
                provisioner.check_lowering().await;
                if provisioner.lowering.len() < before {
                    backoff.reset();
                }
            }
        }
    }
}

impl Provisioner {
    async fn serve(&mut self, gathered: &mut Vec<Request>) {
        let mut wants: HashMap<LimitId, Want> = HashMap::new();
        for want in gathered.iter().flat_map(Request::wants) {
            let debt = want.overage == Overage::Debt;
            let there = wants.entry(want.account.id).or_insert(want);
            if debt {
                there.overage = Overage::Debt;
            }
        }
        let result = self.provision(wants.into_values().collect()).await;
        for request in gathered.drain(..) {
            match (&result, request) {
                (Err(error), request) => request.refuse(&LedgerError::Unavailable(error.to_string())),
                (Ok(()), Request::Wants { reply, .. }) => drop(reply.send(Ok(()))),
                (Ok(()), Request::Work(work)) => self.put_back(*work),
            }
        }
    }

    /// Back into the queue, or refused because a limit of it is decreasing.
    fn put_back(&self, work: Work) {
        let lowering = work.chain.transfers.iter().position(|transfer| match transfer.action {
            Action::Reserve(hold) => {
                let Account { decrease, known, .. } = &*transfer.account;
                decrease.since_ms().is_some() && known.funded().is_none_or(|f| f > hold.capacity)
            }
            Action::Rereserve(_) | Action::Void | Action::Debt { .. } => false,
        });
        if let Some(index) = lowering {
            let refusal = Refusal::one(index, RefusalCode::LimitDecreasing);
            work.answer(Ok(Outcome::bare(Verdict::Refused(refusal))));
            return;
        }
        let sent = self.queue.try_send(work);
        if let Err(mpsc::error::TrySendError::Full(work) | mpsc::error::TrySendError::Closed(work)) = sent {
            let waiting = self.shared.options.queue_max;
            work.answer(Err(LedgerError::QueueFull { waiting, per_second: None }));
        }
    }

    /// Brings accounts to what is wanted. Two round trips for new ones, three for known ones that have to change.
    async fn provision(&mut self, wants: Vec<Want>) -> Result<(), SessionError> {
        // A limit may have a debt account too, and the operator is always asked for.
        let part_max = (self.shared.events_max.load(Ordering::Relaxed) - 1) / 2;
        for part in wants.chunks(part_max) {
            self.provision_part(part).await?;
        }
        Ok(())
    }

    async fn provision_part(&mut self, wants: &[Want]) -> Result<(), SessionError> {
        let existed = self.create_accounts(wants).await?;
        let new = |want: &Want| Item {
            want: want.clone(),
            credits_posted: 0,
            debits_posted: 0,
            debits_pending: 0,
            attempt: 0,
        };
        let mut items: Vec<Item> =
            wants.iter().zip(&existed).filter(|(_, existed)| !**existed).map(|(w, _)| new(w)).collect();
        let known: Vec<Item> =
            wants.iter().zip(&existed).filter(|(_, existed)| **existed).map(|(w, _)| new(w)).collect();
        items.extend(self.look_up(known).await?);
        let mut backoff = Backoff::default();
        for attempt in 0..ATTEMPTS_MAX {
            items = self.change(items).await?;
            if items.is_empty() {
                return Ok(());
            }
            if attempt > 0 {
                // Others are changing the same accounts: step aside before looking again.
                tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
            }
            items = self.look_up(items).await?;
        }
        let keys: Vec<&str> = items.iter().map(|item| item.want.account.key.as_str()).collect();
        Err(SessionError::Refused(format!("the capacity of {} kept changing", keys.join(", "))))
    }

    /// Makes what is missing; for each want whether its account was there.
    async fn create_accounts(&mut self, wants: &[Want]) -> Result<Vec<bool>, SessionError> {
        let mut accounts: Vec<tb::Account> =
            wants.iter().map(|want| wire::limit_account(&want.account)).collect();
        let debts: Vec<&Want> = wants.iter().filter(|want| want.overage == Overage::Debt).collect();
        accounts.extend(debts.iter().map(|want| wire::debt_account(&want.account)));
        // Every time, because the data file may have been replaced.
        accounts.push(wire::operator_account());
        let failures = self.call(self.session.create_accounts(accounts)).await?;
        let mut existed = vec![false; wants.len()];
        for (index, kind) in failures {
            match kind {
                CreateAccountErrorKind::Exists if index < wants.len() => existed[index] = true,
                CreateAccountErrorKind::Exists => {}
                other => {
                    return Err(SessionError::Refused(format!("an account could not be made: {other:?}")));
                }
            }
        }
        debts.iter().for_each(|want| want.account.known.set_has_debt_account(true));
        Ok(existed)
    }

    async fn look_up(&self, items: Vec<Item>) -> Result<Vec<Item>, SessionError> {
        if items.is_empty() {
            return Ok(items);
        }
        let ids: Vec<u128> = items.iter().map(|item| item.want.account.id.bits()).collect();
        let found = self.call(self.session.lookup_accounts(ids)).await?;
        let found: HashMap<u128, tb::Account> =
            found.into_iter().map(|account| (account.id(), account)).collect();
        let read = |mut item: Item| {
            if let Some(account) = found.get(&item.want.account.id.bits()) {
                let totals = (account.credits_posted(), account.debits_posted());
                if totals != (item.credits_posted, item.debits_posted) {
                    item.attempt = 0;
                }
                (item.credits_posted, item.debits_posted) = totals;
                item.debits_pending = account.debits_pending();
            }
            item
        };
        Ok(items.into_iter().map(read).collect())
    }

    /// Makes the changes that can be made; those that somebody else interfered with come back.
    async fn change(&mut self, items: Vec<Item>) -> Result<Vec<Item>, SessionError> {
        let mut changing = Vec::new();
        let mut transfers = Vec::new();
        for item in items {
            match item.plan() {
                Plan::Ready => self.settled(&item.want.account, item.want.capacity),
                Plan::NoRoom => self.wait_for_room(&item),
                Plan::Change(change) => {
                    let Item { credits_posted, debits_posted, attempt, .. } = item;
                    let account = &item.want.account;
                    transfers.push(wire::capacity_change(
                        account,
                        credits_posted,
                        debits_posted,
                        attempt,
                        change,
                    ));
                    changing.push(item);
                }
            }
        }
        if transfers.is_empty() {
            return Ok(Vec::new());
        }
        let failures = self.call(self.session.create_transfers(transfers)).await?;
        let failures: HashMap<usize, Kind> = failures.into_iter().collect();
        let mut again = Vec::new();
        for (index, mut item) in changing.into_iter().enumerate() {
            match failures.get(&index) {
                // `Exists`: another sidecar made this very change.
                None | Some(Kind::Exists) => self.settled(&item.want.account, item.want.capacity),
                // Burnt by a race: the totals are the same, so the name needs an attempt number.
                Some(Kind::ExceedsCredits | Kind::IdAlreadyFailed) => {
                    item.attempt += 1;
                    again.push(item);
                }
                Some(_) => again.push(item),
            }
        }
        Ok(again)
    }

    fn settled(&mut self, account: &Arc<Account>, capacity: u64) {
        account.known.set_funded(Some(capacity));
        if self.lowering.remove(&account.id).is_some() {
            tracing::info!(limit = %account.key, capacity, "the capacity was lowered");
            self.shared.tell(CapacityEvent::Settled { key: account.key.clone(), capacity });
        }
        account.decrease.end();
    }

    fn wait_for_room(&mut self, item: &Item) {
        let account = &item.want.account;
        account.known.set_funded(Some(item.capacity_now()));
        account.decrease.begin(clock::monotonic_ms());
        if self.lowering.insert(account.id, item.want.clone()).is_none() {
            let (from, to) = (item.capacity_now(), item.want.capacity);
            tracing::info!(limit = %account.key, from, to, "the capacity will be lowered when that much is free");
            self.shared.tell(CapacityEvent::Decreasing { key: account.key.clone(), from, to });
        }
    }

    async fn check_lowering(&mut self) {
        let wants: Vec<Want> = self.lowering.values().cloned().collect();
        if let Err(error) = self.provision(wants).await {
            tracing::debug!(%error, "could not check limits that are decreasing");
        }
    }

    async fn call<T>(&self, call: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
        patiently(&self.shared, &self.session, &self.shared.writer_ok, call).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::LimitKey;

    fn item(capacity: u64, credits_posted: u128, debits_posted: u128, debits_pending: u128) -> Item {
        let account = Arc::new(Account::new(LimitKey::new("k")));
        let want = Want { account, capacity, overage: Overage::Deny };
        Item { want, credits_posted, debits_posted, debits_pending, attempt: 0 }
    }

    #[test]
    fn plans() {
        for (capacity, credits, debits, pending, expected) in [
            (10, 0, 0, 0, Plan::Change(Change::Raise(10))),
            (10, 10, 0, 7, Plan::Ready),
            (10, 15, 5, 0, Plan::Ready),
            (12, 10, 0, 10, Plan::Change(Change::Raise(2))),
            (5, 10, 0, 5, Plan::Change(Change::Lower(5))),
            (5, 10, 0, 6, Plan::NoRoom),
            (0, 0, 0, 0, Plan::Ready),
            (0, 3, 0, 0, Plan::Change(Change::Lower(3))),
        ] {
            let row = (capacity, credits, debits, pending);
            assert_eq!(item(capacity, credits, debits, pending).plan(), expected, "{row:?}");
        }
    }
}
