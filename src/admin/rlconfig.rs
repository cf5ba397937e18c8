//! `GET /rlconfig`: the limits in force as text, a line each, sorted.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;

use crate::limit::Kind;
use crate::registry::{Level, Node, Rule, Target};
use crate::service::Service;

pub(crate) async fn get(State(service): State<Arc<Service>>) -> String {
    let snapshot = service.live.load_full();
    let mut lines = Vec::new();
    let registry = &snapshot.registry;
    for name in registry.domain_names() {
        if let Some(level) = registry.domain(name) {
            describe(level, name, &mut lines);
        }
    }
    lines.sort();
    lines.iter().fold(String::new(), |text, line| text + line + "\n")
}

fn describe(level: &Level, path: &str, lines: &mut Vec<String>) {
    for (key, value, node) in level.nodes() {
        let path = match value {
            Some(value) => format!("{path}:{key}={value}"),
            None => format!("{path}:{key}"),
        };
        if node.unlimited {
            lines.push(format!("{path}: unlimited"));
        }
        lines.extend(node.rules.iter().map(|rule| line(&path, node, rule)));
        describe(&node.children, &path, lines);
    }
}

fn line(path: &str, node: &Node, rule: &Rule) -> String {
    let name = match &rule.target {
        Target::Named(limit) => format!("{path} -> {}", limit.account.key),
        Target::Derived => format!("{path}:{}", rule.suffix),
    };
    let life = match rule.spec.kind {
        Kind::Rolling { window_seconds } => format!("rolling window={window_seconds}s"),
        Kind::Concurrency { timeout_seconds } => format!("concurrency timeout={timeout_seconds}s"),
    };
    let mut text = format!("{name}: {life} capacity={}", rule.spec.capacity);
    let flags = [(node.shadow, "shadow_mode"), (node.quota, "quota_mode"), (node.share, "share_threshold")];
    for (_, flag) in flags.iter().filter(|(set, _)| *set) {
        // Writing to a String can't fail.
        let _ = write!(text, " {flag}");
    }
    let _ = write!(text, " ({})", rule.spec.origin);
    text
}
