//! What goes back when, and under which step.

use super::*;
use crate::limit::LimitId;

fn ended(taken: u64, spent: u64, free_at_ms: u64) -> Ended {
    Ended { name: LeaseId::fresh(1, u128::from(taken)), up_to: false, taken, spent, free_at_ms, loan: None }
}

fn step(returns: &mut Returns<&'static str>, now_ms: u64) -> Option<(Number, ReturnStep)> {
    returns.next(now_ms).map(|(number, back)| (number, back.step))
}

#[test]
fn nothing_spent_goes_back_at_once() {
    let mut returns = Returns::new(10);
    returns.add("a", ended(9, 0, 60_000), 1_000);
    assert_eq!((returns.unspent(), returns.next_due_ms()), (1, Some(1_000)));
    let (number, back) = step(&mut returns, 1_000).unwrap();
    assert_eq!(back, ReturnStep::Void);
    assert_eq!(returns.next_due_ms(), None);
    returns.answered(number, Landed::Done, 1_001, |_| 0);
    assert!(returns.is_empty());
    assert_eq!(returns.unspent(), 0);
}

#[test]
fn all_spent_goes_back_to_the_millisecond() {
    let mut returns = Returns::new(10);
    returns.add("a", ended(9, 9, 61_001), 1_000);
    assert_eq!((returns.unspent(), step(&mut returns, 61_000)), (0, None));
    assert_eq!(step(&mut returns, 61_001).unwrap().1, ReturnStep::Void);
}

#[test]
fn a_part_is_kept_until_its_time_and_then_voided() {
    let mut returns = Returns::new(10);
    returns.add("a", ended(9, 4, 61_001), 1_000);
    let (number, back) = step(&mut returns, 1_500).unwrap();
    // 59.501 s rounded up, and 2 s.
    assert_eq!(back, ReturnStep::Keep { units: 4, timeout_seconds: NonZeroU32::new(62).unwrap() });
    returns.answered(number, Landed::Done, 1_502, |_| 0);
    assert_eq!((returns.unspent(), step(&mut returns, 61_000)), (0, None));
    let (number, back) = step(&mut returns, 61_001).unwrap();
    assert_eq!(back, ReturnStep::VoidKept);
    returns.answered(number, Landed::Done, 61_002, |_| 0);
    assert!(returns.is_empty());
}

#[test]
fn what_is_not_answered_is_sent_again_until_it_is() {
    let mut returns = Returns::new(10);
    returns.add("a", ended(9, 4, 2_001), 1_000);
    let mut now_ms = 1_000;
    for retry in 0..20 {
        let (number, back) = step(&mut returns, now_ms).unwrap();
        assert!(
            matches!(back, ReturnStep::Keep { units: 4, .. }),
            "it may have happened: no other step, not even later"
        );
        returns.answered(number, Landed::Failed, now_ms, |n| n);
        assert_eq!(returns.unspent(), 1);
        let due_ms = returns.next_due_ms().unwrap();
        assert!(due_ms > now_ms && due_ms <= now_ms + 1_000, "retry {retry}");
        now_ms = due_ms;
    }
    let (number, _) = step(&mut returns, now_ms).unwrap();
    returns.answered(number, Landed::Gone, now_ms, |_| 0);
    assert!(returns.is_empty());
    returns.answered(number, Landed::Done, now_ms, |_| 0);
}

#[test]
fn what_comes_too_late_to_be_kept_is_voided_whole() {
    let mut returns = Returns::new(10);
    returns.add("a", ended(9, 4, 2_001), 1_000);
    assert_eq!(step(&mut returns, 2_001).unwrap().1, ReturnStep::Void);
    assert_eq!(returns.unspent(), 0);
}

#[test]
fn beyond_the_bound_the_ledgers_timeout_does_it() {
    let mut returns = Returns::new(2);
    for n in 1..=5 {
        returns.add("a", ended(n, n, 60_000), 0);
    }
    assert_eq!(returns.len(), 2);
    returns.add("a", ended(9, 0, 60_000), 0);
    returns.add("a", ended(8, 1, 60_000), 0);
    assert_eq!(returns.len(), 4, "what nobody spent always goes back");
}

/// What the bound of those that wait is counted with.
#[test]
fn what_waits_takes_as_much_as_was_counted() {
    let one = size_of::<((u64, u64), Return<(LimitId, std::sync::Arc<crate::ledger::Account>)>)>();
    assert!(one <= 144, "{one}");
}
