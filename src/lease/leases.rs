//! The leases of this instance: they are handed out here and come back, by token or by plain id.
//!
//! Keeps the secrets, the lease table and the tasks that settle. Knows neither the wire nor how a reserve is decided.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::settle::{LATE_MS, Settlement, may_owe_again};
use super::table::{COMPLETED_MS, LeaseRecord, LeaseState, LeaseTable, Opened};
use super::token::{self, Refused, Signer};
use super::{Lease, bytes};
use crate::clock;
use crate::ledger::LedgerError;
use crate::limit::LeaseId;
use crate::telemetry::{LeaseEvent, Metrics};

/// Leases being settled at the same time; a few kilobytes each, so some tens of megabytes. Beyond that callers wait.
const SETTLING_MAX: usize = 16_384;

/// How long a caller waits for its completion to reach the ledger. A restart of the ledger takes some seconds.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(crate) struct Leases {
    signer: Signer,
    table: LeaseTable,
    metrics: Arc<Metrics>,
    tasks: TaskTracker,
    settling: Arc<Semaphore>,
    unsettled: AtomicU64,
}

/// A lease as it is handed out.
#[derive(Debug)]
pub(crate) struct Issued {
    /// `None` if its keys are too long for one: then it goes by its id, here only.
    pub(crate) token: Option<String>,
    pub(crate) reserved_at_unix_ms: u64,
}

/// What somebody who wants to complete a lease finds.
#[derive(Debug)]
pub(crate) enum Found {
    Open(Lease),
    Completed,
    /// Reserved elsewhere, ended, or never there.
    Unknown,
}

/// What a name that a caller chose stands for.
#[derive(Debug)]
pub(crate) enum KnownLease {
    Nothing,
    /// A lease that is open and holds the same.
    Same(Lease),
    /// Something else, or what was completed or has ended in part.
    Used,
}

/// A lease as people see it.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) state: LeaseState,
    pub(crate) lease: Lease,
    pub(crate) job_id: String,
}

impl Leases {
    pub(crate) fn new(signer: Signer, leases_max: usize, metrics: Arc<Metrics>) -> Self {
        let settling = Arc::new(Semaphore::new(SETTLING_MAX));
        let (table, tasks) = (LeaseTable::new(leases_max), TaskTracker::new());
        Self { signer, table, metrics, tasks, settling, unsettled: AtomicU64::new(0) }
    }

    /// Hands out a lease that was reserved; `None` if its name holds something else, or was completed. A lease whose caller chose
    /// its name may have been handed out before. From now on an answer that tells of it is under way, until [`Self::sent`] or
    /// [`Self::unsent`].
    pub(crate) fn issue(&self, lease: &Lease, job_id: &str) -> Option<Issued> {
        let mut written = Vec::with_capacity(128);
        bytes::write(&mut written, lease);
        let token = self.signer.sign(&written);
        written.extend(job_id.as_bytes());
        let is_same = |there: &[u8]| read_lease(there).is_some_and(|there| there.holds_the_same(lease));
        match self.table.open(lease.id.bits(), written.into_boxed_slice(), ends_ms(lease), is_same) {
            Opened::New => {
                self.metrics.lease_event(LeaseEvent::Reserved);
                Some(Issued { token, reserved_at_unix_ms: lease.reserved_at_unix_ms })
            }
            Opened::Again(record) => {
                let first = read(&record)?.lease;
                Some(Issued { token: self.token(&first), reserved_at_unix_ms: first.reserved_at_unix_ms })
            }
            Opened::Taken => None,
        }
    }

    /// What a name stands for, before anything is reserved under it. If that is the same, an answer that tells of it is
    /// under way, as with [`Self::issue`].
    pub(crate) fn known(&self, name: &LeaseId, wants: &[(&str, u64)]) -> KnownLease {
        let now_unix_ms = clock::unix_ms();
        let is_same = |there: &[u8]| {
            read_lease(there)
                .is_some_and(|there| there.holds(wants.iter().copied()) && there.all_held_at(now_unix_ms))
        };
        match self.table.again(name.bits(), is_same) {
            None => KnownLease::Nothing,
            Some(Opened::Again(record)) => match read(&record) {
                Some(view) if view.lease.id == *name => KnownLease::Same(view.lease),
                // Another name of it: what became of it is written under its own.
                Some(view) => match self.table.find(view.lease.id.bits()) {
                    Some(LeaseRecord { state: LeaseState::Open, .. }) => KnownLease::Same(view.lease),
                    _ => KnownLease::Used,
                },
                None => KnownLease::Used,
            },
            Some(Opened::New | Opened::Taken) => KnownLease::Used,
        }
    }

    /// An answer that tells of a lease was sent.
    pub(crate) fn sent(&self, lease: &LeaseId) {
        self.table.sent(lease.bits());
    }

    /// An answer that tells of a lease will never be sent. True if nobody else was told of the lease or will be: then it is to be
    /// given back. A lease that is not in the table any more may have another holder only if its caller chose its name.
    pub(crate) fn unsent(&self, lease: &LeaseId, is_named: bool) -> bool {
        self.table.unsent(lease.bits()).unwrap_or(!is_named)
    }

    /// Hands out a lease that is also known by another name; both names lead to it. The queue keeps track of whether its caller was
    /// told of it.
    pub(crate) fn issue_as(&self, name: &LeaseId, lease: &Lease, job_id: &str) {
        if self.issue(lease, job_id).is_some() {
            self.sent(&lease.id);
        }
        if *name != lease.id {
            let mut written = Vec::with_capacity(128);
            bytes::write(&mut written, lease);
            written.extend(job_id.as_bytes());
            self.table.open_alias(name.bits(), written.into_boxed_slice(), ends_ms(lease));
        }
    }

    /// The lease that a text names: a token, or a plain id.
    pub(crate) fn find(&self, text: &str) -> Result<Found, Refused> {
        if token::is_meant(text) { self.find_token(text) } else { Ok(self.find_id(text)) }
    }

    pub(crate) fn find_token(&self, text: &str) -> Result<Found, Refused> {
        let lease = self.signer.open(text).inspect_err(|refused| {
            let count = self.metrics.lease_event(LeaseEvent::Forged);
            if worth_a_line(count) {
                tracing::warn!(
                    count,
                    "a lease token {refused}: do all instances have the same leases.secrets?"
                );
            }
        })?;
        match self.table.find(lease.id.bits()) {
            Some(LeaseRecord { state: LeaseState::Completed, .. }) => Ok(Found::Completed),
            _ => Ok(Found::Open(lease)),
        }
    }

    fn find_id(&self, text: &str) -> Found {
        match self.view(text) {
            None => Found::Unknown,
            Some(View { state: LeaseState::Completed, .. }) => Found::Completed,
            Some(View { lease, .. }) => Found::Open(lease),
        }
    }

    pub(crate) fn view(&self, id: &str) -> Option<View> {
        let bits = LeaseId::parse(id).bits();
        let view = read(&self.table.find(bits)?)?;
        // Another name of it: what became of it is written under its own.
        let own = (view.lease.id.bits() != bits).then(|| self.table.find(view.lease.id.bits())).flatten();
        Some(View { state: own.map_or(view.state, |record| record.state), ..view })
    }

    /// What any instance can complete a lease with; `None` if its keys are too long for that.
    pub(crate) fn token(&self, lease: &Lease) -> Option<String> {
        let mut written = Vec::with_capacity(128);
        bytes::write(&mut written, lease);
        self.signer.sign(&written)
    }

    /// A name for a value, the same at all instances that have the same secrets.
    pub(crate) fn pseudonym(&self, value: &str) -> String {
        self.signer.pseudonym(value)
    }

    /// What became of a completion.
    pub(crate) fn settled(&self, lease: &Lease, settlements: &[Settlement], error: Option<&LedgerError>) {
        match error {
            None => self.completed(lease, settlements),
            Some(error) => {
                self.lost(&format!("the lease {} was not settled and will expire", lease.id), error)
            }
        }
    }

    /// Something that should have reached the ledger did not.
    pub(crate) fn lost(&self, what: &str, error: &LedgerError) {
        let count = self.unsettled.fetch_add(1, Ordering::Relaxed) + 1;
        if worth_a_line(count) {
            tracing::warn!(count, %error, "{what}");
        }
    }

    fn completed(&self, lease: &Lease, settlements: &[Settlement]) {
        let now_ms = clock::monotonic_ms();
        let until_ms = completed_until_ms(lease, settlements, ends_ms(lease), now_ms);
        if until_ms <= now_ms {
            return;
        }
        let mut written = Vec::with_capacity(128);
        bytes::write(&mut written, lease);
        let written = written.into_boxed_slice();
        if self.table.complete(lease.id.bits(), written, until_ms, now_ms) {
            self.metrics.lease_event(LeaseEvent::Completed);
        }
    }

    /// Runs a completion to its end, whatever becomes of the caller, once there is room for it. A caller who waits for
    /// longer than [`PATIENCE`] hears that it has not happened yet; it goes on.
    pub(crate) async fn run<F>(&self, settling: F) -> Result<(), LedgerError>
    where
        F: Future<Output = Result<(), LedgerError>> + Send + 'static,
    {
        let place = self.place(PATIENCE).await?;
        let (metrics, all) = (Arc::clone(&self.metrics), Arc::clone(&self.settling));
        let count = move || {
            let waiting = SETTLING_MAX - all.available_permits();
            metrics.completions_waiting.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        };
        count();
        let task = self.tasks.spawn(async move {
            let settled = settling.await;
            drop(place);
            count();
            settled
        });
        let not_yet = "the completion has not reached the ledger yet; it is tried until the lease ends";
        match tokio::time::timeout(PATIENCE, task).await {
            Ok(Ok(settled)) => settled,
            Ok(Err(_)) => Err(LedgerError::Unavailable("the completion was interrupted".to_owned())),
            Err(_) => Err(LedgerError::Unavailable(not_yet.to_owned())),
        }
    }

    /// A place among what is being settled. Who gets none is not settled, and Envoy tells nobody: so it is logged here.
    async fn place(&self, within: Duration) -> Result<OwnedSemaphorePermit, LedgerError> {
        let place = tokio::time::timeout(within, Arc::clone(&self.settling).acquire_owned()).await;
        place.ok().and_then(Result::ok).ok_or_else(|| {
            let error = LedgerError::QueueFull { waiting: SETTLING_MAX, per_second: None };
            self.lost("a completion was not begun, and what it gives back will expire", &error);
            error
        })
    }

    /// Forgets leases that have ended.
    pub(crate) fn sweep(&self) {
        for _ in 0..self.table.sweep(clock::monotonic_ms()) {
            self.metrics.lease_event(LeaseEvent::ExpiredUnseen);
        }
    }

    /// Waits for what is being settled. Call when nobody completes any more, and before the ledger closes.
    pub(crate) async fn close(&self, limit: Duration) {
        self.tasks.close();
        if tokio::time::timeout(limit, self.tasks.wait()).await.is_err() {
            tracing::warn!(leases = self.tasks.len(), "leases were not settled in time and will expire");
        }
    }
}

/// What may come in floods is logged the first time, the second, the fourth, …
fn worth_a_line(count: u64) -> bool {
    count.is_power_of_two()
}

fn read(record: &LeaseRecord) -> Option<View> {
    let mut rest = &*record.bytes;
    let lease = bytes::read(&mut rest)?;
    Some(View { state: record.state, lease, job_id: String::from_utf8_lossy(rest).into_owned() })
}

fn read_lease(mut bytes: &[u8]) -> Option<Lease> {
    bytes::read(&mut bytes)
}

/// Until when a completion is remembered. Where more than was reserved may be owed after the end of a lease, it must not be owed
/// twice. So a completion that used more is remembered for as long as the same completion could still be owed.
fn completed_until_ms(lease: &Lease, settlements: &[Settlement], ends_ms: u64, now_ms: u64) -> u64 {
    if may_owe_again(lease, settlements) {
        ends_ms.saturating_add(LATE_MS)
    } else if lease.may_owe() {
        ends_ms.max(now_ms.saturating_add(COMPLETED_MS))
    } else {
        ends_ms
    }
}

/// When a lease ends, on the clock of the table.
fn ends_ms(lease: &Lease) -> u64 {
    let left_ms = lease.ends_at_unix_ms().saturating_sub(clock::unix_ms());
    clock::monotonic_ms().saturating_add(left_ms)
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;
    use crate::lease::Held;
    use crate::lease::settle::settle;
    use crate::limit::{Kind, LimitKey, Overage};

    #[tokio::test]
    async fn a_completion_that_finds_no_place_is_counted_as_lost() {
        let signer = Signer::made_up().unwrap();
        let leases = Leases::new(signer, 10, Arc::new(Metrics::default()));
        let all = u32::try_from(SETTLING_MAX).unwrap();
        let taken = Arc::clone(&leases.settling).try_acquire_many_owned(all).unwrap();
        assert!(matches!(leases.place(Duration::ZERO).await, Err(LedgerError::QueueFull { .. })));
        assert_eq!(leases.unsettled.load(Ordering::Relaxed), 1);
        drop(taken);
        assert!(leases.place(Duration::ZERO).await.is_ok());
        assert_eq!(leases.unsettled.load(Ordering::Relaxed), 1);
    }

    /// The table is swept at the very moment at which the same completion would no longer be owed.
    #[test]
    fn a_completion_is_remembered_for_as_long_as_it_could_be_owed_again() {
        let window_seconds = NonZeroU32::new(60).unwrap();
        for (overage, used, completed_at_ms, until_ms) in [
            (Overage::Repay, 40, 5_000, 60_000 + LATE_MS),
            (Overage::Debt, 40, 5_000, 60_000 + LATE_MS),
            (Overage::Repay, 40, 90_000, 90_000 + LATE_MS),
            // Said again it owes nothing.
            (Overage::Repay, 4, 5_000, 65_000),
            (Overage::Repay, 10, 5_000, 65_000),
            // Never owed.
            (Overage::Deny, 40, 5_000, 60_000),
        ] {
            let (key, kind) = (LimitKey::new("k"), Kind::Rolling { window_seconds });
            let held = Held { key, amount: 10, kind, overage, costs_hits: true, is_named: true };
            let lease = Lease { id: LeaseId::parse("x"), reserved_at_unix_ms: 0, held: vec![held] };
            let settlements = settle(&lease, &[Some(used)], completed_at_ms);
            let ends_ms = completed_at_ms.max(60_000);
            let remembered = completed_until_ms(&lease, &settlements, ends_ms, completed_at_ms);
            assert_eq!(remembered, until_ms, "{overage:?} {used} at {completed_at_ms}");
            let again = settle(&lease, &[Some(used)], until_ms);
            assert_eq!(again, [], "{overage:?} {used} at {completed_at_ms}");
        }
    }
}
