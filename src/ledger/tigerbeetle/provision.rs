//! Accounts: made, funded, raised and lowered, by any number of sidecars at once, each change exactly once.
//!
//! A change of capacity is named by the posted totals it starts from, so two who see the same totals make the same
//! transfer, and the second finds that it exists. Lowering waits until that much is free and is tried again with backoff;
//! until then the account is `decreasing`.
//!
//! A lowering that lost a race has used up the name of its totals, for everybody and for ever. Then the totals are moved:
//! one is posted to the account and one back, in a chain that is named by the same totals and always fits. The capacity
//! stays, and the next change has a new name.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tb::error::{CreateAccountErrorKind, CreateTransferErrorKind as Kind};
use tigerbeetle_unofficial as tb;
use tokio::sync::{Mutex, mpsc, oneshot};

use super::capacity::{CapacityPlan, Item, Wanted};
use super::session::SessionError;
use super::shared::{Shared, Side, Task};
use super::wire;
use super::work::Work;
use crate::clock;
use crate::ledger::{
    Account, Action, CapacityEvent, LedgerError, Outcome, Refusal, RefusalCode, Transfer, Verdict, Want,
};
use crate::limit::{LimitId, Overage};
use crate::retry::backoff::{ATTEMPTS_MAX, Backoff};

/// What the provisioner is asked for.
#[derive(Debug)]
pub(super) enum Request {
    /// A chain whose accounts are not ready.
    Work(Box<Work>),
    Wants {
        wants: Vec<Want>,
        reply: oneshot::Sender<Result<(), LedgerError>>,
    },
    /// Another instance has raised this account; nobody waits for it to be lowered again.
    TooHigh(Want),
}

impl Request {
    pub(super) fn refuse(self, error: &LedgerError) {
        match self {
            Request::Work(work) => work.answer(Err(error.clone())),
            Request::Wants { reply, .. } => drop(reply.send(Err(error.clone()))),
            Request::TooHigh(_) => {}
        }
    }

    fn wanted(&self) -> Vec<Wanted> {
        match self {
            Request::Wants { wants, .. } => wants.iter().cloned().map(Wanted::from).collect(),
            Request::Work(work) => work.chain.transfers.iter().filter_map(wanted_by).collect(),
            Request::TooHigh(want) => vec![want.clone().into()],
        }
    }
}

fn wanted_by(transfer: &Transfer) -> Option<Wanted> {
    let account = Arc::clone(&transfer.account);
    match transfer.action {
        Action::Void | Action::VoidTaken | Action::VoidRereserved => None,
        Action::Reserve(hold) => {
            Some(Wanted::new(account, Some(hold.capacity), hold.overage, hold.lifetime_seconds))
        }
        // These last for the rest of a window.
        Action::Rereserve(hold) | Action::TakeUpTo(hold) => {
            Some(Wanted::new(account, Some(hold.capacity), Overage::Deny, hold.lifetime_seconds))
        }
        Action::Debt(hold) => {
            // A debt is paid from the limit's own account, so that account must have a capacity.
            let capacity = account.known.funded().is_none().then_some(hold.capacity);
            Some(Wanted::new(account, capacity, hold.overage, hold.lifetime_seconds))
        }
    }
}

/// What outlives a failure of the task.
#[derive(Debug)]
pub(super) struct Inbox {
    pub requests: mpsc::Receiver<Request>,
    /// Accounts that wait to be lowered, and to what.
    pub lowering: HashMap<LimitId, (Arc<Account>, u64)>,
}

struct Provisioner<'i> {
    shared: Arc<Shared>,
    queue: mpsc::Sender<Work>,
    lowering: &'i mut HashMap<LimitId, (Arc<Account>, u64)>,
}

pub(super) async fn run(shared: Arc<Shared>, inbox: Arc<Mutex<Inbox>>, queue: mpsc::Sender<Work>) {
    let mut inbox = inbox.lock().await;
    let Inbox { requests, lowering } = &mut *inbox;
    let mut provisioner = Provisioner { shared, queue, lowering };
    let mut backoff = Backoff::default();
    let mut check_at = None;
    let mut gathered = Vec::new();
    loop {
        if provisioner.lowering.is_empty() {
            check_at = None;
            backoff.reset();
        } else if check_at.is_none() {
            // Set once: other requests in between must not postpone it.
            check_at = Some(clock::instant() + backoff.wait(|n| fastrand::u64(0..=n)));
        }
        tokio::select! {
            biased;
            () = sleep_until(check_at) => {
                check_at = None;
                let before = provisioner.lowering.len();
                provisioner.check_lowering().await;
                if provisioner.lowering.len() < before {
                    backoff.reset();
                }
            }
            count = requests.recv_many(&mut gathered, 1024) => {
                if count == 0 {
                    return;
                }
                provisioner.shared.panic_point(Task::Provisioner);
                provisioner.serve(&mut gathered).await;
            }
        }
    }
}

async fn sleep_until(at: Option<std::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

impl Provisioner<'_> {
    async fn serve(&mut self, gathered: &mut Vec<Request>) {
        let wanted = Wanted::merge(gathered.iter().flat_map(Request::wanted));
        let result = self.provision(wanted).await;
        if let Err(error) = &result {
            tracing::warn!(%error, "accounts could not be brought to what they should be");
        }
        for request in gathered.drain(..) {
            match (&result, request) {
                (Err(error), request) => request.refuse(&LedgerError::Unavailable(error.to_string())),
                (Ok(()), Request::Wants { reply, .. }) => drop(reply.send(Ok(()))),
                (Ok(()), Request::Work(work)) => self.put_back(*work),
                (Ok(()), Request::TooHigh(_)) => {}
            }
        }
    }

    /// Back into the queue, or refused because a limit of it is decreasing.
    fn put_back(&self, work: Work) {
        let lowering = work.chain.transfers.iter().position(|transfer| match transfer.action {
            Action::Reserve(hold) | Action::TakeUpTo(hold) => {
                transfer.account.known.decrease.since_ms().is_some()
                    && transfer.account.known.funded().is_none_or(|f| f > hold.capacity)
            }
            _ => false,
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
    async fn provision(&mut self, wanted: Vec<Wanted>) -> Result<(), SessionError> {
        // A limit may have a debt account too, and the operator is always asked for.
        let part_max = (self.shared.events_max.load(Ordering::Relaxed) - 1) / 2;
        for part in wanted.chunks(part_max) {
            self.provision_part(part).await?;
        }
        Ok(())
    }

    async fn provision_part(&mut self, wanted: &[Wanted]) -> Result<(), SessionError> {
        let existed = self.create_accounts(wanted).await?;
        self.look_at_debts(wanted).await?;
        let (mut items, mut known) = (Vec::new(), Vec::new());
        for (wanted, existed) in wanted.iter().zip(existed) {
            if let Some(capacity) = wanted.capacity {
                let item = Item::new(Arc::clone(&wanted.account), capacity);
                if existed { known.push(item) } else { items.push(item) }
            }
        }
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
        let keys: Vec<&str> = items.iter().map(|item| item.account.key.as_str()).collect();
        Err(SessionError::Refused(format!("the capacity of {} kept changing", keys.join(", "))))
    }

    /// Makes what is missing; for each want whether its account was there.
    async fn create_accounts(&mut self, wanted: &[Wanted]) -> Result<Vec<bool>, SessionError> {
        let mut accounts: Vec<tb::Account> =
            wanted.iter().map(|wanted| wire::limit_account(&wanted.account)).collect();
        let debts: Vec<&Wanted> = wanted.iter().filter(|wanted| wanted.has_debt_account).collect();
        accounts.extend(debts.iter().map(|wanted| wire::debt_account(&wanted.account)));
        // Every time, because the data file may have been replaced.
        accounts.push(wire::operator_account());
        let session = &self.shared.writer.session;
        let create = || session.create_accounts(accounts.clone());
        let failures = self.shared.ask_again(Side::Writer, create).await?;
        let mut existed = vec![false; wanted.len()];
        for (index, kind) in failures {
            match kind {
                CreateAccountErrorKind::Exists if index < wanted.len() => existed[index] = true,
                CreateAccountErrorKind::Exists => {}
                other => {
                    return Err(SessionError::Refused(format!("an account could not be made: {other:?}")));
                }
            }
        }
        debts.iter().for_each(|wanted| wanted.account.known.set_has_debt_account(true));
        Ok(existed)
    }

    /// Finds out what limits owe that repay it before anybody gets anything.
    async fn look_at_debts(&self, wanted: &[Wanted]) -> Result<(), SessionError> {
        let repays = |wanted: &&Wanted| wanted.repays.is_some();
        let repaying: Vec<&Arc<Account>> =
            wanted.iter().filter(repays).map(|wanted| &wanted.account).collect();
        if repaying.is_empty() {
            return Ok(());
        }
        wanted.iter().filter(repays).for_each(|wanted| wanted.account.known.owing().meet(wanted.repays));
        let asked_at_ms = clock::monotonic_ms();
        let ids: Vec<u128> = repaying.iter().map(|account| account.debt_id()).collect();
        let session = &self.shared.writer.session;
        let found = self.shared.ask_again(Side::Writer, || session.lookup_accounts(ids.clone())).await?;
        let owed: HashMap<u128, u64> = found.iter().map(|debt| (debt.id(), wire::owed(debt))).collect();
        for (account, id) in repaying.into_iter().zip(ids) {
            self.shared.found_debt(account, owed.get(&id).copied().unwrap_or(0), asked_at_ms);
        }
        Ok(())
    }

    async fn look_up(&self, items: Vec<Item>) -> Result<Vec<Item>, SessionError> {
        if items.is_empty() {
            return Ok(items);
        }
        let ids: Vec<u128> = items.iter().map(|item| item.account.id.bits()).collect();
        let session = &self.shared.writer.session;
        let found = self.shared.ask_again(Side::Writer, || session.lookup_accounts(ids.clone())).await?;
        let found: HashMap<u128, tb::Account> =
            found.into_iter().map(|account| (account.id(), account)).collect();
        let read = |mut item: Item| {
            if let Some(account) = found.get(&item.account.id.bits()) {
                item.credits_posted = account.credits_posted();
                item.debits_posted = account.debits_posted();
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
                CapacityPlan::Ready => self.settled(&item.account, item.capacity),
                CapacityPlan::NoRoom => self.wait_for_room(&item),
                CapacityPlan::Change(change) => {
                    transfers.push(wire::capacity_change(&item, change));
                    changing.push(item);
                }
            }
        }
        let failures: HashMap<usize, Kind> = self.create_transfers(transfers).await?.into_iter().collect();
        let mut again = Vec::new();
        let mut moves = Vec::new();
        for (index, item) in changing.into_iter().enumerate() {
            match failures.get(&index) {
                // `Exists`: another sidecar made this very change.
                None | Some(Kind::Exists) => self.settled(&item.account, item.capacity),
                Some(Kind::ExceedsCredits | Kind::IdAlreadyFailed) => {
                    moves.extend(wire::totals_move(&item));
                    again.push(item);
                }
                Some(_) => again.push(item),
            }
        }
        // One that exists was made by another sidecar.
        self.create_transfers(moves).await?;
        Ok(again)
    }

    /// Sends them as often as it takes: the transfers are named, so they happen once.
    async fn create_transfers(
        &self,
        transfers: Vec<tb::Transfer>,
    ) -> Result<Vec<(usize, Kind)>, SessionError> {
        if transfers.is_empty() {
            return Ok(Vec::new());
        }
        let transfers: Arc<[tb::Transfer]> = transfers.into();
        let session = &self.shared.writer.session;
        self.shared.ask_again(Side::Writer, || session.create_transfers(Arc::clone(&transfers))).await
    }

    fn settled(&mut self, account: &Arc<Account>, capacity: u64) {
        account.known.set_funded(capacity, clock::monotonic_ms());
        if self.lowering.remove(&account.id).is_some() {
            tracing::info!(limit = %account.key, capacity, "the capacity is as it should be");
            self.shared.tell(CapacityEvent::Settled { key: account.key.clone(), capacity });
        }
        account.known.decrease.end();
    }

    fn wait_for_room(&mut self, item: &Item) {
        let (account, now_ms) = (&item.account, clock::monotonic_ms());
        account.known.set_funded(item.capacity_now(), now_ms);
        account.known.decrease.begin(now_ms);
        if self.lowering.insert(account.id, (Arc::clone(account), item.capacity)).is_none() {
            let (from, to) = (item.capacity_now(), item.capacity);
            tracing::info!(limit = %account.key, from, to, "the capacity will be lowered when that much is free");
            self.shared.tell(CapacityEvent::Decreasing { key: account.key.clone(), from, to });
        }
    }

    async fn check_lowering(&mut self) {
        let wanted = |(account, capacity): &(Arc<Account>, u64)| Wanted {
            account: Arc::clone(account),
            capacity: Some(*capacity),
            has_debt_account: false,
            repays: None,
        };
        let wanted: Vec<Wanted> = self.lowering.values().map(wanted).collect();
        if let Err(error) = self.provision(wanted).await {
            tracing::warn!(%error, "limits that are decreasing could not be lowered yet");
        }
    }
}
