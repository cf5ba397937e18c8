//! A session, whether it answers, and what is done while it does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;

use super::outage::{Outage, Reason, Sight};
use super::session::{Session, SessionError};
use super::{Cluster, addresses};
use crate::clock;

/// How often we look whether somebody listens again.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The same where somebody listens already, who has to accept each connection.
const LOOK_INTERVAL_LISTENING: Duration = Duration::from_secs(1);

/// For how long one session leaves its place to another.
const PAUSE_MS: u64 = 3_000;

/// A session and what is known of it.
#[derive(Debug)]
pub(super) struct Link {
    pub session: Session,
    is_up: AtomicBool,
    /// Why it is not up.
    reason: ArcSwapOption<String>,
    /// Of several who wait, one looks at the cluster and holds this.
    outage: Mutex<Outage>,
    /// The cluster has no connection left for it.
    is_full: AtomicBool,
    /// It was given up for the sake of the other session, and is not to be used before this.
    paused_until_ms: AtomicU64,
}

impl Link {
    pub(super) fn new(cluster: Cluster) -> Self {
        Self {
            session: Session::new(cluster),
            is_up: AtomicBool::new(false),
            reason: ArcSwapOption::empty(),
            outage: Mutex::new(Outage::new(0, true)),
            is_full: AtomicBool::new(false),
            paused_until_ms: AtomicU64::new(0),
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    pub(super) fn why_down(&self) -> String {
        let reason = self.reason.load();
        reason.as_ref().map_or_else(|| "not connected yet".to_owned(), |reason| reason.to_string())
    }

    /// Notes whether it answers. True if that has changed.
    pub(super) fn set(&self, state: Result<(), &SessionError>) -> bool {
        if state.is_ok() && self.is_up() {
            return false;
        }
        let reason = state.err().map(|error| Arc::new(error.to_string()));
        let is_new_reason = reason.is_some() && self.reason.load_full() != reason;
        self.reason.store(reason);
        self.is_up.swap(state.is_ok(), Ordering::AcqRel) != state.is_ok() || is_new_reason
    }

    /// Why the session doesn't answer.
    pub(super) fn silence(&self) -> SessionError {
        if self.is_full.load(Ordering::Relaxed) {
            SessionError::NoConnection
        } else {
            self.session.no_answer()
        }
    }

    /// Notes whether the cluster has a connection for it. True if that has changed.
    pub(super) fn set_full(&self, is_full: bool) -> bool {
        self.is_full.swap(is_full, Ordering::Relaxed) != is_full
    }

    /// Gives up the session and its connection for a while, so that the other session can take the connection.
    pub(super) fn pause(&self, now_ms: u64) {
        self.paused_until_ms.store(now_ms + PAUSE_MS, Ordering::Relaxed);
        self.session.renew(self.session.number());
    }

    pub(super) fn is_paused(&self, now_ms: u64) -> bool {
        now_ms < self.paused_until_ms.load(Ordering::Relaxed)
    }

    /// Looks at the cluster from outside, and gives the session up if a new one would do better.
    pub(super) async fn look(&self, asked_at_ms: u64, other: &Session) -> Look {
        let Ok(mut outage) = self.outage.try_lock() else {
            return Look {
                next: LOOK_INTERVAL,
                given_up: None,
                is_full: self.is_full.load(Ordering::Relaxed),
            };
        };
        if self.session.answered_at_ms() > outage.started_at_ms() {
            *outage = Outage::new(asked_at_ms, !self.session.has_answered());
        }
        let number = self.session.number();
        let old = self.session.addresses();
        let sight = Sight {
            addresses: addresses::resolve(self.session.cluster()).await.ok(),
            states: addresses::states(&old).await,
            answers_another: other.answered_at_ms() > asked_at_ms,
        };
        let reason = outage.look(&old, sight, asked_at_ms, clock::monotonic_ms());
        if let Some(reason) = reason {
            tracing::info!(?reason, "TigerBeetle gets a new session");
            self.session.renew(number);
        }
        let next = if outage.all_listen() { LOOK_INTERVAL_LISTENING } else { LOOK_INTERVAL };
        Look { next, given_up: reason, is_full: outage.is_full() }
    }
}

/// What a look at the cluster came to.
#[derive(Debug)]
pub(super) struct Look {
    /// When to look again.
    pub next: Duration,
    /// Why the session was given up.
    pub given_up: Option<Reason>,
    /// The cluster has no connection left for it.
    pub is_full: bool,
}
