//! The plots as XML: well-formed whatever the names, with nothing from elsewhere, and empty where there is nothing.

use super::*;
use crate::simulate::plot::fixture;
use crate::simulate::report::{Plots, Report};

/// The names of the elements, in order. Panics on what is no XML of the kind that is written here.
fn elements(xml: &str) -> Vec<String> {
    let mut rest = xml.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").expect("a declaration");
    let (mut open, mut all) = (Vec::new(), Vec::new());
    while let Some(start) = rest.find('<') {
        let text = &rest[..start];
        assert!(!text.contains('>') || open.last().is_some_and(|name| name == "style"), "{text}");
        for (at, _) in text.match_indices('&') {
            let name = text[at + 1..].split(';').next().unwrap();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "{name}");
        }
        let end = start + rest[start..].find('>').expect("every < must have its >");
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<'), "{tag}");
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "{tag}");
        } else {
            let name = tag.split([' ', '/']).next().unwrap().to_owned();
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
            if !tag.ends_with('/') {
                open.push(name.clone());
            }
            all.push(name);
        }
        rest = &rest[end + 1..];
    }
    assert_eq!((open, rest.trim()), (Vec::new(), ""));
    all
}

#[test]
fn plots_are_well_formed_and_hostile_names_are_text() {
    let svg = svg(&fixture::hostile());
    let mut found = elements(&svg);
    found.sort();
    found.dedup();
    assert_eq!(found, ["desc", "g", "path", "rect", "style", "svg", "text", "title"], "and no script");
    assert!(svg.chars().all(|c| c == '\n' || !c.is_control()) && !svg.contains('\u{202e}'));
    for title in ["Use over time against capacity", "Denials by tenant", "Wait of clients that obey"] {
        assert_eq!(svg.matches(&format!(">{title}</text>")).count(), 1, "{title}");
    }
    assert!(svg.contains("role=\"img\"") && svg.contains("prefers-color-scheme:dark"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

#[test]
fn what_there_is_nothing_of_is_left_out() {
    let mut report = Report { plots: Plots::default(), ..fixture::hostile() };
    let empty = svg(&report);
    assert!(elements(&empty).contains(&"text".to_owned()) && empty.contains("Nothing was asked."), "{empty}");
    report.plots.tenants = fixture::hostile().plots.tenants;
    let one = svg(&report);
    assert!(one.contains("Denials by tenant") && !one.contains("Use over time"), "{one}");
    elements(&one);
}

#[test]
fn a_limit_of_nothing_and_one_that_nobody_asked_can_be_drawn() {
    let mut report = fixture::hostile();
    report.plots.limits[0].capacity = 0;
    report.plots.limits[0].used.clear();
    report.plots.waits[0].waits.clear();
    report.plots.bucket_ms = 0;
    let svg = svg(&report);
    elements(&svg);
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}
