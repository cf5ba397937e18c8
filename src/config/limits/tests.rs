//! Good limits files, and what they mean.

mod changed;
mod refused;

use super::*;
use crate::ledger::Accounts;
use crate::limit::key::Entry;
use crate::limit::{Cost, Kind, LimitSpec};
use crate::registry::{Node, tree};

fn files(texts: &[&str]) -> Vec<Document> {
    let name = |n: usize| char::from(b'a' + u8::try_from(n).unwrap()).to_string();
    texts.iter().enumerate().map(|(n, text)| Document { name: name(n), text: (*text).to_owned() }).collect()
}

fn load(texts: &[&str]) -> LoadedLimits {
    load_limits(&files(texts), None)
        .unwrap_or_else(|problems| panic!("{}\n{}", texts.join("\n===\n"), lines(&problems)))
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

fn spec(loaded: &LoadedLimits, key: &str) -> LimitSpec {
    let limit = loaded.registry.resolve(key, &Accounts::new(10)).unwrap_or_else(|| panic!("no limit {key}"));
    (*limit.spec).clone()
}

/// `60s 10` or `hold 300s 20` for a LimitKey.
fn told(loaded: &LoadedLimits, key: &str) -> String {
    let spec = spec(loaded, key);
    match spec.kind {
        Kind::Rolling { window_seconds } => format!("{window_seconds}s {}", spec.capacity),
        Kind::Concurrency { timeout_seconds } => format!("hold {timeout_seconds}s {}", spec.capacity),
    }
}

fn with_node<T>(
    loaded: &LoadedLimits,
    domain: &str,
    entries: &[(&str, &str)],
    read: impl FnOnce(&Node) -> T,
) -> T {
    let entries: Vec<Entry<'_>> = entries.iter().map(|&(key, value)| Entry { key, value }).collect();
    read(tree::find(loaded.registry.domain(domain).unwrap(), &entries).unwrap().node)
}

/// A file of domain `d` with one descriptor `k` that has these lines.
fn descriptor(lines: &str) -> String {
    format!("domain: d\ndescriptors:\n- key: k\n  {}\n", lines.replace('\n', "\n  "))
}

#[test]
fn what_envoyproxy_ratelimit_reads() {
    let loaded = load(&["---
domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit: {unit: second, requests_per_unit: 500}
  - key: database
    value: default
    rate_limit:
      unit: MINUTE
      requests_per_unit: 0
      name: per_minute
      replaces: [{name: hourly}]
  - key: status
    value: 404
    rate_limit: &hourly {unit: Hour, requests_per_unit: 1_000, name: hourly}
  - {key: flag, value: true, rate_limit: *hourly}
  - key: version
    value: 1.10
    rate_limit:
      <<: *hourly
      unit: week
      name: ''
  - key: open
    shadow_mode: yes
    rate_limit: {unlimited: true, name: free, replaces: [{name: hourly}]}
  - key: white
  - key: path
    value: /api/*
    share_threshold: true
    detailed_metric: true
    quota_mode: true
    metadata: {owner: [team, 1.5], deep: {er: ~}}
    rate_limit: {unit: day, requests_per_unit: 4294967295}
    descriptors:
      - key: user
        value: ''
        rate_limit: {unit: month, requests_per_unit: 1}
        descriptors: []
  - key: years
    value:
    value_to_metric: true
    rate_limit: {unit: year, requests_per_unit: 7}
    descriptors:
"]);
    for (key, expected) in [
        ("mongo_cps:database=users:second", "1s 500"),
        ("mongo_cps:database=default:per_minute", "60s 0"),
        ("mongo_cps:status=404:hourly", "3600s 1000"),
        ("mongo_cps:flag=true:hourly", "3600s 1000"),
        ("mongo_cps:version=1.10:week", "604800s 1000"),
        ("mongo_cps:path=/api/*:day", "86400s 4294967295"),
        ("mongo_cps:path=/api/*:user=x:month", "2592000s 1"),
        ("mongo_cps:years=any:year", "31536000s 7"),
    ] {
        assert_eq!(told(&loaded, key), expected, "{key}");
    }
    assert_eq!(spec(&loaded, "mongo_cps:status=404:hourly").unit, "requests");
    let domain =
        |entries: &[(&str, &str)], read: fn(&Node) -> String| with_node(&loaded, "mongo_cps", entries, read);
    let flags = |node: &Node| {
        let flags = [node.unlimited, node.shadow, node.quota, node.share, node.metric_per_value];
        format!("{flags:?} {} {:?} {}", node.name, node.replaces, node.rules.len())
    };
    for (entries, expected) in [
        (&[("open", "x")][..], r#"[true, true, false, false, false] free ["hourly"] 0"#),
        (&[("white", "x")], r#"[false, false, false, false, false]  [] 0"#),
        (&[("path", "/api/x")], r#"[false, false, true, true, true]  [] 1"#),
        (&[("years", "x")], r#"[false, false, false, false, true]  [] 1"#),
    ] {
        assert_eq!(domain(entries, flags), expected, "{entries:?}");
    }
    let replaces = |node: &Node| format!("{} {:?}", node.rules[0].name, node.rules[0].replaces);
    assert_eq!(domain(&[("database", "default")], replaces), r#"per_minute ["hourly"]"#);
    assert_eq!(loaded.warnings, []);
    assert_eq!(loaded.files, ["a"]);
}

#[test]
fn limits_of_sluices_own() {
    let loaded = load(&[
        "
domain: llm
descriptors:
  - key: tenant
    descriptors:
      - key: model
        value: gpt-4o
        rate_limit: {unit: minute, requests_per_unit: 9}
        limits:
          - ref: global:rpm
            cost: 2
          - {ref: 'global:held', cost: hits}
          - name: tpm
            kind: rolling
            capacity: 150000
            window_seconds: 30
            reconcile: true
            overage: debt
            unit: tokens
            description: tokens
          - {name: inflight, kind: concurrency, capacity: 9223372036854775807, timeout_seconds: 4294967295}
",
        "
domain: shared
limits:
  - {key: 'global:rpm', kind: rolling, capacity: 3000, window_seconds: 60, unit: requests, description: all}
  - {key: 'global:held', kind: concurrency, capacity: 0, timeout_seconds: 1}
  - {key: 'llm:tpm', kind: rolling, capacity: 1, window_seconds: 1}
  - {key: 'elsewhere:a=b:c', kind: rolling, capacity: 1, window_seconds: 1}
",
    ]);
    for (key, expected) in [
        ("global:rpm", "60s 3000"),
        ("global:held", "hold 1s 0"),
        ("llm:tenant=acme:model=gpt-4o:tpm", "30s 150000"),
        ("llm:tenant=acme:model=gpt-4o:inflight", "hold 4294967295s 9223372036854775807"),
        ("llm:tenant=acme:model=gpt-4o:minute", "60s 9"),
    ] {
        assert_eq!(told(&loaded, key), expected, "{key}");
    }
    let tpm = spec(&loaded, "llm:tenant=acme:model=gpt-4o:tpm");
    assert_eq!(
        (tpm.unit.as_str(), tpm.overage.name(), tpm.origin.to_string()),
        ("tokens", "debt", "a:13".into())
    );
    let costs = with_node(&loaded, "llm", &[("tenant", "t"), ("model", "gpt-4o")], |node| {
        node.rules.iter().map(|rule| (rule.name.to_string(), rule.cost, rule.reconcile)).collect::<Vec<_>>()
    });
    let expected = [
        ("", Cost::Hits, false),
        ("global:rpm", Cost::Fixed(2), false),
        ("global:held", Cost::Hits, false),
        ("tpm", Cost::Hits, true),
        ("inflight", Cost::Fixed(1), false),
    ];
    assert_eq!(costs, expected.map(|(name, cost, reconcile)| (name.to_owned(), cost, reconcile)));
}

#[test]
fn a_reload_keeps_the_accounts_of_named_limits() {
    let text = |capacity: u64| {
        format!("domain: d\nlimits: [{{key: a, kind: rolling, capacity: {capacity}, window_seconds: 1}}]")
    };
    let account = |loaded: &LoadedLimits| Arc::clone(&loaded.registry.named().next().unwrap().account);
    let first = load(&[&text(1)]);
    let second = load_limits(&files(&[&text(2)]), Some(&first.registry)).unwrap();
    assert!(Arc::ptr_eq(&account(&first), &account(&second)));
    assert_eq!(told(&second, "a"), "1s 2");
}

#[test]
fn what_is_probably_not_meant_is_a_warning() {
    for (text, expected) in [
        (
            "rate_limit:\n  {unit: day, requests_per_unit: 1, replaces: [{name: gone}]}",
            "a:5: descriptors[0].rate_limit.replaces[0].name: no limit of this file is called `gone`",
        ),
        ("rate_limit:", "a:4: descriptors[0].rate_limit: is empty: there is no limit here"),
        (
            "limits: [{name: a, kind: concurrency, capacity: 1, timeout_seconds: 1, overage: debt}]",
            "a:4: descriptors[0].limits[0].overage: has no effect: what a concurrency limit holds is given back whole",
        ),
        (
            "limits: [{name: a, kind: concurrency, capacity: 1, timeout_seconds: 1, charge: always}]",
            "a:4: descriptors[0].limits[0].charge: has no effect: who is refused holds nothing of a concurrency limit",
        ),
        (
            "limits: [{name: a, kind: concurrency, capacity: 1, timeout_seconds: 1, exact: true}]",
            "a:4: descriptors[0].limits[0].exact: has no effect: a concurrency limit always is",
        ),
        (
            "limits: [{name: a, kind: rolling, capacity: 3, window_seconds: 1, cost: 4}]",
            "a:4: descriptors[0].limits[0].cost: is more than the capacity of 3: every request is denied",
        ),
        ("limits: [{name: a, kind: rolling, capacity: 3, window_seconds: 1, cost: 3}]", ""),
        ("limits: [{name: a, kind: rolling, capacity: 0, window_seconds: 1, cost: 1}]", ""),
    ] {
        assert_eq!(lines(&load(&[&descriptor(text)]).warnings), expected);
    }
    let named = "limits: [{key: n, kind: concurrency, capacity: 3, timeout_seconds: 1}]";
    let text = format!("domain: d\n{named}\ndescriptors: [{{key: k, limits: [{{ref: n, cost: 4}}]}}]");
    assert_eq!(
        lines(&load(&[&text]).warnings),
        "a:3: descriptors[0].limits[0].cost: is more than the capacity of 3: every request is denied"
    );
}

#[test]
fn no_files_are_no_limits() {
    assert_eq!(load(&[]).registry.domain_names().count(), 0);
    assert_eq!(load(&["domain: d"]).registry.domain_names().collect::<Vec<_>>(), ["d"]);
}

#[test]
fn a_limit_says_whom_it_charges_and_what_it_does_about_debts() {
    let limit = "kind: rolling, capacity: 9, window_seconds: 1";
    let text = format!(
        "domain: d\nlimits: [{{key: n, {limit}, charge: always, overage: repay}}, {{key: m, {limit}, charge: admitted}}]\n\
         descriptors:\n\
         - {{key: k, rate_limit: {{unit: day, requests_per_unit: 9, charge: always}}}}\n\
         - {{key: l, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n\
         - {{key: o, limits: [{{name: x, {limit}, charge: always, overage: deny}}]}}"
    );
    let loaded = load(&[&text]);
    for (key, charge, overage) in [
        ("n", "always", "repay"),
        ("m", "admitted", "deny"),
        ("d:k=v:day", "always", "deny"),
        ("d:l=v:day", "admitted", "deny"),
        ("d:o=v:x", "always", "deny"),
    ] {
        let spec = spec(&loaded, key);
        assert_eq!((spec.charge.name(), spec.overage.name()), (charge, overage), "{key}");
    }
}

#[test]
fn a_limit_may_be_exact() {
    let limit = "kind: rolling, capacity: 9, window_seconds: 1";
    let text = format!(
        "domain: d\nlimits: [{{key: n, {limit}, exact: true}}, {{key: m, {limit}}}]\ndescriptors:\n\
         - {{key: k, rate_limit: {{unit: day, requests_per_unit: 9, exact: true}}}}\n\
         - {{key: l, rate_limit: {{unit: day, requests_per_unit: 9}}}}\n\
         - {{key: o, limits: [{{name: x, {limit}, exact: true}}]}}"
    );
    let loaded = load(&[&text]);
    for (key, is_exact) in
        [("n", true), ("m", false), ("d:k=v:day", true), ("d:l=v:day", false), ("d:o=v:x", true)]
    {
        assert_eq!(spec(&loaded, key).is_exact, is_exact, "{key}");
    }
}
