//! What is given back to the ledger, when, and under which name. Pure.
//!
//! A slab of which nothing was spent is voided whole, at once. One that was spent whole is voided when its last unit is
//! free. Of any other the spent part is kept: void and reserve in one chain, at once, and that part is voided when its
//! last unit is free. Each of these has a name of its own and happens at most once, so a step whose answer was lost is
//! sent again as it is until it is answered. Of a slab that a hub has lent, the hub is told how much was spent, and does all that.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::slab::{Ended, EndedLoan};
use super::times::backstop_seconds;
use crate::limit::LeaseId;
use crate::retry::backoff;

/// Slabs that wait for their window to end, at most: 151 MB of 144 bytes each. What is beyond that is given back by the
/// ledger's timeout, some seconds late.
pub const WAITING_MAX: usize = 1 << 20;

/// Steps that are at the ledger at once, at most: after an outage many are due.
const SENT_MAX: usize = 256;

/// What is sent to the ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GiveBack<A> {
    pub account: A,
    pub name: LeaseId,
    /// It was taken as much as there was.
    pub up_to: bool,
    pub step: ReturnStep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReturnStep {
    /// Voids what was taken.
    Void,
    /// Voids what was taken and reserves the spent part of it instead, both or neither.
    Keep { units: u64, timeout_seconds: NonZeroU32 },
    /// Voids the spent part.
    VoidKept,
    /// Tells the hub that has lent it.
    EndLoan { spent: u64, loan: EndedLoan },
}

/// What the ledger said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Landed {
    Done,
    /// There is nothing under that name any more: the ledger's own timeout was first.
    Gone,
    /// It did not answer: nothing is known.
    Failed,
}

#[derive(Debug)]
struct Return<A> {
    account: A,
    name: LeaseId,
    up_to: bool,
    spent: u64,
    free_at_ms: u64,
    stage: Stage,
    retries: u32,
}

impl<A> Return<A> {
    /// Units that nobody spent are on their way back with it.
    fn has_unspent(&self) -> bool {
        self.stage == Stage::Keep || self.spent == 0 || matches!(self.stage, Stage::EndLoan(_))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    Void,
    Keep,
    VoidKept,
    EndLoan(EndedLoan),
}

/// Everything that is to be given back, by the time at which it is due.
#[derive(Debug)]
pub struct Returns<A> {
    waiting: BTreeMap<(u64, u64), Return<A>>,
    /// Without an answer yet, by number.
    sent: BTreeMap<u64, Return<A>>,
    next_number: u64,
    waiting_max: usize,
    unspent: usize,
}

/// Tells what was sent from all else that was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Number(u64);

impl<A: Clone> Returns<A> {
    pub fn new(waiting_max: usize) -> Self {
        Self { waiting: BTreeMap::new(), sent: BTreeMap::new(), next_number: 0, waiting_max, unspent: 0 }
    }

    pub fn add(&mut self, account: A, ended: Ended, now_ms: u64) {
        let (stage, due_ms) = match (ended.loan, ended.spent) {
            (Some(loan), _) => (Stage::EndLoan(loan), now_ms),
            (None, 0) => (Stage::Void, now_ms),
            (None, spent) if spent == ended.taken => (Stage::Void, ended.free_at_ms),
            _ => (Stage::Keep, now_ms),
        };
        let Ended { name, up_to, spent, free_at_ms, .. } = ended;
        let back = Return { account, name, up_to, spent, free_at_ms, stage, retries: 0 };
        self.unspent += usize::from(back.has_unspent());
        self.wait(back, due_ms);
    }

    fn wait(&mut self, back: Return<A>, due_ms: u64) {
        if !back.has_unspent() && self.waiting.len() >= self.waiting_max {
            return;
        }
        self.next_number += 1;
        self.waiting.insert((due_ms, self.next_number), back);
    }

    pub fn next_due_ms(&self) -> Option<u64> {
        if self.sent.len() >= SENT_MAX {
            return None;
        }
        self.waiting.first_key_value().map(|((due_ms, _), _)| *due_ms)
    }

    /// The next step that is due. Its answer must be told to [`Self::answered`].
    pub fn next(&mut self, now_ms: u64) -> Option<(Number, GiveBack<A>)> {
        if self.next_due_ms()? > now_ms {
            return None;
        }
        let ((_, number), mut back) = self.waiting.pop_first()?;
        // Its time has come before it was ever sent: nothing needs to be kept.
        if back.stage == Stage::Keep && back.retries == 0 && now_ms >= back.free_at_ms {
            back.stage = Stage::Void;
            self.unspent -= 1;
        }
        let step = match back.stage {
            Stage::Void => ReturnStep::Void,
            Stage::VoidKept => ReturnStep::VoidKept,
            Stage::EndLoan(loan) => ReturnStep::EndLoan { spent: back.spent, loan },
            Stage::Keep => ReturnStep::Keep {
                units: back.spent,
                timeout_seconds: backstop_seconds(back.free_at_ms, now_ms),
            },
        };
        let give_back =
            GiveBack { account: back.account.clone(), name: back.name.clone(), up_to: back.up_to, step };
        self.sent.insert(number, back);
        Some((Number(number), give_back))
    }

    /// `rand(n)` is a number in `0..=n`.
    pub fn answered(&mut self, number: Number, landed: Landed, now_ms: u64, rand: impl FnOnce(u64) -> u64) {
        let Some(mut back) = self.sent.remove(&number.0) else { return };
        if landed != Landed::Failed {
            self.unspent -= usize::from(back.has_unspent());
        }
        match landed {
            Landed::Gone => {}
            Landed::Done if back.stage == Stage::Keep => {
                (back.stage, back.retries) = (Stage::VoidKept, 0);
                let due_ms = back.free_at_ms;
                self.wait(back, due_ms);
            }
            Landed::Done => {}
            Landed::Failed => {
                let wait = backoff::delay(back.retries, rand);
                back.retries = back.retries.saturating_add(1);
                let due_ms = now_ms + u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
                self.wait(back, due_ms);
            }
        }
    }

    /// Slabs with units that nobody spent and that the ledger has not taken back yet.
    pub fn unspent(&self) -> usize {
        self.unspent
    }

    /// Slabs of which something is not back yet.
    pub fn len(&self) -> usize {
        self.waiting.len() + self.sent.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests;
