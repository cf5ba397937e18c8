//! A registry as flat lines that can be compared, sent and shown: whatever a request could notice, in words.
//!
//! Pure. Where a limit was written is carried along but is no part of what is compared. Refuses to know what a
//! difference means: that is [`changes`](super::changes).

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{Level, NamedLimit, Node, Registry, Rule, Target};
use crate::limit::key::{encode, write_entry, write_name};
use crate::limit::{Charge, Cost, Kind, LimitSpec, Origin, Overage};

/// Every limit, by what it is called.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outline {
    /// Named limits by key.
    pub named: BTreeMap<String, OutlineLine>,
    /// What descriptors ask for, by where it hangs: `llm:tenant:model=gpt-4o:tpm`.
    pub rules: BTreeMap<String, OutlineLine>,
    /// The patterns of a key in the order in which they are tried, where there are several.
    pub orders: BTreeMap<String, Vec<String>>,
}

/// One limit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct OutlineLine {
    /// Absent if nothing is limited here, or if the limit is a named one with a line of its own.
    pub capacity: Option<u64>,
    /// Everything else that isn't as it would be by default, by the name it has in a file.
    pub terms: BTreeMap<Cow<'static, str>, String>,
    pub origin: String,
}

/// Lines that differ only in where they were written are equal.
impl PartialEq for OutlineLine {
    fn eq(&self, other: &Self) -> bool {
        self.capacity == other.capacity && self.terms == other.terms
    }
}

/// Separates the parts of a name. No part can contain this character, so two places never have the same name.
const LEADS_TO: char = '\u{1f}';

/// The name of a place, for people.
pub fn shown(name: &str) -> String {
    name.replace(LEADS_TO, " -> ")
}

impl Outline {
    pub fn of(registry: &Registry) -> Self {
        let mut outline = Self::default();
        for limit in registry.named() {
            outline.named.insert(limit.account.key.to_string(), OutlineLine::of_named(limit));
        }
        for name in registry.domain_names() {
            let mut path = String::new();
            encode(&mut path, name);
            registry.domain(name).into_iter().for_each(|level| outline.add(level, &path));
        }
        outline
    }

    /// What these files leave alone: limits that were made through the admin API and are in none of them.
    pub fn keep_api_limits_of(&mut self, live: &Outline) {
        let api = Origin::Api.to_string();
        for (key, line) in live.named.iter().filter(|(_, line)| line.origin == api) {
            self.named.entry(key.clone()).or_insert_with(|| line.clone());
        }
    }

    fn add(&mut self, level: &Level, path: &str) {
        let mut orders: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for (key, value, node) in level.nodes() {
            let mut here = path.to_owned();
            write_entry(&mut here, key, value);
            if let Some(pattern) = value.filter(|value| value.contains('*')) {
                orders.entry(key).or_default().push(pattern.to_owned());
            }
            self.add_node(node, &here);
            self.add(&node.children, &here);
        }
        for (key, patterns) in orders.into_iter().filter(|(_, patterns)| patterns.len() > 1) {
            self.orders.insert(format!("{path}:{key}"), patterns);
        }
    }

    fn add_node(&mut self, node: &Node, path: &str) {
        if node.unlimited {
            self.rules.insert(format!("{path}{LEADS_TO}unlimited"), OutlineLine::of_unlimited(node));
        }
        for rule in &node.rules {
            let mut name = path.to_owned();
            match &rule.target {
                Target::Named(limit) => {
                    name.push(LEADS_TO);
                    name.push_str(limit.account.key.as_str());
                }
                Target::Derived => write_name(&mut name, &rule.suffix),
            }
            self.rules.insert(name, OutlineLine::of_rule(node, rule));
        }
    }
}

impl OutlineLine {
    fn of_named(limit: &NamedLimit) -> Self {
        let mut line = Self::new(limit.spec.origin.to_string());
        line.describe(&limit.spec);
        line
    }

    fn of_unlimited(node: &Node) -> Self {
        let mut line = Self::new(String::new());
        line.term("name", !node.name.is_empty(), || node.name.to_string());
        line.term("replaces", !node.replaces.is_empty(), || node.replaces.join(", "));
        line.flags(node);
        line
    }

    fn of_rule(node: &Node, rule: &Rule) -> Self {
        // Taken apart, so that nothing that is added to a rule is forgotten here.
        let Rule { target, spec, suffix, name, cost, reconcile, replaces } = rule;
        let mut line = Self::new(spec.origin.to_string());
        if matches!(target, Target::Derived) {
            line.describe(spec);
        }
        line.term("name", name != suffix && !name.is_empty(), || name.to_string());
        line.term("replaces", !replaces.is_empty(), || replaces.join(", "));
        line.term("reconcile", *reconcile, || "true".to_owned());
        if let Cost::Fixed(amount) = cost {
            line.term("cost", true, || amount.to_string());
        }
        line.flags(node);
        line
    }

    fn new(origin: String) -> Self {
        Self { capacity: None, terms: BTreeMap::new(), origin }
    }

    fn describe(&mut self, spec: &LimitSpec) {
        // Taken apart for the same reason.
        let LimitSpec { kind, capacity, overage, is_exact, charge, unit, description, origin: _, metric: _ } =
            spec;
        self.capacity = Some(*capacity);
        self.term("kind", true, || kind.name().to_owned());
        match kind {
            Kind::Rolling { window_seconds } => {
                self.term("window_seconds", true, || window_seconds.to_string())
            }
            Kind::Concurrency { timeout_seconds } => {
                self.term("timeout_seconds", true, || timeout_seconds.to_string())
            }
        }
        self.term("overage", *overage != Overage::Deny, || overage.name().to_owned());
        self.term("exact", *is_exact, || "true".to_owned());
        self.term("charge", *charge != Charge::Admitted, || charge.name().to_owned());
        self.term("unit", !unit.is_empty(), || unit.clone());
        self.term("description", !description.is_empty(), || description.clone());
    }

    fn flags(&mut self, node: &Node) {
        for (name, set) in [
            ("shadow_mode", node.shadow),
            ("quota_mode", node.quota),
            ("share_threshold", node.share),
            ("detailed_metric", node.metric_per_value),
        ] {
            self.term(name, set, || "true".to_owned());
        }
    }

    fn term(&mut self, name: &'static str, set: bool, value: impl FnOnce() -> String) {
        if set {
            self.terms.insert(Cow::Borrowed(name), value());
        }
    }
}
