//! The slabs of one instance: which limits have some, what a request of several limits gets from them, and what has to
//! be done outside. Does no I/O and reads no clock; the shell and the simulation drive the same code.
//!
//! A limit's slabs are behind the lock of its shard, which is held for one step of one limit. What is to be given back is
//! behind a lock of its own, which a request takes only when a slab begins or ends.

mod aside;
mod lend;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use ahash::AHashMap;
use parking_lot::Mutex;
use smallvec::SmallVec;

use self::aside::Held;
pub use self::aside::{Aside, Settled};
pub use self::lend::LendDecision;
use super::limit::{Ask, Counts, Limit, Outside, Parts, Reply, Rules, Shown, Todo, Took};
use super::returns::{GiveBack, Landed, Number, Returns, WAITING_MAX};
use crate::limit::LimitId;
use crate::telemetry::SlabUnits;

const SHARDS: usize = 64;

/// Limits of one shard that are remembered at most: as many as a table of 4,096 places takes. The others are asked of the ledger.
const LIMITS_PER_SHARD_MAX: usize = 3_584;

/// What one takes in the table: so 190 MB for those of all shards.
#[cfg(test)]
const LIMIT_BYTES: usize = 720;

/// One limit that a request needs units of.
#[derive(Debug, Clone)]
pub struct Need<A> {
    pub limit: LimitId,
    /// What the shell needs to ask the ledger for this limit.
    pub account: A,
    pub units: u64,
    pub rules: Rules,
}

/// Wakes requests that wait for the answer to somebody else's ask.
pub trait Notifier: Default {
    type Subscription;

    /// Called under the limit's lock, so that no notice is missed.
    fn subscribe(&mut self) -> Self::Subscription;

    fn notify(&mut self);
}

/// What a request gets.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "it lives for one step of a request, and a box would be an allocation"
)]
pub enum Decision<W> {
    /// Everything was handed out.
    Admitted,
    /// The ledger refused need number `index` a moment ago.
    Full { index: usize },
    /// Ask again when this is notified.
    Wait(W),
    /// The ledger must be asked for the rests, in one chain with whatever else the request needs. What became of it must
    /// be told to [`Core::settle`].
    Ledger(Aside),
}

/// Slabs to be asked for; what is told of it goes to [`Core::took`].
pub type Asks<A> = SmallVec<[(LimitId, A, Ask); 1]>;

#[derive(Debug)]
struct LimitEntry<A, B> {
    limit: Limit,
    account: A,
    notifier: B,
    /// The part of the counts that was added to the metrics already.
    counted: Counts,
    /// Its part of [`Core::loans`].
    counted_loans: usize,
}

/// What has to be done, by the time at which it is due.
#[derive(Debug)]
struct Agenda<A> {
    /// Slabs that may be over.
    ticks: BTreeMap<(u64, u64), LimitId>,
    next_tick: u64,
    returns: Returns<Owner<A>>,
}

/// The account whose units are given back.
#[derive(Debug, Clone)]
struct Owner<A> {
    limit: LimitId,
    account: A,
}

#[derive(Debug)]
pub struct Core<A, B> {
    shards: Vec<Mutex<AHashMap<LimitId, LimitEntry<A, B>>>>,
    agenda: Mutex<Agenda<A>>,
    /// Something was added to the agenda.
    has_news: AtomicBool,
    units: SlabUnits,
    /// Loans that are not over, of all limits.
    loans: AtomicUsize,
}

impl<A: Clone, B: Notifier> Core<A, B> {
    pub fn new(units: SlabUnits) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let agenda = Agenda { ticks: BTreeMap::new(), next_tick: 0, returns: Returns::new(WAITING_MAX) };
        let (has_news, loans) = (AtomicBool::new(false), AtomicUsize::new(0));
        Self { shards, agenda: Mutex::new(agenda), has_news, units, loans }
    }

    /// All of the needs or none. `asks_anyway`: the request has other needs, which the ledger decides.
    pub fn request(
        &self,
        needs: &[Need<A>],
        asks_anyway: bool,
        waits: u32,
        outside: &mut impl Outside,
        asks: &mut Asks<A>,
    ) -> Decision<B::Subscription> {
        let mut aside = Aside::default();
        for (index, need) in needs.iter().enumerate() {
            let (reply, waiting) = self.ask_limit(need, waits, outside, asks);
            let (parts, rest, is_unknown) = match reply {
                Some(Reply::Aside(parts)) => (parts, 0, false),
                Some(Reply::Ledger { parts, rest }) => (parts, rest, false),
                None => (Parts::new(), need.units, true),
                Some(Reply::Full) => {
                    self.settle(aside, Settled::Failed, outside);
                    return Decision::Full { index };
                }
                Some(Reply::Wait) => {
                    self.settle(aside, Settled::Failed, outside);
                    return Decision::Wait(waiting.expect("who waits must have subscribed"));
                }
            };
            aside.needs.push(Held { limit: need.limit, parts, rest, is_unknown });
        }
        if asks_anyway || aside.rests().any(|rest| rest > 0) {
            return Decision::Ledger(aside);
        }
        self.settle(aside, Settled::Admitted, outside);
        Decision::Admitted
    }

    /// `None`: there is no place for another limit.
    fn ask_limit(
        &self,
        need: &Need<A>,
        waits: u32,
        outside: &mut impl Outside,
        asks: &mut Asks<A>,
    ) -> (Option<Reply>, Option<B::Subscription>) {
        self.with_limit(need, outside, asks, |limit, outside| {
            let (reply, todo) = limit.request(need.units, waits, outside);
            let waits = reply == Reply::Wait;
            (reply, waits, todo)
        })
    }

    /// Does one step of a limit as it is now. The step says whether its caller waits. `None`: there is no place for another limit.
    fn with_limit<T, O: Outside>(
        &self,
        need: &Need<A>,
        outside: &mut O,
        asks: &mut Asks<A>,
        step: impl FnOnce(&mut Limit, &mut O) -> (T, bool, Todo),
    ) -> (Option<T>, Option<B::Subscription>) {
        let mut shard = self.shard(need.limit).lock();
        if !shard.contains_key(&need.limit) {
            if shard.len() >= LIMITS_PER_SHARD_MAX {
                return (None, None);
            }
            let entry = LimitEntry {
                limit: Limit::new(need.rules),
                account: need.account.clone(),
                notifier: B::default(),
                counted: Counts::default(),
                counted_loans: 0,
            };
            shard.insert(need.limit, entry);
        }
        let entry = shard.get_mut(&need.limit).expect("it must have been inserted");
        let changed = entry.limit.follow(need.rules, outside);
        self.carry_out(need.limit, entry, changed, outside, asks);
        let (reply, waits, todo) = step(&mut entry.limit, outside);
        let waiting = waits.then(|| entry.notifier.subscribe());
        self.carry_out(need.limit, entry, todo, outside, asks);
        (Some(reply), waiting)
    }

    /// The request that set this aside was decided.
    pub fn settle(&self, aside: Aside, settled: Settled, outside: &mut impl Outside) {
        for (index, held) in aside.needs.into_iter().enumerate().filter(|(_, held)| !held.is_unknown) {
            let mut shard = self.shard(held.limit).lock();
            let entry = shard.get_mut(&held.limit).expect("a limit with units aside must not be forgotten");
            let now_ms = outside.now_ms();
            let todo = match settled {
                Settled::Admitted => entry.limit.admitted(&held.parts, held.rest, now_ms),
                Settled::Refused { needs } => {
                    let refused = needs.contains(index);
                    entry.limit.not_admitted(&held.parts, held.rest, refused, now_ms)
                }
                Settled::Failed => entry.limit.not_admitted(&held.parts, held.rest, false, now_ms),
            };
            self.carry_out(held.limit, entry, todo, outside, &mut Asks::new());
        }
    }

    /// A slab that was asked for was answered.
    pub fn took(&self, limit: LimitId, took: Took, outside: &mut impl Outside, asks: &mut Asks<A>) {
        let mut shard = self.shard(limit).lock();
        let Some(entry) = shard.get_mut(&limit) else { return };
        let todo = entry.limit.took(took, outside);
        self.carry_out(limit, entry, todo, outside, asks);
    }

    fn carry_out(
        &self,
        limit: LimitId,
        entry: &mut LimitEntry<A, B>,
        todo: Todo,
        outside: &mut impl Outside,
        asks: &mut Asks<A>,
    ) {
        if todo.wake {
            entry.notifier.notify();
        }
        self.count(entry);
        asks.extend(todo.ask.map(|ask| (limit, entry.account.clone(), ask)));
        if todo.ended.is_empty() && todo.tick_at_ms.is_none() {
            return;
        }
        self.has_news.store(true, Ordering::Release);
        let now_ms = outside.now_ms();
        let mut agenda = self.agenda.lock();
        for ended in todo.ended {
            agenda.returns.add(Owner { limit, account: entry.account.clone() }, ended, now_ms);
        }
        if let Some(at_ms) = todo.tick_at_ms {
            agenda.next_tick += 1;
            let number = agenda.next_tick;
            agenda.ticks.insert((at_ms, number), limit);
        }
    }

    fn count(&self, entry: &mut LimitEntry<A, B>) {
        let Counts { taken, handed_out, given_back } = entry.limit.counts;
        let before = std::mem::replace(&mut entry.counted, entry.limit.counts);
        for (counter, more) in [
            (&self.units.taken, taken.wrapping_sub(before.taken)),
            (&self.units.handed_out, handed_out.wrapping_sub(before.handed_out)),
            (&self.units.given_back, given_back.wrapping_sub(before.given_back)),
        ] {
            if more > 0 {
                counter.inc_by(more);
            }
        }
        self.count_loans(entry);
    }

    /// Whether something may be due earlier than was known when this was asked last.
    pub fn take_news(&self) -> bool {
        self.has_news.load(Ordering::Relaxed) && self.has_news.swap(false, Ordering::AcqRel)
    }

    /// Gives back what was taken of limits that are not what they were: `rules_of` says what a limit is now, `None` if it
    /// has no slabs any more. One that may have more keeps what it has.
    pub fn recheck(&self, rules_of: impl Fn(&A) -> Option<Rules>, outside: &mut impl Outside) {
        for shard in &self.shards {
            // What a limit is now takes a while to find out, and is found out without the lock.
            let held: Vec<(LimitId, A)> = {
                let shard = shard.lock();
                let held = shard.iter().filter(|(_, entry)| entry.limit.has_some_or_asks());
                held.map(|(limit, entry)| (*limit, entry.account.clone())).collect()
            };
            for (limit, account) in held {
                let rules = rules_of(&account);
                let now_ms = outside.now_ms();
                self.each(limit, outside, |limit| match rules {
                    Some(rules) if limit.may_keep(rules) => Todo::default(),
                    _ => limit.close(now_ms),
                });
            }
        }
    }

    /// When [`Self::next_due`] has something, as far as is known now.
    pub fn next_due_ms(&self) -> Option<u64> {
        let agenda = self.agenda.lock();
        let tick_ms = agenda.ticks.first_key_value().map(|((at_ms, _), _)| *at_ms);
        [tick_ms, agenda.returns.next_due_ms()].into_iter().flatten().min()
    }

    /// Ends the slabs that are over, and says what is to be given back now, one after the other.
    pub fn next_due(&self, outside: &mut impl Outside) -> Option<(Number, GiveBack<A>)> {
        let now_ms = outside.now_ms();
        loop {
            let mut agenda = self.agenda.lock();
            let due = agenda.ticks.first_entry().filter(|first| first.key().0 <= now_ms);
            let over = due.map(|first| first.remove());
            let returned = if over.is_none() { agenda.returns.next(now_ms) } else { None };
            // The limit's lock comes before the agenda's.
            drop(agenda);
            if let Some(limit) = over {
                self.each(limit, outside, |limit| limit.tick(now_ms));
                continue;
            }
            let (number, GiveBack { account: Owner { limit, account }, name, up_to, step }) = returned?;
            if let Some(entry) = self.shard(limit).lock().get_mut(&limit) {
                entry.limit.count_requests(1, now_ms);
            }
            return Some((number, GiveBack { account, name, up_to, step }));
        }
    }

    pub fn returned(&self, number: Number, landed: Landed, outside: &mut impl Outside, rand: fn(u64) -> u64) {
        let now_ms = outside.now_ms();
        self.agenda.lock().returns.answered(number, landed, now_ms, rand);
    }

    /// Gives everything back that is not handed out: all limits, or those that `which` says.
    pub fn close(&self, outside: &mut impl Outside, which: impl Fn(LimitId) -> bool) {
        for shard in &self.shards {
            let limits: Vec<LimitId> = shard.lock().keys().copied().filter(|limit| which(*limit)).collect();
            for limit in limits {
                let now_ms = outside.now_ms();
                self.each(limit, outside, |limit| limit.close(now_ms));
            }
        }
    }

    fn each(&self, limit: LimitId, outside: &mut impl Outside, step: impl FnOnce(&mut Limit) -> Todo) {
        let mut shard = self.shard(limit).lock();
        if let Some(entry) = shard.get_mut(&limit) {
            let todo = step(&mut entry.limit);
            self.carry_out(limit, entry, todo, outside, &mut Asks::new());
        }
    }

    /// Forgets the limits that nobody has asked for lately.
    pub fn sweep(&self, outside: &mut impl Outside) {
        for shard in &self.shards {
            let now_ms = outside.now_ms();
            shard.lock().retain(|_, entry| !entry.limit.is_idle(now_ms));
        }
    }

    /// Whether a slab is still asked for, or units that nobody spent are not back yet.
    pub fn is_settled(&self) -> bool {
        let is_asking = |shard: &Mutex<AHashMap<_, LimitEntry<A, B>>>| {
            shard.lock().values().any(|entry| entry.limit.has_some_or_asks())
        };
        !self.shards.iter().any(is_asking) && self.agenda.lock().returns.unspent() == 0
    }

    pub fn shown(&self, limit: LimitId, now_ms: u64) -> Option<Shown> {
        self.shard(limit).lock().get(&limit)?.limit.shown(now_ms)
    }

    /// What a limit has taken and handed out so far, and what it holds.
    pub fn counts(&self, limit: LimitId) -> Option<(Counts, u64)> {
        self.shard(limit).lock().get(&limit).map(|entry| (entry.limit.counts, entry.limit.held()))
    }

    /// What limits hold, without those that hold nothing.
    pub(crate) fn held(&self) -> Vec<(A, u64)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let held = |entry: &LimitEntry<A, B>| (entry.account.clone(), entry.limit.held());
            all.extend(shard.lock().values().map(held).filter(|(_, held)| *held > 0));
        }
        all
    }

    /// Slabs that are open now.
    pub fn slabs(&self) -> usize {
        let open = |shard: &Mutex<AHashMap<_, LimitEntry<A, B>>>| -> usize {
            shard.lock().values().map(|entry| entry.limit.slabs()).sum()
        };
        self.shards.iter().map(open).sum()
    }

    fn shard(&self, limit: LimitId) -> &Mutex<AHashMap<LimitId, LimitEntry<A, B>>> {
        // Ids are digests: any bits do.
        &self.shards[usize::try_from(limit.bits() % SHARDS as u128).unwrap_or(0)]
    }
}

#[cfg(test)]
mod tests;
