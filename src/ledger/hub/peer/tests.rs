//! Who is answered, and what becomes of what callers leave behind.

use std::sync::Arc;

use smallvec::smallvec;

use super::*;
use crate::ledger::{Account, Action, Hold, Keep, Transfer};
use crate::limit::{LeaseId, LimitKey, Overage};

fn chain(keep: Keep) -> Chain {
    let lifetime_seconds = std::num::NonZeroU32::MIN;
    let hold = Hold { amount: 1, lifetime_seconds, capacity: 1, is_exact: true, overage: Overage::Deny };
    let account = Arc::new(Account::new(LimitKey::new("k")));
    let transfers = smallvec![Transfer { account, action: Action::Reserve(hold) }];
    Chain { lease: LeaseId::parse("x"), keep, transfers }
}

fn peer() -> (Peer, mpsc::Receiver<Outgoing>) {
    let (queue, queued) = mpsc::channel(4);
    (Peer::new("hub:1".to_owned(), queue), queued)
}

fn ask<'p>(peer: &'p Peer, chain: &'p Chain) -> Asked<'p> {
    peer.ask(Ask::Apply(super::super::wire::chain(chain)), Some(chain)).expect("there is room")
}

fn done(is_repeat: bool) -> Answer {
    Answer::Outcome(pb::Outcome { is_repeat, ..Default::default() })
}

fn is_given_back(undo: &Undo) -> bool {
    matches!(undo, Undo::GiveBack(_))
}

/// What is sent of what is queued.
fn sent(peer: &Peer, queued: &mut mpsc::Receiver<Outgoing>) -> Vec<&'static str> {
    let mut sent = Vec::new();
    while let Ok(outgoing) = queued.try_recv() {
        if peer.may_send(&outgoing) {
            sent.push(if matches!(outgoing, Outgoing::Left(_)) { "left" } else { "ask" });
        }
    }
    sent
}

#[tokio::test]
async fn whoever_waits_is_answered() {
    let (peer, mut queued) = peer();
    let chain = chain(Keep::ForRetries);
    let mut asked = ask(&peer, &chain);
    assert_eq!(sent(&peer, &mut queued), ["ask"]);
    assert!(!is_given_back(&peer.answered(asked.number, done(false))));
    assert_eq!(asked.answer().await, Ok(done(false)));
    assert!(!is_given_back(&asked.leave()), "it was told");
    assert_eq!(peer.waiting(), 0);
}

#[test]
fn what_was_not_sent_is_never_sent() {
    let (peer, mut queued) = peer();
    let chain = chain(Keep::Nothing);
    assert!(!is_given_back(&ask(&peer, &chain).leave()));
    assert_eq!((sent(&peer, &mut queued), peer.waiting()), (vec![], 0));
}

#[test]
fn a_caller_that_leaves_is_told_and_what_its_sending_made_is_given_back() {
    for (is_repeat, given_back) in [(false, true), (true, false)] {
        let (peer, mut queued) = peer();
        let chain = chain(Keep::ForRetries);
        let mut asked = ask(&peer, &chain);
        assert_eq!(sent(&peer, &mut queued), ["ask"]);
        assert!(!is_given_back(&asked.leave()));
        assert_eq!(sent(&peer, &mut queued), ["left"]);
        assert_eq!(is_given_back(&peer.answered(asked.number, done(is_repeat))), given_back);
        assert_eq!(peer.waiting(), 0);
    }
}

#[test]
fn an_answer_that_came_while_its_caller_left_is_not_forgotten() {
    let (peer, _queued) = peer();
    let chain = chain(Keep::ForRetries);
    let mut asked = ask(&peer, &chain);
    assert!(!is_given_back(&peer.answered(asked.number, done(false))));
    assert!(is_given_back(&asked.leave()), "nobody had read it");
    let mut asked = ask(&peer, &chain);
    asked.answer.close();
    assert!(!is_given_back(&peer.answered(asked.number, done(false))));
    assert!(is_given_back(&asked.leave()), "it came just then");
    assert_eq!(peer.waiting(), 0);
}

#[tokio::test]
async fn what_is_lost_with_its_stream_is_given_back_if_nobody_else_knows_its_name() {
    for (keep, orphans) in
        [(Keep::ForCompletion, 1), (Keep::Nothing, 1), (Keep::Name, 0), (Keep::ForRetries, 0)]
    {
        let (peer, mut queued) = peer();
        let chain = chain(keep);
        let (mut waits, mut leaves) = (ask(&peer, &chain), ask(&peer, &chain));
        assert_eq!(sent(&peer, &mut queued).len(), 2);
        assert!(!is_given_back(&leaves.leave()));
        assert_eq!(peer.lose_all().len(), orphans, "{keep:?}");
        assert_eq!(waits.answer().await, Err(Lost));
        assert_eq!(peer.waiting(), 0);
    }
}

#[test]
fn what_is_given_back_is_given_back_again_if_it_is_lost() {
    let (peer, mut queued) = peer();
    assert!(peer.give_back(chain(Keep::ForRetries)));
    assert_eq!(sent(&peer, &mut queued), ["ask"]);
    assert_eq!(peer.lose_all().len(), 1);
}

#[test]
fn a_full_queue_takes_nothing_more() {
    let (peer, _queued) = peer();
    let chain = chain(Keep::Nothing);
    let asked: Vec<_> = (0..4).map(|_| ask(&peer, &chain)).collect();
    assert!(peer.ask(Ask::Apply(pb::Chain::default()), None).is_none());
    assert!(!peer.give_back(chain.clone()));
    assert_eq!((peer.waiting(), asked.len()), (4, 4));
}

#[test]
fn a_loan_whose_caller_has_left_is_given_back_to_its_hub() {
    let lent = || Answer::Outcome(pb::Outcome { taken: vec![1], loan_ms: 500, ..Default::default() });
    let (peer, mut queued) = peer();
    let chain = chain(Keep::ForCompletion);
    // The answer comes after its caller has left, or while it leaves.
    let mut asked = ask(&peer, &chain);
    assert_eq!(sent(&peer, &mut queued), ["ask"]);
    assert!(matches!(asked.leave(), Undo::Nothing));
    assert!(matches!(peer.answered(asked.number, lent()), Undo::EndLoan(_)));
    let mut asked = ask(&peer, &chain);
    assert!(matches!(peer.answered(asked.number, lent()), Undo::Nothing));
    assert!(matches!(asked.leave(), Undo::EndLoan(_)));
    assert_eq!(peer.waiting(), 0);
}

#[test]
fn an_ask_that_is_dropped_is_forgotten() {
    let (peer, _queued) = peer();
    let asked = peer.ask(Ask::Samples(pb::Wants::default()), None).expect("there is room");
    assert_eq!(peer.waiting(), 1);
    drop(asked);
    assert_eq!(peer.waiting(), 0, "or the end of the process would wait for it");
}
