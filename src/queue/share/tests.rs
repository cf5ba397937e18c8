//! What newcomers may take, by hand: credit, room and cycles.

use super::*;

const NOW_MS: u64 = 1_000_000;

const A: LimitId = LimitId::new(1);
const B: LimitId = LimitId::new(2);
const C: LimitId = LimitId::new(3);

/// One job waits at limit A and needs so much.
fn waits(share: &Share, part: f64, needs: u64, capacity: u64) {
    waits_at(share, A, part, needs, capacity);
}

fn waits_at(share: &Share, limit: LimitId, part: f64, needs: u64, capacity: u64) {
    let demand = Demand { first: JobId(7), needs, all_need: needs, capacity, comes_back_ms: None };
    share.set(limit, part, demand, NOW_MS);
}

/// A newcomer that needs so much of limit A, of which so much is free.
fn takes_of(share: &Share, amount: u64, free: u64, at_ms: u64) -> bool {
    match share.take([(A, amount)].into_iter(), at_ms, |_| Some(free)) {
        Ok(taken) => {
            taken.into_iter().for_each(Taken::keep);
            true
        }
        Err(_) => false,
    }
}

/// The same where nothing is free but for the queue, so that it needs credit.
fn takes(share: &Share, amount: u64) -> bool {
    takes_of(share, amount, 0, NOW_MS)
}

#[test]
fn without_a_queue_every_newcomer_takes_what_it_needs() {
    let share = Share::default();
    let takes_all =
        || share.take([(A, u64::MAX)].into_iter(), NOW_MS, |_| panic!("nobody asks")).unwrap().is_none();
    assert!(takes_all());
    waits(&share, 0.0, 1, 10);
    assert!(takes_all(), "a share of 0 keeps nothing");
}

#[test]
fn newcomers_take_what_the_share_leaves() {
    // A quarter is the queue's: newcomers may take 3 for each 1, 3 to begin with.
    let share = Share::default();
    waits(&share, 0.25, 1, 100);
    assert!(takes(&share, 2) && takes(&share, 1) && !takes(&share, 1));
    share.served(A, 2);
    assert!(takes(&share, 6) && !takes(&share, 1));
    assert!((share.queue_part(A) - 2.0 / 11.0).abs() < 1e-9); // 2 of 2 + 9
    share.remove(A);
    assert!(takes(&share, 1000));
}

#[test]
fn what_needs_much_overdraws_and_is_waited_for() {
    let share = Share::default();
    waits(&share, 0.5, 1, 10);
    assert!(takes(&share, 9) && !takes(&share, 1)); // 1 - 9
    share.served(A, 8);
    assert!(!takes(&share, 1));
    share.served(A, 1);
    assert!(takes(&share, 1));
}

#[test]
fn all_of_it_can_be_the_queues() {
    let share = Share::default();
    waits(&share, 1.0, 5, 100);
    share.served(A, 50);
    assert!(!takes(&share, 1));
    assert!(!takes_of(&share, 1, 5, NOW_MS) && takes_of(&share, 1, 6, NOW_MS), "but no more than it needs");
}

#[test]
fn neither_credit_nor_debt_piles_up_beyond_the_capacity() {
    let share = Share::default();
    waits(&share, 0.5, 1, 10);
    share.served(A, 1_000_000);
    assert!(takes(&share, 10) && !takes(&share, 1));
    (0..1000).for_each(|_| assert!(takes_of(&share, 1, 10, NOW_MS), "there is room"));
    share.served(A, 10);
    assert!(!takes(&share, 1));
    share.served(A, 1);
    assert!(takes(&share, 1));
}

#[test]
fn a_newcomer_that_the_ledger_refused_took_nothing() {
    let share = Share::default();
    waits(&share, 0.5, 1, 10);
    let refused =
        |free| share.take([(A, 1)].into_iter(), NOW_MS, |_| Some(free)).map(|taken| assert!(taken.is_some()));
    (0..3).for_each(|_| refused(0).unwrap());
    assert!(takes(&share, 1) && !takes(&share, 1));
    // Also where its credit was at its lowest.
    (0..100).for_each(|_| assert!(takes_of(&share, 1, 10, NOW_MS)));
    (0..100).for_each(|_| refused(10).unwrap());
    share.served(A, 10);
    assert!(!takes(&share, 1));
}

#[test]
fn it_names_the_limits_that_are_kept_and_takes_of_none() {
    let share = Share::default();
    waits(&share, 0.5, 1, 10);
    waits_at(&share, C, 1.0, 1, 10);
    let needs = [(A, 1), (B, 1), (C, 1)];
    let asked = std::cell::RefCell::new(Vec::new());
    let free = |index| {
        asked.borrow_mut().push(index);
        Some(1)
    };
    assert_eq!(share.take(needs.into_iter(), NOW_MS, free).unwrap_err(), RequirementSet::one(2));
    assert_eq!(asked.into_inner(), [2], "only what matters is asked for");
    assert!(takes(&share, 1), "nothing was taken of the first");
    let elsewhere = share.take([(B, 1)].into_iter(), NOW_MS, |_| panic!("nobody asks"));
    assert!(elsewhere.unwrap().is_none(), "no job waits there");
}

#[test]
fn what_nobody_needs_is_free_for_newcomers() {
    // Half of 10 is the queue's. Two jobs need 3 and 4 of it: 5 are kept, with one of them 3.
    let share = Share::default();
    let demand = Demand { first: JobId(1), needs: 3, all_need: 7, capacity: 10, comes_back_ms: None };
    share.set(A, 0.5, demand, NOW_MS);
    assert!(takes(&share, 3) && !takes(&share, 1), "the credit");
    assert!(
        !takes_of(&share, 1, 5, NOW_MS) && takes_of(&share, 1, 6, NOW_MS) && takes_of(&share, 2, 7, NOW_MS)
    );
    share.set(A, 0.5, Demand { all_need: 3, ..demand }, NOW_MS);
    assert!(!takes_of(&share, 1, 3, NOW_MS) && takes_of(&share, 1, 4, NOW_MS));
    assert!(share.take([(A, 1)].into_iter(), NOW_MS, |_| None).is_err(), "who knows nothing takes nothing");
}

#[test]
fn those_under_way_are_counted() {
    let share = Share::default();
    waits(&share, 0.5, 1, 10);
    assert!(takes(&share, 1));
    // 3 are free and 1 is kept, so that 2 may be under way at a time.
    let take = || share.take([(A, 1)].into_iter(), NOW_MS, |_| Some(3));
    let first = take().unwrap();
    let second = take().unwrap();
    assert!(take().is_err());
    first.into_iter().for_each(Taken::keep);
    assert!(take().is_ok());
    drop(second);
}

#[test]
fn a_job_that_needs_more_than_the_share_has_it_for_that_part_of_the_time() {
    for part in [0.25, 0.5, 0.75] {
        let share = Share::default();
        waits(&share, part, 10, 10);
        takes(&share, 1000);
        let mut kept = Vec::new();
        for ms in (0..20_000).step_by(10) {
            kept.push(!takes_of(&share, 1, 9, NOW_MS + ms));
        }
        // Cycles of 1, 2, 1, 4, 1, 2, 1, 8 s.
        let mut since = 0;
        for seconds in [1, 2, 1, 4, 1, 2, 1, 8] {
            let cycle = &kept[since..since + seconds * 100];
            let open = cycle.iter().take_while(|kept| !**kept).count();
            assert!(
                (open as f64 - seconds as f64 * 100.0 * (1.0 - part)).abs() < 1e-9,
                "{part}: {seconds} s"
            );
            assert!(cycle[open..].iter().all(|kept| *kept), "{part}: {seconds} s");
            since += seconds * 100;
        }
    }
}

#[test]
fn cycles_are_as_long_as_what_is_needed_takes_to_come_back() {
    let share = Share::default();
    let demand = Demand { first: JobId(1), needs: 8, all_need: 8, capacity: 10, comes_back_ms: Some(20_000) };
    share.set(A, 0.5, demand, NOW_MS);
    takes(&share, 1000);
    // 20 s and a quarter, twice: 25 s for newcomers, 25 s for the job.
    let refused = |ms: u64| !takes_of(&share, 1, 7, NOW_MS + ms);
    assert_eq!([0, 24_999, 25_000, 49_999].map(refused), [false, false, true, true]);
    // A time that gets shorter, because it comes, ends nothing, nor does one that is a little longer; another job begins
    // anew.
    share.set(A, 0.5, Demand { comes_back_ms: Some(10), ..demand }, NOW_MS + 40_000);
    share.set(A, 0.5, Demand { comes_back_ms: Some(30_000), ..demand }, NOW_MS + 40_000);
    assert!(refused(49_999) && !refused(50_000));
    share.set(A, 0.5, Demand { first: JobId(2), comes_back_ms: None, ..demand }, NOW_MS + 90_000);
    assert_eq!([90_000, 90_499, 90_500].map(refused), [false, false, true]);
}
