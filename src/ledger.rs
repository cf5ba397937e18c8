//! The ledger: where balances live, and the rules that every ledger follows.
//!
//! Every limit is an account with a capacity. A [`Chain`] is a list of transfers of one lease that happen together
//! or not at all, in order, so that what a void gives back is there for the next transfer of the same chain:
//!
//! * `Reserve` takes an amount until it expires by itself, `lifetime_seconds` later: never early, a little late.
//!   It fails with `ExceedsCredits` when it doesn't fit.
//! * `TakeUpTo` takes as much as there is, up to an amount; with nothing left it takes nothing, and is done all the same.
//! * `Rereserve` takes what a completion found to be the real amount.
//! * `Void`, `VoidTaken` and `VoidRereserved` give back what one of those holds, before it expires.
//! * `Debt` records what no longer fitted. It can't fail for lack of room.
//!
//! A limit whose overage is `repay` pays what it owes before anybody gets anything: as much as is free is reserved for a
//! window at once and taken off the debt, and so is whatever comes back later. Until nothing is owed a `Reserve` fails with
//! `InDebt`. So in any window no more is used than the capacity and what was overshot, and what was overshot is given up
//! later.
//!
//! A transfer is named by its lease, its account and what it does, so a chain does one thing once to an account. Doing the
//! same again changes nothing: a chain whose first transfer exists was done, and is a success. A reserve that was refused
//! stays refused under that name.
//!
//! Capacity is part of every reserve: a ledger raises an account to it at once, and lowers it only when that much is
//! free; until then it refuses with `LimitDecreasing`. A re-reserve is not refused for that: what it takes was used
//! already, and mostly it gives something back.
//!
//! [`Ledger`] is the interface. [`Backend`] is a ledger that holds balances, or one that reaches such a ledger. A layer is a
//! ledger over another one: it answers a part of what it is asked, and passes the rest on. There are three. [`Failover`] answers
//! when the ledger below is away. [`Slabs`] answers for hot limits without a round trip. [`Rotation`] is over two ledgers, of
//! which the second replaces the first.
//! All of it is composed statically; [`LiveLedger`] is what the server runs.

mod account;
mod backend;
pub mod debt_log;
mod failover;
pub mod hub;
mod loan;
pub mod memory;
mod options;
mod owing;
mod patiently;
mod restart;
mod rotation;
mod sample;
mod shared;
pub mod slabs;
#[cfg(feature = "tigerbeetle")]
pub mod tigerbeetle;
#[cfg(not(feature = "tigerbeetle"))]
#[path = "ledger/without_tigerbeetle.rs"]
pub mod tigerbeetle;

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

pub use self::account::{Account, Accounts};
pub use self::backend::Backend;
pub use self::failover::{Failover, OnFailure};
pub use self::loan::{Lender, Loan, LoanEnd, SlabHeld, SlabTake};
pub use self::options::TransferIds;
pub(crate) use self::patiently::complete_patiently;
pub use self::rotation::Rotation;
pub use self::slabs::limit::Shown as SlabView;
pub use self::slabs::{Lending, Lent, Slabs};
use crate::limit::{BitSet, LeaseId, LimitKey, LimitSpec, Overage};
pub use crate::retry::schedule::{Release, Schedule};

/// The ledger of a running server.
pub type LiveLedger = Failover<Slabs<Arc<Rotation<Backend>>>>;

/// What every ledger and every layer answers. Nothing here waits without a deadline.
pub trait Ledger: Send + Sync {
    /// Applies a chain that a caller waits for. A caller that drops the future gets its reservation given back.
    fn apply(&self, chain: &Chain) -> impl Future<Output = Result<Outcome, LedgerError>> + Send;

    /// Applies a chain that settles a lease. It may take longer: nobody waits for the answer, and it must not be lost because the ledger
    /// is slow for a moment.
    fn complete(&self, chain: &Chain) -> impl Future<Output = Result<Outcome, LedgerError>> + Send;

    /// Gives a reserve back whose caller has left before it was told of it. What others know under the same name stays.
    fn give_back(&self, chain: Chain);

    /// Takes a slab, which `chain` describes, of a limit with this window. A hub may lend it from a slab of its own instead.
    fn take_slab(
        &self,
        chain: &Chain,
        _window_seconds: NonZeroU32,
    ) -> impl Future<Output = Result<SlabTake, LedgerError>> + Send {
        async { self.apply(chain).await.map(SlabTake::Applied) }
    }

    /// Nothing is handed out any more of what was lent.
    fn end_loan(&self, _: Lender, _: LoanEnd) {}

    /// What is free on an account, as far as that is known without a round trip.
    fn peek(&self, account: &Account, spec: &LimitSpec) -> Option<u64>;

    /// The same, and the account will be looked at again soon.
    fn sample(&self, account: &Arc<Account>, spec: &LimitSpec) -> Option<u64>;

    /// Whether a limit still holds more than its capacity, because that was lowered, as far as is known without a round trip.
    /// If so, the account says since when.
    fn is_decreasing(&self, account: &Account, spec: &LimitSpec) -> bool;

    /// Makes and funds accounts before anybody asks for them. Those that are known to be as wanted cost nothing.
    fn provision(&self, wants: Vec<Want>) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// What accounts hold now; one per want, in order.
    fn balances(&self, wants: Vec<Want>) -> impl Future<Output = Result<Vec<Balance>, LedgerError>> + Send;

    /// What an account holds, and when that comes back; no reservation of it lives longer than `lifetime_seconds`.
    fn schedule(
        &self,
        account: &Arc<Account>,
        lifetime_seconds: NonZeroU32,
    ) -> impl Future<Output = Result<Schedule, LedgerError>> + Send;

    /// What an account holds, and when that comes back, as far as is known without a round trip; whoever asks may ask for
    /// the same account again soon.
    fn comes_back(&self, _: &Arc<Account>, _: &LimitSpec) -> Option<Schedule> {
        None
    }

    /// Whether nothing is left of a limit, as far as is known without a round trip; the account will be looked at again
    /// soon.
    fn is_used_up(&self, account: &Arc<Account>, spec: &LimitSpec) -> bool;

    /// What a limit owes that repays its debts, as far as is known without a round trip; the account will be looked at
    /// again soon.
    fn owed(&self, account: &Arc<Account>, spec: &LimitSpec) -> u64;

    /// In how long a limit that owes something will have paid it and will have room for `amount`, as far as is known
    /// without a round trip; `None` if it never will.
    fn repaid_in_ms(&self, account: &Account, spec: &LimitSpec, amount: u64) -> Option<u64>;

    /// Forgives what a limit owes.
    fn forgive(&self, want: Want) -> impl Future<Output = Result<(), LedgerError>> + Send;

    /// Whether requests can be answered; the reason if not.
    fn ready(&self) -> Result<(), String>;

    /// Whether other processes take from the same accounts and give back to them, of which nobody tells this one.
    fn is_shared(&self) -> bool;

    /// What this instance holds of a limit to hand out by itself.
    fn slab(&self, _: &Account) -> Option<SlabView> {
        None
    }

    /// What the slabs of a layer above hold now, for whoever shows it elsewhere.
    fn tell_slabs(&self, _: impl FnOnce() -> Vec<SlabHeld>) {}

    /// Other limits are live: `spec_of` says what an account's limit is now, `None` if there is none. What this instance
    /// holds to hand out by itself and may not have any more goes back at once. May take a while.
    fn limits_changed(&self, _: &dyn Fn(&Account) -> Option<Arc<LimitSpec>>) {}

    /// The longest lifetime of anything that was asked for since two ledgers are in use; `None` if one is.
    fn longest_lifetime_seconds(&self) -> Option<NonZeroU32> {
        None
    }

    /// Frees what expired, also for keys that nobody asks about any more. How many records this process holds then.
    fn sweep(&self) -> usize;

    /// Lets what is under way land. Call when nobody asks any more.
    fn close(&self) -> impl Future<Output = ()> + Send;
}

/// Transfers of one lease that happen together or not at all.
#[derive(Debug, Clone)]
pub struct Chain {
    pub lease: LeaseId,
    pub keep: Keep,
    pub transfers: SmallVec<[Transfer; 4]>,
}

impl Chain {
    /// Only chains that reserve are undone; what a completion did stays.
    pub(crate) fn can_be_given_back(&self) -> bool {
        let reserves =
            |transfer: &Transfer| matches!(transfer.action, Action::Reserve(_) | Action::TakeUpTo(_));
        self.transfers.iter().all(reserves)
    }

    /// The accounts that it took from, each with how much that was; `taken` is what each `TakeUpTo` took.
    pub(crate) fn amounts_taken<'c>(&'c self, taken: &'c [u64]) -> impl Iterator<Item = (&'c Account, u64)> {
        let mut taken = taken.iter();
        self.transfers.iter().filter_map(move |transfer| match transfer.action {
            Action::Reserve(hold) => Some((&*transfer.account, hold.amount)),
            Action::TakeUpTo(_) => Some((&*transfer.account, taken.next().copied().unwrap_or(0))),
            _ => None,
        })
    }
}

/// Some of the transfers of a chain, by their places in it.
pub type TransferSet = BitSet;

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
    /// As much as there is, up to the amount.
    TakeUpTo(Hold),
    Rereserve(Hold),
    /// Voids the `Reserve` of the same lease and account.
    Void,
    /// The same for its `TakeUpTo`.
    VoidTaken,
    /// The same for its `Rereserve`.
    VoidRereserved,
    /// What is owed; its lifetime is that of the reservations that pay for it.
    Debt(Hold),
}

impl Action {
    /// Gives something back, and takes nothing.
    pub fn is_void(self) -> bool {
        matches!(self, Action::Void | Action::VoidTaken | Action::VoidRereserved)
    }
}

/// An amount that is taken for a time from an account that has a capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hold {
    pub amount: u64,
    pub lifetime_seconds: NonZeroU32,
    pub capacity: u64,
    /// The ledger that holds the balance must be asked: no layer may answer from what it has reserved before.
    pub is_exact: bool,
    /// What the limit does about debts.
    pub overage: Overage,
}

/// What became of a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// What is free on the account of each transfer afterwards; empty if the ledger doesn't say without being asked.
    pub available: SmallVec<[u64; 4]>,
    /// An earlier sending of the same name had done it.
    pub is_repeat: bool,
    /// What each `TakeUpTo` of the chain took, in order, if the chain was done.
    pub taken: SmallVec<[u64; 1]>,
    /// When an embedded ledger decided, by [`clock::monotonic_ns`](crate::clock): what it decided later has a later time.
    pub decided_at_ns: Option<u64>,
}

impl Outcome {
    /// A verdict of a ledger that doesn't say what is free, on a chain without a `TakeUpTo`.
    pub fn bare(verdict: Verdict) -> Self {
        Self {
            verdict,
            available: SmallVec::new(),
            is_repeat: false,
            taken: SmallVec::new(),
            decided_at_ns: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Done,
    Refused(Refusal),
    /// The ledger did not answer, and the operator wants that to be a yes. Nothing is held.
    NotAsked,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// The first transfer that failed.
    pub index: usize,
    pub code: RefusalCode,
    /// Every transfer known to have failed.
    pub failed: TransferSet,
}

impl Refusal {
    /// Only one transfer is known to have failed.
    pub fn one(index: usize, code: RefusalCode) -> Self {
        Self { index, code, failed: TransferSet::one(index) }
    }
}

/// Why a transfer failed, in the ledger's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefusalCode {
    ExceedsCredits,
    IdAlreadyFailed,
    /// This name was used for another amount, or another request.
    ExistsWithDifferentFields,
    PendingTransferNotFound,
    PendingTransferExpired,
    PendingTransferAlreadyVoided,
    LimitDecreasing,
    /// The limit owes something, and pays that first.
    InDebt,
    /// An earlier sending of this name was given back because its caller had gone: ask under another name.
    Abandoned,
    /// The ledger did not answer, and the operator wants that to be a no. Nothing is known of any limit.
    NotAsked,
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

/// A limit whose account is asked about, or must be there.
#[derive(Debug, Clone)]
pub struct Want {
    pub account: Arc<Account>,
    pub capacity: u64,
    pub overage: Overage,
    /// No reservation of it lives longer.
    pub lifetime_seconds: NonZeroU32,
}

/// A change of capacity that takes time, told so that it can be remembered over a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CapacityEvent {
    Decreasing { key: LimitKey, from: u64, to: u64 },
    Settled { key: LimitKey, capacity: u64 },
}
