//! The words of the queue: a job's place, the states that it goes through, and what its holder is told.
//!
//! Plain data. What happens to a place is in [`super::places`].

use std::fmt;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::lease::Lease;
use crate::ledger::Account;
pub use crate::limit::LimitId;
use crate::limit::{LeaseId, LimitSpec};

/// Names a job in the queue: the bits of the lease id that its caller knows it by.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(pub(super) u128);

impl JobId {
    pub fn of(id: &LeaseId) -> Self {
        Self(id.bits().get())
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JobId({:x})", self.0)
    }
}

/// What a job wants of which limits, by their keys as the caller wrote them.
pub type Wants = Arc<[(Arc<str>, u64)]>;

/// One limit that a job needs, and how much of it.
#[derive(Debug, Clone)]
pub struct Need {
    pub account: Arc<Account>,
    pub spec: Arc<LimitSpec>,
    pub amount: u64,
}

/// A job that asks for a place.
#[derive(Debug)]
pub struct NewPlace {
    pub id: LeaseId,
    pub job_id: String,
    pub wants: Wants,
    pub needs: Vec<Need>,
    /// The limit that it could not have, if it was attempted already.
    pub refused_by: Option<LimitId>,
    /// Of a job that another instance sent here.
    pub terms: Option<Terms>,
}

/// What a place of another instance's caller has instead of this instance's files: its limits are those that it needs as they were
/// last asked for, and its times are these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    pub deadline_seconds: u64,
    pub pickup_seconds: u64,
}

/// One job's place, from its arrival until it is forgotten.
#[derive(Debug)]
pub struct Place {
    pub id: LeaseId,
    pub job_id: String,
    pub wants: Wants,
    pub state: PlaceState,
    pub joined_ms: u64,
    /// When its state began.
    pub since_ms: u64,
    /// The first estimate, if one could be made.
    pub promised_seconds: Option<u64>,
    /// It has been attempted, or stands behind a job that was, so its position is known.
    pub is_placed: bool,
    /// How often it was attempted.
    pub attempts: u32,
    /// Tells those who follow it that something changed.
    pub changed: Arc<Notify>,
    /// Calls that wait for their first answer about it, and how many have had it.
    pub(super) callers: u32,
    pub(super) heard: u32,
    pub terms: Option<Terms>,
    /// How often another limit refused it than the time before, and which limit refused it last.
    pub(super) bounces: u32,
    pub(super) refused_by: Option<LimitId>,
    /// Since when and until when it waits at all limits that refused it, or last did.
    pub(super) insists: Option<(u64, u64)>,
    pub(super) timer_ms: Option<u64>,
    /// What it takes, names included.
    pub(super) bytes: usize,
}

/// Where a job is on its way. Each variant has the name that users see.
#[derive(Debug, Clone, PartialEq)]
pub enum PlaceState {
    Queued,
    /// Its reserve is under way.
    Processing,
    Reserved(Box<Reserved>),
    Completed,
    TimedOut(TimedOut),
    Failed(Failure),
    Cancelled,
}

/// What ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimedOut {
    /// It waited for `deadline_seconds`.
    Deadline,
    /// It was served, and nobody asked for it within `pickup_seconds`.
    NotPickedUp,
    /// Its lease ended before it was completed.
    LeaseEnded,
}

/// Why a job can't be served any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Failure {
    /// No file defines this limit any more.
    UnknownLimit(String),
    /// It needs more of this limit than the capacity.
    NeverFits(String),
    /// Its lease id was used for something else.
    NameUsed,
    /// This instance stops.
    Stopping,
}

/// What a job that was served holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Reserved {
    /// As the ledger calls it. A later attempt has another name than the place.
    pub lease: LeaseId,
    /// `None` if it can be completed by its id only.
    pub token: Option<String>,
    pub reserved_at_unix_ms: u64,
    pub ends_at_unix_ms: u64,
    /// What has to be released if nobody picks it up; `None` once somebody did.
    pub unclaimed: Option<Box<Lease>>,
    pub is_picked_up: bool,
    /// What the instance whose job it is makes a token of; `None` if it is this one's.
    pub for_another: Option<Arc<Lease>>,
}

/// There is no place left.
#[derive(Debug, Clone)]
pub struct QueueFull {
    /// The limit whose places are all taken; `None` if all places are.
    pub limit: Option<Arc<Account>>,
    /// When one more job would have been served.
    pub eta_seconds: u64,
}

/// What the holder of a place is told.
#[derive(Debug, Clone)]
pub struct PlaceStatus {
    pub id: LeaseId,
    pub job_id: String,
    pub state: PlaceState,
    pub wants: Wants,
    /// How many jobs are before it; `None` when it doesn't wait.
    pub position: Option<u64>,
    /// Seconds until it is served, or until it is worth asking again.
    pub eta_seconds: u64,
    pub elapsed_seconds: u64,
}

impl PlaceState {
    pub fn name(&self) -> &'static str {
        match self {
            PlaceState::Queued => "queued",
            PlaceState::Processing => "processing",
            PlaceState::Reserved(_) => "reserved",
            PlaceState::Completed => "completed",
            PlaceState::TimedOut(_) => "timed_out",
            PlaceState::Failed(_) => "failed",
            PlaceState::Cancelled => "cancelled",
        }
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, PlaceState::Queued | PlaceState::Processing)
    }

    /// No other state follows it.
    pub fn is_last(&self) -> bool {
        !self.is_waiting() && !matches!(self, PlaceState::Reserved(_))
    }
}

impl Place {
    /// Nothing is left to do for it: it has ended, or its holder has what it waited for.
    pub fn is_over(&self) -> bool {
        match &self.state {
            PlaceState::Reserved(reserved) => reserved.is_picked_up,
            state => state.is_last(),
        }
    }
}
