//! Good and bad retry policies.

use super::*;

fn load(text: &str) -> Result<RetryPolicy, Vec<Problem>> {
    load_retry_policy(Some(&Document { name: "r".into(), text: text.to_owned() }))
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn what_is_left_out_is_the_default() {
    for text in ["", "# nothing", "retry_policy:", "retry_policy: {}", "retry_policy: {rolling: {}}"] {
        assert_eq!(load(text), Ok(RetryPolicy::default()), "{text}");
    }
    assert_eq!(load_retry_policy(None), Ok(RetryPolicy::default()));
}

#[test]
fn everything_can_be_set() {
    let policy = load(
        "retry_policy:
  concurrency: {base_ms: 1, max_ms: 2, factor: 3, jitter_ms: 4}
  rolling: {base_ms: 5, max_ms: 6, factor: 7.5, jitter_ms: 8, window_fraction: 0.9, informed: true, informed_max_ms: 28}
  decreasing_ms: 10
  queue:
    min_seconds: 11
    max_seconds: 12
    safety_margin: 0.13
    processing_ms: 14
    confirmation_ms: 15
    pickup_seconds: 23
    deadline_seconds: 24
    places_max: 25
    places_per_key_max: 26
    reserved_share: 0.27
    elapsed: [{below_seconds: 16, retry_after_seconds: 17}, {retry_after_seconds: 18}]
  budget: {ratio: 0.19, window_seconds: 20, min_retries_per_second: 21, descriptor_key: 22}
",
    );
    let elapsed = vec![
        ElapsedStep { below_seconds: Some(16), retry_after_seconds: 17 },
        ElapsedStep { below_seconds: None, retry_after_seconds: 18 },
    ];
    let expected = RetryPolicy {
        concurrency: ConcurrencyHint { base_ms: 1, max_ms: 2, factor: 3.0, jitter_ms: 4 },
        rolling: RollingHint {
            base_ms: 5,
            max_ms: 6,
            factor: 7.5,
            jitter_ms: 8,
            window_fraction: 0.9,
            informed: true,
            informed_max_ms: 28,
        },
        decreasing_ms: 10,
        queue: Queue {
            min_seconds: 11,
            max_seconds: 12,
            safety_margin: 0.13,
            processing_ms: 14,
            confirmation_ms: 15,
            pickup_seconds: 23,
            deadline_seconds: 24,
            places_max: 25,
            places_per_key_max: 26,
            reserved_share: 0.27,
            elapsed: Some(elapsed),
        },
        budget: Budget {
            ratio: 0.19,
            window_seconds: 20,
            min_retries_per_second: 21,
            descriptor_key: "22".to_owned(),
        },
    };
    assert_eq!(policy, Ok(expected));
}

#[test]
fn mistakes_of_form() {
    for (text, expected) in [
        ("[]", "r:1: must be a mapping with the keys retry_policy, not a list"),
        ("concurrency: {}", "r:1: concurrency: is a key of `retry_policy`, not of the file"),
        (
            "retry_policy: 5",
            "r:1: retry_policy: must be a mapping with the keys concurrency, rolling, decreasing_ms, queue, budget, not a plain value",
        ),
        (
            "retry_policy:\n  roling: {}",
            "r:2: retry_policy.roling: is not a key of `retry_policy`; did you mean `rolling`?",
        ),
        (
            "retry_policy:\n  concurrency: {window_fraction: 0.1}",
            "r:2: retry_policy.concurrency.window_fraction: is a key of `rolling`, not of `concurrency`",
        ),
        (
            "retry_policy:\n  rolling:\n    factor: fast",
            "r:3: retry_policy.rolling.factor: must be a number, not `fast`",
        ),
        (
            "retry_policy:\n  queue:\n    elapsed: {}",
            "r:3: retry_policy.queue.elapsed: must be a list, not a mapping",
        ),
        (
            "retry_policy:\n  queue:\n    elapsed:\n    - below_seconds: 1",
            "r:4: retry_policy.queue.elapsed[0].retry_after_seconds: is missing: what a limit that has been decreasing this long answers",
        ),
        ("retry_policy: [", "r:1: is not YAML: unclosed bracket '[' (column 15)"),
    ] {
        let said = lines(&load(text).unwrap_err());
        assert_eq!(said, expected, "{text}");
    }
}

#[test]
fn mistakes_of_range_have_lines() {
    let said = load(
        "retry_policy:
  concurrency:
    base_ms: 0
    factor: 0.5
  queue:
    elapsed:
    - {below_seconds: 60, retry_after_seconds: 4}
    - below_seconds: 60
      retry_after_seconds: 4
    - {retry_after_seconds: 9}
",
    );
    let places: Vec<(u32, String)> = said.unwrap_err().into_iter().map(|p| (p.line, p.field)).collect();
    let expected = [
        (3, "retry_policy.concurrency.base_ms"),
        (4, "retry_policy.concurrency.factor"),
        (8, "retry_policy.queue.elapsed[1].below_seconds"),
    ];
    assert_eq!(places, expected.map(|(line, field)| (line, field.to_owned())));
}

#[test]
fn json_changes_only_what_it_names() {
    let base = load("retry_policy: {decreasing_ms: 7, rolling: {factor: 3}}").unwrap();
    let json = serde_json::json!({"rolling": {"base_ms": 9}, "budget": {"ratio": 0.5}});
    let mut expected = base.clone();
    (expected.rolling.base_ms, expected.budget.ratio) = (9, 0.5);
    assert_eq!(retry_policy_from_json(&json, &base), Ok(expected));
    let whole = serde_json::to_value(&base).unwrap();
    assert_eq!(retry_policy_from_json(&whole, &RetryPolicy::default()), Ok(base));
}

#[test]
fn json_has_the_same_mistakes_without_lines() {
    let base = RetryPolicy::default();
    for (json, expected) in [
        (serde_json::json!([]), "body: must be a mapping with the keys concurrency"),
        (
            serde_json::json!({"rolling": {"factor": "2"}}),
            "body: rolling.factor: must be a number, not the text \"2\"",
        ),
        (
            serde_json::json!({"retry_policy": {}}),
            "body: retry_policy: is a key of the file, not of `retry_policy`",
        ),
        (serde_json::json!({"rolling": {"factor": 0.5}}), "body: rolling.factor: "),
    ] {
        let said = lines(&retry_policy_from_json(&json, &base).unwrap_err());
        assert!(said.starts_with(expected), "{json}: {said}");
    }
}
