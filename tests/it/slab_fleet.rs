//! Slabs in a fleet of real processes on a real TigerBeetle server: what the simulation can't see is the shell, the signals, the
//! sockets, the server's own timeouts and the clock of the machine.
//!
//! [`oracle`] judges from outside. The balances that it is compared with are read through another instance and once more
//! with TigerBeetle's own client.

pub mod instance;
pub mod load;
mod looked_at;
pub mod oracle;
mod rotated;

use std::time::Duration;

use self::instance::{pending, start};
use self::load::Load;
use self::oracle::{Pause, answered_between, most_in_a_window};
use crate::process::Process;
use crate::stall::Stalls;
use crate::tigerbeetle::Server;

/// Far above what an answer takes, so that a busy machine is not a failure.
const TIMEOUT_MS: u64 = 5_000;

const SECOND_US: u64 = 1_000_000;

/// For how long it is measured how much of a limit is used: whole windows of 5 s and of 2 s.
const STEADY_SECONDS: u64 = 10;

/// Slabs live for 100 and 50 ms.
const SHORT: &str = "
domain: d
limits:
- {key: five, kind: rolling, capacity: 1000, window_seconds: 5}
- {key: two, kind: rolling, capacity: 300, window_seconds: 2}
- {key: second, kind: rolling, capacity: 100, window_seconds: 1}
descriptors:
- {key: five, limits: [{ref: five}]}
- {key: two, limits: [{ref: two}]}
- {key: second, limits: [{ref: second}]}
";

async fn seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

/// Ends a process and sees it go.
async fn end(process: &mut Process, signal: &str) -> std::process::ExitStatus {
    process.signal(signal);
    process.exit().await
}

#[tokio::test(flavor = "multi_thread")]
async fn overload_uses_the_limit_and_never_exceeds_it() {
    let server = Server::start();
    let instances = start(&server, SHORT, TIMEOUT_MS, 4).await;
    let loads = [("five", 1_000, 5, 0.95), ("two", 300, 2, 0.90)];
    let running = loads.map(|(key, capacity, window, _)| {
        Load::start_slowly(&instances, &format!("{key}=x"), 3, Duration::from_secs(window), capacity)
    });
    seconds(7).await;
    let stalls = Stalls::since_now();
    let from = running.each_ref().map(|load| (load.now_us(), load.denied()));
    seconds(STEADY_SECONDS).await;
    let denied = [0, 1].map(|n| running[n].denied() - from[n].1);
    // Nobody can use anything while the machine stands still, nor for a moment after that.
    let stood_still = 2.0 * stalls.time().as_secs_f64() / STEADY_SECONDS as f64;
    let mut slabs = 0;
    for instance in &instances {
        slabs += instance.answers("slab").await;
    }
    let mut admitted = 0;
    for (n, load) in running.into_iter().enumerate() {
        let (key, capacity, window, least) = loads[n];
        let (from_us, denied) = (from[n].0, denied[n]);
        let capacity = u64::from(capacity);
        let admissions = load.finish().await;
        admitted += admissions.len() as u64;
        let most = most_in_a_window(&admissions, &[], window * SECOND_US);
        let steadily = answered_between(&admissions, from_us, from_us + STEADY_SECONDS * SECOND_US);
        let used = steadily as f64 / (capacity * STEADY_SECONDS / window) as f64;
        println!(
            "{key}: {used:.3} of the capacity, {most} of {capacity} in the fullest window, {denied} denied"
        );
        assert!(most <= capacity, "{key}: {most} of {capacity} in one window");
        assert!(denied > steadily / 2, "{key}: {denied} denied of {steadily}, which is no overload");
        let least = least - stood_still;
        assert!(used >= least, "{key}: {used:.3} of the capacity, {least:.3} wanted");
    }
    println!("{slabs} of {admitted} from slabs");
    assert!(slabs > 1_000, "{slabs} of {admitted}: the fleet hardly used slabs");
}

/// One instance is killed, then the server stands still for 3 s, then another instance for 5 s, all under load.
#[tokio::test(flavor = "multi_thread")]
async fn faults_never_exceed_the_limit() {
    let server = Server::start();
    let mut instances = start(&server, SHORT, 500, 4).await;
    let load = Load::start(&instances, "five=x", 4);
    load.until_admitted(1_500, None, "before the faults").await;

    assert!(!end(&mut instances[0].sluice.process, "KILL").await.success());
    load.until_admitted(500, None, "without one instance").await;

    let failed = load.failed();
    server.signal("STOP");
    seconds(3).await;
    server.signal("CONT");
    assert!(load.failed() > failed, "the server's pause was not felt");
    for instance in 1..4 {
        load.until_admitted(50, Some(instance), "after the server's pause").await;
    }

    let stopped = 1;
    instances[stopped].stop().await;
    let from_us = load.now_us();
    seconds(5).await;
    let to_us = load.now_us();
    instances[stopped].go_on();
    load.until_admitted(50, Some(stopped), "after the instance's pause").await;
    load.until_admitted(2_000, None, "after all faults").await;

    let admissions = load.finish().await;
    let pause = Pause { instance: stopped, from_us, to_us };
    let most = most_in_a_window(&admissions, &[pause], 5 * SECOND_US);
    println!("{most} of 1000 in the fullest window of {} admissions", admissions.len());
    assert!(most <= 1_000, "{most} of 1000 in one window");
    assert!(most >= 900, "the oracle saw no full window, so it proved nothing: {most}");
    // Whatever the one that was killed held, the ledger gives back by itself.
    instances[2].until_used("five", 0).await;
    assert_eq!(pending(&server, "five").await, 0);
}

/// However hard it is hammered.
#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_over_its_limit_costs_few_asks() {
    /// Giving back is counted too.
    const REQUESTS: &str = "sluice_ledger_batch_events_count";
    let server = Server::start();
    let instances = start(&server, SHORT, TIMEOUT_MS, 1).await;
    for (key, capacity) in [("five", 1_000), ("second", 100)] {
        let load = Load::start_without_pause(&instances, &format!("{key}=x"), 64);
        load.until_admitted(capacity * 2, None, "the limit to be spent").await;
        let before_us = load.now_us();
        let counts = async || {
            [load.denied(), instances[0].answers("ledger").await, instances[0].metric(REQUESTS).await]
        };
        let before = counts().await;
        seconds(3).await;
        let after = counts().await;
        let took = (load.now_us() - before_us) as f64 / SECOND_US as f64;
        let [denied, asks, requests] = [0, 1, 2].map(|n| (after[n] - before[n]) as f64 / took);
        println!(
            "{key}, a second: {denied:.0} denied, {asks:.1} asked alone, {requests:.1} requests to TigerBeetle"
        );
        load.finish().await;
        assert!(denied > 500.0, "{key}: {denied} denied a second is not hard");
        assert!(asks <= 100.0, "{key}: {asks} requests asked by themselves a second");
        assert!(requests <= 100.0, "{key}: {requests} requests to TigerBeetle a second");
    }
}
