//! Small cases that were worked out by hand.

mod input;
mod populations;
mod replay;

use std::fs;
use std::path::PathBuf;

use super::report::{LimitReport, Recorded, Report};
use super::{Failure, Options, Progress, Watch, run};
use crate::config::Problem;

/// Files to simulate with.
pub(super) struct World {
    dir: tempfile::TempDir,
    pub(super) options: Options,
    broken: Broken,
}

#[derive(Default)]
struct Broken(Vec<String>);

impl Watch for Broken {
    fn broken(&mut self, problem: &Problem) {
        self.0.push(problem.to_string());
    }

    fn progress(&mut self, _: Progress) {}
}

impl World {
    pub(super) fn new(limits: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { config: dir.path().join("here").into(), ..Options::default() };
        let world = Self { dir, options, broken: Broken::default() };
        world.write("here/limits/d.yaml", limits.as_bytes());
        world
    }

    pub(super) fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, bytes).unwrap();
        path
    }

    pub(super) fn traffic(mut self, name: &str, text: &str) -> Self {
        self.options.traffic.push(self.write(name, text.as_bytes()));
        self
    }

    fn against(mut self, limits: &str) -> Self {
        self.write("there/limits/d.yaml", limits.as_bytes());
        self.options.against = Some(self.dir.path().join("there"));
        self
    }

    fn map(mut self, text: &str) -> Self {
        self.options.map = Some(self.write("map.yaml", text.as_bytes()));
        self
    }

    pub(super) fn run(&mut self) -> Report {
        run(&self.options, &mut self.broken).unwrap()
    }

    /// Everything that is wrong, without the name of the temporary directory.
    fn problems(&mut self) -> Vec<String> {
        let Err(Failure::Problems(problems)) = run(&self.options, &mut self.broken) else {
            panic!("nothing was found wrong");
        };
        problems.iter().map(|problem| self.shown(&problem.to_string())).collect()
    }

    fn shown(&self, text: &str) -> String {
        text.replace(&format!("{}/", self.dir.path().display()), "")
    }

    fn broken(&self) -> Vec<String> {
        self.broken.0.iter().map(|text| self.shown(text)).collect()
    }

    /// The codes of all decisions, in order: `+` is admitted.
    fn codes(&mut self) -> String {
        let path = self.dir.path().join("decisions");
        self.options.decisions = Some(path.clone());
        self.run();
        let text = fs::read_to_string(path).unwrap();
        text.lines().map(|line| if line.contains("\"code\":\"OK\"") { '+' } else { '-' }).collect()
    }
}

/// A line each: `time key=value`, and whatever more is to be in it.
pub(super) fn lines(rows: &[(&str, &str, &str)]) -> String {
    let line = |(time, entry, more): &(&str, &str, &str)| {
        let (key, value) = entry.split_once('=').unwrap();
        let entries = format!(r#"[{{"key": "{key}", "value": "{value}"}}]"#);
        format!(r#"{{"time": {time}, "domain": "d", "descriptors": [{{"entries": {entries}}}]{more}}}"#)
            + "\n"
    };
    rows.iter().map(line).collect()
}

fn limit<'r>(report: &'r Report, key: &str) -> &'r LimitReport {
    report.limits.iter().find(|limit| limit.key == key).unwrap_or_else(|| panic!("no {key} in {report:?}"))
}

const TWO: &str = "domain: d\ndescriptors: [{key: t, rate_limit: {unit: minute, requests_per_unit: 2}}]";
const THREE: &str = "domain: d\ndescriptors: [{key: t, rate_limit: {unit: minute, requests_per_unit: 3}}]";

/// The third within a minute is denied; a minute after the first there is room for one.
const SIX: [(&str, &str, &str); 6] = [
    ("0", "t=a", ""),
    ("10", "t=a", ""),
    ("20", "t=a", ""),
    ("59.9", "t=a", ""),
    ("60", "t=a", ""),
    ("61", "t=a", ""),
];

#[test]
fn a_window_rolls_and_a_denial_costs_nothing() {
    let mut world = World::new(TWO).traffic("t.jsonl", &lines(&SIX));
    assert_eq!(world.codes(), "++--+-");
    let report = world.run();
    assert_eq!((report.requests, report.admitted, report.denied, report.unmatched), (6, 3, 3, 0));
    let minute = limit(&report, "d:t=a:minute");
    assert_eq!((minute.kind, minute.capacity, minute.window_seconds), ("rolling", Some(2), Some(60)));
    assert_eq!((minute.admitted, minute.denied, minute.peak), (3, 3, 2));
    // Three of the 2 × 61 / 60 that could have been.
    assert_eq!(minute.used, 1.0);
    assert_eq!(report.differences, None);
}

#[test]
fn what_was_taken_comes_back_a_window_later_to_the_millisecond() {
    let limits = "domain: d\ndescriptors: [{key: t, rate_limit: {unit: day, requests_per_unit: 1}}]";
    let rows = [("1.234", "t=a", ""), ("86401.233", "t=a", ""), ("86401.234", "t=a", "")];
    assert_eq!(World::new(limits).traffic("t.jsonl", &lines(&rows)).codes(), "+-+");
}

/// Requests at any millisecond, against a list of the times at which something was taken.
#[test]
fn decisions_are_those_of_a_model_that_is_too_simple_to_be_wrong() {
    for seed in 0..12 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let (capacity, window_seconds) = (rng.u64(1..40), [1, 7, 60, 3600][rng.usize(..4)]);
        let (window_ms, mut now_ms) = (window_seconds * 1000, rng.u64(..1 << 40));
        let (mut taken, mut traffic, mut expected, mut peak) = (Vec::new(), String::new(), String::new(), 0);
        for _ in 0..400 {
            now_ms += rng.u64(..=window_ms / capacity);
            taken.retain(|&(at_ms, _)| at_ms + window_ms > now_ms);
            let (hits, used) = (rng.u64(1..3), taken.iter().map(|&(_, hits)| hits).sum::<u64>());
            let fits = used + hits <= capacity;
            if fits {
                taken.push((now_ms, hits));
                peak = peak.max(used + hits);
            }
            expected.push(if fits { '+' } else { '-' });
            let time = format!("{}.{:03}", now_ms / 1000, now_ms % 1000);
            traffic += &lines(&[(&time, "t=a", &format!(r#", "hits": {hits}"#))]);
        }
        let limits = format!(
            "domain: d\ndescriptors: [{{key: t, limits: [{{name: l, kind: rolling, capacity: {capacity}, \
             window_seconds: {window_seconds}}}]}}]"
        );
        let mut world = World::new(&limits).traffic("t.jsonl", &traffic);
        assert_eq!(world.codes(), expected, "seed {seed}: {capacity} in {window_seconds} s");
        assert_eq!(limit(&world.run(), "d:t=a:l").peak, peak, "seed {seed}");
    }
}

#[test]
fn times_are_seconds_or_rfc_3339() {
    let rows: Vec<(String, &str, &str)> = ["00:00", "00:10", "00:20", "00:59.9", "01:00", "01:01"]
        .map(|time| (format!("\"2026-11-16T00:{time}Z\""), "t=a", ""))
        .into();
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|(time, entry, more)| (time.as_str(), *entry, *more)).collect();
    assert_eq!(World::new(TWO).traffic("t.jsonl", &lines(&rows)).codes(), "++--+-");
}

#[test]
fn all_limits_of_a_request_are_taken_or_none() {
    let limits = "
domain: d
limits: [{key: all, kind: rolling, capacity: 3, window_seconds: 60}]
descriptors:
- key: t
  limits: [{ref: all, cost: 1}, {name: tokens, kind: rolling, capacity: 10, window_seconds: 60}]";
    let rows = [
        ("0", "t=a", r#", "hits": 8"#),
        ("1", "t=a", r#", "hits": 3"#), // its tokens don't fit, so `all` is not charged either
        ("2", "t=b", r#", "hits": 1"#),
        ("3", "t=b", r#", "hits": 1"#),
        ("4", "t=c", r#", "hits": 1"#), // `all` is full
    ];
    let mut world = World::new(limits).traffic("t.jsonl", &lines(&rows));
    assert_eq!(world.codes(), "+-++-");
    let report = world.run();
    assert_eq!(
        (limit(&report, "all").admitted, limit(&report, "all").denied, limit(&report, "all").peak),
        (3, 1, 3)
    );
    let tokens = limit(&report, "d:t=a:tokens");
    assert_eq!((tokens.admitted, tokens.denied, tokens.peak), (1, 1, 8));
    assert_eq!(limit(&report, "d:t=b:tokens").peak, 2);
}

#[test]
fn concurrency_comes_back_when_the_log_says_that_a_request_was_over() {
    let limits = "
domain: d
descriptors:
- {key: t, limits: [{name: inflight, kind: concurrency, capacity: 1, timeout_seconds: 30}]}";
    let rows = [
        ("0", "t=a", r#", "duration_ms": 1500"#),
        ("1", "t=a", r#", "duration_ms": 1500"#),
        ("1.499", "t=a", r#", "duration_ms": 1500"#),
        ("1.5", "t=a", ""), // nobody says when it ends: it ends at its timeout
        ("31.4", "t=a", ""),
        ("31.5", "t=a", r#", "duration_ms": 0"#),
        ("31.5", "t=a", r#", "duration_ms": 0.5"#),
    ];
    let mut world = World::new(limits).traffic("t.jsonl", &lines(&rows));
    assert_eq!(world.codes(), "+--+-++");
    let report = world.run();
    let inflight = limit(&report, "d:t=a:inflight");
    assert_eq!(
        (inflight.kind, inflight.window_seconds, inflight.timeout_seconds),
        ("concurrency", None, Some(30))
    );
    assert_eq!((inflight.admitted, inflight.denied, inflight.peak), (4, 3, 1));
    assert!((inflight.used - 31.5 / 31.5).abs() < 1e-9, "{}", inflight.used);
}

#[test]
fn what_no_limit_applies_to_is_admitted_and_counted() {
    let rows = [("0", "t=a", ""), ("1", "other=a", "")];
    let report = World::new(TWO).traffic("t.jsonl", &lines(&rows)).run();
    assert_eq!((report.requests, report.admitted, report.unmatched), (2, 2, 1));
}

#[test]
fn the_log_is_compared_with_what_is_decided_here() {
    let mut rows = SIX;
    let statuses =
        [r#", "status": 200"#, r#", "status": "429""#, r#", "status": 429"#, r#", "status": 503"#, "", ""];
    rows.iter_mut().zip(statuses).for_each(|(row, status)| row.2 = status);
    let report = World::new(TWO).traffic("t.jsonl", &lines(&rows)).run();
    // The first and the third agree; the second was denied then, the fourth is denied now.
    assert_eq!(report.recorded, Recorded { denied: 2, agree: 2 });
}

#[test]
fn two_configurations_are_compared_request_by_request() {
    let mut world = World::new(TWO).against(THREE).traffic("t.jsonl", &lines(&SIX));
    // Against: + + + - + -
    let report = world.run();
    let differences = report.differences.as_ref().unwrap();
    assert_eq!((differences.denied_only_here, differences.denied_only_against), (1, 0));
    let [difference] = &differences.requests[..] else { panic!("{differences:?}") };
    assert!(difference.at.ends_with("t.jsonl:3"), "{difference:?}");
    assert_eq!((difference.time, difference.code, difference.against), (20.0, "OVER_LIMIT", "OK"));
    assert_eq!(difference.key.as_deref(), Some("d:t=a:minute"));
    let there = limit(&report, "d:t=a:minute").against.unwrap();
    assert_eq!((there.capacity, there.admitted, there.denied, there.peak), (3, 4, 2, 3));
    assert_eq!(report.plots.tenants[0].tenant, "t=a");
    assert_eq!((report.plots.tenants[0].denied, report.plots.tenants[0].against), (3, Some(2)));
    // What is found here doesn't depend on whether it is compared.
    let alone = World::new(TWO).traffic("t.jsonl", &lines(&SIX)).run();
    assert_eq!((alone.admitted, alone.denied), (report.admitted, report.denied));
}

#[test]
fn a_limit_that_only_one_configuration_has_is_listed() {
    let hours = "domain: d\ndescriptors: [{key: t, rate_limit: {unit: hour, requests_per_unit: 1}}]";
    let report = World::new(TWO).against(hours).traffic("t.jsonl", &lines(&SIX)).run();
    let (minute, hour) = (limit(&report, "d:t=a:minute"), limit(&report, "d:t=a:hour"));
    assert_eq!((minute.capacity, minute.against), (Some(2), None));
    assert_eq!((hour.capacity, hour.admitted), (None, 0));
    assert_eq!(hour.against.map(|it| (it.capacity, it.admitted, it.denied)), Some((1, 1, 5)));
    assert_eq!(report.differences.map(|it| (it.denied_only_here, it.denied_only_against)), Some((0, 2)));
}

#[test]
fn the_suggested_capacity_denies_as_few_and_one_less_denies_more() {
    // Ten at once, twice, and now and then one.
    let mut rows: Vec<(String, &str, &str)> = Vec::new();
    for n in 0..10 {
        rows.push((format!("0.{n}"), "t=a", ""));
        rows.push((format!("{}", 100 + n * 70), "t=a", ""));
        rows.push((format!("1000.{n}"), "t=a", ""));
    }
    rows.sort_by(|a, b| a.0.parse::<f64>().unwrap().total_cmp(&b.0.parse().unwrap()));
    let rows: Vec<(&str, &str, &str)> =
        rows.iter().map(|(time, entry, more)| (time.as_str(), *entry, *more)).collect();
    for (percent, expected) in [(0.0, 10), (0.07, 9), (0.2, 7)] {
        let mut world = World::new(TWO).traffic("t.jsonl", &lines(&rows));
        world.options.suggest = Some(percent);
        let suggested = limit(&world.run(), "d:t=a:minute").suggested.unwrap();
        assert_eq!((suggested.capacity, suggested.demand_peak), (expected, 10), "{percent}");
        let denied = |capacity: u64| {
            let limits = TWO.replace("requests_per_unit: 2", &format!("requests_per_unit: {capacity}"));
            World::new(&limits).traffic("t.jsonl", &lines(&rows)).run().denied as f64 / 30.0
        };
        assert!(denied(expected) <= percent && denied(expected - 1) > percent, "{percent}");
    }
}
