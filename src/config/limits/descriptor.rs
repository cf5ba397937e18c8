//! The descriptors of one file, level by level, to the tree that requests are matched against.
//!
//! Refuses to know other files, except for named limits.

use std::num::NonZeroU32;
use std::sync::Arc;

use ahash::AHashSet;

use super::named::{Lookup, NamedLimits};
use super::{shapes, spec};
use crate::config::decode::{At, Fields, List, Sink};
use crate::config::scalar::shown;
use crate::config::tree::{Data, Value};
use crate::limit::key::{encode, write_entry, write_name};
use crate::limit::{Cost, Kind, LimitSpec, REQUIREMENTS_MAX};
use crate::registry::PlaceError;
use crate::registry::{Level, Metadata, Node, Rule, Target};
use crate::telemetry::{MetricName, MetricNames};

/// Levels of descriptors. Envoy's requests have a handful of entries.
const LEVELS_MAX: usize = 32;

/// Reads the descriptors of one file.
pub(crate) struct Reader<'r> {
    sink: &'r Sink,
    named: &'r NamedLimits,
    /// What limits of this file are called.
    names: AHashSet<Arc<str>>,
    replaced: Vec<Replaced>,
    domain: &'r str,
    /// The descriptors that lead to where we are, as envoyproxy/ratelimit's metrics name them, and as LimitKeys do.
    path: Vec<String>,
    prefix: String,
}

/// A name in `replaces`, to be looked for when all of the file is read.
struct Replaced {
    name: Arc<str>,
    line: u32,
    field: String,
}

impl<'r> Reader<'r> {
    pub(crate) fn new(root: &'r Fields<'_>, named: &'r NamedLimits) -> Self {
        let domain = root.get("domain").and_then(plain).unwrap_or_default();
        let (names, replaced, path) = (AHashSet::new(), Vec::new(), Vec::new());
        let mut prefix = String::new();
        encode(&mut prefix, domain);
        Self { sink: root.sink, named, names, replaced, domain, path, prefix }
    }

    pub(crate) fn descriptors(mut self, root: &Fields<'_>) -> Level {
        let level = self.level(&root.list("descriptors"), 1);
        for Replaced { name, line, field } in &self.replaced {
            if !self.names.contains(name) {
                self.sink.warn(*line, field, format!("no limit of this file is called `{}`", shown(name)));
            }
        }
        level
    }

    fn level(&mut self, list: &List<'_>, depth: usize) -> Level {
        let mut level = Level::default();
        if let Some(first) = list.items.first().filter(|_| depth > LEVELS_MAX) {
            self.sink.mistake(first.line, &list.at, || format!("are nested deeper than {LEVELS_MAX} levels"));
            return level;
        }
        for (index, (value, at)) in list.iter().enumerate() {
            if let Some(fields) = Fields::of(value, at, self.sink, &shapes::DESCRIPTOR) {
                let words = ["key", "value"].map(|name| word(value, name).filter(|word| !word.is_empty()));
                self.path.push(words.into_iter().flatten().collect::<Vec<_>>().join("_"));
                let above = self.prefix.len();
                write_entry(&mut self.prefix, words[0].unwrap_or_default(), words[1]);
                let node = self.node(&fields, depth);
                self.prefix.truncate(above);
                self.path.pop();
                place(&mut level, &fields, node, &list.items[..index]);
            }
        }
        level
    }

    fn node(&mut self, fields: &Fields<'_>, depth: usize) -> Node {
        let mut node = Node {
            shadow: fields.flag("shadow_mode"),
            quota: fields.flag("quota_mode"),
            share: fields.flag("share_threshold"),
            // Both, so that neither goes unchecked.
            metric_per_value: fields.flag("detailed_metric") | fields.flag("value_to_metric"),
            ..Node::default()
        };
        if node.share && !fields.text("value").is_some_and(|value| value.contains('*')) {
            fields
                .mistake("share_threshold", || "needs a `value` with `*`: what matches it shares one limit");
        }
        node.metadata = metadata(fields);
        if fields.is_left_empty("rate_limit") {
            fields.warn("rate_limit", "is empty: there is no limit here");
        }
        if let Some(rate_limit) = fields.map("rate_limit", &shapes::RATE_LIMIT) {
            self.rate_limit(&rate_limit, &mut node);
        }
        self.limits(fields, &mut node);
        node.children = self.level(&fields.list("descriptors"), depth + 1);
        node
    }

    fn metric(&self, suffix: &str) -> Option<Arc<MetricNames>> {
        let mut limit = self.prefix.clone();
        write_name(&mut limit, suffix);
        let ratelimit = Arc::new(MetricName::new(self.domain, self.path.iter().cloned()));
        Some(Arc::new(MetricNames { limit, ratelimit }))
    }

    /// A limit as envoyproxy/ratelimit writes it.
    fn rate_limit(&mut self, fields: &Fields<'_>, node: &mut Node) {
        let name: Arc<str> = fields.text("name").unwrap_or_default().into();
        let replaces = self.replaces(fields, &name);
        let requests = fields.whole("requests_per_unit", 0..=u64::from(u32::MAX));
        let unit = spec::unit(fields);
        let is_exact = fields.flag("exact");
        let charge = spec::charge(fields);
        self.names.insert(Arc::clone(&name));
        if fields.flag("unlimited") {
            if fields.has("unit") {
                fields.mistake("unit", || "has no meaning beside `unlimited: true`; leave one of them out");
            }
            (node.unlimited, node.name, node.replaces) = (true, name, replaces);
            return;
        }
        fields.need("unit", "one of second, minute, hour, day, week, month, year; or `unlimited: true`");
        fields.need("requests_per_unit", "how many requests per `unit`; 0 blocks");
        let (Some(unit), Some(requests)) = (unit, requests) else { return };
        let spec = spec::requests_per(unit, requests, is_exact, charge, spec::origin(fields));
        let suffix = if name.is_empty() { unit.name().into() } else { Arc::clone(&name) };
        node.rules.push(Rule {
            target: Target::Derived,
            spec: Arc::new(LimitSpec { metric: self.metric(&suffix), ..spec }),
            suffix,
            name,
            cost: Cost::Hits,
            reconcile: false,
            replaces,
        });
    }

    fn replaces(&mut self, fields: &Fields<'_>, own: &str) -> Vec<Arc<str>> {
        let mut names = Vec::new();
        let list = fields.list("replaces");
        for (value, at) in list.iter() {
            let Some(entry) = Fields::of(value, at, self.sink, &shapes::REPLACED) else { continue };
            match entry.text("name").unwrap_or_default() {
                "" => entry.mistake("name", || "must be the name of the limit that is replaced"),
                name if name == own => {
                    entry.mistake("name", || "is this limit itself, which can't replace itself")
                }
                name => {
                    let (name, line) = (Arc::<str>::from(name), entry.line_of("name"));
                    let field = entry.at.key("name").to_string();
                    self.replaced.push(Replaced { name: Arc::clone(&name), line, field });
                    names.push(name);
                }
            }
        }
        names
    }

    /// The list `limits` of a descriptor.
    fn limits(&mut self, fields: &Fields<'_>, node: &mut Node) {
        let list = fields.list("limits");
        if node.unlimited && !list.items.is_empty() {
            fields.mistake("limits", || "can't hold beside a `rate_limit` that is unlimited");
        }
        let most = REQUIREMENTS_MAX - node.rules.len();
        if list.items.len() > most {
            fields.mistake("limits", || {
                format!("a descriptor may have {REQUIREMENTS_MAX} limits, its `rate_limit` included")
            });
        }
        for (value, at) in list.iter().take(most) {
            let Some(rule) = self.rule(value, at) else { continue };
            match node.rules.iter().find(|other| label(other) == label(&rule)) {
                None => node.rules.push(rule),
                Some(first) => self.sink.mistake(value.line, &at, || {
                    format!(
                        "is called `{}`, as is the limit at {}; names must differ within a descriptor",
                        shown(label(&rule)),
                        first.spec.origin
                    )
                }),
            }
        }
    }

    fn rule(&mut self, value: &Value<'_>, at: At<'_>) -> Option<Rule> {
        let is_reference =
            matches!(&value.data, Data::Map(entries) if entries.iter().any(|entry| entry.key == "ref"));
        let rule = if is_reference { self.reference(value, at) } else { self.inline(value, at) }?;
        self.names.insert(Arc::clone(&rule.name));
        Some(rule)
    }

    fn inline(&self, value: &Value<'_>, at: At<'_>) -> Option<Rule> {
        let fields = Fields::of(value, at, self.sink, &shapes::INLINE)?;
        fields.need("name", "what this limit is called; or `ref`, the key of a named limit");
        let name = fields.text("name");
        if name == Some("") {
            fields.mistake("name", || "must not be empty");
        }
        let spec = spec::limit(&fields);
        // What is wrong with the cost is said even where the kind isn't known.
        let kind = spec.as_ref().map_or(Kind::Rolling { window_seconds: NonZeroU32::MIN }, |spec| spec.kind);
        let cost = spec::cost(&fields, kind);
        let (spec, (cost, reconcile)) = (spec?, cost?);
        spec::check_fit(&fields, cost, spec.capacity);
        let name: Arc<str> = name?.into();
        let target = Target::Derived;
        Some(Rule {
            target,
            spec: Arc::new(LimitSpec { metric: self.metric(&name), ..spec }),
            suffix: name.clone(),
            name,
            cost,
            reconcile,
            replaces: Vec::new(),
        })
    }

    fn reference(&self, value: &Value<'_>, at: At<'_>) -> Option<Rule> {
        let fields = Fields::of(value, at, self.sink, &shapes::REFERENCE)?;
        fields.need("ref", "the key of a named limit");
        let key = fields.text("ref")?;
        let limit = match self.named.get(key) {
            Lookup::Found(limit) => limit,
            Lookup::Broken => return None,
            Lookup::Unknown => {
                fields.mistake("ref", || {
                    format!("no file has a limit with the key `{}` under `limits`", shown(key))
                });
                return None;
            }
        };
        let (cost, reconcile) = spec::cost(&fields, limit.spec.kind)?;
        spec::check_fit(&fields, cost, limit.spec.capacity);
        let (spec, name) = (Arc::clone(&limit.spec), Arc::<str>::from(key));
        let target = Target::Named(limit);
        Some(Rule { target, spec, suffix: name.clone(), name, cost, reconcile, replaces: Vec::new() })
    }
}

/// What must differ between the limits of one descriptor: the end of the LimitKey, or a named limit's key.
fn label(rule: &Rule) -> &str {
    &rule.suffix
}

/// Told in the dynamic metadata of answers, if the settings say so. Any mapping is fine.
fn metadata(fields: &Fields<'_>) -> Option<Arc<Metadata>> {
    let value = fields.get("metadata")?;
    match value.to_json() {
        serde_json::Value::Object(map) => Some(Arc::new(map)),
        _ => {
            fields.mistake("metadata", || format!("must be a mapping, not {}", value.sort()));
            None
        }
    }
}

/// Puts a node on its level. An empty `value` is none, as in envoyproxy/ratelimit.
fn place(level: &mut Level, fields: &Fields<'_>, node: Node, before: &[Value<'_>]) {
    if !fields.need("key", "the name of an entry that Envoy sends, such as `path`") {
        return;
    }
    let Some(key) = fields.text("key") else { return };
    if key.is_empty() {
        return fields.mistake("key", || "must not be empty");
    }
    let value = fields.text("value").filter(|value| !value.is_empty());
    match level.insert(key, value, node) {
        Ok(()) => {}
        Err(PlaceError::Duplicate) => fields.sink.mistake(fields.line, &fields.at, || {
            match before.iter().find(|other| is_descriptor(other, key, value)).map_or(0, |other| other.line) {
                0 => "has the key and value of another descriptor before it".to_owned(),
                first => format!("has the key and value of the descriptor on line {first}"),
            }
        }),
        Err(PlaceError::Shadowed { by }) => {
            let text =
                format!("is never reached: whatever it matches, the earlier `{}` matches first", shown(&by));
            fields.warn("value", &text);
        }
    }
}

fn is_descriptor(other: &Value<'_>, key: &str, value: Option<&str>) -> bool {
    let text = |name| word(other, name).filter(|text| !text.is_empty());
    text("key") == Some(key) && text("value") == value
}

fn word<'v>(value: &'v Value<'_>, key: &str) -> Option<&'v str> {
    let Data::Map(entries) = &value.data else { return None };
    let entry = entries.iter().find(|entry| entry.key == key && !entry.value.is_null())?;
    plain(&entry.value)
}

fn plain<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    match &value.data {
        Data::Scalar { text, .. } => Some(text),
        Data::List(_) | Data::Map(_) => None,
    }
}
