//! What the documents promise: their files, links, alerts and metrics are right.

use std::path::PathBuf;

use ::sluice::config;

use super::{files, read, root, shown, word};
use crate::sluice::directory;

/// The snippets of a document in one language.
pub fn snippets(text: &str, language: &str) -> Vec<String> {
    let mut snippets = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim() == format!("```{language}") {
            let block: Vec<&str> = lines.by_ref().take_while(|line| line.trim() != "```").collect();
            snippets.push(block.join("\n") + "\n");
        }
    }
    snippets
}

pub fn documents() -> Vec<PathBuf> {
    let mut documents = files("docs", ".md");
    documents.extend(
        ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"].map(|name| root().join(name)),
    );
    documents
}

/// What a snippet of process settings begins with.
const SETTINGS: [&str; 5] = ["grpc:", "admin:", "hub:", "ledger:", "leases:"];

/// Limits, a retry policy or settings in a document are such that Sluice would take them.
#[test]
fn files_in_the_documents_are_right() {
    for path in documents() {
        for text in snippets(&read(&path), "yaml") {
            let file = config::Document { name: shown(&path), text };
            let problems = if file.text.starts_with("domain:") {
                config::load_limits(std::slice::from_ref(&file), None).err()
            } else if file.text.starts_with("retry_policy:") {
                config::load_retry_policy(Some(&file)).err()
            } else if SETTINGS.iter().any(|start| file.text.starts_with(start)) {
                let dir = directory(&[("sluice.yaml", &file.text)]);
                config::load(Some(dir.path())).err()
            } else {
                continue;
            };
            assert_eq!(problems, None, "{}\n{}", shown(&path), file.text);
        }
    }
}

/// Whoever is woken finds what to do.
#[test]
fn every_alert_is_in_the_manual() {
    let manual = read(&root().join("docs/operating.md"));
    let alerts = read(&root().join("demo/prometheus/alerts.yaml"));
    let alerts: Vec<&str> = alerts.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 10, "{alerts:?}");
    let rows: Vec<&str> =
        manual.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    for alert in alerts {
        assert!(rows.contains(&alert), "{alert} has no row");
    }
}

#[test]
fn links_in_the_documents_lead_somewhere() {
    for path in documents().into_iter().chain([root().join("SECURITY.md")]) {
        let text = read(&path);
        for (at, mark) in ["](", "src=\"", "srcset=\""].iter().flat_map(|mark| text.match_indices(mark)) {
            let link = text[at + mark.len()..].split([')', '"']).next().unwrap_or_default();
            if link.contains("://") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { path.clone() } else { path.parent().unwrap().join(file) };
            assert!(target.exists(), "{}: {link} leads nowhere", shown(&path));
            let there = heading.is_empty() || read(&target).lines().any(|line| anchor(line) == heading);
            assert!(there, "{}: {link} leads to no heading", shown(&path));
        }
    }
}

/// What a link to a heading says, as GitHub has it; empty for what is none.
fn anchor(line: &str) -> String {
    let heading = if line.starts_with('#') { line.trim_start_matches('#').trim() } else { "" };
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.collect::<String>().to_lowercase().replace(' ', "-")
}

#[test]
fn every_metric_is_in_the_documents() {
    let document = read(&root().join("docs/admin.md"));
    let mut names = Vec::new();
    for path in files("src/telemetry", ".rs").into_iter().chain([root().join("src/telemetry.rs")]) {
        let text = read(&path);
        names.extend(text.match_indices("\"sluice_").map(|(at, _)| word(&text[at + 1..])));
    }
    assert!(names.len() > 30, "{names:?}");
    let is_missing =
        |name: &String| !["`", "{", "_total"].iter().any(|end| document.contains(&format!("`{name}{end}")));
    names.retain(is_missing);
    assert_eq!(names, [""; 0], "docs/admin.md says nothing of these");
}
