//! Clients that are made up: what becomes of them, and that the same seed gives the same.

use std::fs;

use super::{SIX, THREE, TWO, World, limit, lines};

const FLEET: &str = "domain: d\ndescriptors: [{key: t, limits: [{name: ten, kind: rolling, capacity: 20, window_seconds: 10}]}]";
const INFORMED: &str = "retry_policy: {rolling: {informed: true}}";

fn fleet(clients: u32, retry: &str) -> String {
    format!(
        "seconds: 300\npopulations:\n- {{name: fleet, domain: d, descriptors: [['t={{tenant}}']], clients: {clients}, \
         think_seconds: 10, retry: {retry}}}\n"
    )
}

#[test]
fn a_fleet_that_obeys_returns_once_and_uses_the_limit() {
    for clients in [25, 30, 40, 80] {
        for seed in 0..2 {
            let mut world = World::new(FLEET).traffic("s.yaml", &fleet(clients, "obey"));
            world.write("here/retry_policy.yaml", INFORMED.as_bytes());
            world.options.seed = Some(seed);
            let report = world.run();
            let fleet = &report.populations[0];
            assert!(fleet.returns_per_admission <= 1.2, "{clients} clients, seed {seed}: {fleet:?}");
            let used = limit(&report, "d:t=0:ten").used;
            assert!(used >= 0.98, "{clients} clients, seed {seed}: {used}");
            assert_eq!(fleet.attempts, fleet.admitted + fleet.denied);
            assert_eq!((report.requests, report.admitted), (fleet.attempts, fleet.admitted));
            assert!((fleet.goodput_per_second - fleet.admitted as f64 / 300.0).abs() < 1e-9);
        }
    }
}

#[test]
fn manners_of_clients() {
    let of = |retry: &str, more: &str| {
        let text = fleet(80, retry).replace("}\n", &format!("{more}}}\n"));
        World::new(FLEET).traffic("s.yaml", &text).run().populations.remove(0)
    };
    let never = of("never", "");
    assert_eq!((never.attempts, never.returns_per_admission), (never.requests, 0.0));
    assert_eq!(never.wait_ms.max, 0);
    let ignore = of("ignore", "");
    assert!(ignore.attempts_per_admission > 5.0 && ignore.returns_per_admission == 0.0, "{ignore:?}");
    assert_eq!(ignore.wait_ms.p50 % 1000, 0, "every second: {ignore:?}");
    let backoff = of("backoff", "");
    assert!(backoff.attempts > ignore.attempts / 3 && backoff.returns_per_admission == 0.0, "{backoff:?}");
    let twice = of("ignore", ", attempts_max: 2");
    assert!(twice.attempts <= 2 * twice.requests && twice.wait_ms.max == 1000, "{twice:?}");
}

#[test]
fn requests_that_come_at_a_rate_are_the_same_for_both_configurations() {
    let scenario = "
seed: 5
seconds: 300
populations:
- {name: crowd, domain: d, descriptors: [['t=t{tenant}']], tenants: 10, rate: 2, retry: never}";
    let mut world = World::new(TWO).against(THREE).traffic("s.yaml", scenario);
    let report = world.run();
    assert_eq!(report.seed, 5);
    let crowd = &report.populations[0];
    assert!((500..700).contains(&crowd.requests), "{crowd:?}");
    assert!(report.limits.len() == 10, "{:?}", report.limits);
    let differences = report.differences.as_ref().unwrap();
    let against: u64 = report.limits.iter().map(|limit| limit.against.unwrap().denied).sum();
    assert_eq!(report.denied - differences.denied_only_here + differences.denied_only_against, against);
    assert!(differences.denied_only_here > 20, "{differences:?}");
    assert!(differences.requests[0].at.starts_with("crowd:"), "{:?}", differences.requests[0]);
}

#[test]
fn the_same_seed_gives_the_same_bytes() {
    let bytes = |seed| {
        let mut world = World::new(TWO)
            .against(THREE)
            .traffic("s.yaml", &fleet(30, "backoff").replace("300", "60"))
            .traffic("t.jsonl", &lines(&SIX));
        world.options.seed = Some(seed);
        world.options.suggest = Some(0.01);
        world.options.decisions = Some(world.write("decisions", b""));
        let report = serde_json::to_string(&world.run()).unwrap();
        (world.shown(&report), world.shown(&fs::read_to_string(world.dir.path().join("decisions")).unwrap()))
    };
    assert_eq!(bytes(7), bytes(7));
    assert_ne!(bytes(7).1, bytes(8).1);
}

#[test]
fn a_retry_that_says_so_meets_the_budget() {
    let scenario = "
seconds: 100
populations:
- {name: p, domain: d, descriptors: [['t=a', 'retry_attempt={attempt}']], rate: 5, retry: ignore, attempts_max: 50}";
    let mut world = World::new(TWO).traffic("s.yaml", scenario);
    world.write("here/retry_policy.yaml", b"retry_policy: {budget: {ratio: 0.1, min_retries_per_second: 0}}");
    world.options.decisions = Some(world.write("decisions", b""));
    world.run();
    let text = fs::read_to_string(world.dir.path().join("decisions")).unwrap();
    assert!(text.contains(r#""key":null,"reason":"retry_budget""#));
}
