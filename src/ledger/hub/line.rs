//! The line of the fleet as a sidecar reaches it: places are kept at hubs, and this side keeps nothing.
//!
//! A job takes its place at the home of its first limit. Nobody remembers where: whoever asks for a place later asks all hubs
//! that are there, and the one that has it answers. Passes messages on; what they mean is in [`crate::queue::fleet`].

use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;

use super::pb::answer::What as Answer;
use super::pb::ask::What as Ask;
use super::peer::Lost;
use super::{COMPLETION_TIMEOUT, Hub, READ_TIMEOUT, pb, unexpected, wire};
use crate::ledger::LedgerError;
use crate::limit::LimitId;

/// A hub answers a job that waits after this long at the latest, and may have tried to serve it before.
pub(crate) const FIRST_ANSWER_WITHIN: Duration = Duration::from_secs(5);

/// The hubs, as those see them who have or want a place there.
#[derive(Debug)]
pub struct FleetLine(Hub);

/// Which of the hubs it was.
#[derive(Debug, Clone, Copy)]
pub(crate) struct At(usize);

/// Nobody said what became of a job that asked for a place.
#[derive(Debug)]
pub(crate) struct NotJoined {
    pub(crate) error: LedgerError,
    /// A hub may have served it, or may keep a place for it.
    pub(crate) may_be_done: bool,
}

impl Hub {
    pub(crate) fn line(&self) -> FleetLine {
        FleetLine(self.handle())
    }
}

impl FleetLine {
    /// Asks for a place, at the hub that has it or else at the home of a limit. If that hub is lost, once more at the next.
    pub(crate) async fn join(
        &self,
        at: Option<At>,
        about: LimitId,
        join: &pb::JoinLine,
    ) -> Result<pb::LineAnswer, NotJoined> {
        let within = FIRST_ANSWER_WITHIN + self.0.shared.options.timeout.max(COMPLETION_TIMEOUT);
        let joining = self.join_patiently(at, about, join);
        tokio::time::timeout(within, joining).await.unwrap_or_else(|_| {
            let ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
            Err(NotJoined { error: LedgerError::TimedOut(ms), may_be_done: true })
        })
    }

    async fn join_patiently(
        &self,
        at: Option<At>,
        about: LimitId,
        join: &pb::JoinLine,
    ) -> Result<pb::LineAnswer, NotJoined> {
        let shared = &self.0.shared;
        let mut may_be_done = false;
        let mut tried: SmallVec<[usize; 4]> = SmallVec::new();
        let mut first = at.map(|At(at)| (at, &*shared.peers[at])).filter(|(_, peer)| peer.is_there());
        loop {
            let failed = |error| NotJoined { error, may_be_done };
            let next = first.take().or_else(|| shared.home(about, &tried));
            let (at, peer) = next.ok_or_else(|| failed(LedgerError::Unavailable(shared.why_away())))?;
            tried.push(at);
            let asked = peer.ask(Ask::Join(join.clone()), None);
            let mut asked = asked.ok_or_else(|| failed(shared.queue_full()))?;
            match asked.answer().await {
                Ok(Answer::Line(line)) => return Ok(*line),
                // It has no place there, and another hub may have one.
                Ok(Answer::Failure(failure))
                    if failure.code() == pb::FailureCode::Unavailable
                        && shared.home(about, &tried).is_some() => {}
                Ok(Answer::Failure(failure)) => {
                    return Err(failed(wire::read_failure(&failure, &peer.address)));
                }
                Ok(_) => return Err(failed(unexpected())),
                Err(Lost) if may_be_done => {
                    let text = "two streams to hubs were lost".to_owned();
                    return Err(failed(LedgerError::Unavailable(text)));
                }
                Err(Lost) => may_be_done = true,
            }
        }
    }

    /// What the hub says that has this place; `None` if no hub that is there has it.
    pub(crate) async fn find(
        &self,
        lease: String,
        pick_up: bool,
    ) -> Result<Option<(At, pb::LineAnswer)>, LedgerError> {
        let within = self.0.shared.options.timeout.max(READ_TIMEOUT);
        self.of_all(&Ask::Find(pb::FindPlace { lease, pick_up }), within).await
    }

    /// Tells the hub that has this place what its holder has to say. `None` if no hub that is there has it.
    pub(crate) async fn leave(
        &self,
        lease: String,
        reason: pb::LeaveReason,
    ) -> Result<Option<pb::LineAnswer>, LedgerError> {
        let ask = Ask::Leave(pb::LeaveLine { lease, reason: reason.into() });
        let within = self.0.shared.options.timeout.max(COMPLETION_TIMEOUT);
        Ok(self.of_all(&ask, within).await?.map(|(_, answer)| answer))
    }

    /// Asks all hubs at once. A hub that doesn't answer may have it, so that then nobody can say that none has.
    async fn of_all(
        &self,
        what: &Ask,
        within: Duration,
    ) -> Result<Option<(At, pb::LineAnswer)>, LedgerError> {
        let shared = &self.0.shared;
        let hubs = shared.peers.iter().enumerate().filter(|(_, peer)| peer.is_there());
        let mut answers: FuturesUnordered<_> = hubs
            .map(|(at, peer)| async move {
                let mut asked = peer.ask(what.clone(), None).ok_or_else(|| shared.queue_full())?;
                match tokio::time::timeout(within, asked.answer()).await {
                    Ok(Ok(Answer::Line(line))) => Ok((At(at), *line)),
                    Ok(Ok(Answer::Failure(failure))) => Err(wire::read_failure(&failure, &peer.address)),
                    Ok(Ok(_)) => Err(unexpected()),
                    Ok(Err(Lost)) => {
                        Err(LedgerError::Unavailable(format!("the stream to hub {} was lost", peer.address)))
                    }
                    Err(_) => {
                        Err(LedgerError::TimedOut(u64::try_from(within.as_millis()).unwrap_or(u64::MAX)))
                    }
                }
            })
            .collect();
        if answers.is_empty() {
            return Err(LedgerError::Unavailable(shared.why_away()));
        }
        let mut failed = None;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((_, line)) if line.result() == pb::LineResult::Unknown => {}
                Ok(found) => return Ok(Some(found)),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}
