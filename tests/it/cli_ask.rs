//! What the commands tell scripts and people: `explain`, `ready`, `--json`, completions and the manual.

use serde_json::{Value, json};

use crate::sluice::{Ran, Sluice, directory, run, serve, sluice};

const LIMITS: &str = "\
domain: d
descriptors:
- {key: a, rate_limit: {unit: minute, requests_per_unit: 2, name: two}}
- {key: dark, shadow_mode: true, rate_limit: {unit: hour, requests_per_unit: 0}}
";

const TOKEN: &str = "a-token-of-the-admin-port";

fn ran(served: &Sluice, arguments: &[&str]) -> Ran {
    run(&mut sluice(served.dir.path(), arguments))
}

fn json_of(ran: &Ran) -> Value {
    assert_eq!((ran.stderr.as_str(), ran.stdout.lines().count()), ("", 1), "one object: {ran:?}");
    serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
}

fn keys(json: &Value) -> Vec<&str> {
    json.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn explain_says_which_limits_a_request_would_meet_and_charges_nothing() {
    let served = Sluice::with_limits(LIMITS).await;
    let admin = served.admin.to_string();
    let explain = |more: &[&str]| ran(&served, &[&["explain", "--admin", &admin], more].concat());
    explain(&["d", "a=1"]);
    let ran_again = explain(&["d", "a=1"]);
    assert_eq!((ran_again.code, ran_again.stderr.as_str()), (0, ""));
    insta::assert_snapshot!(ran_again.stdout, @r"
    overall_code: OK

    d:a=1:two
      written in config/limits/limits.yaml:3
      2 in 60 s: 0 used, 2 left
      passes: the request takes 1
    ");
    assert_eq!(ran(&served, &["try", "--grpc", &served.grpc, "d", "a=1", "--hits", "2"]).code, 0);
    let ran = explain(&["d", "a=1"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (2, ""));
    insta::assert_snapshot!(ran.stdout, @r"
    overall_code: OVER_LIMIT

    d:a=1:two
      written in config/limits/limits.yaml:3
      2 in 60 s: 2 used, 0 left
      denies, over_limit: the request takes 1, which is more than what is left
    ");
    let ran = explain(&["d", "a=2", "--hits", "3"]);
    assert!(ran.code == 2 && ran.stdout.contains("denies, never_fits: the request takes 3"), "{ran:?}");
    let ran = explain(&["d", "dark=1"]);
    assert!(ran.code == 0 && ran.stdout.contains("shadow mode, which never denies"), "{ran:?}");
    for unmatched in [["d", "nothing=1"], ["elsewhere", "a=1"]] {
        let ran = explain(&unmatched);
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "overall_code: OK\nno limit matches\n"));
    }

    let ran = explain(&["d", "a=1", "--json"]);
    let json = json_of(&ran);
    assert_eq!((ran.code, keys(&json)), (2, vec!["limits", "overall_code"]));
    let limit = &json["limits"][0];
    assert_eq!(
        [&limit["key"], &limit["amount"], &limit["passes"]],
        [&json!("d:a=1:two"), &json!(1), &json!(false)]
    );

    let ran = explain(&["", "a=1"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.contains("400 Bad Request: domain: must not be empty"), "{ran:?}");
    for mistake in
        [&["d"][..], &["d", "a"], &["d", "a=1", "--hits", "-1"], &["--admin", "nowhere", "d", "a=1"]]
    {
        assert_eq!(explain(mistake).code, 1, "{mistake:?}");
    }
}

#[tokio::test]
async fn explain_sends_the_token_of_the_environment() {
    let dir = directory(&[("config/limits/limits.yaml", LIMITS)]);
    let mut command = serve(dir.path(), &["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"]);
    command.env("SLUICE_ADMIN_TOKEN", TOKEN);
    let served = Sluice::start(dir, command).await;
    let explain = |token: &str| {
        let mut command = sluice(served.dir.path(), &["explain", "d", "a=1"]);
        run(command.env("SLUICE_ADMIN", served.admin.to_string()).env("SLUICE_ADMIN_TOKEN", token))
    };
    assert_eq!(explain(TOKEN).code, 0);
    for (token, said) in [("", "set SLUICE_ADMIN_TOKEN"), ("wrong", "SLUICE_ADMIN_TOKEN is another")] {
        let ran = explain(token);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
        assert!(ran.stderr.contains(said), "{ran:?}");
    }
}

#[tokio::test]
async fn explain_says_when_nobody_is_there() {
    let dir = directory(&[]);
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let ran = run(&mut sluice(dir.path(), &["explain", "--admin", &free, "d", "a=1"]));
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    assert!(ran.stderr.starts_with(&format!("sluice: no server at http://{free}: ")), "{ran:?}");
}

/// As a health check asks, in a container without a shell: it needs no token.
#[tokio::test]
async fn ready_says_whether_the_ledger_answers() {
    let ready = |served: &Sluice| ran(served, &["ready", "--admin", &served.admin.to_string()]);
    let serving = async |ledger: &str| {
        let dir = directory(&[]);
        let ports = ["--grpc", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        let mut command = serve(dir.path(), &[&ports[..], &["--ledger", ledger]].concat());
        command.env("SLUICE_ADMIN_TOKEN", TOKEN);
        Sluice::start(dir, command).await
    };
    let served = serving("memory").await;
    let said = ready(&served);
    assert_eq!((said.code, said.stdout.as_str(), said.stderr.as_str()), (0, "OK\n", ""));

    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let away = serving(&format!("hub:{free}")).await;
    let said = ready(&away);
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    assert!(said.stderr.contains("answered 503") && said.stderr.contains("ledger: "), "{said:?}");

    let said = run(&mut sluice(served.dir.path(), &["ready", "--admin", &free]));
    assert_eq!(said.code, 1);
    assert!(said.stderr.starts_with(&format!("sluice: no server at http://{free}: ")), "{said:?}");
}

#[tokio::test]
async fn try_and_bench_answer_scripts() {
    let served = Sluice::with_limits(LIMITS).await;
    let ask = || ran(&served, &["try", "--grpc", &served.grpc, "d", "a=1", "--json"]);
    let allowed = ask();
    let json = json_of(&allowed);
    assert_eq!((allowed.code, keys(&json)), (0, vec!["headers", "overall_code", "statuses"]));
    assert_eq!((&json["overall_code"], &json["headers"]), (&json!("OK"), &json!({})));
    let status = &json["statuses"][0];
    assert_eq!((&status["code"], &status["limit_remaining"]), (&json!("OK"), &json!(1)));
    assert_eq!(status["current_limit"], json!({"requests_per_unit": 2, "unit": "MINUTE", "name": "two"}));
    ask();
    let denied = ask();
    let json = json_of(&denied);
    assert_eq!((denied.code, &json["overall_code"]), (2, &json!("OVER_LIMIT")));
    assert_eq!(json["headers"]["x-sluice-reason"], "over_limit");
    assert!(json["headers"]["retry-after-ms"].as_str().unwrap().parse::<u64>().unwrap() > 0);
    assert_eq!(json["statuses"][0]["limit_remaining"], 0, "a zero is there too");

    let bench = ["bench", "--grpc", &served.grpc, "--seconds", "1", "--rate", "50", "d", "a=2", "--json"];
    let loaded = ran(&served, &bench);
    let json = json_of(&loaded);
    assert_eq!((loaded.code, keys(&json)), (0, vec!["answers_per_second", "codes", "latency_ms"]));
    assert_eq!(json["codes"], json!({"OK": 2, "OVER_LIMIT": 48}));
    assert_eq!(keys(&json["latency_ms"]), ["p50", "p90", "p99", "p99.9"]);
    assert!(json["latency_ms"]["p99.9"].as_f64() >= json["latency_ms"]["p50"].as_f64(), "{json}");
    assert!((30.0..=50.5).contains(&json["answers_per_second"].as_f64().unwrap()), "{json}");
}

#[tokio::test]
async fn check_answers_scripts() {
    let good = "domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: gone}]}}]";
    let bad = "domain: d\ndescriptors:\n- {key: a, ratelimit: {}}\n- {value: b}";
    let dir = directory(&[("good/limits/a.yaml", good), ("bad/limits/a.yaml", bad)]);
    let check = |name| run(&mut sluice(dir.path(), &["check", "--json", "--config-dir", name]));
    let ran = check("good");
    let json = json_of(&ran);
    assert_eq!((ran.code, &json["problems"]), (0, &json!([])));
    assert_eq!(json["warnings"][0]["line"], 2, "{json}");
    let ran = check("bad");
    let json = json_of(&ran);
    assert_eq!((ran.code, json["problems"].as_array().unwrap().len()), (1, 2), "{json}");
    let first = &json["problems"][0];
    assert_eq!((&first["file"], &first["line"]), (&json!("bad/limits/a.yaml"), &json!(3)));
    assert_eq!(first["field"], "descriptors[0].ratelimit");
    assert!(first["message"].as_str().unwrap().contains("did you mean"), "{json}");

    let served = Sluice::with_limits(LIMITS).await;
    let url = format!("http://{}", served.admin);
    let same = ran_json(&served, &["check", "--json", "--against", &url]);
    assert_eq!((&same["problems"], &same["changes"]), (&json!([]), &json!([])));
    std::fs::write(
        served.dir.path().join("new.yaml"),
        LIMITS.replace("requests_per_unit: 2", "requests_per_unit: 5"),
    )
    .unwrap();
    std::fs::create_dir_all(served.dir.path().join("new/limits")).unwrap();
    std::fs::rename(served.dir.path().join("new.yaml"), served.dir.path().join("new/limits/limits.yaml"))
        .unwrap();
    let other = ran_json(&served, &["check", "--json", "--config-dir", "new", "--against", &url]);
    assert_eq!(other["changes"].as_array().unwrap().len(), 1, "{other}");
}

fn ran_json(served: &Sluice, arguments: &[&str]) -> Value {
    let ran = ran(served, arguments);
    assert_eq!(ran.code, 0, "{ran:?}");
    json_of(&ran)
}

const COMMANDS: [&str; 9] =
    ["serve", "check", "try", "bench", "explain", "ready", "top", "completions", "man"];

#[test]
fn shells_complete_every_command() {
    let dir = directory(&[]);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let ran = run(&mut sluice(dir.path(), &["completions", shell]));
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{shell}");
        for command in COMMANDS {
            assert!(ran.stdout.contains(command), "no {command} for {shell}");
        }
    }
    assert_eq!(run(&mut sluice(dir.path(), &["completions", "dos"])).code, 1);
    // A real shell completes with it.
    let bash = format!(
        "source <({} completions bash) && COMP_WORDS=(sluice ex) COMP_CWORD=1 && _sluice sluice ex sluice && echo ${{COMPREPLY[@]}}",
        env!("CARGO_BIN_EXE_sluice")
    );
    let ran = run(std::process::Command::new("bash").args(["-c", &bash]));
    assert_eq!(ran.stdout, "explain\n", "{ran:?}");
}

#[test]
fn the_manual_has_every_command_and_its_flags() {
    let ran = run(&mut sluice(directory(&[]).path(), &["man"]));
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    assert!(ran.stdout.contains(".TH sluice 1"), "{}", ran.stdout);
    for command in COMMANDS {
        assert!(ran.stdout.contains(&format!(".TH sluice-{command} 1")), "no page of {command}");
    }
    for word in ["\\-\\-config\\-dir", "SLUICE_ADMIN_TOKEN", "\\-\\-json"] {
        assert!(ran.stdout.contains(word), "no {word}");
    }
}
