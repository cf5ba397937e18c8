//! The real binary: what it prints, how it exits, and whom it listens to.

mod try_and_bench;
mod help;

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
    let dir = directory(&[
        ("here/limits/a.yml", limits),
        ("here/limits/b.txt", limits),
        ("here/limits/c/d.yml", ""),
    ]);
    let ran = run(&mut sluice(dir.path(), &["check", "--config-dir", "here"]));
    assert_eq!(ran.code, 0, "{ran:?}");
    insta::assert_snapshot!(ran.stdout, @r"
    warning: here/limits/a.yml:2: descriptors[0].rate_limit.replaces[0].name: no limit of this file is called `gone`
    warning: here/limits/b.txt: is not read: the name of a limits file ends in .yaml or .yml
    warning: here/limits/c: is a directory, and is not read: limits files lie directly in limits/
    ok: 1 files, 1 domains, 0 named limits
    ");
}

/// Once each, at the start and when it comes.
#[tokio::test]
async fn serve_warns_of_what_lies_among_the_limits_and_is_not_read() {
    let dir = directory(&[("config/limits/a.yaml", LIMITS), ("config/limits/b.yaml.disabled", LIMITS)]);
    let command = serve(dir.path(), &FREE);
    let served = Sluice::start(dir, command).await;
    let limits = served.dir.path().join("config/limits");
    std::fs::create_dir(limits.join("team")).unwrap();
    std::fs::write(limits.join(".a.yaml.swp"), "").unwrap();
    let log = until("the directory to be named", async || match served.process.stderr() {
        log if log.contains("config/limits/team: is a directory") => Ok(log),
        log => Err(log),
    })
    .await;
    let warnings = log.lines().filter(|line| line.contains("is not read")).count();
    assert_eq!(warnings, 2, "{log}");
    assert!(
        log.contains("config/limits/b.yaml.disabled: is not read: the name of a limits file ends"),
        "{log}"
    );
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
