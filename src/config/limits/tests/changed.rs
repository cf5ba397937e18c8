//! Whatever a file can say of a limit: if it changes, a reload lists it.

use super::*;
use crate::config::limits::shapes;
use crate::config::shape::Shape;
use crate::registry::changes::between;
use crate::registry::outline::Outline;

/// The changes from one text to another, where both stand in the place of `…`.
fn listed(around: &str, old: &str, new: &str) -> String {
    let outline = |fields| Outline::of(&load(&[&around.replace('…', fields)]).registry);
    let changes = between(&outline(old), &outline(new));
    changes.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A row for each key of the shape, in its order: the key, and what stands there before and after.
fn every_key_is_listed(shape: &Shape, around: &str, rows: &[(&str, &str, &str)]) {
    let keys: Vec<&str> = rows.iter().map(|(key, ..)| *key).collect();
    assert_eq!(keys, shape.keys, "{} has a key without a row", shape.name);
    for (key, old, new) in rows {
        assert_eq!(listed(around, old, old), "", "`{old}` is what it was");
        assert_ne!(listed(around, old, new), "", "`{key}` of {} from `{old}` to `{new}`", shape.name);
    }
}

const WINDOW: &str = "kind: rolling, capacity: 9, window_seconds: 1";
const HOLD: &str = "kind: concurrency, capacity: 9, timeout_seconds: 1";

#[test]
fn every_field_of_a_limit() {
    let and = |base: &str, more: &str| format!("{base}, {more}");
    let rows_of_a_limit = |base: &str| {
        let (window, hold) = (and(base, WINDOW), and(base, HOLD));
        [
            ("kind", window.clone(), hold.clone()),
            ("capacity", window.clone(), window.replace("capacity: 9", "capacity: 8")),
            ("window_seconds", window.clone(), window.replace("window_seconds: 1", "window_seconds: 2")),
            ("timeout_seconds", hold.clone(), hold.replace("timeout_seconds: 1", "timeout_seconds: 2")),
            ("unit", window.clone(), and(&window, "unit: tokens")),
            ("description", window.clone(), and(&window, "description: ours")),
            ("overage", window.clone(), and(&window, "overage: repay")),
            ("exact", window.clone(), and(&window, "exact: true")),
            ("charge", window.clone(), and(&window, "charge: always")),
        ]
    };
    for (shape, around, named_by) in [
        (&shapes::INLINE, "domain: d\ndescriptors: [{key: a, limits: [{…}]}]", "name"),
        (&shapes::NAMED, "domain: d\nlimits: [{…}]", "key"),
    ] {
        let (old, new) = (format!("{named_by}: n"), format!("{named_by}: m"));
        let mut rows = vec![(named_by, and(&old, WINDOW), and(&new, WINDOW))];
        rows.extend(rows_of_a_limit(&old));
        if named_by == "name" {
            let window = and(&old, WINDOW);
            rows.push(("cost", window.clone(), and(&window, "cost: 2")));
            rows.push(("reconcile", window.clone(), and(&window, "reconcile: true")));
        }
        let rows: Vec<_> = rows.iter().map(|(key, old, new)| (*key, old.as_str(), new.as_str())).collect();
        every_key_is_listed(shape, around, &rows);
    }
}

#[test]
fn every_field_of_a_reference() {
    let around = format!(
        "domain: d\nlimits: [{{key: n, {WINDOW}}}, {{key: m, {WINDOW}}}]\ndescriptors: [{{key: a, limits: [{{…}}]}}]"
    );
    every_key_is_listed(
        &shapes::REFERENCE,
        &around,
        &[
            ("ref", "ref: n", "ref: m"),
            ("cost", "ref: n", "ref: n, cost: 2"),
            ("reconcile", "ref: n", "ref: n, reconcile: true"),
        ],
    );
}

#[test]
fn every_field_of_a_rate_limit() {
    let (per, named) = ("unit: day, requests_per_unit: 9", "unit: day, requests_per_unit: 9, name: n");
    every_key_is_listed(
        &shapes::RATE_LIMIT,
        "domain: d\ndescriptors: [{key: a, rate_limit: {…}}]",
        &[
            ("unit", per, "unit: hour, requests_per_unit: 9"),
            ("requests_per_unit", per, "unit: day, requests_per_unit: 8"),
            ("unlimited", per, "unlimited: true"),
            ("name", per, named),
            ("replaces", per, "unit: day, requests_per_unit: 9, replaces: [{name: other}]"),
            ("exact", per, "unit: day, requests_per_unit: 9, exact: true"),
            ("charge", per, "unit: day, requests_per_unit: 9, charge: always"),
        ],
    );
}

#[test]
fn every_field_of_a_descriptor() {
    const LIMIT: &str = "rate_limit: {unit: day, requests_per_unit: 9}";
    let (plain, star) = (format!("key: a, {LIMIT}"), format!("key: a, value: x*, {LIMIT}"));
    let and = |base: &str, more: &str| format!("{base}, {more}");
    let rows = [
        ("key", plain.clone(), format!("key: b, {LIMIT}")),
        ("value", plain.clone(), and(&plain, "value: x")),
        ("rate_limit", plain.clone(), "key: a".to_owned()),
        ("limits", plain.clone(), and(&plain, &format!("limits: [{{name: n, {WINDOW}}}]"))),
        ("descriptors", plain.clone(), and(&plain, &format!("descriptors: [{{key: b, {LIMIT}}}]"))),
        ("shadow_mode", plain.clone(), and(&plain, "shadow_mode: true")),
        ("quota_mode", plain.clone(), and(&plain, "quota_mode: true")),
        ("detailed_metric", plain.clone(), and(&plain, "detailed_metric: true")),
        ("value_to_metric", plain.clone(), and(&plain, "value_to_metric: true")),
        ("share_threshold", star.clone(), and(&star, "share_threshold: true")),
    ];
    let rows: Vec<_> = rows.iter().map(|(key, old, new)| (*key, old.as_str(), new.as_str())).collect();
    let (metadata, keys) = shapes::DESCRIPTOR.keys.split_last().unwrap();
    assert_eq!(*metadata, "metadata", "it is the one that nobody reads, so that its change is none");
    let read = Shape { name: "a descriptor", keys, family: &[] };
    every_key_is_listed(&read, "domain: d\ndescriptors: [{…}]", &rows);
}
