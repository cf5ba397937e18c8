//! What is written to the worker's queue, and what its callers do while they wait.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot};

use super::sum::Sum;
use crate::ledger::{Chain, LedgerError, Outcome, Verdict};
use crate::trace::Link;

/// What is written to the queue.
#[derive(Debug)]
pub(super) struct Work {
    pub chain: Chain,
    pub kind: WorkKind,
    /// The sum that it is a part of, if it was not reserved alone.
    pub sum: Option<Arc<Sum>>,
    /// `None`: nobody waits.
    pub reply: Option<Reply>,
    /// It is not given back if its caller leaves: a completion is sent again.
    pub is_completion: bool,
    /// The call that it is for, if that has a span.
    pub link: Option<Link>,
}

pub(super) type Reply = oneshot::Sender<Result<ChainAnswer, LedgerError>>;

/// What became of a chain, and where it is to be found if it was not reserved alone.
#[derive(Debug)]
pub(super) struct ChainAnswer {
    pub outcome: Outcome,
    pub sum: Option<Arc<Sum>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WorkKind {
    Apply,
    /// It exists: make sure that nobody is giving it back.
    Claim,
    /// It exists and nobody is giving it back: make sure that all of it is still held.
    Verify,
    /// Its caller has gone.
    GiveBack,
}

impl Work {
    pub(super) fn give_back(chain: Chain, sum: Option<Arc<Sum>>) -> Self {
        Self { chain, kind: WorkKind::GiveBack, sum, reply: None, is_completion: false, link: None }
    }

    pub(super) fn answer(self, answer: Result<Outcome, LedgerError>) {
        if let Some(reply) = self.reply {
            // A caller that has gone in the meantime misses nothing by a refusal.
            drop(reply.send(answer.map(|outcome| ChainAnswer { outcome, sum: None })));
        }
    }

    pub(super) fn has_left(&self) -> bool {
        self.reply.as_ref().is_some_and(|reply| reply.is_closed())
    }
}

/// A caller that waits. If it leaves when the answer is already there, the reservation is given back all the same.
pub(super) struct WaitingCaller<'c> {
    pub answer: oneshot::Receiver<Result<ChainAnswer, LedgerError>>,
    /// Taken once the answer was read.
    pub chain: Option<&'c Chain>,
    pub abandoned: &'c mpsc::UnboundedSender<Work>,
}

impl Drop for WaitingCaller<'_> {
    fn drop(&mut self) {
        let Some(chain) = self.chain.take() else { return };
        // From here on the worker sees that this caller left. If the answer has come before that, we give it back here.
        self.answer.close();
        let Ok(Ok(ChainAnswer { outcome, sum })) = self.answer.try_recv() else { return };
        if outcome.verdict == Verdict::Done && chain.can_be_given_back() {
            // If nobody listens, the process is ending: see `give_back`.
            drop(self.abandoned.send(Work::give_back(chain.clone(), sum)));
        }
    }
}
