//! One hub as this sidecar sees it: whether it answers, what it was asked, and who waits for that.
//!
//! Refuses to know sockets: [`super::stream`] takes from the queue, and tells what was answered and what was lost.
//!
//! A caller that leaves gets its reserve given back, and it must be this sidecar's to give back (ADR 5):
//!
//! * What was not sent yet is never sent.
//! * What was sent is told to the hub as left. If the hub is still at it, it gives it back by its own rules. If its answer
//!   is on its way already, that answer says whether this sending made the reservation, and then it is given back here.
//! * What was lost with its stream may have been done. A name that only this sidecar knows is given back; one that others
//!   may know is left alone, because they may have been admitted on it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use ahash::AHashMap;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::homes;
use super::pb;
use super::pb::answer::What as Answer;
use super::pb::ask::What as Ask;
use crate::ledger::{Chain, LoanEnd};
use crate::limit::LimitId;
use crate::trace::{self, Batch, Link};

/// The stream ended before the answer came: it may have been done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost;

type Reply = Result<Answer, Lost>;

/// What the stream sends next.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// With the call that it is for, if that has a span.
    Ask {
        number: u64,
        what: Ask,
        link: Option<Link>,
    },
    Left(u64),
    LoanEnd(LoanEnd),
}

/// What has become of something that the hub was asked, or will be.
#[derive(Debug)]
enum AskState {
    /// With the span of the message that it was sent with.
    Caller(oneshot::Sender<Reply>, Option<Arc<Batch>>),
    /// Its caller has left, and nobody has an answer yet.
    Gone(Box<Chain>),
    /// The answer came while its caller was leaving; the caller takes it from here and gives back what it holds.
    Unread(Reply),
    /// Something is given back; nobody waits.
    GivingBack(Box<Chain>),
}

/// What to do about a chain whose caller has left.
#[derive(Debug)]
pub(super) enum Undo {
    /// It is ours: give it back.
    GiveBack(Box<Chain>),
    /// The same, and this hub has lent it.
    EndLoan(Box<Chain>),
    Nothing,
}

#[derive(Debug)]
pub(super) struct Peer {
    /// As the operator wrote it.
    pub address: String,
    queue: mpsc::Sender<Outgoing>,
    state: Mutex<PeerState>,
    /// A plain mutex: one entry is added, changed or removed; all are taken when the stream ends.
    waiting: Mutex<AHashMap<u64, AskState>>,
    last_number: AtomicU64,
    /// It was told of the end of a loan.
    has_lent: AtomicBool,
}

#[derive(Debug, Clone)]
pub(super) enum PeerState {
    Away { why: String },
    There { seed: u64, ready: Result<(), String> },
}

impl Peer {
    pub(super) fn new(address: String, queue: mpsc::Sender<Outgoing>) -> Self {
        let why = "not connected yet".to_owned();
        Self {
            address,
            queue,
            state: Mutex::new(PeerState::Away { why }),
            waiting: Mutex::default(),
            last_number: AtomicU64::new(0),
            has_lent: AtomicBool::new(false),
        }
    }

    /// How much a limit belongs here; `None` if it is away. One whose ledger answers comes before one whose doesn't.
    pub(super) fn weight(&self, limit: LimitId) -> Option<(bool, u64)> {
        match &*self.state.lock() {
            PeerState::There { seed, ready } => Some((ready.is_ok(), homes::weight(*seed, limit))),
            PeerState::Away { .. } => None,
        }
    }

    pub(super) fn is_there(&self) -> bool {
        matches!(*self.state.lock(), PeerState::There { .. })
    }

    /// Whether it and its ledger answer; the reason if not.
    pub(super) fn ready(&self) -> Result<(), String> {
        match &*self.state.lock() {
            PeerState::There { ready: Ok(()), .. } => Ok(()),
            PeerState::There { ready: Err(why), .. } | PeerState::Away { why } => {
                Err(format!("{}: {why}", self.address))
            }
        }
    }

    /// Notes how it is; how it was.
    pub(super) fn set(&self, state: PeerState) -> PeerState {
        std::mem::replace(&mut *self.state.lock(), state)
    }

    /// Asks. `None` if too much waits already.
    pub(super) fn ask<'p>(&'p self, what: Ask, chain: Option<&'p Chain>) -> Option<Asked<'p>> {
        let (reply, answer) = oneshot::channel();
        let number = self.enqueue(what, AskState::Caller(reply, None), trace::link())?;
        Some(Asked { peer: self, number, answer, chain, is_open: true })
    }

    /// Gives back; false if too much waits already.
    pub(super) fn give_back(&self, chain: Chain) -> bool {
        let what = Ask::GiveBack(super::wire::chain(&chain));
        self.enqueue(what, AskState::GivingBack(Box::new(chain)), None).is_some()
    }

    fn enqueue(&self, what: Ask, state: AskState, link: Option<Link>) -> Option<u64> {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        // Inserted before the ask is queued: otherwise the answer could come first.
        self.waiting.lock().insert(number, state);
        if self.queue.try_send(Outgoing::Ask { number, what, link }).is_err() {
            self.waiting.lock().remove(&number);
            return None;
        }
        Some(number)
    }

    /// Tells of the end of a loan. If too much waits already, the hub takes it for spent.
    pub(super) fn end_loan(&self, end: LoanEnd) {
        self.has_lent.store(true, Ordering::Relaxed);
        drop(self.queue.try_send(Outgoing::LoanEnd(end)));
    }

    /// Whether it has lent something that is over.
    pub(super) fn has_lent(&self) -> bool {
        self.has_lent.load(Ordering::Relaxed)
    }

    /// How many wait.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.lock().len()
    }

    /// Whether something is still worth sending. An ask whose caller has left is forgotten instead.
    pub(super) fn may_send(&self, outgoing: &Outgoing) -> bool {
        let mut waiting = self.waiting.lock();
        match outgoing {
            Outgoing::LoanEnd(_) => true,
            Outgoing::Left(number) => matches!(waiting.get(number), Some(AskState::Gone(_))),
            Outgoing::Ask { number, .. } => match waiting.get(number) {
                Some(AskState::Gone(_)) => {
                    waiting.remove(number);
                    false
                }
                Some(_) => true,
                None => false,
            },
        }
    }

    /// It was sent with others. Their span ends when all of them are answered, or lost.
    pub(super) fn sent_in(&self, number: u64, batch: &Arc<Batch>) {
        if let Some(AskState::Caller(_, place)) = self.waiting.lock().get_mut(&number) {
            *place = Some(Arc::clone(batch));
        }
    }

    /// An answer has come.
    pub(super) fn answered(&self, number: u64, answer: Answer) -> Undo {
        let mut waiting = self.waiting.lock();
        match waiting.remove(&number) {
            Some(AskState::Caller(reply, batch)) => {
                // Before its caller hears of it, so that the batch's span is part of what is sent at the end.
                drop(batch);
                if let Err(unread) = reply.send(Ok(answer)) {
                    waiting.insert(number, AskState::Unread(unread));
                }
                Undo::Nothing
            }
            Some(AskState::Gone(chain)) => undo_of_answer(&answer, *chain),
            Some(AskState::GivingBack(_) | AskState::Unread(_)) | None => Undo::Nothing,
        }
    }

    /// The stream has ended: everybody hears so. What is to be given back elsewhere.
    pub(super) fn lose_all(&self) -> Vec<Chain> {
        let mut waiting = self.waiting.lock();
        let lost = std::mem::take(&mut *waiting);
        let mut orphans = Vec::new();
        for (number, it) in lost {
            match it {
                AskState::Caller(reply, _) => {
                    if let Err(unread) = reply.send(Err(Lost)) {
                        waiting.insert(number, AskState::Unread(unread));
                    }
                }
                AskState::Gone(chain) => orphans.extend(orphan(*chain)),
                AskState::GivingBack(chain) => orphans.push(*chain),
                unread @ AskState::Unread(_) => drop(waiting.insert(number, unread)),
            }
        }
        orphans
    }

    /// A caller leaves before it has read an answer.
    fn leave(&self, number: u64, chain: Option<&Chain>) -> Undo {
        let mut waiting = self.waiting.lock();
        let undo = match (waiting.remove(&number), chain) {
            (Some(AskState::Unread(reply)), Some(chain)) => undo_of_reply(reply, chain),
            (Some(AskState::Caller(..)), Some(chain)) => {
                waiting.insert(number, AskState::Gone(Box::new(chain.clone())));
                // If the queue is full, the hub is not told, and the answer decides later.
                drop(self.queue.try_send(Outgoing::Left(number)));
                Undo::Nothing
            }
            _ => Undo::Nothing,
        };
        drop(waiting);
        undo
    }
}

/// Only a reservation that this very sending made is ours to give back.
fn undo_of_answer(answer: &Answer, chain: Chain) -> Undo {
    match answer {
        Answer::Outcome(pb::Outcome { refusal: None, loan_ms: 1.., .. }) => Undo::EndLoan(Box::new(chain)),
        Answer::Outcome(pb::Outcome { refusal: None, is_repeat: false, .. }) => {
            Undo::GiveBack(Box::new(chain))
        }
        _ => Undo::Nothing,
    }
}

fn undo_of_reply(reply: Reply, chain: &Chain) -> Undo {
    match reply {
        Ok(answer) => undo_of_answer(&answer, chain.clone()),
        Err(Lost) => orphan(chain.clone()).map_or(Undo::Nothing, |chain| Undo::GiveBack(Box::new(chain))),
    }
}

/// A chain whose fate nobody knows and whose caller has left: given back if nobody else knows its name.
pub(super) fn orphan(chain: Chain) -> Option<Chain> {
    (chain.can_be_given_back() && !chain.keep.is_named()).then_some(chain)
}

/// Something that was asked. Dropped before it was answered, its caller has left.
#[derive(Debug)]
pub(super) struct Asked<'p> {
    pub peer: &'p Peer,
    number: u64,
    answer: oneshot::Receiver<Reply>,
    /// What is given back then.
    chain: Option<&'p Chain>,
    is_open: bool,
}

impl Asked<'_> {
    pub(super) async fn answer(&mut self) -> Reply {
        let reply = (&mut self.answer).await.unwrap_or(Err(Lost));
        self.is_open = false;
        reply
    }

    /// Its caller leaves: what is to be given back.
    pub(super) fn leave(&mut self) -> Undo {
        if !std::mem::take(&mut self.is_open) {
            return Undo::Nothing;
        }
        // From here on an answer that comes is put where `leave` finds it.
        self.answer.close();
        match (self.answer.try_recv(), self.chain) {
            (Ok(reply), Some(chain)) => undo_of_reply(reply, chain),
            (Ok(_), None) => Undo::Nothing,
            (Err(_), chain) => self.peer.leave(self.number, chain),
        }
    }
}

/// Where nothing is to be given back, leaving is to be forgotten.
impl Drop for Asked<'_> {
    fn drop(&mut self) {
        drop(self.leave());
    }
}

#[cfg(test)]
mod tests;
