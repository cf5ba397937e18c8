//! Asking: the home of a limit first, and once more another hub if that one is lost, all within a deadline.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::pb::answer::What as Answer;
use super::pb::ask::What as Ask;
use super::peer::{self, Asked, Lost};
use super::shared::Shared;
use super::{Hub, pb, wire};
use crate::ledger::{Chain, LedgerError};
use crate::limit::LimitId;

/// An answer, and from whom.
#[derive(Debug)]
pub(super) struct Answered {
    pub what: Answer,
    /// An earlier sending of the same was lost, and may have been done.
    pub was_lost: bool,
    /// Which of the hubs it was.
    pub at: usize,
    hub: String,
}

impl Answered {
    /// What it says, unless that is a failure.
    pub(super) fn expect(self) -> Result<Answer, LedgerError> {
        match self.what {
            Answer::Failure(failure) => Err(wire::read_failure(&failure, &self.hub)),
            what => Ok(what),
        }
    }
}

impl Hub {
    /// Asks the home of a limit, and another hub if that one is lost. `what` hears whether a sending of it was.
    pub(super) async fn ask(
        &self,
        about: LimitId,
        what: impl Fn(bool) -> Ask,
        chain: Option<&Chain>,
        within: Duration,
    ) -> Result<Answered, LedgerError> {
        let late = LedgerError::TimedOut(u64::try_from(within.as_millis()).unwrap_or(u64::MAX));
        tokio::time::timeout(within, self.ask_patiently(about, what, chain)).await.unwrap_or(Err(late))
    }

    async fn ask_patiently(
        &self,
        about: LimitId,
        what: impl Fn(bool) -> Ask,
        chain: Option<&Chain>,
    ) -> Result<Answered, LedgerError> {
        let mut unknown = Unknown { shared: &self.shared, chain: None };
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        let mut was_lost = false;
        loop {
            let Some((at, peer)) = self.shared.home(about, &tried) else {
                if !was_lost {
                    return Err(LedgerError::Unavailable(self.shared.why_away()));
                }
                // It may have been applied, so it has to be sent again before it can be answered.
                tried.clear();
                self.shared.until_one_is_there().await;
                continue;
            };
            let what = what(was_lost);
            let bytes = what.encoded_len();
            if bytes > wire::ASK_BYTES_MAX {
                let most = wire::ASK_BYTES_MAX;
                let text =
                    format!("what is asked has {bytes} bytes, and a hub takes {most}: the keys are too long");
                return Err(LedgerError::Unavailable(text));
            }
            let asked = peer.ask(what, chain).ok_or_else(|| self.shared.queue_full())?;
            let reply = WithUndo { shared: &self.shared, asked }.answer().await;
            tried.push(at);
            match reply {
                // It was not applied, and another hub may reach the ledger.
                Ok(Answer::Failure(failure))
                    if failure.code() == pb::FailureCode::Unavailable
                        && self.shared.home(about, &tried).is_some() => {}
                Ok(what) => {
                    if !matches!(what, Answer::Failure(_)) {
                        unknown.chain = None;
                    }
                    return Ok(Answered { what, was_lost, at, hub: peer.address.clone() });
                }
                Err(Lost) if !was_lost => {
                    was_lost = true;
                    unknown.chain = chain;
                }
                Err(Lost) => {
                    return Err(LedgerError::Unavailable("two streams to hubs were lost".to_owned()));
                }
            }
        }
    }
}

/// A chain of which a sending was lost. If nobody hears what became of it, it is given back.
struct Unknown<'s> {
    shared: &'s Arc<Shared>,
    chain: Option<&'s Chain>,
}

impl Drop for Unknown<'_> {
    fn drop(&mut self) {
        if let Some(chain) = self.chain.and_then(|chain| peer::orphan(chain.clone())) {
            self.shared.give_back_all(vec![chain]);
        }
    }
}

/// Gives back what its caller left behind.
struct WithUndo<'s> {
    shared: &'s Arc<Shared>,
    asked: Asked<'s>,
}

impl WithUndo<'_> {
    async fn answer(mut self) -> Result<Answer, Lost> {
        self.asked.answer().await
    }
}

impl Drop for WithUndo<'_> {
    fn drop(&mut self) {
        let undo = self.asked.leave();
        self.shared.undo(self.asked.peer, undo);
    }
}
