//! How a limit is shared by jobs that wait and by newcomers that don't, in simulations: neither starves, and what is kept
//! idle for the queue is no more than its share.

use sluice::queue::JobId;

use crate::queue::{ask, complete, queue, until_state};
use crate::queue_rows::LIMITS;
use crate::queue_simulation::steady;
use crate::queue_world::{SECOND, World, concurrency, rolling};
use crate::testapp::TestApp;
use crate::wait::until;

/// The queue needs 10 at a time, and newcomers who need 1 ask all the time: what the queue is served of all that is.
fn part_of_the_queue(share: f64) -> f64 {
    let mut world = World::new(&[(rolling(60), 60)], 7);
    world.policy.reserved_share = share;
    steady(&mut world, 1000, 120, |world| {
        world.newcomer(0, None);
    });
    let start_ms = world.now_ms;
    (0..60).for_each(|n| {
        world.run_to(start_ms + n * SECOND);
        world.newcomer(0, None);
    });
    (0..100).for_each(|_| {
        world.arrive(&[(0, 10)]);
    });
    let (from_ms, mut newcomers) = (world.now_ms, 0u64);
    let before = world.served.len();
    while world.now_ms < from_ms + 600 * SECOND {
        world.run_for(100);
        newcomers += u64::from(world.newcomer(0, None));
    }
    let queue = (world.served.len() - before) as f64 * 10.0;
    let all = queue + newcomers as f64;
    assert!(all > 500.0, "of 600 only {all} were used");
    queue / all
}

#[test]
fn newcomers_do_not_starve_the_queue() {
    assert!(part_of_the_queue(0.0) < 0.05, "without a share the queue would starve");
    for share in [0.25, 0.5, 0.75, 1.0] {
        let part = part_of_the_queue(share);
        assert!(part >= share - 0.05, "a share of {share}, and the queue got {part}");
    }
}

/// Newcomers ask for 1 of the first limit all the time.
struct Crowd {
    every_ms: u64,
    hold_ms: Option<u64>,
    asked: u64,
    admitted: u64,
    /// Free units that were refused, times the milliseconds for which they were.
    idle: u64,
}

impl Crowd {
    fn new(every_ms: u64, hold_ms: Option<u64>) -> Self {
        Self { every_ms, hold_ms, asked: 0, admitted: 0, idle: 0 }
    }

    fn ask_for(&mut self, world: &mut World, seconds: u64) {
        let until_ms = world.now_ms + seconds * SECOND;
        while world.now_ms < until_ms {
            world.run_for(self.every_ms);
            self.asked += 1;
            if world.newcomer(0, self.hold_ms) {
                self.admitted += 1;
            } else {
                self.idle += (world.limits[0].1.capacity - world.used(0)) * self.every_ms;
            }
        }
    }
}

/// 10 at a time, one of them for two minutes, and a job that needs all 10. Others ask for one every 50 ms and hold it for
/// 400: 8 at a time. Without the job all of them would be admitted.
fn behind_a_long_holder(share: f64) -> (World, Crowd, JobId) {
    let mut world = World::new(&[(concurrency(300), 10)], 1);
    world.policy.reserved_share = share;
    world.hold_ms = Some(400);
    assert!(world.newcomer(0, Some(120 * SECOND)));
    let mut crowd = Crowd::new(50, Some(400));
    crowd.ask_for(&mut world, 10);
    assert_eq!(crowd.admitted, crowd.asked, "without a queue everybody is admitted");
    let job = world.arrive(&[(0, 10)]);
    (world, Crowd::new(50, Some(400)), job)
}

#[test]
fn one_job_does_not_freeze_a_limit() {
    for share in [0.25, 0.5, 0.75, 1.0] {
        let (mut world, mut crowd, _) = behind_a_long_holder(share);
        crowd.ask_for(&mut world, 40);
        let part = crowd.admitted as f64 / crowd.asked as f64;
        assert!(part >= 1.0 - share - 0.05, "a share of {share}, and {part} of the others were admitted");
        let idle = crowd.idle as f64 / (40.0 * 1000.0 * 10.0);
        assert!(idle <= share + 0.05, "a share of {share}, and {idle} of the limit was kept idle");
    }
}

#[test]
fn a_job_that_needs_all_of_a_limit_gets_it() {
    for share in [0.1, 0.25, 0.5, 0.75, 1.0] {
        let (mut world, mut crowd, job) = behind_a_long_holder(share);
        crowd.ask_for(&mut world, 109);
        assert_eq!(world.waited_ms(job), None, "somebody still holds one");
        // The last 32 holds were of 400 ms but for one of 120 s: 4.2 s on average. A cycle is two and a half times that by
        // the share, and the job is served in the first one that begins when the holder has gone.
        let cycle_ms = (2.5 * 4200.0 / share) as u64;
        crowd.ask_for(&mut world, 12 + cycle_ms / SECOND);
        let waited_ms = world.waited_ms(job).expect("it must be served");
        assert!(waited_ms <= 111 * SECOND + cycle_ms, "a share of {share}: {waited_ms} ms");
    }
}

#[test]
fn one_after_another_they_all_get_it() {
    for (share, seed) in [(0.25, 1), (0.5, 2), (0.75, 3)] {
        let mut world = World::new(&[(concurrency(300), 10)], seed);
        world.policy.reserved_share = share;
        world.hold_ms = Some(400);
        let mut crowd = Crowd::new(50, Some(400));
        crowd.ask_for(&mut world, 10);
        let jobs: Vec<JobId> = (0..20).map(|_| world.arrive(&[(0, 10)])).collect();
        let (from_ms, mut crowd) = (world.now_ms, Crowd::new(50, Some(400)));
        crowd.ask_for(&mut world, 300);
        // Each within its first cycle: 2.5 times the mean hold, by the share.
        let cycle_ms = (2.5 * 600.0 / share).max(1000.0) as u64;
        for (n, job) in jobs.iter().enumerate() {
            let served_ms = world.jobs[job].served_ms.expect("it must be served") - from_ms;
            assert!(
                served_ms <= (n as u64 + 1) * (cycle_ms + 600),
                "a share of {share}, job {n}: {served_ms} ms"
            );
        }
        assert!(crowd.admitted * 2 > crowd.asked, "newcomers starved: {} of {}", crowd.admitted, crowd.asked);
    }
}

#[test]
fn a_large_job_gets_a_rolling_limit_that_newcomers_use_up() {
    for share in [0.25, 0.5, 0.75, 1.0] {
        // 60 a minute, all used, and others ask for 10 a second.
        let mut world = World::new(&[(rolling(60), 60)], 5);
        world.policy.reserved_share = share;
        let mut crowd = Crowd::new(100, None);
        crowd.ask_for(&mut world, 300);
        let job = world.arrive(&[(0, 50)]);
        let mut crowd = Crowd::new(100, None);
        crowd.ask_for(&mut world, 600);
        let waited_ms = world.waited_ms(job).unwrap_or(u64::MAX);
        // T is a minute at most: the first cycle is enough.
        let bound_ms = (60.0 * 1.25 / share) as u64 * SECOND;
        assert!(waited_ms <= bound_ms, "a share of {share}: {waited_ms} ms");
        // All that the job left of 600 + 60 is theirs in the end.
        assert!(crowd.admitted >= 500, "a share of {share}: {} were admitted", crowd.admitted);
    }
}

/// Through the ports: one of two is held, a job waits for both, and the other one is used by those who come, again and again.
#[tokio::test]
async fn newcomers_are_admitted_while_a_job_waits_for_everything() {
    let app = TestApp::with_limits(LIMITS).and_file("retry_policy.yaml", "retry_policy: {}").start().await;
    let held = queue(&app, &ask("pair", 1)).await.json();
    let waits = queue(&app, &ask("pair", 2)).await;
    assert_eq!(waits.status, 202, "{waits:?}");
    let mut one = ask("pair", 1);
    one["queue"] = false.into();
    // Two are their credit; the others are admitted because it is free and not kept for the job all the time.
    for _ in 0..6 {
        let said = until("a newcomer to be admitted", async || match queue(&app, &one).await.json() {
            said if said["allowed"] == true => Ok(said),
            said => Err(said.to_string()),
        });
        complete(&app, &said.await).await;
    }
    complete(&app, &held).await;
    until_state(&app, &waits.json(), "reserved").await;
}
