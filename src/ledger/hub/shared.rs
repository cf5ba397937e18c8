//! What the tasks and the callers of a sidecar's ledger share: the hubs, what is to be looked at, and what is to be given back.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lowering::Lowering;
use super::peer::{Peer, PeerState, Undo};
use super::{Options, pb, wire};
use crate::clock;
use crate::ledger::{
    Account, Action, CapacityEvent, Chain, Hold, LedgerError, LoanEnd, SlabHeld, Transfer, Want,
};
use crate::limit::{LimitId, LimitSpec, Overage};
use crate::retry::eta::DrainRate;
use crate::telemetry::Metrics;

/// Accounts looked at in one round at most.
const TOUCHED_MAX: usize = 8_192;

/// How often hubs are told what slabs hold.
const REPORT_INTERVAL_MS: u64 = 1_000;

/// Chains that wait to be given back while no hub is there; some hundred bytes each. What is beyond comes back when it
/// expires.
const BACKLOG_MAX: usize = 16_384;

#[derive(Debug)]
pub(super) struct Shared {
    pub options: Options,
    pub peers: Vec<Arc<Peer>>,
    pub lowering: Lowering,
    metrics: Arc<Metrics>,
    drain: DrainRate,
    /// A hub has come or gone.
    changed: Notify,
    /// A plain mutex: taken for a moment where one is added, and once a round.
    touched: Mutex<Vec<Want>>,
    backlog: Mutex<VecDeque<Chain>>,
    /// What hubs are told of this sidecar's slabs; its number says whether it is a new one.
    report: Mutex<(u64, pb::SlabReport)>,
    reported_at_ms: AtomicU64,
}

impl Shared {
    pub(super) fn new(options: Options, peers: Vec<Arc<Peer>>, metrics: Arc<Metrics>) -> Self {
        Self {
            options,
            peers,
            lowering: Lowering::default(),
            metrics,
            drain: DrainRate::new(),
            changed: Notify::new(),
            touched: Mutex::default(),
            backlog: Mutex::default(),
            report: Mutex::default(),
            reported_at_ms: AtomicU64::new(0),
        }
    }

    /// The hub that a limit is at home at, without those that were tried.
    pub(super) fn home(&self, limit: LimitId, tried: &[usize]) -> Option<(usize, &Peer)> {
        let hubs = self.peers.iter().enumerate().filter(|(at, _)| !tried.contains(at));
        let weighed = hubs.filter_map(|(at, peer)| Some((peer.weight(limit)?, at, peer)));
        weighed.max_by_key(|(weight, ..)| *weight).map(|(_, at, peer)| (at, &**peer))
    }

    pub(super) fn is_ready(&self) -> bool {
        self.peers.iter().any(|peer| peer.ready().is_ok())
    }

    /// Which hubs are away, and why.
    pub(super) fn why_away(&self) -> String {
        let reasons: Vec<String> = self.peers.iter().filter_map(|peer| peer.ready().err()).collect();
        format!("no hub can be used: {}", reasons.join("; "))
    }

    pub(super) async fn until_one_is_there(&self) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.peers.iter().any(|peer| peer.is_there()) {
                return;
            }
            changed.await;
        }
    }

    /// Notes how a hub is, and says so when that changes.
    pub(super) fn note(&self, peer: &Peer, state: PeerState) {
        let before = peer.ready();
        let was_there = matches!(peer.set(state), PeerState::There { .. });
        let after = peer.ready();
        if before != after {
            match &after {
                Ok(()) => tracing::info!(hub = peer.address, "the hub answers"),
                Err(why) => tracing::warn!(why, "the hub can't be used"),
            }
        }
        self.metrics.ledger_up.set(i64::from(self.is_ready()));
        if peer.is_there() != was_there {
            self.changed.notify_waiters();
        }
        if peer.is_there() && !was_there {
            self.give_back_all(Vec::new());
        }
    }

    /// Gives back at the homes of these and of those that could not be before.
    pub(super) fn give_back_all(&self, chains: Vec<Chain>) {
        let mut backlog = self.backlog.lock();
        backlog.extend(chains);
        let excess = backlog.len().saturating_sub(BACKLOG_MAX);
        backlog.drain(..excess);
        while let Some(chain) = backlog.pop_front() {
            let first = chain.transfers.first().map(|transfer| transfer.account.id);
            let home = first.and_then(|limit| self.home(limit, &[]));
            let is_under_way = home.is_some_and(|(_, peer)| peer.give_back(chain.clone()));
            if !is_under_way {
                backlog.push_front(chain);
                return;
            }
        }
    }

    /// Gives back what a caller has left behind at a hub.
    pub(super) fn undo(&self, peer: &Peer, undo: Undo) {
        match undo {
            Undo::Nothing => {}
            Undo::GiveBack(chain) => self.give_back_all(vec![*chain]),
            Undo::EndLoan(chain) => {
                let Some(first) = chain.transfers.first() else { return };
                let (account, last_ms) = (Arc::clone(&first.account), clock::monotonic_ms());
                let name = chain.lease.clone();
                peer.end_loan(LoanEnd { account, name, spent: 0, last_ms, tell_within_ms: 0 });
            }
        }
    }

    pub(super) fn queue_full(&self) -> LedgerError {
        let per_second = self.drain.per_second(clock::monotonic_ms());
        LedgerError::QueueFull { waiting: self.options.queue_max, per_second }
    }

    /// Something was answered.
    pub(super) fn answered(&self) {
        self.drain.record(1, clock::monotonic_ms());
    }

    /// How many asks were not answered yet.
    pub(super) fn count_waiting(&self) -> usize {
        let waiting = self.peers.iter().map(|peer| peer.waiting()).sum();
        self.metrics.ledger_queue_depth.set(i64::try_from(waiting).unwrap_or(i64::MAX));
        waiting
    }

    pub(super) fn is_report_due(&self, now_ms: u64) -> bool {
        let reported_ms = self.reported_at_ms.load(Ordering::Relaxed);
        let is_due = now_ms.saturating_sub(reported_ms) >= REPORT_INTERVAL_MS;
        if is_due {
            self.reported_at_ms.store(now_ms, Ordering::Relaxed);
        }
        is_due
    }

    /// Hubs are told this with whatever they are sent next.
    pub(super) fn report(&self, mut held: Vec<SlabHeld>) {
        held.sort_by_key(|slab| std::cmp::Reverse(slab.held));
        held.retain(|slab| slab.account.key.as_str().len() <= wire::SLAB_KEY_BYTES_MAX);
        let message = |slab: &SlabHeld| pb::SlabHeld { key: slab.account.key.to_string(), held: slab.held };
        let slabs = held.iter().take(wire::SLABS_MAX).map(message).collect();
        let mut report = self.report.lock();
        let new = pb::SlabReport { slabs };
        if report.1 != new {
            *report = (report.0 + 1, new);
        }
    }

    /// The last report, if it is a later one than number `told`.
    pub(super) fn report_after(&self, told: u64) -> Option<(u64, pb::SlabReport)> {
        let report = self.report.lock();
        (report.0 > told).then(|| report.clone())
    }

    pub(super) fn tell(&self, event: CapacityEvent) {
        if let Some(events) = &self.options.events {
            // Nobody listens only while the process ends.
            drop(events.send(event));
        }
    }

    /// An account is to be looked at in the next round.
    pub(super) fn touch(&self, account: &Arc<Account>, spec: &LimitSpec) {
        account.behind_hub().want(spec.capacity);
        if account.behind_hub().sample.start_sampling() {
            let (capacity, overage) = (spec.capacity, spec.overage);
            let lifetime_seconds = spec.kind.lifetime_seconds();
            self.add(Want { account: Arc::clone(account), capacity, overage, lifetime_seconds });
        }
    }

    /// The same for one that was just asked for something: the limit as the chain knew it.
    pub(super) fn touch_hold(&self, account: &Arc<Account>, hold: &Hold) -> Want {
        let Hold { capacity, overage, lifetime_seconds, .. } = *hold;
        let want = Want { account: Arc::clone(account), capacity, overage, lifetime_seconds };
        account.behind_hub().want(capacity);
        self.touch_want(&want);
        want
    }

    pub(super) fn touch_want(&self, want: &Want) {
        if want.account.behind_hub().sample.start_sampling() {
            self.add(want.clone());
        }
    }

    fn add(&self, want: Want) {
        let mut touched = self.touched.lock();
        if touched.len() < TOUCHED_MAX {
            touched.push(want);
        } else {
            want.account.behind_hub().sample.end_sampling();
        }
    }

    /// What is to be looked at now. A ledger may bring an account to the capacity that it is asked about with, so that has to
    /// be the latest one.
    pub(super) fn take_touched(&self) -> Vec<Want> {
        let mut touched = std::mem::take(&mut *self.touched.lock());
        touched.iter_mut().for_each(|want| want.capacity = want.account.behind_hub().wanted());
        touched
    }

    /// What an answer says of the debts of a chain's limits.
    pub(super) fn note_debts(&self, chain: &Chain, outcome: &pb::Outcome) {
        let now_ms = clock::monotonic_ms();
        let refused = outcome.refusal.as_ref();
        for (index, Transfer { account, action }) in chain.transfers.iter().enumerate() {
            let known = account.behind_hub();
            match (action, refused) {
                (Action::Debt(hold), None) if hold.overage == Overage::Repay => {
                    known.owing.meet(Some(hold.lifetime_seconds));
                    known.owing.add(if outcome.is_repeat { 0 } else { hold.amount }, now_ms);
                    self.touch_hold(account, hold);
                }
                (Action::Reserve(hold), None) if hold.overage == Overage::Repay => {
                    known.owing.meet(Some(hold.lifetime_seconds));
                    known.owing.set(0, now_ms);
                }
                (Action::Reserve(_), Some(pb::Refusal { index: at, owing: Some(owing), .. }))
                    if usize::try_from(*at) == Ok(index) =>
                {
                    known.owing.set(owing.owed.max(1), now_ms);
                    known.set_repaid(wire::read_repaid(&owing.repaid));
                }
                _ => {}
            }
        }
    }
}
