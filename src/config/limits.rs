//! `limits/*.yaml` to a [`Registry`]: what envoyproxy/ratelimit reads, and Sluice's own limits beside it.
//!
//! Pure over texts. Two passes: named limits of all files first, so that a `ref` may stand before or in another file than
//! what it names; then the descriptors. Refuses to know directories, and how limits are matched or charged.

mod descriptor;
mod named;
mod shapes;
mod spec;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use ahash::AHashMap;

use self::descriptor::Reader;
use self::named::NamedLimits;
use super::decode::{At, Fields, Sink};
use super::problem::{Problem, Problems};
use super::source::{Document, Resource};
use super::tree::Value;
use super::yaml;
use crate::limit::{LimitKey, LimitSpec, Origin};
use crate::registry::Registry;

/// What the files say.
#[derive(Debug)]
pub struct LoadedLimits {
    pub registry: Registry,
    /// The names of the files, in order.
    pub files: Vec<String>,
    /// What is valid, but was probably not meant.
    pub warnings: Vec<Problem>,
}

/// Reads limits from texts. A named limit that `previous` has too keeps its account.
pub fn load_limits(files: &[Document], previous: Option<&Registry>) -> Result<LoadedLimits, Vec<Problem>> {
    let mut problems = Problems::default();
    let registry = read(&files.iter().collect::<Vec<_>>(), &[], previous, &mut problems);
    let files = files.iter().map(|file| file.name.clone()).collect();
    problems.finish().map(|warnings| LoadedLimits { registry, files, warnings })
}

/// One named limit as JSON, with the keys it has in a file. `file` is what its problems say they are in.
pub(crate) fn limit_from_json(
    json: &serde_json::Value,
    file: &str,
) -> Result<(LimitKey, LimitSpec), Vec<Problem>> {
    let (tree, sink) = (Value::from_json(json), Sink::new(file));
    let limit = Fields::of(&tree, At::ROOT, &sink, &shapes::NAMED).and_then(|fields| {
        let spec = spec::limit(&fields);
        let key = named::free_key(&fields, |_| true)?;
        Some((LimitKey::new(key), LimitSpec { origin: Origin::Api, ..spec? }))
    });
    sink.into_problems().finish()?;
    Ok(limit.expect("a limit without problems must have been read"))
}

/// The same for a caller that has more to read. Worthless if there were mistakes.
pub(super) fn read(
    files: &[&Document],
    resources: &[&Resource],
    previous: Option<&Registry>,
    problems: &mut Problems,
) -> Registry {
    let of_resources = resources.iter().map(|resource| Sink::of_resource(&resource.name));
    let sinks: Vec<Sink> = files.iter().map(|file| Sink::new(&file.name)).chain(of_resources).collect();
    let registry = {
        let of_files = files.iter().zip(&sinks).map(|(file, sink)| parse(&file.text, sink));
        let of_resources = resources.iter().map(|resource| Some(Value::from_json(&resource.config)));
        let trees: Vec<Option<Value<'_>>> = of_files.chain(of_resources).collect();
        let roots: Vec<Fields<'_>> = trees
            .iter()
            .zip(&sinks)
            .filter_map(|(tree, sink)| Fields::of(tree.as_ref()?, At::ROOT, sink, &shapes::ROOT))
            .collect();
        assemble(&roots, previous)
    };
    for sink in sinks {
        problems.absorb(sink.into_problems());
    }
    registry
}

fn parse<'t>(text: &'t str, sink: &Sink) -> Option<Value<'t>> {
    match yaml::parse(text) {
        Ok(Some(tree)) => return Some(tree),
        Ok(None) => sink.mistake(1, &At::ROOT, || "is empty: a limits file has at least a `domain`"),
        Err(fault) => sink.mistake(fault.line, &At::ROOT, || fault.message),
    }
    None
}

fn assemble(roots: &[Fields<'_>], previous: Option<&Registry>) -> Registry {
    let mut registry = Registry::default();
    let mut named = NamedLimits::new(previous, domains(roots).into_keys());
    for root in roots {
        named.declare(root, &mut registry);
    }
    for root in roots {
        let level = Reader::new(root, &named).descriptors(root);
        if let Some(domain) = root.text("domain") {
            // A domain that is there twice has been reported, and nothing is served then.
            let _ = registry.add_domain(domain, level);
            if root.sink.is_resource {
                registry.charge_overrides_always(domain);
            }
        }
    }
    registry
}

/// Every domain and where it is, with complaints about those that are missing, empty or there twice.
fn domains<'v>(roots: &[Fields<'v>]) -> AHashMap<&'v str, (Arc<str>, u32)> {
    let mut domains: AHashMap<&str, (Arc<str>, u32)> = AHashMap::new();
    for root in roots {
        if !root.need("domain", "the name that Envoy's filter has as its `domain`") {
            continue;
        }
        let line = root.line_of("domain");
        match root.text("domain").map(|domain| (domain, domains.get(domain))) {
            None => {}
            Some(("", _)) => root.mistake("domain", || "must not be empty"),
            Some((_, Some((name, 0)))) => {
                root.mistake("domain", || format!("is also the domain of {name}; a domain has one place"));
            }
            Some((_, Some((file, first)))) => {
                root.mistake("domain", || {
                    format!("is also the domain of {file}:{first}; a domain has one file")
                });
            }
            Some((domain, None)) => drop(domains.insert(domain, (Arc::clone(&root.sink.file), line))),
        }
    }
    domains
}
