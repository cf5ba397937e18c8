//! All that this instance knows of one limit: its slabs, the ask for the next one, and whether it is full. Pure.
//!
//! Everything is called under one short lock, and nothing is allocated on the way of a request that a slab answers. What
//! must be done outside, asking the ledger and giving back, is returned as [`Todo`].

mod loans;
mod next;

use smallvec::SmallVec;

pub use self::loans::Lend;
use self::loans::Loans;
use super::demand::Demand;
use super::pace::Pace;
use super::slab::{Ended, Part, Slab};
use super::times::Times;
use crate::ledger::Loan;
use crate::limit::LeaseId;

/// Slabs of one limit that may be open at once: the one that is spent, the next one, and some that wait for requests
/// which have set units aside.
const OPEN_MAX: usize = 4;

/// The same at a hub, where a slab waits for those to whom it was lent: at least four times as long as it is lent from.
const OPEN_AT_HUB_MAX: usize = 16;

/// After a refusal the ledger is asked one request at a time, for this many times the pause of a full limit.
const ONE_AT_A_TIME_PAUSES: u64 = 10;

/// How often one request may wait for somebody else's answer before it asks by itself.
const WAITS_MAX: u32 = 64;

/// What the files say of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    pub capacity: u64,
    pub times: Times,
}

/// What a limit needs from outside.
pub trait Outside {
    /// Milliseconds that never go back and don't stand still while the machine sleeps.
    fn now_ms(&mut self) -> u64;

    /// A name that no reservation ever had.
    fn fresh_name(&mut self) -> LeaseId;
}

#[derive(Debug)]
pub struct Limit {
    rules: Rules,
    /// Oldest first.
    open: SmallVec<[Slab; 2]>,
    next_serial: u64,
    /// The ask for a slab that is under way; there is one at most.
    asking: Option<Asking>,
    /// Requests that ask the ledger by themselves now.
    asking_alone: u32,
    demand: Demand,
    /// How long an ask takes, on average.
    ask_takes_ms: u64,
    full: Full,
    /// Until then asks are one at a time, because the limit was refused a moment ago.
    one_at_a_time_until_ms: u64,
    /// What the ledger was asked during that time.
    pace: Pace,
    /// The ledger failed or was too slow for a slab: none is asked for until then.
    no_slab_until_ms: u64,
    /// For how long the last slab was to be handed out. The next one is as large as that takes.
    slab_ms: u64,
    /// Where slabs are lent: what was.
    loans: Option<Box<Loans>>,
    pub counts: Counts,
}

#[derive(Debug)]
struct Asking {
    name: LeaseId,
    amount: u64,
    /// T.
    asked_at_ms: u64,
    times: Times,
    up_to: bool,
    /// Units that requests wait for.
    promised: u64,
    /// Its limit was closed in the meantime: what comes is given back at once.
    is_stale: bool,
}

/// The ledger refused so many units; fewer may still fit.
#[derive(Debug, Default)]
struct Full {
    from_units: u64,
    until_ms: u64,
}

/// Units since the limit was first seen: taken = handed_out + given_back + held. They wrap around like any counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub taken: u64,
    pub handed_out: u64,
    pub given_back: u64,
}

/// A slab to be asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    pub name: LeaseId,
    pub amount: u64,
    pub capacity: u64,
    pub timeout_seconds: std::num::NonZeroU32,
    pub window_ms: u64,
    /// As much as there is, up to the amount. Otherwise all or nothing.
    pub up_to: bool,
}

/// What came of an ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Took {
    Units(u64),
    /// A hub has lent these. There may be more.
    Lent(Loan),
    /// A hub knows that there is not even one unit, and asks the ledger again in so long.
    Full {
        for_ms: u64,
    },
    /// All or nothing, and it did not fit.
    Refused,
    /// No answer, or one that says nothing of what is left. If the ledger took something, the layer below gives it back
    /// when it learns of it; nothing is handed out of it here.
    Nothing,
}

/// What a request gets from this limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// All of it, set aside.
    Aside(Parts),
    /// A part of it, maybe none, set aside; the rest has to come from the ledger.
    Ledger { parts: Parts, rest: u64 },
    /// Somebody else's answer is about to come: ask again then.
    Wait,
    /// The ledger refused as much a moment ago.
    Full,
}

pub type Parts = SmallVec<[Part; 2]>;

/// What has to be done outside.
#[derive(Debug, Default)]
#[must_use]
pub struct Todo {
    pub ask: Option<Ask>,
    pub ended: SmallVec<[Ended; 1]>,
    /// [`Limit::tick`] must be called then.
    pub tick_at_ms: Option<u64>,
    /// Whoever waits may ask again.
    pub wake: bool,
}

impl Limit {
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            open: SmallVec::new(),
            next_serial: 0,
            asking: None,
            asking_alone: 0,
            demand: Demand::new(rules.times.demand_ms),
            ask_takes_ms: 1,
            full: Full::default(),
            one_at_a_time_until_ms: 0,
            pace: Pace::default(),
            no_slab_until_ms: 0,
            slab_ms: rules.times.life_ms,
            loans: rules.times.lends_from.map(|_| Box::new(Loans::new(rules.times))),
            counts: Counts::default(),
        }
    }

    /// Sets units aside, or says why not. `waits` is how often this request has waited already.
    pub fn request(&mut self, units: u64, waits: u32, outside: &mut impl Outside) -> (Reply, Todo) {
        let mut todo = Todo::default();
        let (parts, rest, now_ms) = self.draw(units, outside, &mut todo);
        todo.ask = self.next_ask(now_ms, outside);
        if rest == 0 {
            return (Reply::Aside(parts), todo);
        }
        let reply = if rest >= self.full.from_units && now_ms < self.full.until_ms {
            Reply::Full
        } else if self.should_wait(rest, waits, now_ms) {
            Reply::Wait
        } else {
            self.asking_alone += 1;
            self.count_requests(1, now_ms);
            return (Reply::Ledger { parts, rest }, todo);
        };
        self.put_back(&parts, now_ms, &mut todo);
        (reply, todo)
    }

    /// Units of the oldest slabs, and what is missing. A slab must be alive when the clock is read, and the clock is read
    /// after the units were taken: however long this thread stood still in between, nothing old is handed out.
    fn draw(&mut self, units: u64, outside: &mut impl Outside, todo: &mut Todo) -> (Parts, u64, u64) {
        let mut now_ms = 0;
        loop {
            let mut parts = Parts::new();
            let mut rest = units;
            // One that is over stays open while others have units of it aside.
            for slab in self.open.iter_mut().filter(|slab| !slab.is_over(now_ms)) {
                let part = slab.set_aside(rest);
                rest -= part.units;
                if part.units > 0 {
                    parts.push(part);
                }
            }
            now_ms = outside.now_ms();
            let from = |slab: &Slab| parts.iter().any(|part| part.serial == slab.serial);
            if !self.open.iter().any(|slab| from(slab) && slab.is_over(now_ms)) {
                self.open.iter_mut().filter(|slab| from(slab)).for_each(|slab| slab.stamp(now_ms));
                return (parts, rest, now_ms);
            }
            self.put_back(&parts, now_ms, todo);
        }
    }

    /// The request was admitted: its parts are handed out. `rest` is what the ledger admitted of this limit.
    pub fn admitted(&mut self, parts: &[Part], rest: u64, now_ms: u64) -> Todo {
        let mut todo = self.answered(rest);
        let mut units = rest;
        for part in parts {
            self.slab(part.serial).hand_out(part.units);
            self.counts.handed_out = self.counts.handed_out.wrapping_add(part.units);
            units += part.units;
        }
        self.demand.add(units, now_ms);
        self.end_slabs(now_ms, &mut todo);
        todo
    }

    /// The request was not admitted. `refused`: the ledger had no room for `rest` units of this limit.
    pub fn not_admitted(&mut self, parts: &[Part], rest: u64, refused: bool, now_ms: u64) -> Todo {
        let mut todo = self.answered(rest);
        if refused {
            self.set_full(rest, now_ms);
        }
        self.put_back(parts, now_ms, &mut todo);
        todo
    }

    fn answered(&mut self, rest: u64) -> Todo {
        let asked = rest > 0;
        self.asking_alone -= u32::from(asked);
        Todo { wake: asked, ..Todo::default() }
    }

    /// Gives everything back that is not handed out; the ask under way too, once it is answered.
    pub fn close(&mut self, now_ms: u64) -> Todo {
        let mut todo = Todo::default();
        self.open.iter_mut().for_each(|slab| slab.close(now_ms));
        if let Some(asking) = &mut self.asking {
            asking.is_stale = true;
        }
        self.end_slabs(now_ms, &mut todo);
        todo
    }

    /// Follows the files. What was taken under a larger capacity, or for another window, goes back.
    pub fn follow(&mut self, rules: Rules, outside: &mut impl Outside) -> Todo {
        if rules == self.rules {
            return Todo::default();
        }
        let may_keep = self.may_keep(rules);
        let other_window = rules.times != self.rules.times;
        self.rules = rules;
        self.full = Full::default();
        if other_window {
            self.demand = Demand::new(rules.times.demand_ms);
            self.slab_ms = rules.times.life_ms;
            self.loans_follow(rules.times);
        }
        if may_keep { Todo::default() } else { self.close(outside.now_ms()) }
    }

    /// Whether what was taken may stay when the files say this.
    pub fn may_keep(&self, rules: Rules) -> bool {
        rules.capacity >= self.rules.capacity && rules.times == self.rules.times
    }

    /// Ends the slabs that are over.
    pub fn tick(&mut self, now_ms: u64) -> Todo {
        let mut todo = Todo::default();
        self.end_overdue_loans(now_ms);
        self.end_slabs(now_ms, &mut todo);
        todo.tick_at_ms = self.next_look_ms(now_ms);
        todo
    }

    fn put_back(&mut self, parts: &[Part], now_ms: u64, todo: &mut Todo) {
        for part in parts {
            self.slab(part.serial).put_back(part.units);
        }
        self.end_slabs(now_ms, todo);
    }

    fn end_slabs(&mut self, now_ms: u64, todo: &mut Todo) {
        let mut at = 0;
        while at < self.open.len() {
            if self.open[at].has_ended(now_ms) {
                let slab = self.open.remove(at);
                self.counts.given_back = self.counts.given_back.wrapping_add(slab.left);
                let is_wanted = slab.left > 0 && (slab.is_closed || now_ms < self.one_at_a_time_until_ms);
                todo.ended.push(slab.end(is_wanted));
            } else {
                at += 1;
            }
        }
    }

    fn slab(&mut self, serial: u64) -> &mut Slab {
        let slab = self.open.iter_mut().find(|slab| slab.serial == serial);
        slab.expect("a slab must stay open while units of it are set aside")
    }

    fn set_full(&mut self, units: u64, now_ms: u64) {
        let Times { full_ms, pause_ms_max, .. } = self.rules.times;
        let pause_ms = self.pace.pause_ms(full_ms, pause_ms_max, now_ms);
        self.set_full_for(units, pause_ms, now_ms);
    }

    fn set_full_for(&mut self, units: u64, pause_ms: u64, now_ms: u64) {
        let fewest = if now_ms < self.full.until_ms { self.full.from_units.min(units) } else { units };
        self.full = Full { from_units: fewest, until_ms: now_ms + pause_ms };
        let least_ms = self.rules.times.full_ms;
        self.one_at_a_time_until_ms = now_ms + pause_ms.max(least_ms) * ONE_AT_A_TIME_PAUSES;
    }

    /// Requests that the ledger is sent. Far from the limit they go together with others.
    pub fn count_requests(&mut self, requests: u64, now_ms: u64) {
        if now_ms < self.one_at_a_time_until_ms {
            self.pace.count(requests, now_ms);
        }
    }

    /// Units that are still to hand out.
    pub fn held(&self) -> u64 {
        self.open.iter().map(|slab| slab.left + slab.aside).sum()
    }

    /// For people: what the open slabs have handed out, and when the last of them ends. `None` if there is none.
    pub fn shown(&self, now_ms: u64) -> Option<Shown> {
        let last = self.open.iter().map(|slab| slab.ends_at_ms).max()?;
        let handed_out = self.open.iter().map(Slab::handed_out).sum();
        Some(Shown { held: self.held(), handed_out, ends_in_ms: last.saturating_sub(now_ms) })
    }

    pub fn slabs(&self) -> usize {
        self.open.len()
    }

    /// Whether nothing would be lost by forgetting it.
    pub fn is_idle(&mut self, now_ms: u64) -> bool {
        self.open.is_empty()
            && self.asking.is_none()
            && self.asking_alone == 0
            && now_ms >= self.one_at_a_time_until_ms.max(self.no_slab_until_ms)
            && self.demand.during_last_life(now_ms) == 0
            && self.loans.as_mut().is_none_or(|loans| loans.is_idle(now_ms))
    }

    /// Whether units are held, or are on their way.
    pub fn has_some_or_asks(&self) -> bool {
        self.asking.is_some() || self.held() > 0
    }
}

/// What the admin API shows of the slabs of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shown {
    pub held: u64,
    pub handed_out: u64,
    pub ends_in_ms: u64,
}

#[cfg(test)]
pub(super) mod tests;
