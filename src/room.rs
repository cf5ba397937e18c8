//! The waiting room: a place in line for those who can wait, an honest time, and their lease in order.
//!
//! Tickets in [`tickets`], who is next in [`lines`], when a limit is worth another try in [`watch`], how long it takes in
//! [`forecast`], what newcomers may take meanwhile in [`turnstile`]. A core: it is told what happened and when, says whom to try and when to be woken, and
//! reserves nothing itself. Refuses to know the wire, the ledger's calls and the clock.

pub mod lines;
pub mod tickets;
mod watch;

pub mod forecast;

pub mod turnstile;

use std::sync::Arc;

use tokio::sync::Notify;

use self::lines::{JobId, LimitId, Place};
use crate::lease::Lease;
use crate::ledger::Account;
use crate::limit::{LeaseId, LimitSpec};

pub use self::tickets::Room;

/// One job's way through the room.
#[derive(Debug)]
pub struct Ticket {
    pub id: LeaseId,
    pub job_id: String,
    pub wants: Arc<[(Arc<str>, u64)]>,
    pub state: State,
    pub joined_ms: u64,
    /// When its state began.
    pub since_ms: u64,
    /// The first promise, if one could be made.
    pub promised_seconds: Option<u64>,
    /// It has been tried, or stands behind somebody who was: its place is one.
    pub is_placed: bool,
    /// How often it was tried.
    pub attempts: u32,
    pub changed: Arc<Notify>,
    /// Calls that wait for the first word on it, and whether any has had it.
    callers: u32,
    is_heard: bool,
    /// How often it was refused by another limit than the time before, and by which it was last.
    bounces: u32,
    refused_by: Option<LimitId>,
    /// Since when and until when it waits at all its limits, or last did.
    insists: Option<(u64, u64)>,
    timer_ms: Option<u64>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum State {
    Queued,
    /// Its chain is being submitted.
    Processing,
    Reserved(Box<Reserved>),
    Completed,
    /// Its deadline came, it was not picked up, or its lease ran out.
    TimedOut(&'static str),
    Failed(String),
    Cancelled,
}

/// What a job that was served holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Reserved {
    /// As the ledger calls it; a later attempt has another name than the ticket.
    pub lease: LeaseId,
    /// `None` if it can be completed by its id only.
    pub token: Option<String>,
    pub reserved_at_unix_ms: u64,
    pub ends_at_unix_ms: u64,
    /// What has to be given back if nobody comes; gone when somebody does.
    pub unclaimed: Option<Box<Lease>>,
    pub is_picked_up: bool,
}

impl State {
    pub fn name(&self) -> &'static str {
        match self {
            State::Queued => "queued",
            State::Processing => "processing",
            State::Reserved(_) => "reserved",
            State::Completed => "completed",
            State::TimedOut(_) => "timed_out",
            State::Failed(_) => "failed",
            State::Cancelled => "cancelled",
        }
    }

    pub fn is_waiting(&self) -> bool {
        matches!(self, State::Queued | State::Processing)
    }

    /// Nothing follows it.
    pub fn is_last(&self) -> bool {
        !self.is_waiting() && !matches!(self, State::Reserved(_))
    }
}

/// Somebody who wants a place.
#[derive(Debug)]
pub struct Arrival {
    pub id: LeaseId,
    pub job_id: String,
    pub wants: Arc<[(Arc<str>, u64)]>,
    pub limits: Vec<(Arc<Account>, Arc<LimitSpec>, u64)>,
    /// The limit that it could not have, if it has been tried already.
    pub refused_by: Option<LimitId>,
}

/// There is no place left.
#[derive(Debug, Clone)]
pub struct Full {
    /// The limit whose places are all taken; `None` if all places are.
    pub limit: Option<Arc<Account>>,
    /// When one who came now would have been served.
    pub eta_seconds: u64,
}

impl Ticket {
    /// Its holder has heard the end of it, or has what it waited for.
    pub fn is_over(&self) -> bool {
        match &self.state {
            State::Reserved(reserved) => reserved.is_picked_up,
            state => state.is_last(),
        }
    }
}

/// What happened to whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Waited as long as a job may; it is out.
    Deadline(JobId),
    /// Was served and did not come; it is out, and what it holds has to be given back.
    NotPickedUp(JobId),
    /// A limit may have something, or is to be looked at.
    Look(LimitId),
}

/// Where a ticket stands, for those who ask.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub place: Option<Place>,
    /// Until it is served, or until it is worth asking again.
    pub eta_seconds: u64,
    pub elapsed_seconds: u64,
}
