//! Who is served, and in what order: by hand, and in seeded crowds.

use super::*;

const A: LimitId = LimitId::new(100);
const B: LimitId = LimitId::new(200);
const C: LimitId = LimitId::new(300);

fn lines(jobs: &[(JobId, &[(LimitId, u64)])]) -> Lines {
    let mut lines = Lines::default();
    for (id, needs) in jobs {
        lines.join(*id, needs.iter().copied().collect(), None);
    }
    lines
}

/// Everybody is tried until nobody has a turn; `refuses` says which limit refuses whom. Those who were served.
fn serve(lines: &mut Lines, refuses: impl Fn(JobId) -> Option<LimitId>) -> Vec<JobId> {
    let mut served = Vec::new();
    while let Some(id) = lines.next_turn() {
        match refuses(id) {
            Some(limit) => lines.refused(id, limit),
            None => {
                lines.remove(id);
                served.push(id);
            }
        }
    }
    served
}

#[test]
fn those_with_the_same_limits_are_served_in_the_order_they_came() {
    let mut lines = lines(&[(1, &[(A, 1), (B, 1)]), (2, &[(B, 1), (A, 1)]), (3, &[(A, 1), (B, 1)])]);
    assert_eq!(serve(&mut lines, |_| None), [1, 2, 3]);
    assert!(lines.is_empty() && lines.is_idle(A) && lines.is_idle(B));
}

#[test]
fn nobody_is_tried_behind_one_who_was_refused() {
    let mut lines = lines(&[(1, &[(A, 5)]), (2, &[(A, 1)])]);
    assert_eq!(serve(&mut lines, |id| (id == 1).then_some(A)), [0; 0], "2 would fit, but 1 came first");
    assert_eq!(lines.next_turn(), None, "and nobody asks again by himself");
    lines.freed(A);
    assert_eq!(serve(&mut lines, |_| None), [1, 2]);
}

#[test]
fn one_who_is_blocked_holds_up_nobody_who_does_not_need_what_it_needs() {
    // 1 waits for tenant B's limit; 2 shares only A with it.
    let mut lines = lines(&[(1, &[(A, 1), (B, 1)]), (2, &[(A, 1), (C, 1)]), (3, &[(A, 1), (B, 1)])]);
    assert_eq!(serve(&mut lines, |id| (id != 2).then_some(B)), [2]);
    lines.freed(A);
    assert_eq!(lines.next_turn(), None, "who waits for B is not tried because of A");
    lines.freed(B);
    assert_eq!(serve(&mut lines, |_| None), [1, 3]);
}

#[test]
fn who_moves_on_to_another_limit_keeps_its_turn() {
    let mut lines = lines(&[(1, &[(A, 1), (B, 1)]), (2, &[(B, 1)])]);
    assert_eq!(serve(&mut lines, |id| Some(if id == 1 { A } else { B })), [0; 0]);
    // A has something for 1, but now B refuses it: 1 came before 2.
    lines.freed(A);
    assert_eq!(serve(&mut lines, |id| (id == 1).then_some(B)), [0; 0]);
    assert_eq!(lines.place(2).map(|place| (place.position, place.ahead)), Some((1, 1)));
    lines.freed(B);
    assert_eq!(serve(&mut lines, |_| None), [1, 2]);
}

#[test]
fn what_comes_back_while_one_is_tried_is_not_missed() {
    let mut lines = lines(&[(1, &[(A, 1)])]);
    assert_eq!(lines.next_turn(), Some(1));
    lines.freed(A);
    assert_eq!(lines.next_turn(), None, "one at a time");
    lines.refused(1, A);
    assert_eq!(lines.next_turn(), Some(1));
}

#[test]
fn a_late_word_on_one_who_was_here_before_changes_nothing() {
    let mut lines = lines(&[(1, &[(A, 1)])]);
    assert_eq!(lines.next_turn(), Some(1));
    lines.remove(1);
    lines.join(1, [(A, 1), (B, 1)].into_iter().collect(), None);
    lines.refused(1, B);
    assert_eq!(lines.spots(1).collect::<Vec<_>>(), [A]);
    assert_eq!(serve(&mut lines, |_| None), [1]);
    assert!(lines.is_idle(A) && lines.is_idle(B));
}

#[test]
fn one_at_a_time_per_limit_and_others_beside_it() {
    let mut lines = lines(&[(1, &[(A, 1)]), (2, &[(B, 1)]), (3, &[(A, 1), (B, 1)])]);
    assert_eq!([lines.next_turn(), lines.next_turn(), lines.next_turn()], [Some(1), Some(2), None]);
    lines.remove(1);
    assert_eq!(lines.next_turn(), None, "3 needs B too");
    lines.remove(2);
    assert_eq!(lines.next_turn(), Some(3));
}

#[test]
fn who_leaves_makes_room_for_those_behind() {
    let mut lines = lines(&[(1, &[(A, 9)]), (2, &[(A, 1)]), (3, &[(A, 2)])]);
    serve(&mut lines, |_| Some(A));
    let place = |lines: &mut Lines, id| lines.place(id).map(|place| (place.position, place.ahead, place.own));
    assert_eq!(place(&mut lines, 3), Some((2, 10, 2)));
    lines.remove(1);
    assert_eq!(place(&mut lines, 3), Some((1, 1, 2)));
    assert_eq!(serve(&mut lines, |_| None), [2, 3], "the one who was in the way is gone");
    assert_eq!(place(&mut lines, 3), None);
}

#[test]
fn one_who_insists_is_first_at_every_limit_that_refused_it() {
    let mut lines = lines(&[(1, &[(A, 1), (B, 1), (C, 1)])]);
    assert_eq!(serve(&mut lines, |_| Some(A)), [0; 0]);
    lines.freed(A);
    assert_eq!(serve(&mut lines, |_| Some(B)), [0; 0]);
    lines.insist(1);
    for (id, limit) in [(2, A), (3, B), (4, C)] {
        lines.join(id, [(limit, 1)].into_iter().collect(), None);
    }
    assert_eq!(serve(&mut lines, |id| (id == 1).then_some(B)), [4], "C never refused it");
    assert_eq!(lines.place(2).map(|place| place.position), Some(1));
    lines.freed(A);
    assert_eq!(serve(&mut lines, |id| (id == 1).then_some(B)), [0; 0], "nor does 2 get between");
    lines.relent(1);
    assert_eq!(serve(&mut lines, |_| None), [2], "now it does");
    lines.freed(B);
    assert_eq!(serve(&mut lines, |_| None), [1, 3]);
    assert!([A, B, C].iter().all(|limit| lines.is_idle(*limit)));
}

/// Random jobs, limits and refusals: everybody is served in the end, and nobody before one who came earlier, needed
/// the same limits or more of them, and was not refused meanwhile.
#[test]
fn seeded_crowds_are_served_in_order() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut lines = Lines::default();
        let mut sets: AHashMap<Vec<LimitId>, Vec<JobId>> = AHashMap::new();
        let mut served: Vec<JobId> = Vec::new();
        let mut free = [3u64; 6];
        let step = |lines: &mut Lines, free: &mut [u64; 6], served: &mut Vec<JobId>| {
            while let Some(id) = lines.next_turn() {
                let needs = lines.needs(id);
                match needs.iter().find(|(limit, amount)| free[limit.bits() as usize] < *amount) {
                    Some((limit, _)) => lines.refused(id, *limit),
                    None => {
                        needs.iter().for_each(|(limit, amount)| free[limit.bits() as usize] -= amount);
                        lines.remove(id);
                        served.push(id);
                    }
                }
            }
        };
        for id in 1..=120u128 {
            let mut set: Vec<LimitId> = (0..6).filter(|_| rng.u8(..3) == 0).map(LimitId::new).collect();
            if set.is_empty() {
                set.push(LimitId::new(rng.u128(0..6)));
            }
            sets.entry(set.clone()).or_default().push(id);
            lines.join(id, set.iter().map(|limit| (*limit, rng.u64(1..=3))).collect(), None);
            step(&mut lines, &mut free, &mut served);
            let limit = LimitId::new(rng.u128(0..6));
            free[limit.bits() as usize] = (free[limit.bits() as usize] + rng.u64(0..=2)).min(5);
            lines.freed(limit);
            match rng.u8(..6) {
                0 => lines.insist(rng.u128(1..=id)),
                1 => lines.relent(rng.u128(1..=id)),
                _ => {}
            }
            step(&mut lines, &mut free, &mut served);
        }
        for _ in 0..2000 {
            let limit = LimitId::new(rng.u128(0..6));
            free[limit.bits() as usize] = (free[limit.bits() as usize] + 1).min(5);
            lines.freed(limit);
            step(&mut lines, &mut free, &mut served);
        }
        assert!(lines.is_empty(), "seed {seed}: {} were never served", lines.len());
        for jobs in sets.values() {
            let order: Vec<JobId> = served.iter().copied().filter(|id| jobs.contains(id)).collect();
            assert_eq!(&order, jobs, "seed {seed}");
        }
    }
}
