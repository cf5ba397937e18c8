//! The tour of the README, typed line by line into a running demo.

use std::process::Command;
use std::time::Duration;

use crate::process::Process;

/// More than it takes on a busy machine: three seconds are slept three times, and TigerBeetle formats a file of a gigabyte.
const DEADLINE: Duration = Duration::from_secs(240);

#[tokio::test]
async fn the_readme_shows_what_happens() {
    let dir = tempfile::tempdir().unwrap();
    let root = env!("CARGO_MANIFEST_DIR");
    // Ports of its own, in steps that keep two runs apart, all below those that the system gives to whoever asks for any.
    let plus = 12_000 + std::process::id() % 100 * 100;
    let mut command = Command::new(format!("{root}/scripts/demo.sh"));
    command.arg("check").env("DEMO_PORTS_PLUS", plus.to_string()).env("DEMO_DIR", dir.path().join("demo"));
    command.env("DEMO_SLUICE", env!("CARGO_BIN_EXE_sluice"));
    let mut demo = Process::start("demo", &mut command);
    let start = ::sluice::clock::instant();
    let status = loop {
        if let Some(status) = demo.exited() {
            break status;
        }
        if start.elapsed() > DEADLINE {
            // So that it can end what it started.
            demo.signal("TERM");
            demo.exit().await;
            panic!("the demo takes longer than {DEADLINE:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    assert!(status.success(), "{status}");
    assert!(demo.stderr().contains("answers are as shown"), "{}", demo.stderr());
}
