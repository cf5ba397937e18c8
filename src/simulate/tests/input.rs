//! What is read, and what is said of input that is wrong.

use std::fs;
use std::io::Write;
use std::path::PathBuf;

use super::super::report::Recorded;
use super::{SIX, TWO, World, limit, lines};

#[test]
fn broken_lines_are_named_and_left_out() {
    let text = "\
{\"time\": 0, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\", \"value\": \"a\"}]}], \"path\": \"/\"}

no json
{\"time\": \"noon\", \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\"}]}]}
{\"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\"}]}]}
{\"time\": 1, \"descriptors\": [{\"entries\": [{\"key\": \"t\"}]}]}
{\"time\": 1, \"domain\": \"d\"}
{\"time\": 1, \"domain\": \"\", \"descriptors\": [{\"entries\": [{\"key\": \"t\"}]}]}
{\"time\": 1, \"domain\": \"d\", \"descriptors\": []}
{\"time\": 1, \"domain\": \"d\", \"descriptors\": [{\"entries\": []}]}
{\"time\": 1, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"value\": \"a\"}]}]}
{\"time\": 1, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\"}], \"hit\": 2}]}
{\"time\": 1, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\"}]}], \"hits\": -1}
{\"time\": 1, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\"}], \"limit\": {\"requestsPerUnit\": 1}}]}
[1]
{\"time\": 2, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"lease_id\", \"value\": \"x\"}]}]}
{\"time\": 2, \"domain\": \"d\", \"descriptors\": [{\"entries\": [{\"key\": \"t\", \"value\": \"a\"}]}]}";
    let mut world = World::new(TWO).traffic("t.jsonl", text);
    let report = world.run();
    assert_eq!((report.requests, report.broken), (2, 13), "a completion is not broken, and asks nothing");
    insta::assert_snapshot!(world.broken().join("\n"), @r"
    t.jsonl:3: is not a request in JSON: expected ident (column 2)
    t.jsonl:4: time: must be a time: seconds since 1970, or RFC 3339 as 2026-11-16T04:58:04.123Z, not `noon`
    t.jsonl:5: time: is missing: must be a time: seconds since 1970, or RFC 3339 as 2026-11-16T04:58:04.123Z
    t.jsonl:6: domain: is missing
    t.jsonl:7: descriptors: is missing: a list, as /json takes it
    t.jsonl:8: domain: must not be empty
    t.jsonl:9: descriptors: at least one is needed
    t.jsonl:10: descriptors[0].entries: at least one is needed
    t.jsonl:11: descriptors[0].entries[0]: missing field `key`
    t.jsonl:12: descriptors[0]: unknown field `hit`, expected one of `entries`, `limit`, `hitsAddend`, `hits_addend`, `isNegativeHits`, `is_negative_hits`
    t.jsonl:13: hits: must be a whole number, not -1
    t.jsonl:14: descriptors[0].limit.unit: must be SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR
    t.jsonl:15: is not a request in JSON: invalid type: sequence, expected an object with time, domain and descriptors
    ");
}

#[test]
fn lines_may_be_a_little_out_of_order_and_files_are_merged() {
    let rows = [("20", "t=a", ""), ("0", "t=a", ""), ("10", "t=a", "")];
    let mut world = World::new(TWO)
        .traffic("a.jsonl", &lines(&rows))
        .traffic("b.jsonl", &lines(&[("60", "t=a", ""), ("5", "t=a", "")]));
    world.options.decisions = Some(world.dir.path().join("decisions"));
    world.run();
    let text = fs::read_to_string(world.dir.path().join("decisions")).unwrap();
    let at = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let at = line["at"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        format!("{at} {} {}", line["time"], line["code"].as_str().unwrap())
    };
    let expected = [
        "a.jsonl:2 0.0 OK",
        "b.jsonl:2 5.0 OK",
        "a.jsonl:3 10.0 OVER_LIMIT",
        "a.jsonl:1 20.0 OVER_LIMIT",
        "b.jsonl:1 60.0 OK",
    ];
    assert_eq!(text.lines().map(at).collect::<Vec<_>>(), expected);
}

#[test]
fn what_is_far_out_of_order_is_broken() {
    let mut rows: Vec<(String, &str, &str)> = (0..20_000).map(|n| (n.to_string(), "other=a", "")).collect();
    rows.push(("3".to_owned(), "other=a", ""));
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|(time, entry, more)| (time.as_str(), *entry, *more)).collect();
    let mut world = World::new(TWO).traffic("t.jsonl", &lines(&rows));
    let report = world.run();
    assert_eq!((report.requests, report.broken), (20_000, 1));
    let text = world.broken().join("\n");
    assert!(
        text.starts_with("t.jsonl:20001: is ") && text.contains("s earlier than what came before it"),
        "{text}"
    );
}

fn packed(text: &str) -> Vec<u8> {
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(text.as_bytes()).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn a_scenario_may_be_packed_too() {
    let text = "
seconds: 10
populations: [{name: p, domain: d, descriptors: [[t=a]], rate: 1}]";
    let mut world = World::new(TWO);
    world.options.traffic.push(world.write("s.yaml.gz", &packed(text)));
    let report = world.run();
    assert_eq!((report.populations.len(), report.broken), (1, 0));
    assert_eq!(report.populations, World::new(TWO).traffic("s.yaml", text).run().populations);
}

#[test]
fn gzip_is_read_whatever_it_is_called() {
    let mut bytes = packed(&lines(&SIX[..3]));
    // Two files, one after the other, are a file too.
    bytes.extend(packed(&lines(&SIX[3..])));
    let mut world = World::new(TWO);
    world.options.traffic.push(world.write("t.log", &bytes));
    assert_eq!(world.codes(), "++--+-");
    // One that was cut off says so, after what could be read.
    let mut world = World::new(TWO);
    world.options.traffic.push(world.write("t.log", &bytes[..bytes.len() - 20]));
    let report = world.run();
    assert!(
        report.broken == 1 && world.broken()[0].contains("can't be read, nor what follows"),
        "{report:?}"
    );
}

const JSON_MAP: &str = "
format: json
time: start_time
domain: d
descriptors: [[{key: t, field: request.tenant}], [{key: path, field: path}, {key: kind, value: web}]]
hits: {field: tokens}
status: response_code
duration_ms: duration";

#[test]
fn an_access_log_in_json() {
    let limits = "
domain: d
descriptors:
- {key: t, limits: [{name: tokens, kind: rolling, capacity: 10, window_seconds: 60}]}
- {key: path, descriptors: [{key: kind, value: web, rate_limit: {unit: minute, requests_per_unit: 1}}]}";
    let log = r#"
{"start_time": "2026-11-16T00:00:00Z", "request": {"tenant": "a"}, "tokens": 10, "response_code": 200, "duration": 5}
{"start_time": "2026-11-16T00:00:01Z", "request": {"tenant": "a", "x": []}, "tokens": "1", "response_code": 429}
{"start_time": "2026-11-16T00:00:02Z", "request": null, "path": "/", "tokens": null, "response_code": 200}
{"start_time": "2026-11-16T00:00:03Z", "request": {"tenant": "-"}, "path": "/", "response_code": 429}
{"start_time": "2026-11-16T00:00:04Z"}
{"start_time": "2026-11-16T00:00:05Z", "path": ["/"]}
{"start_time": "2026-11-16T00:00:06Z", "path": "/", "tokens": "many"}"#;
    let mut world = World::new(limits).map(JSON_MAP).traffic("access.log", log);
    assert_eq!(world.codes(), "+-+-+");
    let report = world.run();
    assert_eq!((report.unmatched, report.recorded), (1, Recorded { denied: 2, agree: 4 }));
    assert_eq!(limit(&report, "d:t=a:tokens").peak, 10);
    assert_eq!(
        world.broken()[..2],
        [
            "access.log:7: path: must be one plain value, not a list or a mapping",
            "access.log:8: tokens: must be a whole number, not `many`",
        ]
    );
}

#[test]
fn envoys_default_text_log() {
    let map = r#"
format: "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %DURATION% \"%REQ(X-TENANT)%\"\n"
time: START_TIME
domain: d
descriptors: [[{key: t, field: "REQ(X-TENANT)"}]]
status: RESPONSE_CODE
duration_ms: DURATION"#;
    let line = |second: u32, code: u32, tenant: &str| {
        format!("[2026-11-16T00:00:{second:02}.000Z] \"GET /a HTTP/1.1\" {code} 3 \"{tenant}\"\n")
    };
    let log = [line(0, 200, "a"), line(1, 200, "a"), line(2, 429, "a"), line(3, 200, "-"), "?\n".to_owned()]
        .concat();
    let mut world = World::new(TWO).map(map).traffic("access.log", &log);
    assert_eq!(world.codes(), "++-+");
    let report = world.run();
    assert_eq!((report.unmatched, report.recorded), (1, Recorded { denied: 1, agree: 4 }));
    assert_eq!(world.broken()[0], "access.log:5: does not look like the format: it does not begin with `[`");
}

#[test]
fn every_mistake_of_a_map_is_named() {
    let map = "
format: '[%START_TIME%] %RESPONSE_CODE%'
time: TIME
descriptors: [[{key: t, field: RESPONSE_CODE, value: x}, {field: y}], {key: a}, []]
hits: {feild: x}
stauts: RESPONSE_CODE";
    let mut world = World::new(TWO).map(map).traffic("access.log", "");
    insta::assert_snapshot!(world.problems().join("\n"), @r"
    map.yaml:2: domain: is missing: the domain of the rate-limit filter
    map.yaml:3: time: `TIME` is not in the format, which has START_TIME, RESPONSE_CODE
    map.yaml:4: descriptors[0][0].value: is there beside `field`; an entry has one of them
    map.yaml:4: descriptors[0][1].field: `y` is not in the format, which has START_TIME, RESPONSE_CODE
    map.yaml:4: descriptors[0][1].key: is missing: the name of an entry that Envoy sends, such as `path`
    map.yaml:4: descriptors[1]: must be a list of entries, not a mapping
    map.yaml:4: descriptors[2]: must have at least one entry
    map.yaml:5: hits.feild: is not a key of `hits`; did you mean `field`?
    map.yaml:5: hits.field: is missing: the field that says how many hits
    map.yaml:6: stauts: is not a key of a map; did you mean `status`?
    ");
}

#[test]
fn files_that_are_not_there_are_named() {
    let mut world = World::new(TWO);
    world.options.traffic = vec![world.dir.path().join("none.jsonl"), world.dir.path().to_owned()];
    let problems = world.problems().join("\n");
    assert!(problems.contains("none.jsonl: can't be read: No such file"), "{problems}");
    assert!(problems.contains(": can't be read: is a directory"), "{problems}");
    world.options.against = Some(PathBuf::from("/nowhere"));
    assert!(world.problems().join("\n").contains("/nowhere"));
}

#[test]
fn descriptors_are_those_of_json() {
    let text = r#"{"time": 0, "domain": "d", "descriptors": [{"entries": [{"key": "t", "value": "a"}], "hitsAddend": "2"}]}
{"time": 1, "domain": "d", "descriptors": [{"entries": [{"key": "t", "value": "a"}], "hits_addend": 0}], "hits": 5}
{"time": 2, "domain": "d", "descriptors": [{"entries": [{"key": "x", "value": "\u0061"}], "limit": {"requestsPerUnit": 1, "unit": "HOUR"}}]}
{"time": 3, "domain": "d", "descriptors": [{"entries": [{"key": "x", "value": "a"}], "limit": {"requests_per_unit": 1, "unit": "HOUR"}}]}
{"time": 4, "domain": "d", "descriptors": [{"entries": [{"key": "t", "value": "a"}]}]}"#;
    let mut world = World::new(TWO).traffic("t.jsonl", text);
    assert_eq!(world.codes(), "+++--", "two hits, a look, two with a limit of their own, and no more");
    let report = world.run();
    assert_eq!(limit(&report, "d:t=a:minute").peak, 2);
    assert_eq!(limit(&report, "d:x=a:override=1/hour").denied, 1);
}
