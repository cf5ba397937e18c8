//! `try` and `bench`: they ask a running server, print what it answers, and exit by it.

use super::LIMITS;
use crate::sluice::{Sluice, directory, run, sluice};
use crate::stall::steadily;

/// An answer with its hints, which are partly random, left out.
fn without_hints(text: &str) -> String {
    let hidden = |line: &str| match line.split_once(": ") {
        Some((name @ ("retry-after" | "retry-after-ms"), value)) => {
            assert!(value.parse::<u64>().unwrap() > 0, "{line}");
            format!("{name}: …\n")
        }
        _ => match line.split_once(" reset=") {
            Some((start, _)) => format!("{start} reset=…\n"),
            None => format!("{line}\n"),
        },
    };
    text.lines().map(hidden).collect()
}

#[tokio::test]
async fn try_prints_the_answer_and_exits_by_it() {
    let served = Sluice::with_limits(LIMITS).await;
    let ask = |arguments: &[&str]| {
        let mut command = sluice(served.dir.path(), &["try", "--grpc", &served.grpc]);
        run(command.args(arguments))
    };
    let ran = ask(&["d", "a=1"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(without_hints(&ran.stdout), @r"
    overall_code: OK
    statuses[0]: OK limit=2/MINUTE name=two remaining=1 reset=…
    ");
    assert_eq!(ask(&["d", "a=1", "--hits", "0"]).code, 0, "a look");
    assert_eq!(ask(&["d", "a=1"]).code, 0);
    let ran = ask(&["d", "a=1"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (2, ""));
    insta::assert_snapshot!(without_hints(&ran.stdout), @r"
    overall_code: OVER_LIMIT
    statuses[0]: OVER_LIMIT limit=2/MINUTE name=two remaining=0 reset=…
    retry-after: …
    retry-after-ms: …
    x-sluice-limit: d:a=1:two
    x-sluice-reason: over_limit
    ");
    let ran = ask(&["d", "a=2", "--hits", "3"]);
    assert_eq!(ran.code, 2);
    insta::assert_snapshot!(without_hints(&ran.stdout), @r"
    overall_code: OVER_LIMIT
    statuses[0]: OVER_LIMIT limit=2/MINUTE name=two remaining=2
    x-sluice-limit: d:a=2:two
    x-sluice-reason: never_fits
    ");
    for unmatched in [&["d", "nothing=1"][..], &["elsewhere", "a=1"]] {
        let ran = ask(unmatched);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert_eq!(ran.stdout, "overall_code: OK\nstatuses[0]: OK\nno limit matches\n");
    }
    let completion = ask(&["d", "lease_id=gone"]);
    assert_eq!((completion.code, completion.stdout.contains("no limit")), (0, false), "it asks for none");
    assert_eq!(ask(&["d", "b=x=y"]).code, 0, "a value may have `=` in it");
    assert_eq!(ask(&["d", "b="]).code, 0, "or nothing");

    let ran = ask(&["", "a=1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert_eq!(ran.stderr, "sluice: the server answered InvalidArgument: domain: must not be empty\n");
    for mistake in [&["d"][..], &["d", "a"], &["d", "=1"], &["d", "a=1", "--hits", "-1"], &[]] {
        assert_eq!(ask(mistake).code, 1, "{mistake:?}");
    }
}

#[tokio::test]
async fn bench_counts_what_it_was_answered() {
    steadily(async |_| {
        let served = Sluice::with_limits(LIMITS).await;
        let load = |arguments: &[&str]| {
            let mut command = sluice(served.dir.path(), &["bench", "--grpc", &served.grpc, "--seconds", "1"]);
            run(command.args(arguments))
        };
        let ran = load(&["d", "b={}", "--rate", "50", "--connections", "1", "--in-flight", "4"]);
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.starts_with("open loop at 50/s, 1 connections, 4 in flight, "), "{ran:?}");
        assert!(ran.stdout.contains("codes       OK 50\n"), "as many as were due: {ran:?}");
        let ran = load(&["d", "a=1", "--rate", "50"]);
        assert!(ran.stdout.contains("codes       OK 2  OVER_LIMIT 48\n"), "{ran:?}");
        for mistake in [&["--rate", "0"], &["--keys", "0"], &["--connections", "0"], &["--seconds", "0"]] {
            assert_eq!(load(&[&["d", "a=1"], &mistake[..]].concat()).code, 1, "{mistake:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn try_says_when_nobody_is_there() {
    let dir = directory(&[]);
    // A port that nothing listens on: it was free a moment ago.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ran = run(&mut sluice(dir.path(), &["try", "--grpc", &free, "d", "a=1"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.starts_with(&format!("sluice: no server at {free}: ")), "{ran:?}");
    let ran = run(&mut sluice(dir.path(), &["try", "--grpc", "somewhere", "d", "a=1"]));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.stderr.contains("must be host:port, as in 127.0.0.1:8081"), "{ran:?}");
}
