//! `sluice simulate` as people call it: what it prints, where, and how it exits. What it finds is tested beside its code.

use serde_json::{Value, json};

use crate::sluice::{Ran, directory, run, sluice};

const LIMITS: &str = "\
domain: d
descriptors:
- {key: t, rate_limit: {unit: minute, requests_per_unit: 1}}
";

const MORE: &str = "\
domain: d
descriptors:
- {key: t, rate_limit: {unit: minute, requests_per_unit: 2}}
";

const TRAFFIC: &str = r#"{"time": 10, "domain": "d", "descriptors": [{"entries": [{"key": "t", "value": "a"}]}], "status": 200}
{"time": 11, "domain": "d", "descriptors": [{"entries": [{"key": "t", "value": "a"}]}], "status": 429}
"#;

const SCENARIO: &str = "\
seconds: 60
populations:
- {name: crowd, domain: d, descriptors: [['t=t{tenant}']], tenants: 3, rate: 1, retry: backoff, attempts_max: 5}
";

fn world() -> tempfile::TempDir {
    let broken = TRAFFIC.replace("\"time\": 11", "\"tome\": 11");
    directory(&[
        ("config/limits/d.yaml", LIMITS),
        ("new/limits/d.yaml", MORE),
        ("bad/limits/d.yaml", "domain: d\ndescriptors: [{kay: t}]"),
        ("t.jsonl", TRAFFIC),
        ("broken.jsonl", &broken),
        ("s.yaml", SCENARIO),
    ])
}

fn ran(dir: &tempfile::TempDir, arguments: &[&str]) -> Ran {
    run(&mut sluice(dir.path(), &[&["simulate"], arguments].concat()))
}

#[test]
fn a_table_for_people() {
    let dir = world();
    let ran = ran(&dir, &["--against", "new", "--suggest", "0%", "t.jsonl"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""), "{ran:?}");
    insta::assert_snapshot!(ran.stdout, @r"
    requests   2
    admitted   1 (50.00 %)
    denied     1 (50.00 %)
    unmatched  0
    recorded   1 were denied then; 2 agree

    limit         capacity  seconds  admitted  denied  peak      use  against  denied  peak  suggested  demand
    d:t=a:minute         1       60         1       1     1  100.0 %        2       0     2          2       2

    decided differently: 1 denied only here, 0 only against

    tenant  denied  against
    t=a          1        0

    at         time        code  against         limit
    t.jsonl:2    11  OVER_LIMIT       OK  d:t=a:minute
    ");
}

#[test]
fn json_for_scripts() {
    let dir = world();
    let ran = ran(&dir, &["--json", "--against", "new", "--decisions", "decisions", "t.jsonl"]);
    assert_eq!((ran.code, ran.stderr.as_str(), ran.stdout.lines().count()), (0, "", 1), "{ran:?}");
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let expected = json!({
        "seed": 1, "requests": 2, "admitted": 1, "denied": 1, "unmatched": 0, "broken": 0,
        "recorded": {"denied": 1, "agree": 2},
        "limits": [{
            "key": "d:t=a:minute", "kind": "rolling", "capacity": 1, "window_seconds": 60,
            "admitted": 1, "denied": 1, "peak": 1, "use": 1.0,
            "against": {"capacity": 2, "admitted": 2, "denied": 0, "peak": 2},
        }],
        "populations": [],
        "differences": {"denied_only_here": 1, "denied_only_against": 0, "requests": [
            {"at": "t.jsonl:2", "time": 11.0, "code": "OVER_LIMIT", "against": "OK", "key": "d:t=a:minute"},
        ]},
    });
    assert_eq!(report, expected);
    let decisions = std::fs::read_to_string(dir.path().join("decisions")).unwrap();
    let lines: Vec<Value> = decisions.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(
        lines[0],
        json!({
            "at": "t.jsonl:1", "time": 10.0, "code": "OK", "key": null, "reason": null, "retry_after_ms": null,
            "against": "OK",
        })
    );
    assert_eq!((&lines[1]["reason"], &lines[1]["key"]), (&json!("over_limit"), &json!("d:t=a:minute")));
    assert!(lines[1]["retry_after_ms"].as_u64().is_some_and(|ms| ms > 0), "{}", lines[1]);
}

#[test]
fn broken_lines_go_to_standard_error_and_strict_refuses_them() {
    let dir = world();
    let broken = "broken.jsonl:2: time: is missing: must be a time: seconds since 1970, or RFC 3339 as \
        2026-11-16T04:58:04.123Z\n1 broken line";
    let lenient = ran(&dir, &["--json", "broken.jsonl"]);
    assert_eq!((lenient.code, lenient.stderr), (0, format!("{broken}, left out\n")));
    let report: Value = serde_json::from_str(&lenient.stdout).unwrap();
    assert_eq!((&report["requests"], &report["broken"]), (&json!(1), &json!(1)));
    let strict = ran(&dir, &["--json", "--strict", "broken.jsonl"]);
    assert_eq!((strict.code, strict.stdout, strict.stderr), (1, String::new(), format!("{broken}\n")));
    assert_eq!(ran(&dir, &["--strict", "t.jsonl"]).code, 0);
}

#[test]
fn mistakes_exit_with_1_and_print_nothing() {
    let dir = world();
    for (arguments, expected) in [
        (&["--config-dir", "bad", "t.jsonl"][..], "bad/limits/d.yaml:2: descriptors[0].kay: is not a key"),
        (&["--against", "bad", "t.jsonl"], "bad/limits/d.yaml:2: descriptors[0].kay: is not a key"),
        (&["none.jsonl"], "none.jsonl: can't be read: No such file"),
        (&["none.yaml"], "none.yaml: can't be read: No such file"),
        (&["--map", "none.yaml", "t.jsonl"], "none.yaml: can't be read: No such file"),
        (&["--map", "s.yaml", "t.jsonl"], "s.yaml:1: seconds: is not a key of a map"),
        (&["--decisions", "none/x", "t.jsonl"], "none/x: can't be written: No such file"),
    ] {
        let ran = ran(&dir, arguments);
        assert_eq!((ran.code, ran.stdout.as_str()), (1, ""), "{arguments:?}: {ran:?}");
        assert!(ran.stderr.contains(expected), "{arguments:?}: {ran:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_bytes_in_another_process() {
    let dir = world();
    let of = |seed: &str| {
        let ran = ran(&dir, &["--json", "--seed", seed, "--decisions", "decisions", "s.yaml", "t.jsonl"]);
        assert_eq!(ran.code, 0, "{ran:?}");
        (ran.stdout, std::fs::read_to_string(dir.path().join("decisions")).unwrap())
    };
    let first = of("3");
    assert_eq!(first, of("3"));
    assert_ne!(first.1, of("4").1);
    let report: Value = serde_json::from_str(&first.0).unwrap();
    let keys: Vec<&str> = report["populations"][0].as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "admitted",
        "attempts",
        "attempts_per_admission",
        "denied",
        "goodput_per_second",
        "name",
        "requests",
        "returns_per_admission",
        "wait_ms",
    ];
    assert_eq!(keys, expected);
}
