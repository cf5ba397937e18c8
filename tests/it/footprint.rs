//! What a million of something costs in memory: resident bytes, measured in a process of its own.
//!
//! The contract: a million live reservations under 150 MB, a million limits that nobody asks about under 300 MB.

use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;

use sluice::api::pb;
use sluice::grpc::rls;
use sluice::ledger::memory::Memory;
use sluice::ledger::{Account, Accounts, Action, Chain, Hold, Keep, Transfer, Verdict};
use sluice::limit::{LeaseId, LimitKey, Overage};

use crate::testapp::TestApp;

const COUNT: u64 = 1_000_000;

/// Names what the child measures.
const VARIABLE: &str = "SLUICE_TEST_FOOTPRINT";

#[test]
fn a_live_reservation() {
    assert_at_most("reservations on 10,000 limits", 150);
}

#[test]
fn a_live_reservation_on_a_limit_of_its_own() {
    assert_at_most("reservations on as many limits", 150);
}

#[test]
fn an_idle_limit() {
    assert_at_most("idle limits", 300);
}

/// A decision is moved to the heap when it begins, as one value.
#[tokio::test]
async fn a_decision_that_begins() {
    let app = TestApp::with_limits("domain: d\n").start().await;
    let message = pb::RateLimitRequest::default();
    let bytes = size_of_val(&rls::should_rate_limit(&app.app.service, &message, None));
    println!("a decision: {bytes} bytes");
    assert!(bytes <= 2_200, "{bytes} bytes, and there were 2,096");
}

/// Runs this test binary again with nothing but the measurement in it.
fn assert_at_most(what: &str, bytes_max: u64) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "footprint::measure", "--ignored", "--nocapture"])
        .env(VARIABLE, what)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let bytes = text.lines().find_map(|line| line.strip_prefix("bytes each: ")?.parse().ok());
    let bytes: u64 = bytes.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    println!("{what}: {bytes} bytes each");
    assert!(
        (1..=bytes_max).contains(&bytes),
        "{what}: {bytes} bytes each, at most {bytes_max} were promised"
    );
}

#[test]
#[ignore = "the other tests of this file run it, each in a process of its own"]
fn measure() {
    let Ok(what) = std::env::var(VARIABLE) else { return };
    let bytes = match what.as_str() {
        "reservations on 10,000 limits" => reservations(10_000),
        "reservations on as many limits" => reservations(COUNT),
        "idle limits" => idle_limits(),
        other => panic!("{other}: nobody knows how to measure that"),
    };
    println!("\nbytes each: {}", bytes.div_ceil(COUNT));
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Reservations that a completion or a retry may name.
fn reservations(accounts: u64) -> u64 {
    let memory = Memory::default();
    let account = |n: u64| Arc::new(Account::new(LimitKey::new(&format!("d:tenant={n}:inflight"))));
    let few: Vec<Arc<Account>> = (0..accounts.min(10_000)).map(account).collect();
    let before = resident_bytes();
    let mut one_of_few = few.iter().cycle();
    for n in 0..COUNT {
        let account = if accounts == COUNT { account(n) } else { Arc::clone(one_of_few.next().unwrap()) };
        let hold = Hold {
            amount: 1,
            lifetime_seconds: NonZeroU32::new(300).unwrap(),
            capacity: COUNT,
            is_exact: true,
            overage: Overage::Deny,
        };
        let transfers = [Transfer { account, action: Action::Reserve(hold) }].into_iter().collect();
        let lease = LeaseId::fresh(n, fastrand::u128(..));
        // Spread over time, as leases are.
        let now_ms = 1_000_000 + n / 10;
        let outcome = memory.apply_at(&Chain { lease, keep: Keep::ForRetries, transfers }, now_ms).unwrap();
        assert_eq!(outcome.verdict, Verdict::Done);
    }
    assert_eq!(memory.records() as u64, COUNT);
    resident_bytes() - before
}

/// What is remembered of a key between requests.
fn idle_limits() -> u64 {
    let before = resident_bytes();
    let accounts = Accounts::new(usize::try_from(COUNT).unwrap());
    for n in 0..COUNT {
        accounts.of(&format!("llm:tenant=tenant-{n:08}:model=gpt-4o:tpm"));
    }
    // The table may drop a few that it deems cold before it is full.
    assert!(accounts.len() as u64 > COUNT * 9 / 10, "{}", accounts.len());
    resident_bytes() - before
}
