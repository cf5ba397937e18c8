//! One limit: when it asks, what it hands out, and when it says that it is full.

use std::num::NonZeroU32;

use super::*;

/// A clock that stands until it is moved.
pub(in crate::ledger::slabs) struct At(pub(in crate::ledger::slabs) u64);

impl Outside for At {
    fn now_ms(&mut self) -> u64 {
        self.0
    }

    fn fresh_name(&mut self) -> LeaseId {
        LeaseId::fresh(self.0, fastrand::u128(..))
    }
}

/// A clock that jumps when it is read.
struct Asleep {
    before: u64,
    after: u64,
}

impl Outside for Asleep {
    fn now_ms(&mut self) -> u64 {
        std::mem::replace(&mut self.before, self.after)
    }

    fn fresh_name(&mut self) -> LeaseId {
        LeaseId::fresh(self.before, fastrand::u128(..))
    }
}

fn rules(capacity: u64, window_seconds: u32) -> Rules {
    Rules { capacity, times: Times::of(NonZeroU32::new(window_seconds).unwrap()).unwrap() }
}

/// A limit of 1,000 in 10 s, so L is 200 ms, at which 40 units were admitted by the ledger at time 0.
fn warm() -> Limit {
    let mut limit = Limit::new(rules(1_000, 10));
    for _ in 0..40 {
        assert!(matches!(
            limit.request(1, 0, &mut At(0)),
            (Reply::Ledger { rest: 1, .. }, Todo { ask: None, .. })
        ));
    }
    for _ in 0..40 {
        let _ = limit.admitted(&[], 1, 0);
    }
    limit
}

/// The same with a slab of 50 units that was asked for at time 0.
fn with_slab() -> Limit {
    let mut limit = warm();
    let (_, todo) = limit.request(1, 0, &mut At(0));
    assert_eq!(todo.ask.map(|ask| (ask.amount, ask.up_to, ask.timeout_seconds.get())), Some((50, false, 12)));
    let todo = limit.took(Took::Units(50), &mut At(2));
    assert_eq!((todo.tick_at_ms, todo.wake), (Some(200), true));
    limit
}

fn hand_out(limit: &mut Limit, units: u64, now_ms: u64) -> Todo {
    let (reply, mut todo) = limit.request(units, 0, &mut At(now_ms));
    let Reply::Aside(parts) = reply else { panic!("{reply:?}") };
    todo.ended.extend(limit.admitted(&parts, 0, now_ms).ended);
    todo
}

#[test]
fn a_quiet_limit_has_no_slab() {
    let mut limit = Limit::new(rules(1_000, 10));
    let (reply, todo) = limit.request(1, 0, &mut At(0));
    assert_eq!((reply, todo.ask), (Reply::Ledger { parts: Parts::new(), rest: 1 }, None));
    let _ = limit.admitted(&[], 1, 0);
    assert_eq!(limit.request(1, 0, &mut At(100)).1.ask, None, "one in the last life is below two");
    assert_eq!(limit.request(1, 0, &mut At(5_000)).1.ask, None);
}

#[test]
fn the_size_is_what_was_admitted_and_a_quarter_more_but_a_twentieth_at_most() {
    for (capacity, admitted, size) in [
        (1_000, 40, Some(50)),
        (1_000, 41, Some(50)),
        (10_000, 41, Some(51)),
        (1_000, 1, None),
        (39, 30, None),
    ] {
        let mut limit = Limit::new(rules(capacity, 10));
        assert!(matches!(limit.request(admitted, 0, &mut At(0)).0, Reply::Ledger { .. }));
        let _ = limit.admitted(&[], admitted, 0);
        let (_, todo) = limit.request(1, 0, &mut At(0));
        assert_eq!(todo.ask.map(|ask| ask.amount), size, "{admitted} of {capacity}");
    }
}

#[test]
fn who_comes_while_a_slab_is_asked_for_waits_as_far_as_it_reaches() {
    let mut limit = warm();
    for n in 0..50 {
        assert_eq!(limit.request(1, 0, &mut At(0)).0, Reply::Wait, "{n}");
    }
    assert!(matches!(limit.request(1, 0, &mut At(0)).0, Reply::Ledger { .. }));
    assert!(matches!(limit.request(1, 1, &mut At(0)).0, Reply::Ledger { .. }), "once is enough");
}

#[test]
fn units_are_handed_out_until_the_end_and_the_rest_goes_back() {
    let mut limit = with_slab();
    assert!(hand_out(&mut limit, 30, 150).ended.is_empty());
    assert_eq!(limit.shown(150), Some(Shown { held: 20, handed_out: 30, ends_in_ms: 50 }));
    assert!(hand_out(&mut limit, 1, 199).ended.is_empty());
    let (reply, todo) = limit.request(1, 0, &mut At(200));
    assert_eq!(reply, Reply::Wait, "the next slab was asked for before");
    let ended = &todo.ended[0];
    assert_eq!((ended.taken, ended.spent, ended.free_at_ms), (50, 31, 199 + 10_000 + 1));
    assert_eq!(limit.counts, Counts { taken: 50, handed_out: 31, given_back: 19 });
    assert_eq!(limit.held(), 0);
}

#[test]
fn a_slab_that_is_spent_ends_at_once() {
    let mut limit = with_slab();
    let todo = hand_out(&mut limit, 50, 20);
    assert_eq!((todo.ended[0].spent, todo.ended[0].free_at_ms), (50, 10_021));
    assert_eq!(limit.slabs(), 0);
}

#[test]
fn who_stood_still_in_the_middle_of_a_hand_out_hands_out_nothing_old() {
    let mut limit = with_slab();
    let (reply, todo) = limit.request(1, 0, &mut Asleep { before: 5_000, after: 5_000 });
    assert!(matches!(reply, Reply::Ledger { .. }));
    assert_eq!((todo.ended[0].spent, limit.counts.given_back), (0, 50));
}

#[test]
fn what_is_set_aside_keeps_the_slab_from_ending() {
    let mut limit = with_slab();
    let (Reply::Aside(parts), _) = limit.request(3, 0, &mut At(100)) else { panic!() };
    let (Reply::Aside(others), _) = limit.request(2, 0, &mut At(120)) else { panic!() };
    assert!(limit.tick(200).ended.is_empty());
    assert!(!matches!(limit.request(1, 0, &mut At(210)).0, Reply::Aside(_)), "it is over all the same");
    assert!(limit.admitted(&parts, 0, 220).ended.is_empty());
    let todo = limit.not_admitted(&others, 0, false, 250);
    assert_eq!((todo.ended[0].taken, todo.ended[0].spent), (50, 3));
    assert_eq!(limit.counts, Counts { taken: 50, handed_out: 3, given_back: 47 });
}

#[test]
fn the_next_slab_is_asked_for_before_the_last_is_over_or_spent() {
    let mut limit = with_slab();
    assert_eq!(hand_out(&mut limit, 1, 150).ask, None);
    assert!(hand_out(&mut limit, 1, 196).ask.is_some(), "it ends in a moment");
    let mut limit = with_slab();
    assert_eq!(hand_out(&mut limit, 40, 20).ask, None);
    assert!(hand_out(&mut limit, 9, 21).ask.is_some(), "one is left");
}

#[test]
fn what_fits_is_taken_and_then_the_limit_is_full_for_a_while() {
    let mut limit = warm();
    let (reply, todo) = limit.request(1, 0, &mut At(0));
    assert_eq!((reply, todo.ask.map(|ask| ask.up_to)), (Reply::Wait, Some(false)));
    let todo = limit.took(Took::Refused, &mut At(2));
    assert_eq!(todo.ask.map(|ask| (ask.amount, ask.up_to)), Some((50, true)));
    let _ = limit.took(Took::Units(3), &mut At(5));
    let _ = hand_out(&mut limit, 3, 6);
    assert_eq!(limit.request(1, 0, &mut At(104)).0, Reply::Full);
    let (reply, todo) = limit.request(1, 0, &mut At(105));
    assert_eq!((reply, todo.ask.map(|ask| ask.up_to)), (Reply::Wait, Some(true)));
    let _ = limit.took(Took::Units(0), &mut At(107));
    assert_eq!(limit.request(1, 1, &mut At(206)).0, Reply::Full);
    assert_eq!(limit.slabs(), 0);
}

#[test]
fn a_refusal_of_several_units_says_nothing_of_fewer() {
    let mut limit = Limit::new(rules(1_000, 10));
    let alone = |units| Reply::Ledger { parts: Parts::new(), rest: units };
    assert_eq!(limit.request(5, 0, &mut At(0)).0, alone(5));
    let _ = limit.not_admitted(&[], 5, true, 2);
    assert_eq!(limit.request(5, 0, &mut At(3)).0, Reply::Full);
    assert_eq!(limit.request(4, 0, &mut At(3)).0, alone(4));
    let _ = limit.not_admitted(&[], 4, true, 5);
    assert_eq!(limit.request(4, 0, &mut At(104)).0, Reply::Full);
    assert_eq!(limit.request(5, 0, &mut At(105)).0, alone(5), "it is worth another try");
}

#[test]
fn near_the_limit_asks_are_one_at_a_time() {
    let mut limit = Limit::new(rules(30, 10));
    assert!(matches!(limit.request(1, 0, &mut At(0)).0, Reply::Ledger { .. }));
    let _ = limit.not_admitted(&[], 1, true, 2);
    assert!(matches!(limit.request(1, 0, &mut At(102)).0, Reply::Ledger { .. }));
    for _ in 0..100 {
        assert_eq!(limit.request(1, 0, &mut At(103)).0, Reply::Wait);
    }
    assert!(limit.not_admitted(&[], 1, true, 104).wake);
    assert_eq!(limit.request(1, 1, &mut At(104)).0, Reply::Full);
}

#[test]
fn an_answer_that_comes_too_late_gives_nothing() {
    let mut limit = warm();
    assert_eq!(limit.request(1, 0, &mut At(0)).0, Reply::Wait);
    let todo = limit.took(Took::Units(50), &mut At(200));
    assert_eq!((todo.ended[0].taken, todo.ended[0].spent), (50, 0));
    assert!(matches!(limit.request(1, 1, &mut At(200)), (Reply::Ledger { .. }, Todo { ask: None, .. })));
}

#[test]
fn without_an_answer_nothing_is_held() {
    let mut limit = warm();
    assert_eq!(limit.request(1, 0, &mut At(0)).0, Reply::Wait);
    let todo = limit.took(Took::Nothing, &mut At(250));
    assert!(todo.ended.is_empty() && todo.ask.is_none() && todo.wake);
    assert_eq!((limit.held(), limit.counts), (0, Counts::default()));
}

#[test]
fn closing_gives_back_also_what_is_still_asked_for() {
    let mut limit = with_slab();
    let _ = hand_out(&mut limit, 10, 10);
    let todo = limit.close(11);
    assert_eq!((todo.ended[0].taken, todo.ended[0].spent), (50, 10));
    assert_eq!(limit.request(1, 0, &mut At(12)).0, Reply::Wait);
    assert!(limit.close(13).ended.is_empty());
    let todo = limit.took(Took::Units(50), &mut At(14));
    assert_eq!((todo.ended[0].taken, todo.ended[0].spent), (50, 0));
}

#[test]
fn a_lower_capacity_or_another_window_closes_it() {
    for (changed, closes) in [(rules(2_000, 10), false), (rules(999, 10), true), (rules(1_000, 11), true)] {
        let mut limit = with_slab();
        assert_eq!(limit.follow(changed, &mut At(50)).ended.len(), usize::from(closes), "{changed:?}");
    }
    let mut limit = with_slab();
    let (Reply::Aside(parts), _) = limit.request(3, 0, &mut At(100)) else { panic!() };
    let _ = limit.follow(rules(1_000, 60), &mut At(101));
    let todo = limit.admitted(&parts, 0, 102);
    assert_eq!(todo.ended[0].free_at_ms, 10_101, "the window is that of when it was handed out");
}

#[test]
fn an_idle_limit_may_be_forgotten() {
    let mut limit = with_slab();
    assert!(!limit.is_idle(100));
    let _ = limit.tick(200);
    assert!(!limit.is_idle(200), "it had demand");
    assert!(limit.is_idle(1_000));
}
