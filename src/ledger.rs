//! The ledger: where balances live, and the rules that both ledgers follow.
//!
//! Every limit is an account with a capacity. A [`Chain`] is a list of transfers of one lease that happen together
//! or not at all, in order, so that what a void gives back is there for the next transfer of the same chain:
//!
//! * `Reserve` takes an amount until it expires by itself, `lifetime_seconds` later: never early, a little late.
//!   It fails with `ExceedsCredits` when it doesn't fit.
//! * `Void` gives a reservation back before that.
//! * `Rereserve` takes what a completion found to be the real amount.
//! * `Debt` records what no longer fitted. It can't fail for lack of room.
//!
//! A transfer is named by its lease, its account and what it does, so a chain does one thing once to an account; doing the same again changes nothing: a chain whose
//! first transfer exists was done, and is a success. A reserve that was refused stays refused under that name.
//!
//! Capacity is part of every reserve: a ledger raises an account to it at once, and lowers it only when that much is
//! free; until then it refuses with `LimitDecreasing`. A re-reserve is not refused for that: what it takes was used
//! already, and mostly it gives something back.

pub mod memory;
mod outlook;
pub mod slabs;
#[cfg(feature = "tigerbeetle")]
pub mod tigerbeetle;

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::outlook::{Free, Outlook};
use crate::clock;
use crate::limit::{Account, LeaseId, LimitKey, LimitSpec, Overage};
use crate::telemetry::{LedgerFailure, Metrics};

/// Transfers of one lease that happen together or not at all.
#[derive(Debug, Clone)]
pub struct Chain {
    pub lease: LeaseId,
    pub keep: Keep,
    pub transfers: SmallVec<[Transfer; 4]>,
}

/// Who may name this lease again, and so what an embedded ledger has to remember of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// Nobody: hits of one moment may be counted together.
    Nothing,
    /// Nobody but its caller, who may leave while it waits for something else and then gives it back.
    ForUndo,
    /// A completion may void it.
    ForCompletion,
    /// The caller chose the name and may send it again, also when it was refused; nobody completes it.
    Name,
    /// The caller chose the name and may send it again, and a completion may void it.
    ForRetries,
}

impl Keep {
    /// Somebody else may know this name.
    pub fn is_named(self) -> bool {
        matches!(self, Keep::Name | Keep::ForRetries)
    }
}

#[derive(Debug, Clone)]
pub struct Transfer {
    pub account: Arc<Account>,
    pub action: Action,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Reserve(Hold),
    /// Voids the `Reserve` of the same lease and account.
    Void,
    Rereserve(Hold),
    Debt {
        amount: u64,
    },
}

/// An amount that is taken for a time from an account that has a capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub amount: u64,
    pub lifetime_seconds: NonZeroU32,
    pub capacity: u64,
}

/// What became of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// What is free on the account of each transfer afterwards; empty if the ledger doesn't say without being asked.
    pub available: SmallVec<[u64; 4]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Done,
    Refused(Refusal),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The first transfer that failed.
    pub index: usize,
    pub code: Code,
    /// Every transfer known to have failed, bit n for transfer n.
    pub failed: u64,
}

/// Why a transfer failed, in the ledger's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Code {
    ExceedsCredits,
    IdAlreadyFailed,
    /// This name was used for another amount, or another request.
    ExistsWithDifferentFields,
    PendingTransferNotFound,
    PendingTransferExpired,
    PendingTransferAlreadyVoided,
    LimitDecreasing,
    /// An earlier sending of this name was given back because its caller had gone: ask under another name.
    Abandoned,
}

/// What an account holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Balance {
    pub capacity: u64,
    pub used: u64,
    pub debt: u64,
}

impl Balance {
    pub fn available(&self) -> u64 {
        self.capacity.saturating_sub(self.used)
    }
}

/// Why the ledger did not answer. Nothing is known of the chain unless the variant says so.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum LedgerError {
    /// Not connected: the chain was not applied.
    #[error("the ledger is not connected: {0}")]
    Unavailable(String),
    /// It may still be applied; if so it is voided when it lands.
    #[error("the ledger did not answer within {0} ms")]
    TimedOut(u64),
    /// The chain was not applied.
    #[error("{waiting} chains are waiting for the ledger already")]
    QueueFull { waiting: usize, per_second: Option<f64> },
    /// The embedded ledger has no room for another reservation: the chain was not applied.
    #[error("the memory ledger holds its maximum of {0} reservations")]
    Full(usize),
}

impl LedgerError {
    fn failure(&self) -> LedgerFailure {
        match self {
            Self::Unavailable(_) => LedgerFailure::Unavailable,
            Self::TimedOut(_) => LedgerFailure::TimedOut,
            Self::QueueFull { .. } => LedgerFailure::QueueFull,
            Self::Full(_) => LedgerFailure::Full,
        }
    }
}

/// The ledger that this process was started with, and what to do when it fails.
#[derive(Debug)]
pub struct Ledger {
    backend: Backend,
    on_failure: OnFailure,
    metrics: Arc<Metrics>,
    /// Answers while the real one is away, with a share of each capacity.
    local: memory::Memory,
}

#[derive(Debug)]
pub enum Backend {
    Memory(memory::Memory),
    #[cfg(feature = "tigerbeetle")]
    TigerBeetle(tigerbeetle::TigerBeetle),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum OnFailure {
    /// An error, so that Envoy's failure mode decides.
    Error,
    Allow,
    Deny,
    /// This share of each capacity, from memory.
    Local {
        share: f64,
    },
}

/// A limit whose account is asked about, or must be there.
#[derive(Debug, Clone)]
pub struct Want {
    pub account: Arc<Account>,
    pub capacity: u64,
    pub overage: Overage,
}

/// A change of capacity that takes time, told so that it can be remembered over a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacityEvent {
    Decreasing { key: LimitKey, from: u64, to: u64 },
    Settled { key: LimitKey, capacity: u64 },
}

/// What a completion may take: nobody waits for its answer, and it must not be lost to a hiccup.
#[cfg(feature = "tigerbeetle")]
const COMPLETION_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

impl Ledger {
    pub fn new(backend: Backend, on_failure: OnFailure, metrics: Arc<Metrics>) -> Self {
        metrics.memory_records_max.set(gauge(memory::RESERVATIONS_MAX));
        Self { backend, on_failure, metrics, local: memory::Memory::default() }
    }

    pub fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Applies a chain that a caller waits for.
    pub async fn apply(&self, chain: Chain) -> Result<Outcome, LedgerError> {
        match &self.backend {
            Backend::Memory(memory) => self.counted(memory.apply(&chain, clock::monotonic_ms())),
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => match self.on_failure {
                OnFailure::Local { share } => {
                    match self.counted(tigerbeetle.apply(chain.clone(), tigerbeetle.timeout()).await) {
                        Err(LedgerError::Unavailable(_) | LedgerError::TimedOut(_)) => {
                            self.counted(self.local.apply(&chain.with_share(share), clock::monotonic_ms()))
                        }
                        answer => answer,
                    }
                }
                _ => self.counted(tigerbeetle.apply(chain, tigerbeetle.timeout()).await),
            },
        }
    }

    /// A failure is counted here, where all are seen: what becomes of it is decided above, and not always by an error.
    fn counted(&self, answer: Result<Outcome, LedgerError>) -> Result<Outcome, LedgerError> {
        answer.inspect_err(|error| self.metrics.ledger_failed(error.failure()))
    }

    /// Applies a chain that settles a lease.
    pub async fn complete(&self, chain: Chain) -> Result<Outcome, LedgerError> {
        match &self.backend {
            Backend::Memory(memory) => self.counted(memory.apply(&chain, clock::monotonic_ms())),
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => match self.on_failure {
                // What was reserved here while the real one was away comes back here.
                OnFailure::Local { share } if self.local.knows(&chain.lease) => {
                    self.counted(self.local.apply(&chain.with_share(share), clock::monotonic_ms()))
                }
                _ => self
                    .counted(tigerbeetle.apply(chain, tigerbeetle.timeout().max(COMPLETION_TIMEOUT)).await),
            },
        }
    }

    /// Gives a reserve back whose caller has left before it was told of it.
    pub fn give_back(&self, chain: Chain) {
        match &self.backend {
            // A caller can't leave in the middle of what never waits.
            Backend::Memory(_) => drop(chain),
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => tigerbeetle.give_back(chain),
        }
    }

    /// What is free on an account, as far as that is known without a round trip.
    pub fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64> {
        let now_ms = clock::monotonic_ms();
        match &self.backend {
            Backend::Memory(memory) => Some(memory.balance(account, spec.capacity, now_ms).available()),
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(_) => {
                let lifetime_ms = u64::from(spec.kind.lifetime_seconds().get()) * 1000;
                account.sample(spec.capacity, lifetime_ms, now_ms)
            }
        }
    }

    /// Whether a limit holds more than its capacity, because that was lowered: as far as is known without a round trip.
    pub fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool {
        match &self.backend {
            Backend::Memory(memory) => {
                memory.balance(account, spec.capacity, clock::monotonic_ms()).capacity > spec.capacity
            }
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(_) => {
                account.is_decreasing() && account.funded().is_some_and(|funded| funded > spec.capacity)
            }
        }
    }

    /// Whether requests can be answered; the reason if not.
    pub fn ready(&self) -> Result<(), String> {
        match &self.backend {
            Backend::Memory(_) => Ok(()),
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => tigerbeetle.ready(),
        }
    }

    /// Makes and funds accounts before anybody asks for them.
    pub async fn provision(&self, wants: Vec<Want>) -> Result<(), LedgerError> {
        match &self.backend {
            // An account of the embedded ledger begins with its first reserve.
            Backend::Memory(memory) => {
                for want in &wants {
                    memory.balance(&want.account, want.capacity, clock::monotonic_ms());
                }
                Ok(())
            }
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => tigerbeetle.provision(wants, COMPLETION_TIMEOUT).await,
        }
    }

    /// What accounts hold now; one per want, in order.
    pub async fn balances(&self, wants: Vec<Want>) -> Result<Vec<Balance>, LedgerError> {
        match &self.backend {
            Backend::Memory(memory) => {
                let now_ms = clock::monotonic_ms();
                Ok(wants.iter().map(|want| memory.balance(&want.account, want.capacity, now_ms)).collect())
            }
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => tigerbeetle.balances(wants).await,
        }
    }

    /// What an account holds, and when it comes back.
    pub async fn outlook(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> Result<Outlook, LedgerError> {
        match &self.backend {
            Backend::Memory(memory) => {
                let _ = lifetime_seconds;
                Ok(memory.outlook(account, clock::monotonic_ms()))
            }
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => {
                tigerbeetle.outlook(Arc::clone(account), lifetime_seconds).await
            }
        }
    }

    /// What was free on an account when it was last looked at; it will be looked at again soon.
    pub fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64> {
        #[cfg(feature = "tigerbeetle")]
        if let Backend::TigerBeetle(tigerbeetle) = &self.backend {
            tigerbeetle.touch(account);
        }
        self.peek(account, spec)
    }

    /// Whether others than this process take from its accounts and give back, which nobody tells.
    pub fn is_shared(&self) -> bool {
        !matches!(self.backend, Backend::Memory(_))
    }

    /// Frees what expired, also for keys that nobody asks about any more.
    pub fn sweep(&self) {
        self.local.sweep(clock::monotonic_ms());
        let mut records = self.local.records();
        match &self.backend {
            Backend::Memory(memory) => {
                memory.sweep(clock::monotonic_ms());
                records += memory.records();
            }
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(_) => {}
        }
        self.metrics.memory_records.set(gauge(records));
    }

    /// Lets what is under way land.
    pub async fn close(&self) {
        match &self.backend {
            // Whatever was applied has landed.
            Backend::Memory(_) => {}
            #[cfg(feature = "tigerbeetle")]
            Backend::TigerBeetle(tigerbeetle) => tigerbeetle.close().await,
        }
    }
}

fn gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

impl Chain {
    /// The same on accounts that have only a share of their capacity.
    #[cfg(feature = "tigerbeetle")]
    fn with_share(mut self, share: f64) -> Self {
        for transfer in &mut self.transfers {
            if let Action::Reserve(hold) | Action::Rereserve(hold) = &mut transfer.action {
                hold.capacity = shared(hold.capacity, share);
            }
        }
        self
    }
}

/// Rounded down, so that shares of several sidecars don't add up to more; but what has room for one keeps it.
#[cfg(feature = "tigerbeetle")]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a u64 is one")]
fn shared(capacity: u64, share: f64) -> u64 {
    ((capacity as f64 * share) as u64).max(capacity.min(1))
}
