//! Bad limits files, one a line, and what is said about them.
//!
//! In the tables `⏎` stands for the end of a line, ` => ` comes before what is expected, and `%` is where it is: the
//! file and the descriptor that the table is about.

use proptest::prelude::*;

use super::*;

/// Files named `a`, `b`, … and what is said about them, one complaint a line.
fn refused(texts: &[&str]) -> String {
    match load_limits(&files(texts), None) {
        Ok(_) => "fine".to_owned(),
        Err(problems) => lines(&problems),
    }
}

/// Checks a table. `file` makes the text of a row a file.
fn check(table: &str, file: impl Fn(&str) -> String) {
    for row in table.lines().map(str::trim).filter(|row| !row.is_empty()) {
        let (text, expected) = row.split_once(" => ").expect("a row must have an arrow");
        let text = file(&text.replace('⏎', "\n"));
        assert_eq!(refused(&[&text]), expected.replace('⏎', "\n"), "{text}");
    }
}

#[test]
fn whole_files() {
    check(
        r#"
        # nothing => a:1: is empty: a limits file has at least a `domain`
        --- => a:1: is empty: a limits file has at least a `domain`
        [] => a:1: must be a mapping with the keys domain, limits, descriptors, not a list
        hello => a:1: must be a mapping with the keys domain, limits, descriptors, not a plain value
        descriptors: [] => a:1: domain: is missing: the name that Envoy's filter has as its `domain`
        domain: => a:1: domain: is missing: the name that Envoy's filter has as its `domain`
        domain: '' => a:1: domain: must not be empty
        domain: [d] => a:1: domain: must be one plain value, not a list
        domain: d⏎domain: e => a:2: domain: is there twice; the first is on line 1
        domain: d⏎descriptors: {key: a} => a:2: descriptors: must be a list, not a mapping
        domain: d⏎descriptors: hello => a:2: descriptors: must be a list, not a plain value
        domain: d⏎limits: 5 => a:2: limits: must be a list, not a plain value
        domain: d⏎rate_limit: {} => a:2: rate_limit: is a key of a descriptor, not of a limits file
        domain: d⏎nope: 1 => a:2: nope: is not a key of a limits file; its keys are domain, limits, descriptors
        domain: d⏎---⏎domain: e => a:3: is in a second document after `---`; one file holds one
        domain: d⏎descriptors: [ => a:2: is not YAML: unclosed bracket '[' (column 14)
        "#,
        str::to_owned,
    );
}

#[test]
fn several_files() {
    for (texts, expected) in [
        (["domain: d", "\ndomain: d"], "b:2: domain: is also the domain of a:1; a domain has one file"),
        (
            ["domain: d\n\tx: y", "nope: 1"],
            "a:2: is not YAML: indent with spaces, not with tabs\n\
             b:1: domain: is missing: the name that Envoy's filter has as its `domain`\n\
             b:1: nope: is not a key of a limits file; its keys are domain, limits, descriptors",
        ),
        (
            [
                "domain: d\nlimits: [{key: x, kind: rolling, capacity: 1, window_seconds: 1}]",
                "domain: e\nlimits: [{key: x, kind: rolling, capacity: 1, window_seconds: 1}]",
            ],
            "b:2: limits[0].key: `x` is already at a:2",
        ),
    ] {
        assert_eq!(refused(&texts), expected, "{texts:?}");
    }
}

#[test]
fn descriptors() {
    const KEYS: &str = "key, value, rate_limit, limits, descriptors, shadow_mode, quota_mode, detailed_metric, \
                        value_to_metric, share_threshold, metadata";
    let table = r#"
        ratelimit: {} => a:4: %.ratelimit: is not a key of a descriptor; did you mean `rate_limit`?
        unit: day => a:4: %.unit: is a key of a `rate_limit`, not of a descriptor
        domain: e => a:4: %.domain: is a key of a limits file, not of a descriptor
        key: l => a:4: %.key: is there twice; the first is on line 3
        colour: red => a:4: %.colour: is not a key of a descriptor; its keys are KEYS
        "a\nb": red => a:4: %.a\nb: is not a key of a descriptor; its keys are KEYS
        value: {a: b} => a:4: %.value: must be one plain value, not a mapping
        shadow_mode: 1 => a:4: %.shadow_mode: must be true or false, not `1`
        quota_mode: 'true' => a:4: %.quota_mode: must be true or false, not the text "true"
        value_to_metric: {} => a:4: %.value_to_metric: must be one plain value, not a mapping
        metadata: 5 => a:4: %.metadata: must be a mapping, not a plain value
        share_threshold: true => a:4: %.share_threshold: needs a `value` with `*`: what matches it shares one limit
        value: a⏎share_threshold: true => a:5: %.share_threshold: needs a `value` with `*`: what matches it shares one limit
        descriptors: [a] => a:4: %.descriptors[0]: must be a mapping with the keys KEYS, not a plain value
        descriptors:⏎- => a:5: %.descriptors[0]: must be a mapping with the keys KEYS, not nothing
        descriptors:⏎- value: x => a:5: %.descriptors[0].key: is missing: the name of an entry that Envoy sends, such as `path`
        descriptors:⏎- key: ~ => a:5: %.descriptors[0].key: is missing: the name of an entry that Envoy sends, such as `path`
        descriptors:⏎- key: '' => a:5: %.descriptors[0].key: must not be empty
        descriptors:⏎- {key: a, value: b}⏎- {key: a, value: b} => a:6: %.descriptors[1]: has the key and value of the descriptor on line 5
        descriptors:⏎- {key: a, value: 5}⏎- {key: b}⏎- {key: a, value: '5'} => a:7: %.descriptors[2]: has the key and value of the descriptor on line 5
        descriptors:⏎- {key: a}⏎- {key: a, value: ''} => a:6: %.descriptors[1]: has the key and value of the descriptor on line 5
        descriptors:⏎- {key: a, value: x*}⏎- {key: a, value: x*} => a:6: %.descriptors[1]: has the key and value of the descriptor on line 5
    "#;
    check(&table.replace('%', "descriptors[0]").replace("KEYS", KEYS), descriptor);
}

#[test]
fn rate_limits() {
    let table = r#"
        5 => %: must be a mapping with the keys unit, requests_per_unit, unlimited, name, replaces, exact, charge, not a plain value
        {unit: day} => %.requests_per_unit: is missing: how many requests per `unit`; 0 blocks
        {requests_per_unit: 1} => %.unit: is missing: UNITS; or `unlimited: true`
        {unit: fortnight, requests_per_unit: 1} => %.unit: must be UNITS, not `fortnight`
        {unit: minuet, requests_per_unit: 1} => %.unit: must be UNITS, not `minuet`; did you mean `minute`?
        {unit: unknown, requests_per_unit: 1} => %.unit: must be UNITS, not `unknown`
        {unit: day, requests_per_unit: -1} => %.requests_per_unit: WHOLE `-1`
        {unit: day, requests_per_unit: 4294967296} => %.requests_per_unit: WHOLE `4294967296`
        {unit: day, requests_per_unit: 1.5} => %.requests_per_unit: WHOLE `1.5`
        {unit: day, requests_per_unit: '5'} => %.requests_per_unit: WHOLE the text "5"
        {unit: day, requests_per_unit: many} => %.requests_per_unit: WHOLE `many`
        {unit: day, requests_per_unit: [5]} => %.requests_per_unit: must be one plain value, not a list
        {unit: day, unlimited: true} => %.unit: has no meaning beside `unlimited: true`; leave one of them out
        {unlimited: sure} => %.requests_per_unit: is missing: how many requests per `unit`; 0 blocks⏎%.unit: is missing: UNITS; or `unlimited: true`⏎%.unlimited: must be true or false, not `sure`
        {unit: day, requests_per_unit: 1, replaces: [{name: ''}]} => %.replaces[0].name: must be the name of the limit that is replaced
        {unit: day, requests_per_unit: 1, replaces: [{}]} => %.replaces[0].name: must be the name of the limit that is replaced
        {unit: day, requests_per_unit: 1, replaces: [b]} => %.replaces[0]: must be a mapping with the keys name, not a plain value
        {unit: day, requests_per_unit: 1, name: a, replaces: [{name: a}]} => %.replaces[0].name: is this limit itself, which can't replace itself
        {unit: day, requests_per_unit: 1, shadow_mode: true} => %.shadow_mode: is a key of a descriptor, not of a `rate_limit`
        {unit: day, requestsPerUnit: 1, requests_per_unit: 1} => %.requestsPerUnit: is not a key of a `rate_limit`; did you mean `requests_per_unit`?
    "#;
    let table = table
        .replace('%', "a:4: descriptors[0].rate_limit")
        .replace("UNITS", "one of second, minute, hour, day, week, month, year")
        .replace("WHOLE", "must be a whole number from 0 to 4294967295, not");
    check(&table, |text| descriptor(&format!("rate_limit: {text}")));
}

#[test]
fn limits_of_a_descriptor() {
    let table = r#"
        {kind: rolling, capacity: 1, window_seconds: 1} => %[0].name: is missing: what this limit is called; or `ref`, the key of a named limit
        {name: '', ONE} => %[0].name: must not be empty
        {name: a, capacity: 1, window_seconds: 1} => %[0].kind: is missing: `rolling` or `concurrency`
        {name: a, kind: roling, capacity: 1, window_seconds: 1} => %[0].kind: must be one of rolling, concurrency, not `roling`; did you mean `rolling`?
        {name: a, kind: rolling, window_seconds: 1} => %[0].capacity: is missing: how much may be taken at a time; 0 blocks
        {name: a, kind: rolling, capacity: 9223372036854775808, window_seconds: 1} => %[0].capacity: must be a whole number from 0 to 9223372036854775807, not `9223372036854775808` (half of 64 bits, so that sums and debts can't overflow)
        {name: a, kind: rolling, capacity: 1} => %[0].window_seconds: is missing: whole seconds after which what was taken comes back
        {name: a, kind: concurrency, capacity: 1, window_seconds: 1} => %[0].timeout_seconds: is missing: whole seconds after which what was taken comes back⏎%[0].window_seconds: is not for a concurrency limit, which has `timeout_seconds`
        {name: a, ONE, timeout_seconds: 1} => %[0].timeout_seconds: is not for a rolling limit, which has `window_seconds`
        {name: a, kind: rolling, capacity: 1, window_seconds: 0} => %[0].window_seconds: SECONDS `0`
        {name: a, kind: rolling, capacity: 1, window_seconds: 4294967296} => %[0].window_seconds: SECONDS `4294967296`
        {name: a, kind: rolling, capacity: 1, window_seconds: 1m} => %[0].window_seconds: SECONDS `1m`
        {name: a, kind: concurrency, capacity: 1, timeout_seconds: 1.5} => %[0].timeout_seconds: SECONDS `1.5`
        {name: a, ONE, cost: 0} => %[0].cost: must be a whole number from 1 to 9223372036854775807, not `0`; or `hits`
        {name: a, ONE, cost: hit} => %[0].cost: must be a whole number from 1 to 9223372036854775807, not `hit`; or `hits`
        {name: a, ONE, overage: dept} => %[0].overage: must be one of deny, debt, repay, not `dept`; did you mean `debt`?
        {name: a, ONE, charge: allways} => %[0].charge: must be one of admitted, always, not `allways`; did you mean `always`?
        {name: a, HOLD, charge: always} => %[0].charge: is for rolling limits: who is refused holds nothing
        {name: a, HOLD, reconcile: true} => %[0].reconcile: is for rolling limits: a concurrency limit is released as a whole
        {name: a, ONE}, {name: a, HOLD} => %[1]: is called `a`, as is the limit at a:4; names must differ within a descriptor
        {name: a, ONE, replaces: []} => %[0].replaces: is a key of a `rate_limit`, not of a limit of a descriptor
        {key: x, name: a, ONE} => %[0].key: is a key of a descriptor, not of a limit of a descriptor
        {ref: nowhere} => %[0].ref: no file has a limit with the key `nowhere` under `limits`
        {ref: } => %[0].ref: is missing: the key of a named limit
        {ref: [a]} => %[0].ref: must be one plain value, not a list
        {ref: x, capacity: 5} => %[0].capacity: is a key of a limit of a descriptor, not of a reference to a named limit⏎%[0].ref: no file has a limit with the key `x` under `limits`
        hello => %[0]: must be a mapping with the keys name, kind, capacity, window_seconds, timeout_seconds, unit, description, overage, exact, charge, cost, reconcile, not a plain value
    "#;
    let table = table
        .replace('%', "a:4: descriptors[0].limits")
        .replace("SECONDS", "must be a whole number from 1 to 4294967295, not")
        .replace("ONE", "kind: rolling, capacity: 1, window_seconds: 1")
        .replace("HOLD", "kind: concurrency, capacity: 1, timeout_seconds: 1");
    check(&table, |text| descriptor(&format!("limits: [{text}]")));
}

#[test]
fn limits_beside_a_rate_limit() {
    check(
        r#"
        {unit: day, requests_per_unit: 1} => a:5: descriptors[0].limits[0]: is called `day`, as is the limit at a:4; names must differ within a descriptor
        {unit: hour, requests_per_unit: 1, name: day} => a:5: descriptors[0].limits[0]: is called `day`, as is the limit at a:4; names must differ within a descriptor
        {unlimited: true} => a:5: descriptors[0].limits: can't hold beside a `rate_limit` that is unlimited
        {unit: hour, requests_per_unit: 1} => fine
        "#,
        |text| {
            let limits = "[{name: day, kind: rolling, capacity: 1, window_seconds: 1}]";
            descriptor(&format!("rate_limit: {text}\nlimits: {limits}"))
        },
    );
}

#[test]
fn too_many_limits_on_one_descriptor() {
    let limits = |count: usize| -> String {
        (0..count)
            .map(|n| format!("{{name: n{n}, kind: rolling, capacity: 1, window_seconds: 1}}, "))
            .collect()
    };
    let with = |rest: &str, count| refused(&[&descriptor(&format!("{rest}limits: [{}]", limits(count)))]);
    let said = "descriptors[0].limits: a descriptor may have 32 limits, its `rate_limit` included";
    let rate_limit = "rate_limit: {unit: day, requests_per_unit: 1}\n";
    assert_eq!(with("", 32), "fine");
    assert_eq!(with("", 33), format!("a:4: {said}"));
    assert_eq!(with(rate_limit, 31), "fine");
    assert_eq!(with(rate_limit, 32), format!("a:5: {said}"));
}

#[test]
fn named_limits() {
    let table = r#"
        - {ONE} => %[0].key: is missing: the name of the limit, such as `global:llm:openai:gpt-4o:rpm`
        - {key: '', ONE} => %[0].key: must not be empty or have control characters in it
        - {key: "a\tb", ONE} => %[0].key: must not be empty or have control characters in it
        - {key: x, ONE}⏎- {key: x, ONE} => a:4: limits[1].key: `x` is already at a:3
        - {key: x, ONE, reconcile: true} => %[0].reconcile: is a key of a limit of a descriptor, not of a named limit
        - {key: 'd:k=v:minute', ONE} => %[0].key: DERIVED
        - {key: 'd:k=v:l=w:minute', ONE} => %[0].key: DERIVED
        - {key: 'd:k=v:override=5/hour', ONE} => %[0].key: DERIVED
        - {key: 'd:k:minute', ONE} => fine
        - {key: 'd:k=v', ONE} => fine
        - {key: 'e:k=v:minute', ONE} => fine
        - {key: x, kind: rolling}⏎descriptors:⏎- {key: k, limits: [{ref: x}]} => %[0].capacity: is missing: how much may be taken at a time; 0 blocks⏎%[0].window_seconds: is missing: whole seconds after which what was taken comes back
        - {key: x, ONE}⏎descriptors:⏎- {key: k, limits: [{ref: x}, {ref: x}]} => a:5: descriptors[0].limits[1]: is called `x`, as is the limit at a:3; names must differ within a descriptor
        - {key: x, HOLD}⏎descriptors:⏎- {key: k, limits: [{ref: x, reconcile: true}]} => a:5: descriptors[0].limits[0].reconcile: is for rolling limits: a concurrency limit is released as a whole
    "#;
    let table = table
        .replace('%', "a:3: limits")
        .replace("DERIVED", "is written like the keys that Sluice makes for the domain `d`, and would share an account with one; begin it differently")
        .replace("ONE", "kind: rolling, capacity: 1, window_seconds: 1")
        .replace("HOLD", "kind: concurrency, capacity: 1, timeout_seconds: 1");
    check(&table, |text| format!("domain: d\nlimits:\n{text}"));
}

#[test]
fn nesting_is_bounded() {
    let nested = |levels: usize| {
        let (open, close) = ("descriptors: [{key: k, ".repeat(levels), "}]".repeat(levels));
        format!("{{domain: d, {open}{close}}}")
    };
    assert_eq!(refused(&[&nested(32)]), "fine");
    let said = refused(&[&nested(33)]);
    assert!(said.ends_with("descriptors: are nested deeper than 32 levels"), "{said}");
    assert_eq!(refused(&[&nested(5_000)]), "a:1: is nested too deep");
}

#[test]
fn all_mistakes_of_a_file_are_told_together() {
    let text = "
domian: shop
descriptors:
  - key: path
    value: /checkout
    ratelimit: {unit: minute, requests_per_unit: 10}
  - key: user
    rate_limit:
      unit: minuten
      requests_per_unit: lots
  - value: nobody
  - key: user
  - key: tier
    value: gold
    shadow_mode: maybe
    limits:
      - ref: global:orders
      - name: held
        kind: concurrency
        capacity: -1
        window_seconds: 60
";
    insta::assert_snapshot!(refused(&[text]), @r"
    a:2: domain: is missing: the name that Envoy's filter has as its `domain`
    a:2: domian: is not a key of a limits file; did you mean `domain`?
    a:6: descriptors[0].ratelimit: is not a key of a descriptor; did you mean `rate_limit`?
    a:9: descriptors[1].rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not `minuten`; did you mean `minute`?
    a:10: descriptors[1].rate_limit.requests_per_unit: must be a whole number from 0 to 4294967295, not `lots`
    a:11: descriptors[2].key: is missing: the name of an entry that Envoy sends, such as `path`
    a:12: descriptors[3]: has the key and value of the descriptor on line 7
    a:15: descriptors[4].shadow_mode: must be true or false, not `maybe`
    a:17: descriptors[4].limits[0].ref: no file has a limit with the key `global:orders` under `limits`
    a:18: descriptors[4].limits[1].timeout_seconds: is missing: whole seconds after which what was taken comes back
    a:20: descriptors[4].limits[1].capacity: must be a whole number from 0 to 9223372036854775807, not `-1` (half of 64 bits, so that sums and debts can't overflow)
    a:21: descriptors[4].limits[1].window_seconds: is not for a concurrency limit, which has `timeout_seconds`
    ");
}

proptest! {
    #[test]
    fn any_text_is_loaded_or_refused(text in "(?s).{0,200}") {
        let _ = load_limits(&files(&[&text]), None);
    }

    /// Lines that nearly make a file, in any order and depth.
    #[test]
    fn any_pile_of_lines_is_loaded_or_refused(
        lines in prop::collection::vec((0usize..6, prop::sample::select(vec![
            "domain: d", "descriptors:", "- key: a", "- key: b", "value: x*", "value: y", "value: ~", "limits:",
            "rate_limit:", "unit: day", "requests_per_unit: 5", "unlimited: true", "- name: n", "- ref: r",
            "kind: rolling", "kind: concurrency", "capacity: 3", "window_seconds: 9", "timeout_seconds: 9",
            "share_threshold: true", "replaces:", "- {name: z}", "- &a", "- *a", "<<: *a", "cost: 2", "reconcile: yes",
        ])), 0..30),
    ) {
        let text: String = lines.iter().map(|(indent, line)| format!("{}{line}\n", "  ".repeat(*indent))).collect();
        let _ = load_limits(&files(&[&text, &text]), None);
    }
}
