//! What goes into one request to TigerBeetle, and what its results mean for each of those who wait. Sans-io.
//!
//! A chain is never split; the batch ends before the chain that doesn't fit.

use tb::error::CreateTransferErrorKind as Kind;
use tigerbeetle_unofficial as tb;

use super::wire::{Landed, landed};

/// Chains gathered for one request.
#[derive(Debug)]
pub struct Batch<W> {
    events_max: usize,
    transfers: Vec<tb::Transfer>,
    /// Who waits, and where its chain ends.
    waiting: Vec<(W, usize)>,
}

impl<W> Batch<W> {
    pub fn new(events_max: usize) -> Self {
        Self { events_max, transfers: Vec::new(), waiting: Vec::new() }
    }

    pub fn has_room(&self, events: usize) -> bool {
        self.transfers.len() + events <= self.events_max
    }

    pub fn is_empty(&self) -> bool {
        self.transfers.is_empty()
    }

    pub fn events(&self) -> usize {
        self.transfers.len()
    }

    /// Adds one chain, written by `write`. The caller has asked for room.
    pub fn push(&mut self, work: W, write: impl FnOnce(&mut Vec<tb::Transfer>, &W)) {
        write(&mut self.transfers, &work);
        self.waiting.push((work, self.transfers.len()));
    }

    pub fn take_transfers(&mut self) -> Vec<tb::Transfer> {
        std::mem::take(&mut self.transfers)
    }

    /// Everybody with what its chain came to. `failures` are those of the request, in order.
    pub fn settle(self, failures: Vec<(usize, Kind)>) -> impl Iterator<Item = (W, Landed)> {
        let mut start = 0;
        let mut rest = failures.into_iter().peekable();
        self.waiting.into_iter().map(move |(work, end)| {
            let mut own = smallvec::SmallVec::<[(usize, Kind); 8]>::new();
            while let Some((index, kind)) = rest.next_if(|(index, _)| *index < end) {
                own.push((index - start, kind));
            }
            start = end;
            (work, landed(&own))
        })
    }

    /// Everybody, when there are no results.
    pub fn into_waiting(self) -> impl Iterator<Item = W> {
        self.waiting.into_iter().map(|(work, _)| work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::{Code, Refusal};

    fn batch(sizes: &[usize]) -> Batch<usize> {
        let mut batch = Batch::new(100);
        for (n, &size) in sizes.iter().enumerate() {
            batch.push(n, |out, _| out.extend((1..=size as u128).map(tb::Transfer::new)));
        }
        batch
    }

    fn refused(index: usize, code: Code) -> Landed {
        Landed::Refused(Refusal { index, code, failed: 1 << index })
    }

    #[test]
    fn failures_reach_the_chain_they_belong_to() {
        let failures = vec![
            (1, Kind::LinkedEventFailed),
            (2, Kind::ExceedsCredits),
            (3, Kind::LinkedEventFailed),
            (6, Kind::Exists),
            (7, Kind::LinkedEventFailed),
        ];
        let landed: Vec<_> = batch(&[1, 3, 2, 2]).settle(failures).collect();
        let expected = [
            (0, Landed::Done),
            (1, refused(1, Code::ExceedsCredits)),
            (2, Landed::Done),
            (3, Landed::DoneBefore),
        ];
        assert_eq!(format!("{landed:?}"), format!("{expected:?}"));
    }

    #[test]
    fn no_failures_is_done_for_all() {
        assert!(batch(&[2, 2, 1]).settle(Vec::new()).all(|(_, landed)| matches!(landed, Landed::Done)));
    }

    #[test]
    fn every_result_code_is_read_right() {
        for (failures, expected) in [
            (vec![(0, Kind::Exists), (1, Kind::LinkedEventFailed)], Landed::DoneBefore),
            (vec![(0, Kind::ExistsWithDifferentTimeout)], Landed::DoneBefore),
            (
                vec![(0, Kind::LinkedEventFailed), (1, Kind::Exists)],
                refused(1, Code::ExistsWithDifferentFields),
            ),
            (vec![(0, Kind::ExistsWithDifferentAmount)], refused(0, Code::ExistsWithDifferentFields)),
            (
                vec![(0, Kind::LinkedEventFailed), (1, Kind::IdAlreadyFailed)],
                refused(1, Code::IdAlreadyFailed),
            ),
            (vec![(0, Kind::PendingTransferExpired)], refused(0, Code::PendingTransferExpired)),
            (vec![(0, Kind::PendingTransferNotFound)], refused(0, Code::PendingTransferNotFound)),
            (vec![(0, Kind::PendingTransferAlreadyVoided)], refused(0, Code::PendingTransferAlreadyVoided)),
            (
                vec![(0, Kind::LinkedEventFailed), (1, Kind::DebitAccountNotFound)],
                Landed::AccountMissing { index: 1 },
            ),
            (
                vec![(0, Kind::OverflowsTimeout)],
                Landed::Unexpected { index: 0, kind: Kind::OverflowsTimeout },
            ),
        ] {
            assert_eq!(format!("{:?}", landed(&failures)), format!("{expected:?}"), "{failures:?}");
        }
    }

    #[test]
    fn a_chain_that_does_not_fit_waits_for_the_next_batch() {
        let mut batch = Batch::new(3);
        batch.push("first", |out, _| out.extend([tb::Transfer::new(1), tb::Transfer::new(2)]));
        assert!(!batch.has_room(2));
        assert!(batch.has_room(1));
    }
}
