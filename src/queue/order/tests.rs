//! Which job is served, and in what order: by hand, and in seeded crowds.

use super::*;

const A: LimitId = LimitId::new(100);
const B: LimitId = LimitId::new(200);
const C: LimitId = LimitId::new(300);

fn queue(jobs: &[(u128, &[(LimitId, u64)])]) -> Order {
    let mut order = Order::default();
    for (id, needs) in jobs {
        order.join(JobId(*id), needs.iter().copied().collect(), None);
    }
    order
}

fn turn(order: &mut Order) -> Option<u128> {
    order.next_turn().map(|JobId(id)| id)
}

/// Jobs are attempted until none has a turn; `refuses` says which limit refuses which job. Those that were served.
fn serve(order: &mut Order, refuses: impl Fn(u128) -> Option<LimitId>) -> Vec<u128> {
    let mut served = Vec::new();
    while let Some(id) = order.next_turn() {
        match refuses(id.0) {
            Some(limit) => order.refused(id, limit),
            None => {
                order.remove(id);
                served.push(id.0);
            }
        }
    }
    served
}

#[test]
fn those_with_the_same_limits_are_served_in_the_order_they_came() {
    let mut order = queue(&[(1, &[(A, 1), (B, 1)]), (2, &[(B, 1), (A, 1)]), (3, &[(A, 1), (B, 1)])]);
    assert_eq!(serve(&mut order, |_| None), [1, 2, 3]);
    assert!(order.len() == 0 && order.is_idle(A) && order.is_idle(B));
}

#[test]
fn no_job_is_attempted_behind_one_that_was_refused() {
    let mut order = queue(&[(1, &[(A, 5)]), (2, &[(A, 1)])]);
    assert_eq!(serve(&mut order, |id| (id == 1).then_some(A)), [0; 0], "2 would fit, but 1 came first");
    assert_eq!(turn(&mut order), None, "and no job is attempted again by itself");
    order.freed(A);
    assert_eq!(serve(&mut order, |_| None), [1, 2]);
}

#[test]
fn one_who_is_blocked_holds_up_nobody_who_does_not_need_what_it_needs() {
    // 1 waits for tenant B's limit; 2 shares only A with it.
    let mut order = queue(&[(1, &[(A, 1), (B, 1)]), (2, &[(A, 1), (C, 1)]), (3, &[(A, 1), (B, 1)])]);
    assert_eq!(serve(&mut order, |id| (id != 2).then_some(B)), [2]);
    order.freed(A);
    assert_eq!(turn(&mut order), None, "a job that waits at B is not attempted because of A");
    order.freed(B);
    assert_eq!(serve(&mut order, |_| None), [1, 3]);
}

#[test]
fn who_moves_on_to_another_limit_keeps_its_turn() {
    let mut order = queue(&[(1, &[(A, 1), (B, 1)]), (2, &[(B, 1)])]);
    assert_eq!(serve(&mut order, |id| Some(if id == 1 { A } else { B })), [0; 0]);
    // A has something for 1, but now B refuses it: 1 came before 2.
    order.freed(A);
    assert_eq!(serve(&mut order, |id| (id == 1).then_some(B)), [0; 0]);
    assert_eq!(order.position(JobId(2)).map(|at| (at.jobs_before, at.amount_before)), Some((1, 1)));
    order.freed(B);
    assert_eq!(serve(&mut order, |_| None), [1, 2]);
}

#[test]
fn what_comes_back_during_an_attempt_is_not_missed() {
    let mut order = queue(&[(1, &[(A, 1)])]);
    assert_eq!(turn(&mut order), Some(1));
    order.freed(A);
    assert_eq!(turn(&mut order), None, "one at a time");
    order.refused(JobId(1), A);
    assert_eq!(turn(&mut order), Some(1));
}

#[test]
fn a_late_word_on_one_who_was_here_before_changes_nothing() {
    let mut order = queue(&[(1, &[(A, 1)])]);
    assert_eq!(turn(&mut order), Some(1));
    order.remove(JobId(1));
    order.join(JobId(1), [(A, 1), (B, 1)].into_iter().collect(), None);
    order.refused(JobId(1), B);
    assert_eq!(order.jobs[&JobId(1)].waits_at.to_vec(), [A]);
    assert_eq!(serve(&mut order, |_| None), [1]);
    assert!(order.is_idle(A) && order.is_idle(B));
}

#[test]
fn one_at_a_time_per_limit_and_others_beside_it() {
    let mut order = queue(&[(1, &[(A, 1)]), (2, &[(B, 1)]), (3, &[(A, 1), (B, 1)])]);
    assert_eq!([turn(&mut order), turn(&mut order), turn(&mut order)], [Some(1), Some(2), None]);
    order.remove(JobId(1));
    assert_eq!(turn(&mut order), None, "3 needs B too");
    order.remove(JobId(2));
    assert_eq!(turn(&mut order), Some(3));
}

#[test]
fn who_leaves_makes_room_for_those_behind() {
    let mut order = queue(&[(1, &[(A, 9)]), (2, &[(A, 1)]), (3, &[(A, 2)])]);
    serve(&mut order, |_| Some(A));
    let place = |order: &mut Order, id| {
        order.position(JobId(id)).map(|at| (at.jobs_before, at.amount_before, at.own))
    };
    assert_eq!(place(&mut order, 3), Some((2, 10, 2)));
    order.remove(JobId(1));
    assert_eq!(place(&mut order, 3), Some((1, 1, 2)));
    assert_eq!(serve(&mut order, |_| None), [2, 3], "the one who was in the way is gone");
    assert_eq!(place(&mut order, 3), None);
}

#[test]
fn one_who_insists_is_first_at_every_limit_that_refused_it() {
    let mut order = queue(&[(1, &[(A, 1), (B, 1), (C, 1)])]);
    assert_eq!(serve(&mut order, |_| Some(A)), [0; 0]);
    order.freed(A);
    assert_eq!(serve(&mut order, |_| Some(B)), [0; 0]);
    order.insist(JobId(1));
    for (id, limit) in [(2, A), (3, B), (4, C)] {
        order.join(JobId(id), [(limit, 1)].into_iter().collect(), None);
    }
    assert_eq!(serve(&mut order, |id| (id == 1).then_some(B)), [4], "C never refused it");
    assert_eq!(order.position(JobId(2)).map(|at| at.jobs_before), Some(1));
    order.freed(A);
    assert_eq!(serve(&mut order, |id| (id == 1).then_some(B)), [0; 0], "nor does 2 get between");
    order.relent(JobId(1));
    assert_eq!(serve(&mut order, |_| None), [2], "now it does");
    order.freed(B);
    assert_eq!(serve(&mut order, |_| None), [1, 3]);
    assert!([A, B, C].iter().all(|limit| order.is_idle(*limit)));
}

/// Random jobs, limits and refusals: everybody is served in the end, and nobody before one who came earlier, needed
/// the same limits or more of them, and was not refused meanwhile.
#[test]
fn seeded_crowds_are_served_in_order() {
    for seed in 0..200 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut order = Order::default();
        let mut sets: AHashMap<Vec<LimitId>, Vec<u128>> = AHashMap::new();
        let mut served: Vec<u128> = Vec::new();
        let mut free = [3u64; 6];
        let step = |order: &mut Order, free: &mut [u64; 6], served: &mut Vec<u128>| {
            while let Some(id) = order.next_turn() {
                let needs = order.needs(id);
                match needs.iter().find(|(limit, amount)| free[limit.bits() as usize] < *amount) {
                    Some((limit, _)) => order.refused(id, *limit),
                    None => {
                        needs.iter().for_each(|(limit, amount)| free[limit.bits() as usize] -= amount);
                        order.remove(id);
                        served.push(id.0);
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
            order.join(JobId(id), set.iter().map(|limit| (*limit, rng.u64(1..=3))).collect(), None);
            step(&mut order, &mut free, &mut served);
            let limit = LimitId::new(rng.u128(0..6));
            free[limit.bits() as usize] = (free[limit.bits() as usize] + rng.u64(0..=2)).min(5);
            order.freed(limit);
            match rng.u8(..6) {
                0 => order.insist(JobId(rng.u128(1..=id))),
                1 => order.relent(JobId(rng.u128(1..=id))),
                _ => {}
            }
            step(&mut order, &mut free, &mut served);
        }
        for _ in 0..2000 {
            let limit = LimitId::new(rng.u128(0..6));
            free[limit.bits() as usize] = (free[limit.bits() as usize] + 1).min(5);
            order.freed(limit);
            step(&mut order, &mut free, &mut served);
        }
        assert!(order.len() == 0, "seed {seed}: {} were never served", order.len());
        for jobs in sets.values() {
            let order: Vec<u128> = served.iter().copied().filter(|id| jobs.contains(id)).collect();
            assert_eq!(&order, jobs, "seed {seed}");
        }
    }
}
