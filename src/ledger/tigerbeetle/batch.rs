//! What goes into one request to TigerBeetle, and what its results mean for each of those who wait. Sans-io.
//!
//! A chain is never split; the batch ends before the chain that doesn't fit. Reserves of the same limits that nobody
//! names again go as one sum, and every one of them is told what it would have been told alone, in the order of arrival:
//!
//! * A reserve joins a sum only if nothing that came after the sum's last member touches any of its limits. What lies
//!   between touches others, and so can't tell the difference.
//! * A sum that was refused says nothing of its members: they are sent again, first of all, in pieces. That is safe only
//!   if nothing behind the sum touches its limits; and it is a waste where the limit was full a moment ago. In both cases
//!   the pieces are sent at once: equal neighbours in halves, see [`sum::halves`], others alone.

use std::sync::Arc;

use ahash::AHashMap;
use smallvec::SmallVec;
use tb::error::CreateTransferErrorKind as Kind;
use tigerbeetle_unofficial as tb;

use super::sum::{self, Sum};
use super::wire::{self, ChainResult, chain_result};
use super::work::{Work, WorkKind};
use crate::ledger::{Refusal, RefusalCode, TransferIds};
use crate::limit::{LeaseId, LimitId};

/// A limit that refused this lately is likely to refuse again.
const TIGHT_MS: u64 = 1_000;

/// Work gathered for one request.
#[derive(Debug)]
pub(super) struct Batch {
    events_max: usize,
    /// As many as there would be without sums.
    events: usize,
    sums: bool,
    groups: Vec<Group>,
    /// The last group that touches an account.
    last: AHashMap<LimitId, usize>,
    pieces: Vec<Piece>,
}

/// Work that is sent at one place of the request.
#[derive(Debug)]
struct Group {
    members: SmallVec<[Work; 1]>,
    /// Something behind it touches a limit of it.
    is_followed: bool,
}

/// One chain of the request.
#[derive(Debug)]
struct Piece {
    /// Where it ends.
    end: usize,
    sum: Option<Arc<Sum>>,
    /// How many it is for.
    members: usize,
    /// How many are decided once its result is known; 0 if more pieces for them follow.
    decides: usize,
    /// It holds all members of the sum: if it is refused, none of them is decided yet.
    is_whole: bool,
    /// A reserve under a name that nobody else knows.
    is_fresh: bool,
}

/// What became of one piece of work.
#[derive(Debug)]
pub(super) enum MemberResult {
    /// It was sent by itself.
    Alone(ChainResult),
    /// It is part of a sum that holds.
    InSum(Arc<Sum>),
    /// The sum was refused on its limit number `index`; it must be sent again before anything else.
    SendAgain { index: usize },
}

/// What writing a batch needs from outside.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    pub ids: TransferIds,
    pub unix_ms: u64,
    pub monotonic_ms: u64,
    /// Must not repeat for one millisecond.
    pub entropy: fn() -> u128,
}

impl Now {
    fn lease(&self) -> LeaseId {
        LeaseId::fresh(self.unix_ms, (self.entropy)())
    }
}

impl Batch {
    pub(super) fn new(events_max: usize, sums: bool) -> Self {
        let (groups, last, pieces) = (Vec::new(), AHashMap::new(), Vec::new());
        Self { events_max, events: 0, sums, groups, last, pieces }
    }

    pub(super) fn has_room(&self, work: &Work) -> bool {
        self.events + events_of(work) <= self.events_max
    }

    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Adds one chain. The caller has asked before whether there is room.
    pub(super) fn push(&mut self, work: Work) {
        self.events += events_of(&work);
        if let Some(group) = self.group_for(&work) {
            self.groups[group].members.push(work);
            return;
        }
        let new = self.groups.len();
        if self.sums {
            for transfer in &work.chain.transfers {
                let before = self.last.insert(transfer.account.id, new);
                if let Some(before) = before.filter(|before| *before != new) {
                    self.groups[before].is_followed = true;
                }
            }
        }
        self.groups.push(Group { members: SmallVec::from_iter([work]), is_followed: false });
    }

    /// The group that it may join.
    fn group_for(&self, work: &Work) -> Option<usize> {
        if !self.sums || !may_be_summed(work) {
            return None;
        }
        let mut last = work.chain.transfers.iter().map(|transfer| self.last.get(&transfer.account.id));
        let group = *last.next()??;
        let first = &self.groups[group].members[0];
        let joins = last.all(|other| other == Some(&group))
            && may_be_summed(first)
            && sum::alike(&first.chain, &work.chain);
        joins.then_some(group)
    }

    /// The events of the request.
    pub(super) fn write(&mut self, now: Now) -> Vec<tb::Transfer> {
        let mut out = Vec::with_capacity(self.events);
        for group in &self.groups {
            write_group(group, now, &mut out, &mut self.pieces);
        }
        out
    }

    /// Each piece of work with what came of it, in the order in which they were sent. `failures` are those of the request, in order.
    /// `is_resent` says that an earlier sending of the request may have landed.
    pub(super) fn settle(
        self,
        failures: Vec<(usize, Kind)>,
        is_resent: bool,
        now_ms: u64,
    ) -> Vec<(Work, MemberResult)> {
        let mut works = self.groups.into_iter().flat_map(|group| group.members);
        let mut settled = Vec::new();
        let mut start = 0;
        let mut rest = failures.into_iter().peekable();
        let mut held = SmallVec::<[(Arc<Sum>, usize); 4]>::new();
        let mut missed = ChainResult::Done;
        for piece in self.pieces {
            let mut own = SmallVec::<[(usize, Kind); 8]>::new();
            while let Some((index, kind)) = rest.next_if(|(index, _)| *index < piece.end) {
                own.push((index - start, kind));
            }
            start = piece.end;
            let result = chain_result(&own);
            let result = if is_resent && piece.is_fresh { result_of_first(result) } else { result };
            match (result, piece.sum) {
                (ChainResult::Done, Some(sum)) => {
                    sum.landed(now_ms);
                    held.push((sum, piece.members));
                }
                (result, _) => missed = result,
            }
            if piece.decides == 0 {
                continue;
            }
            // Those who came first hold what was admitted. They asked for the same, so it doesn't matter which piece.
            let mut shares = std::mem::take(&mut held)
                .into_iter()
                .flat_map(|(sum, members)| std::iter::repeat_n(sum, members));
            for work in works.by_ref().take(piece.decides) {
                let result = match (shares.next(), missed) {
                    (Some(sum), _) => MemberResult::InSum(sum),
                    (None, ChainResult::Refused(refusal))
                        if piece.is_whole && refusal.code == RefusalCode::ExceedsCredits =>
                    {
                        MemberResult::SendAgain { index: refusal.index }
                    }
                    (None, result) => MemberResult::Alone(result),
                };
                settled.push((work, result));
            }
        }
        settled
    }

    /// All pieces of work, when there are no results.
    pub(super) fn into_works(self) -> impl Iterator<Item = Work> {
        self.groups.into_iter().flat_map(|group| group.members)
    }
}

/// The result of the first sending of a reserve whose name only this instance knows, from the result of the second.
fn result_of_first(second: ChainResult) -> ChainResult {
    match second {
        ChainResult::DoneBefore => ChainResult::Done,
        ChainResult::Refused(Refusal { code: RefusalCode::IdAlreadyFailed, index, failed }) => {
            ChainResult::Refused(Refusal { code: RefusalCode::ExceedsCredits, index, failed })
        }
        other => other,
    }
}

fn may_be_summed(work: &Work) -> bool {
    work.kind == WorkKind::Apply && sum::may_be_summed(&work.chain)
}

fn write_group(group: &Group, now: Now, out: &mut Vec<tb::Transfer>, pieces: &mut Vec<Piece>) {
    let members = &group.members;
    if let [work] = &members[..] {
        write_one(work, now, out);
        let is_fresh =
            work.kind == WorkKind::Apply && !work.chain.keep.is_named() && work.chain.can_be_given_back();
        pieces.push(Piece { end: out.len(), sum: None, members: 1, decides: 1, is_whole: false, is_fresh });
        return;
    }
    let mut add = |sum: Arc<Sum>, members, decides, is_whole| {
        wire::push_chain(out, now.ids, &sum.chain());
        let (end, sum) = (out.len(), Some(sum));
        pieces.push(Piece { end, sum, members, decides, is_whole, is_fresh: true });
    };
    if !group.is_followed && !is_tight(&members[0], now.monotonic_ms) {
        let whole = Sum::of(members.iter().map(|work| &work.chain), now.lease(), now.monotonic_ms);
        if let Some(whole) = whole.filter(|whole| whole.may_fit()) {
            add(whole, members.len(), members.len(), true);
            return;
        }
    }
    for run in members.chunk_by(|one, next| sum::equal(&one.chain, &next.chain)) {
        let mut left = run.len();
        for size in sum::halves(run.len()) {
            left -= size;
            let decides = if left == 0 { run.len() } else { 0 };
            let sum = Sum::of_equals(&run[0].chain, size, now.lease(), now.monotonic_ms);
            add(sum, size, decides, false);
        }
    }
}

fn write_one(work: &Work, now: Now, out: &mut Vec<tb::Transfer>) {
    match (work.kind, &work.sum) {
        (WorkKind::Apply, _) => wire::push_chain(out, now.ids, &work.chain),
        (WorkKind::Claim, _) => out.extend(wire::claim_again(now.ids, &work.chain)),
        (WorkKind::Verify, _) => wire::push_verify(out, now.ids, &work.chain),
        (WorkKind::GiveBack, Some(sum)) => {
            let (void, rest) = sum.take_out(&work.chain, now.lease(), now.monotonic_ms);
            wire::push_take_out(out, now.ids, &void, rest.as_ref());
        }
        (WorkKind::GiveBack, None) if work.chain.keep.is_named() => {
            wire::push_give_back(out, now.ids, &work.chain)
        }
        (WorkKind::GiveBack, None) => wire::push_void(out, now.ids, &work.chain),
    }
}

fn is_tight(work: &Work, now_ms: u64) -> bool {
    work.chain.transfers.iter().any(|transfer| transfer.account.known.refused_within(TIGHT_MS, now_ms))
}

/// How many events it has at most.
fn events_of(work: &Work) -> usize {
    let transfers = work.chain.transfers.len();
    match work.kind {
        WorkKind::Apply => transfers,
        WorkKind::Claim => 1,
        WorkKind::Verify => transfers + 1,
        WorkKind::GiveBack => transfers * 2,
    }
}

#[cfg(test)]
mod tests;
