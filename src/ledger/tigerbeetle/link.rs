//! A session, whether it answers, and what is done while it does not. Every wait for the client library is here.
//!
//! A call can't be taken back, so it is awaited for as long as its session lasts. Meanwhile somebody looks at the cluster
//! from outside, and gives the session up when a new one would do better: then the call ends, and may have been applied.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tokio::sync::Mutex;

use super::outage::{Outage, Sight};
use super::session::{Session, SessionError};
use super::{Cluster, addresses};
use crate::clock;

/// How often it is looked whether somebody listens again.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// The same where somebody listens already, who has to accept each connection.
const LOOK_INTERVAL_LISTENING: Duration = Duration::from_secs(1);

/// A session and what is known of it.
#[derive(Debug)]
pub struct Link {
    pub session: Session,
    is_up: AtomicBool,
    /// Why it is not up.
    reason: ArcSwapOption<String>,
    /// Held by the one who looks while several wait.
    outage: Mutex<Outage>,
}

impl Link {
    pub fn new(cluster: Cluster) -> Self {
        Self {
            session: Session::new(cluster),
            is_up: AtomicBool::new(false),
            reason: ArcSwapOption::empty(),
            outage: Mutex::default(),
        }
    }

    pub fn is_up(&self) -> bool {
        self.is_up.load(Ordering::Acquire)
    }

    pub fn why_down(&self) -> String {
        let reason = self.reason.load();
        reason.as_ref().map_or_else(|| "not connected yet".to_owned(), |reason| reason.to_string())
    }

    /// Notes how it is. True if that is news.
    pub fn set(&self, state: Result<(), &SessionError>) -> bool {
        if state.is_ok() && self.is_up() {
            return false;
        }
        let reason = state.err().map(|error| Arc::new(error.to_string()));
        let is_new_reason = reason.is_some() && self.reason.load_full() != reason;
        self.reason.store(reason);
        self.is_up.swap(state.is_ok(), Ordering::AcqRel) != state.is_ok() || is_new_reason
    }

    /// Looks at the cluster from outside, and gives the session up if a new one would do better. Says when to look again.
    async fn look(&self, asked_at_ms: u64, other: &Session) -> Duration {
        let Ok(mut outage) = self.outage.try_lock() else { return LOOK_INTERVAL };
        if self.session.answered_at_ms() > outage.started_at_ms() {
            *outage = Outage::new(asked_at_ms);
        }
        let number = self.session.number();
        let old = self.session.addresses();
        let sight = Sight {
            addresses: addresses::resolve(self.session.cluster()).await.ok(),
            listening: addresses::listening(&old).await,
            answers_another: other.answered_at_ms() > asked_at_ms,
        };
        if let Some(reason) = outage.look(&old, sight, asked_at_ms, clock::monotonic_ms()) {
            tracing::info!(?reason, "TigerBeetle gets a new session");
            self.session.renew(number);
        }
        if outage.all_listen() { LOOK_INTERVAL_LISTENING } else { LOOK_INTERVAL }
    }

    /// Waits for a call for as long as its session lasts. `stalled` is told when it takes long.
    pub async fn patiently<T>(
        &self,
        call: impl Future<Output = Result<T, SessionError>>,
        stall: Duration,
        other: &Session,
        stalled: impl Fn(&SessionError),
    ) -> Result<T, SessionError> {
        tokio::select! {
            biased;
            answer = call => answer,
            never = self.keep_looking(stall, other, stalled) => match never {},
        }
    }

    async fn keep_looking(
        &self,
        stall: Duration,
        other: &Session,
        stalled: impl Fn(&SessionError),
    ) -> Infallible {
        let asked_at_ms = clock::monotonic_ms();
        let mut pause = stall;
        loop {
            tokio::time::sleep(pause).await;
            stalled(&self.session.no_answer());
            pause = self.look(asked_at_ms, other).await;
        }
    }
}
