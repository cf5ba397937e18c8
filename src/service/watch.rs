//! What happens now, for those who watch: the heaviest limits, events, and an overview of everything.
//!
//! Changes nothing. Refuses to know the wire.

use std::sync::Arc;
use std::time::Duration;

use ahash::AHashMap;
use tokio::sync::broadcast;

use super::Service;
use super::inspect::LimitState;
use crate::activity::{By, Event, Heavy, LIST_MAX, shown};
use crate::clock;
use crate::ledger::{Account, Ledger, LedgerError};
use crate::queue::WaitingJobs;
use crate::registry::NamedLimit;
use crate::telemetry::Decided;

/// How often it is seen that the ledger has gone or come back.
const LOOK: Duration = Duration::from_millis(200);

/// How often what was decided is gathered: events tell of a limit once in this time.
const GATHER_MS: u64 = 1_000;

/// Those who listen to events at the same time.
const LISTENERS_MAX: usize = 256;

/// Limits whose balances are read to find those that are used most. Where there are more, those come first that were used most
/// in the last minutes.
const BALANCES_MAX: usize = 10_000;

/// In what order limits are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Sort {
    #[default]
    Key,
    /// Those of which most is used first.
    Used,
    /// Those that denied most lately first.
    Denied,
}

/// Which limits are listed.
#[derive(Debug, Clone, Default)]
pub(crate) struct Listing {
    pub(crate) prefix: String,
    pub(crate) sort: Sort,
    pub(crate) limit: usize,
}

/// What was found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) limits: Vec<LimitState>,
    /// How many have such a key.
    pub(crate) total: usize,
}

/// Too many listen already.
#[derive(Debug)]
pub(crate) struct TooManyListeners;

impl Service {
    /// Gathers what was decided, and sees when the ledger goes and comes back.
    pub(crate) async fn watch_activity(self: Arc<Self>) {
        let (mut gathered_ms, mut was_up) = (clock::monotonic_ms(), None);
        loop {
            tokio::time::sleep(LOOK).await;
            let now_ms = clock::monotonic_ms();
            if self.admission.activity.has_many() {
                let service = Arc::clone(&self);
                // It takes some milliseconds, so it is done on a thread where no decision waits.
                let counting =
                    tokio::task::spawn_blocking(move || service.admission.activity.count_all(now_ms));
                // What could not be counted is counted next time.
                let _ = counting.await;
            }
            if now_ms.saturating_sub(gathered_ms) >= GATHER_MS {
                gathered_ms = now_ms;
                self.admission.activity.gather(now_ms, clock::unix_ms());
            }
            let up = self.is_ledger_up();
            if was_up.replace(up).is_some_and(|was_up| was_up != up) {
                self.admission.activity.tell(Event::Ledger { time_unix_ms: clock::unix_ms(), up });
            }
        }
    }

    /// The heaviest limits of the last minutes.
    pub(crate) fn top(&self, by: By, domain: Option<&str>, places: usize) -> Vec<Heavy> {
        self.admission.activity.top(by, domain, places, clock::monotonic_ms())
    }

    /// What happens from now on.
    pub(crate) fn listen(&self) -> Result<broadcast::Receiver<Arc<Event>>, TooManyListeners> {
        let activity = &self.admission.activity;
        if activity.listeners() >= LISTENERS_MAX { Err(TooManyListeners) } else { Ok(activity.listen()) }
    }

    /// Ends what those who watch read, so that stopping need not wait for them.
    pub(crate) fn end_watching(&self) {
        self.watching.cancel();
    }

    /// Returns when those who watch should go.
    pub(crate) async fn watching_ends(&self) {
        self.watching.cancelled().await;
    }

    /// How requests were answered since the start, over all domains.
    pub(crate) fn decided(&self) -> Decided {
        self.live.load().counters().chain([&self.lease_api]).map(|counters| counters.decided()).sum()
    }

    pub(crate) fn is_ledger_up(&self) -> bool {
        self.admission.ledger.ready().is_ok()
    }

    /// The limits that most jobs wait at.
    pub(crate) fn lines(&self, places: usize) -> Vec<WaitingJobs> {
        self.queue.lines(places)
    }

    /// Named limits, and the derived ones that this instance remembers.
    pub(crate) async fn find_limits(self: &Arc<Self>, listing: &Listing) -> Result<Found, LedgerError> {
        let (service, wanted) = (Arc::clone(self), listing.clone());
        // There may be a million, and each listing copies all of them. So there is one listing at a time, which goes on if its caller
        // leaves, and it is made on a thread where no decision waits.
        let alone = Arc::clone(&self.listing).lock_owned().await;
        let listed = tokio::task::spawn_blocking(move || (service.list(&wanted), alone)).await;
        let ((found, total), _alone) =
            listed.map_err(|_| LedgerError::Unavailable("the limits could not be listed".to_owned()))?;
        let mut states = self.states(found).await?;
        if listing.sort == Sort::Used {
            states.sort_by_key(|state| std::cmp::Reverse(state.balance.unwrap_or_default().used));
            states.truncate(listing.limit);
        }
        Ok(Found { limits: states, total })
    }

    /// Those whose balances are needed, and how many have such a key.
    fn list(&self, listing: &Listing) -> (Vec<Arc<NamedLimit>>, usize) {
        let mut found = self.remembered(&listing.prefix);
        let total = found.len();
        match listing.sort {
            Sort::Key => found.truncate(listing.limit),
            Sort::Denied => {
                self.heaviest_first(By::Denied, &mut found);
                found.truncate(listing.limit);
            }
            Sort::Used if total > BALANCES_MAX => {
                self.heaviest_first(By::Used, &mut found);
                found.truncate(BALANCES_MAX);
            }
            Sort::Used => {}
        }
        (found, total)
    }

    /// The others stay in their order.
    fn heaviest_first(&self, by: By, found: &mut [Arc<NamedLimit>]) {
        let heavy = self.top(by, None, LIST_MAX);
        let places: AHashMap<&str, usize> =
            heavy.iter().enumerate().map(|(place, it)| (&*it.key, place)).collect();
        found.sort_by_cached_key(|limit| {
            places.get(&*shown(&limit.account.key)).copied().unwrap_or(usize::MAX)
        });
    }

    /// By key, each once. Listing them does not count as use, so the table forgets them as if nobody had looked.
    fn remembered(&self, prefix: &str) -> Vec<Arc<NamedLimit>> {
        let registry = &self.live.load_full().registry;
        let is_meant = |account: &Account| account.key.as_str().starts_with(prefix);
        let named = registry.named().filter(|limit| is_meant(&limit.account)).cloned();
        let accounts = self.admission.accounts.all().into_iter().filter(|account| is_meant(account));
        let derived = accounts.filter_map(|account| {
            let spec = Arc::clone(registry.spec_of(account.key.as_str())?);
            Some(Arc::new(NamedLimit { account, spec }))
        });
        let mut all: Vec<Arc<NamedLimit>> = named.chain(derived).collect();
        all.sort_by(|a, b| a.account.key.cmp(&b.account.key));
        all.dedup_by(|a, b| a.account.key == b.account.key);
        all
    }
}
