//! What the command line teaches, and how it takes mistakes.

use crate::sluice::{directory, run, sluice};

#[tokio::test]
async fn help_teaches() {
    let dir = directory(&[]);
    for (arguments, words) in [
        (&["--help"][..], &["serve", "check", "try", "bench"][..]),
        (
            &["serve", "--help"],
            &[
                "--config-dir",
                "SLUICE_CONFIG_DIR",
                "--state-dir",
                "SLUICE_STATE_DIR",
                "--grpc",
                "SLUICE_GRPC",
                "127.0.0.1:8081",
                "--admin",
                "SLUICE_ADMIN",
                "127.0.0.1:8080",
                "--ledger",
                "SLUICE_LEDGER",
                "tigerbeetle:<cluster>@<host:port>",
                "SIGTERM",
                "Examples:",
                "unix:/",
                "OTEL_EXPORTER_OTLP_ENDPOINT",
            ],
        ),
        (&["check", "--help"], &["--config-dir", "SLUICE_CONFIG_DIR", "exits 1"]),
        (
            &["try", "--help"],
            &["--hits", "KEY=VALUE", "Exits 0 when allowed, 2 when denied, 1 on errors", "Examples:"],
        ),
    ] {
        let ran = run(&mut sluice(dir.path(), arguments));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{arguments:?}");
        for word in words {
            assert!(ran.stdout.contains(word), "no `{word}` in {arguments:?}:\n{}", ran.stdout);
        }
    }
    let version = run(&mut sluice(dir.path(), &["--version"]));
    assert_eq!((version.code, version.stdout), (0, format!("sluice {}\n", env!("CARGO_PKG_VERSION"))));
}

/// 2 means "denied": a mistake on the command line must not look like one.
#[tokio::test]
async fn mistakes_on_the_command_line_exit_1() {
    let dir = directory(&[]);
    for arguments in [
        &[][..],
        &["nonsense"],
        &["serve", "--nonsense"],
        &["serve", "extra"],
        &["try"],
        &["check", "--grpc", "x"],
    ] {
        let ran = run(&mut sluice(dir.path(), arguments));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains("Usage:"), "{arguments:?}: {ran:?}");
    }
}
