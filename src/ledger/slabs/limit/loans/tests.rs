//! What a hub lends: from when on, for how long, and what it holds how long of what it hears. All times by hand, for a window of
//! 10 s: L is 200 ms, a slab is lent from for 50 ms, a loan is 100 ms long, and what is not told 400 ms after the slab was spent.

use std::num::NonZeroU32;

use super::*;
use crate::ledger::slabs::limit::tests::At;
use crate::ledger::slabs::limit::{Rules, Took};
use crate::ledger::slabs::slab::Ended;

const WINDOW_SECONDS: NonZeroU32 = NonZeroU32::new(10).unwrap();

/// Of 10,000, which lends when it is asked twice in a life.
fn limit() -> Limit {
    let times = Times::of_lender(WINDOW_SECONDS, 2).unwrap();
    Limit::new(Rules { capacity: 10_000, times })
}

fn lend(limit: &mut Limit, name: u128, units: u64, now_ms: u64) -> (Lend, Todo) {
    limit.lend(LeaseBits::new(name), units, false, 0, &mut At(now_ms))
}

fn end(limit: &mut Limit, name: u128, spent: u64, last_ago_ms: u64, now_ms: u64) -> Vec<Ended> {
    limit.end_loan(LeaseBits::new(name), spent, last_ago_ms, now_ms).ended.into_vec()
}

/// The same with a slab of 125 units that was asked for at 10 and came at 12: the ledger has admitted 400 in the last life, of which a
/// quarter is 100, and a quarter more is 125.
fn with_slab() -> Limit {
    let mut limit = limit();
    assert_eq!(lend(&mut limit, 1, 400, 0).0, Lend::NotLent);
    assert_eq!(lend(&mut limit, 2, 400, 0).0, Lend::Ledger);
    let _ = limit.admitted(&[], 400, 0);
    let (waits, todo) = lend(&mut limit, 3, 40, 10);
    assert_eq!((waits, todo.ask.map(|ask| (ask.amount, ask.up_to))), (Lend::Wait, Some((125, false))));
    let todo = limit.took(Took::Units(125), &mut At(12));
    assert_eq!((todo.tick_at_ms, todo.wake), (Some(60), true));
    limit
}

#[test]
fn nothing_is_lent_where_few_ask() {
    let mut limit = limit();
    for at_ms in [0, 300, 600, 900] {
        let (lend, todo) = lend(&mut limit, u128::from(at_ms), 100, at_ms);
        assert_eq!((lend, todo.ask), (Lend::NotLent, None), "at {at_ms}");
    }
}

#[test]
fn parts_of_a_slab_are_lent_until_it_is_spent() {
    let mut limit = with_slab();
    let lent = |units| Lend::Lent { units, for_ms: 100 };
    assert_eq!(lend(&mut limit, 3, 40, 12).0, lent(40));
    assert_eq!(lend(&mut limit, 4, 60, 20).0, lent(60));
    assert_eq!(lend(&mut limit, 3, 40, 20).0, lent(40), "the same once more is the same loan");
    assert_eq!((limit.held(), limit.loans()), (125, 2));
    let up_to = limit.lend(LeaseBits::new(5), 60, true, 0, &mut At(21)).0;
    assert_eq!(up_to, lent(25), "as much as there is");
    assert_eq!(limit.lend(LeaseBits::new(6), 60, true, 9, &mut At(22)).0, Lend::Ledger);
}

#[test]
fn what_was_not_spent_is_lent_again_and_what_was_is_held_for_a_window() {
    let mut limit = with_slab();
    let _ = lend(&mut limit, 3, 100, 12);
    assert_eq!(end(&mut limit, 3, 25, 5, 30), [], "the slab is not over");
    assert_eq!((limit.counts.handed_out, limit.loans()), (25, 0));
    assert_eq!(lend(&mut limit, 4, 100, 40).0, Lend::Lent { units: 100, for_ms: 100 });
    // It tells at 130 that the last of 40 units was handed out 20 ms ago: at 112 at the latest, because both clocks show whole ones.
    let ended = end(&mut limit, 4, 40, 20, 130);
    let [Ended { taken: 125, spent: 65, free_at_ms, .. }] = ended[..] else { panic!("{ended:?}") };
    assert_eq!(free_at_ms, 112 + 10_000 + 1);
    assert_eq!((limit.counts.given_back, limit.held(), limit.slabs()), (60, 0, 0));
}

#[test]
fn a_sidecar_that_never_tells_has_spent_all_in_the_last_moment() {
    let mut limit = with_slab();
    let _ = lend(&mut limit, 3, 30, 12);
    let todo = limit.tick(60);
    assert_eq!((todo.ended.len(), todo.tick_at_ms), (0, Some(460)), "it waits for the loan");
    assert_eq!(limit.tick(459).ended.len(), 0);
    let todo = limit.tick(460);
    let [Ended { taken: 125, spent: 30, free_at_ms, .. }] = todo.ended[..] else { panic!("{todo:?}") };
    assert_eq!(free_at_ms, 12 + 100 + 1 + 10_000 + 1);
    assert_eq!((todo.tick_at_ms, limit.loans()), (None, 0));
    assert_eq!(end(&mut limit, 3, 0, 0, 470), [], "too late");
    assert_eq!(limit.counts.handed_out, 30);
}

#[test]
fn nobody_is_believed_more_than_can_be_true() {
    let mut limit = with_slab();
    let _ = lend(&mut limit, 3, 30, 12);
    assert_eq!(end(&mut limit, 3, u64::MAX, u64::MAX, 13), []);
    assert_eq!(limit.counts.handed_out, 30, "no more than it had");
    let _ = lend(&mut limit, 4, 30, 14);
    // It tells a minute later that it was just now.
    let ended = end(&mut limit, 4, 1, 0, 60_000);
    assert_eq!(ended[0].free_at_ms, 14 + 100 + 1 + 10_000 + 1, "nothing is handed out of what is over");
    assert_eq!(end(&mut limit, 77, 1, 0, 60_000), [], "nobody was lent that");
}

#[test]
fn looks_for_overdue_loans_do_not_gather() {
    let mut limit = with_slab();
    let _ = lend(&mut limit, 3, 30, 12);
    assert_eq!(limit.tick(60).tick_at_ms, Some(460));
    for at_ms in [61, 100, 300] {
        assert_eq!(limit.tick(at_ms).tick_at_ms, None, "one look is enough");
    }
}

#[test]
fn what_is_closed_is_not_lent_and_waits_for_its_loans() {
    let mut limit = with_slab();
    let _ = lend(&mut limit, 3, 30, 12);
    assert_eq!(limit.close(20).ended.len(), 0);
    assert_ne!(lend(&mut limit, 4, 10, 20).0, Lend::Lent { units: 10, for_ms: 100 });
    let ended = end(&mut limit, 3, 0, 0, 25);
    assert_eq!(ended.iter().map(|it| (it.taken, it.spent)).collect::<Vec<_>>(), [(125, 0)]);
}

/// A sidecar: what it was lent is handed out for as long as the hub says, and the next ask is for as long.
#[test]
fn a_sidecar_takes_a_loan_for_a_slab_that_lives_shorter() {
    use crate::ledger::slabs::limit::Reply;
    use crate::ledger::{Lender, Loan};
    let mut limit = Limit::new(Rules { capacity: 10_000, times: Times::of(WINDOW_SECONDS).unwrap() });
    let _ = limit.request(400, 0, &mut At(0));
    let _ = limit.admitted(&[], 400, 0);
    let (_, todo) = limit.request(1, 0, &mut At(10));
    assert_eq!(todo.ask.map(|ask| (ask.amount, ask.window_ms)), Some((500, 10_000)));
    let loan = Loan { units: 300, for_ms: 100, lender: Lender(1) };
    let todo = limit.took(Took::Lent(loan), &mut At(12));
    assert_eq!(todo.tick_at_ms, Some(110), "from when it was asked for");
    let (Reply::Aside(parts), todo) = limit.request(290, 0, &mut At(50)) else { panic!("it has 300") };
    // 400 were admitted in the last life; a loan is half of one, and a quarter more.
    assert_eq!(todo.ask.map(|ask| ask.amount), Some(250));
    let _ = limit.admitted(&parts, 0, 50);
    let (Reply::Aside(parts), _) = limit.request(5, 0, &mut At(105)) else { panic!("it has 10") };
    let _ = limit.admitted(&parts, 0, 105);
    let todo = limit.tick(110);
    let loan = todo.ended[0].loan.unwrap();
    assert_eq!((todo.ended[0].taken, todo.ended[0].spent), (300, 295));
    assert_eq!((loan.lender, loan.last_ms, loan.tell_within_ms), (Lender(1), 105, 50));
}
