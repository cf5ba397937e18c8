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
    let (ask, todo) = limit.lend(LeaseBits::new(6), 60, true, 0, &mut At(22));
    assert_eq!((ask, limit.loans()), (Lend::Wait, 3), "the next slab was asked for: {todo:?}");
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
    assert_eq!(free_at_ms, 460 + 10_000 + 1, "and a moment more costs nothing");
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
    assert_eq!(end(&mut limit, 77, 1, 0, 14), [], "nobody was lent that");
    let _ = lend(&mut limit, 4, 30, 14);
    let ended = end(&mut limit, 4, 1, 0, 61);
    assert_eq!(ended[0].free_at_ms, 63 + 10_000 + 1);
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

#[test]
fn a_limit_that_is_full_is_said_to_be_for_as_long_as_the_ledger_is_not_asked() {
    let mut limit = with_slab();
    let (_, todo) = lend(&mut limit, 3, 125, 12);
    assert!(todo.ask.is_some(), "nothing is left");
    // All or nothing did not fit, and then there is nothing at all: for a hundredth of the window, which is 100 ms.
    let todo = limit.took(Took::Refused, &mut At(14));
    assert!(todo.ask.is_some_and(|ask| ask.up_to));
    assert_eq!(lend(&mut limit, 5, 1_000, 15).0, Lend::Refused, "fewer may fit");
    let _ = limit.took(Took::Units(0), &mut At(20));
    for up_to in [false, true] {
        let lend = limit.lend(LeaseBits::new(6), 10, up_to, 0, &mut At(50)).0;
        assert_eq!(lend, Lend::Full { for_ms: 70 }, "{up_to}");
    }
}

#[test]
fn a_sidecar_that_hears_that_a_limit_is_full_believes_it_no_longer_than_its_hub() {
    use crate::ledger::slabs::limit::Reply;
    let mut limit = Limit::new(Rules { capacity: 10_000, times: Times::of(WINDOW_SECONDS).unwrap() });
    let _ = limit.request(400, 0, &mut At(0));
    let _ = limit.admitted(&[], 400, 0);
    let (_, todo) = limit.request(1, 0, &mut At(10));
    assert!(todo.ask.is_some());
    let _ = limit.took(Took::Full { for_ms: 30 }, &mut At(20));
    assert_eq!(limit.request(1, 0, &mut At(49)).0, Reply::Full);
    let (reply, todo) = limit.request(1, 0, &mut At(50));
    assert_eq!((reply, todo.ask.map(|ask| ask.up_to)), (Reply::Wait, Some(true)));
    let _ = limit.took(Took::Full { for_ms: u64::MAX }, &mut At(60));
    assert_eq!(limit.request(1, 0, &mut At(254)).0, Reply::Full);
    assert_ne!(limit.request(1, 0, &mut At(256)).0, Reply::Full, "nobody is believed for ever");
}

/// Few admissions in a life, and fewer in a loan: it still has slabs.
#[test]
fn a_sidecar_with_few_admissions_goes_on_borrowing() {
    use crate::ledger::{Lender, Loan};
    let mut limit = Limit::new(Rules { capacity: 10_000, times: Times::of(WINDOW_SECONDS).unwrap() });
    let _ = limit.request(3, 0, &mut At(0));
    let _ = limit.admitted(&[], 3, 0);
    let loan = Loan { units: 3, for_ms: 100, lender: Lender(0) };
    assert_eq!(limit.request(1, 0, &mut At(10)).1.ask.map(|ask| ask.amount), Some(3));
    let _ = limit.took(Took::Lent(loan), &mut At(11));
    let _ = limit.tick(110);
    assert_eq!(
        limit.request(1, 0, &mut At(120)).1.ask.map(|ask| ask.amount),
        Some(2),
        "half of three is one"
    );
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
