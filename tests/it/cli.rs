//! The real binary: what it prints, how it exits, and whom it listens to.

use std::path::Path;
use std::process::Stdio;

use crate::sluice::{Sluice, directory, run, serve, sluice};
use crate::wait::until;
use crate::wire::{METHOD, Wire};

const LIMITS: &str = "
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 2, name: two}}
- {key: b, rate_limit: {unlimited: true}}
";

/// Seven mistakes in three files.
const BROKEN: [(&str, &str); 3] = [
    ("config/sluice.yaml", "log: {level: loud}\ngrpc: {port: 1}"),
    ("config/limits/a.yaml", "domain: d\ndescriptors:\n- {key: a, ratelimit: {}}\n- {value: b}"),
    ("config/retry_policy.yaml", "retry_policy: {rolling: {factor: -1}, decreasing_ms: soon, extra: 1}"),
];

const FREE: [&str; 4] = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];

#[tokio::test]
async fn serve_prints_its_addresses_and_drains_on_a_signal() {
    for signal in ["TERM", "INT"] {
        let mut sluice = Sluice::with_limits(LIMITS).await;
        let (grpc, admin) = (sluice.grpc.clone(), sluice.admin);
        assert_eq!(
            sluice.process.stdout(),
            format!("grpc listening on {grpc}\nadmin listening on {admin}\n"),
            "both, in this order, and nothing else"
        );
        assert_eq!(crate::http::get(sluice.admin, "/readyz").await.status, 200);
        sluice.process.signal(signal);
        assert_eq!(sluice.process.exit().await.code(), Some(0));
        assert_eq!(sluice.process.stdout().lines().count(), 2);
        let log = sluice.process.stderr();
        for word in
            ["leases.secrets is not set", "started", &format!("draining signal=\"SIG{signal}\""), "stopped"]
        {
            assert!(log.contains(word), "no `{word}` in {log}");
        }
        assert_eq!(log.lines().count(), 4, "one line per start and stop: {log}");
    }
}

#[tokio::test]
async fn a_second_signal_exits_at_once() {
    let mut sluice = Sluice::with_limits(LIMITS).await;
    // A call that never ends holds up the drain.
    let wire = Wire::connect(sluice.grpc.parse().unwrap()).await;
    let _half_sent = wire.open(METHOD).await;
    let status = until("it to exit", async || {
        if let Some(status) = sluice.process.exited() {
            return Ok(status);
        }
        sluice.process.signal("TERM");
        Err("it is draining".to_owned())
    });
    assert_eq!(status.await.code(), Some(1));
    assert!(sluice.process.stderr().contains("a second signal: exiting at once"));
}

#[tokio::test]
async fn serve_stops_at_mistakes_and_names_them_all() {
    let dir = directory(&BROKEN);
    let ran = run(&mut serve(dir.path(), &FREE));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    insta::assert_snapshot!(ran.stderr, @r"
    config/limits/a.yaml:3: descriptors[0].ratelimit: is not a key of a descriptor; did you mean `rate_limit`?
    config/limits/a.yaml:4: descriptors[1].key: is missing: the name of an entry that Envoy sends, such as `path`
    config/retry_policy.yaml:1: retry_policy.decreasing_ms: must be a whole number from 0 to 18446744073709551615, not `soon`
    config/retry_policy.yaml:1: retry_policy.extra: is not a key of `retry_policy`; its keys are concurrency, rolling, decreasing_ms, queue, budget
    config/retry_policy.yaml:1: retry_policy.rolling.factor: is -1, must be 1 to 100
    config/sluice.yaml:1: log.level: must be one of off, error, warn, info, debug, trace, not `loud`
    config/sluice.yaml:2: grpc.port: is not a key of `grpc`; its keys are listen, tls, response_dynamic_metadata
    7 problems found
    ");
    let checked = run(&mut sluice(dir.path(), &["check"]));
    assert_eq!((checked.code, checked.stdout, checked.stderr), (1, String::new(), ran.stderr));
}

#[tokio::test]
async fn check_is_content_with_what_sluice_ships() {
    let ran = run(&mut sluice(Path::new(env!("CARGO_MANIFEST_DIR")), &["check"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    assert_eq!(ran.stdout, "ok: 3 files, 2 domains, 1 named limits\n");
}

#[tokio::test]
async fn check_warns_and_is_content() {
    let limits = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: gone}]}}]";
    let dir = directory(&[("here/limits/a.yml", limits)]);
    let ran = run(&mut sluice(dir.path(), &["check", "--config-dir", "here"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    insta::assert_snapshot!(ran.stdout, @r"
    warning: here/limits/a.yml:2: descriptors[0].rate_limit.replaces[0].name: no limit of this file is called `gone`
    ok: 1 files, 1 domains, 0 named limits
    ");
}

#[tokio::test]
async fn a_directory_that_is_named_has_to_be_there_and_the_default_has_not() {
    let dir = directory(&[]);
    for command in ["check", "serve"] {
        let ran = run(&mut sluice(dir.path(), &[command, "--config-dir", "nowhere"]));
        assert_eq!(ran.code, 1, "{ran:?}");
        assert!(ran.stderr.contains("nowhere: is no directory"), "{ran:?}");
    }
    assert_eq!(run(&mut sluice(dir.path(), &["check"])).code, 0);
    let command = serve(dir.path(), &FREE);
    let served = Sluice::start(dir, command).await;
    let ran = run(&mut sluice(served.dir.path(), &["try", "--grpc", &served.grpc, "any", "a=b"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "overall_code: OK\nstatuses[0]: OK\nno limit matches\n"));
}

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

/// Loopback has many addresses: each way to say one uses its own, and the printed lines tell which was heard.
#[tokio::test]
async fn flags_win_over_variables_which_win_over_the_file() {
    let file = "grpc: {listen: '127.0.0.2:0'}\nadmin: {listen: '127.0.0.2:0'}";
    for (grpc_variable, grpc_flag, expected) in [
        (None, None, "127.0.0.2"),
        (Some("127.0.0.3:0"), None, "127.0.0.3"),
        (None, Some("127.0.0.4:0"), "127.0.0.4"),
        (Some("127.0.0.3:0"), Some("127.0.0.4:0"), "127.0.0.4"),
    ] {
        let dir = directory(&[("config/sluice.yaml", file)]);
        let mut command = serve(dir.path(), &[]);
        if let Some(variable) = grpc_variable {
            command.env("SLUICE_GRPC", variable).env("SLUICE_ADMIN", variable);
        }
        if let Some(flag) = grpc_flag {
            command.args(["--grpc", flag, "--admin", flag]);
        }
        let served = Sluice::start(dir, command).await;
        assert!(served.grpc.starts_with(expected), "{} for {grpc_variable:?} {grpc_flag:?}", served.grpc);
        assert_eq!(served.admin.ip().to_string(), expected, "{grpc_variable:?} {grpc_flag:?}");
    }
}

#[tokio::test]
async fn every_flag_of_serve_has_its_variable() {
    let dir = directory(&[("other/limits/a.yaml", LIMITS), ("config/limits/a.yaml", "domain: [")]);
    let mut command = serve(dir.path(), &[]);
    command.envs([
        ("SLUICE_CONFIG_DIR", "other"),
        ("SLUICE_STATE_DIR", "elsewhere"),
        ("SLUICE_GRPC", "127.0.0.1:0"),
        ("SLUICE_ADMIN", "127.0.0.1:0"),
        ("SLUICE_LEDGER", "memory"),
    ]);
    let served = Sluice::start(dir, command).await;
    let mut command = sluice(served.dir.path(), &["try", "d", "a=1"]);
    assert_eq!(run(command.env("SLUICE_GRPC", &served.grpc)).code, 0);
    let mut command = sluice(served.dir.path(), &["check"]);
    assert_eq!(run(command.env("SLUICE_CONFIG_DIR", "other")).code, 0);

    for (variable, value, said) in [
        ("SLUICE_GRPC", "8081", "must be an IP address and a port"),
        ("SLUICE_ADMIN", "unix:/tmp/x", "must be an IP address and a port"),
        ("SLUICE_LEDGER", "redis", "must be memory, tigerbeetle:<cluster>@<host:port>"),
        ("SLUICE_LEDGER", "tigerbeetle:x@h:1", "has a cluster that is no whole number"),
    ] {
        let ran = run(serve(served.dir.path(), &["--config-dir", "other"]).env(variable, value));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{variable}={value}");
        assert!(ran.stderr.contains(said), "{variable}={value}: {ran:?}");
    }
}

#[tokio::test]
async fn a_port_that_is_taken_ends_the_process() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = directory(&[]);
    for (flag, other) in [("--grpc", "--admin"), ("--admin", "--grpc")] {
        let ran = run(&mut serve(dir.path(), &[flag, &address, other, "127.0.0.1:0"]));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
        let said = format!("sluice: {}: can't listen on {address}: ", &flag[2..]);
        assert!(ran.stderr.contains(&said) && ran.stderr.contains("in use"), "{ran:?}");
    }
}

#[tokio::test]
async fn the_admin_port_is_not_opened_to_the_world_without_a_token() {
    let dir = directory(&[("in-file/sluice.yaml", "admin: {listen: '0.0.0.0:0'}")]);
    let grpc = ["--grpc", "127.0.0.1:0"];
    for arguments in [
        &["--admin", "0.0.0.0:0"][..],
        &["--admin", "[::]:0"],
        &["--admin", "192.0.2.1:0"],
        &["--config-dir", "in-file"],
    ] {
        let ran = run(serve(dir.path(), arguments).args(grpc));
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{arguments:?}");
        for word in ["can be reached from other machines", "token_file", "SLUICE_ADMIN_TOKEN", "127.0.0.1"] {
            assert!(ran.stderr.contains(word), "no `{word}` for {arguments:?}: {ran:?}");
        }
    }
}

#[cfg(not(feature = "tigerbeetle"))]
#[tokio::test]
async fn a_binary_without_tigerbeetle_says_how_to_get_one() {
    let dir = directory(&[]);
    let ran = run(serve(dir.path(), &FREE).args(["--ledger", "tigerbeetle:0@127.0.0.1:3000"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{ran:?}");
    assert!(ran.stderr.contains("`make build-tigerbeetle`"), "{ran:?}");
}

#[tokio::test]
async fn logs_can_be_json_and_can_be_off() {
    let mut served = {
        let dir = directory(&[
            ("config/sluice.yaml", "{log: {format: json}, leases: {secrets: [0123456789abcdef]}}"),
            ("config/limits/a.yaml", "domain: d\ndescriptors: [{key: a, rate_limit: }]"),
        ]);
        let command = serve(dir.path(), &FREE);
        Sluice::start(dir, command).await
    };
    served.process.signal("TERM");
    assert_eq!(served.process.exit().await.code(), Some(0));
    let log = served.process.stderr();
    let lines: Vec<serde_json::Value> =
        log.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let told = |line: &serde_json::Value| format!("{} {}", line["level"], line["message"]).replace('"', "");
    let said: Vec<String> = lines.iter().map(told).collect();
    assert!(said[0].starts_with("WARN") && said[0].contains("rate_limit: is empty"), "{log}");
    assert_eq!(said[1..], ["INFO started", "INFO draining", "INFO stopped"], "{log}");
    let started = &lines[1];
    assert_eq!((started["grpc"].as_str(), started["ledger"].as_str()), (Some(&*served.grpc), Some("memory")));
    assert!(started["timestamp"].is_string() && started["version"].is_string(), "{log}");

    let dir = directory(&[("config/sluice.yaml", "log: {level: off}")]);
    let command = serve(dir.path(), &FREE);
    let mut silent = Sluice::start(dir, command).await;
    silent.process.signal("TERM");
    silent.process.exit().await;
    assert_eq!(silent.process.stderr(), "");
}

#[tokio::test]
async fn a_unix_socket_is_printed_as_it_is_given() {
    let dir = directory(&[("config/limits/a.yaml", LIMITS)]);
    let socket = format!("unix:{}", dir.path().join("s.sock").display());
    let command = serve(dir.path(), &["--grpc", &socket, "--admin", "127.0.0.1:0"]);
    let served = Sluice::start(dir, command).await;
    assert_eq!(served.grpc, socket);
    let ran = run(&mut sluice(served.dir.path(), &["try", "--grpc", &socket, "d", "a=1"]));
    assert_eq!(ran.code, 0, "{ran:?}");
}

/// `sluice serve | head -1` must not end the server.
#[tokio::test]
async fn a_closed_pipe_is_no_reason_to_stop() {
    let settings = ("config/sluice.yaml", "leases: {secrets: [0123456789abcdef]}");
    let dir = directory(&[settings, ("config/limits/a.yaml", LIMITS)]);
    let mut child = serve(dir.path(), &FREE).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let mut log = String::new();
    let mut stderr = std::io::BufReader::new(child.stderr.take().unwrap());
    std::io::BufRead::read_line(&mut stderr, &mut log).unwrap();
    let admin = log.split_once("admin=").map(|(_, rest)| rest.split(' ').next().unwrap());
    let admin = admin.unwrap_or_else(|| panic!("no address in `{log}`")).parse().unwrap();
    let alive = crate::http::get(admin, "/livez").await.status;
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(alive, 200);
}

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
