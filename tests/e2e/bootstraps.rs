//! The bootstraps in envoy/ as files: Envoy takes them, and all of them treat retries alike.

use std::path::{Path, PathBuf};

use crate::envoy::{FAIL_CLOSED, LEASES, LLM, RATELIMIT, validate};

#[test]
fn every_bootstrap_is_one_that_envoy_takes() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("envoy");
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let bootstraps: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "yaml")).collect();
    assert_eq!(bootstraps.len(), 4, "each must be known to the tests: {bootstraps:?}");
    for path in bootstraps {
        validate(&path);
    }
}

/// What a retry may be, on the way to the upstream and on the way to Sluice: one, to another host, and only of what was
/// never carried out. And all of it within three seconds.
#[test]
fn a_request_is_tried_twice_at_most_and_only_if_it_never_ran() {
    let bootstraps =
        [("ratelimit", RATELIMIT), ("fail-closed", FAIL_CLOSED), ("leases", LEASES), ("llm", LLM)];
    for (name, bootstrap) in bootstraps {
        let values = |key: &str| -> Vec<&str> {
            let lines = bootstrap.lines().map(str::trim);
            lines.filter_map(|line| line.strip_prefix(key)?.strip_prefix(": ")).collect()
        };
        assert_eq!(values("connect_timeout"), ["0.35s"; 2], "{name}");
        assert_eq!(values("num_retries"), ["1"; 2], "{name}");
        assert_eq!(
            values("retry_on"),
            ["connect-failure", "connect-failure,refused-stream,unavailable"],
            "{name}"
        );
        assert_eq!(bootstrap.matches("PreviousHostsPredicate").count(), 2, "{name}");
        // A stream of tokens takes as long as it takes; everything else is over soon.
        let upstream = if ["leases", "llm"].contains(&name) { "290s" } else { "2.9s" };
        assert_eq!(values("timeout"), [upstream, "1.5s"], "{name}");
    }
}
