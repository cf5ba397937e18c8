//! Named limits: declared in any file, shared by whatever refers to them.
//!
//! Refuses to know descriptors.

use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use super::{shapes, spec};
use crate::config::decode::Fields;
use crate::config::scalar::shown;
use crate::ledger::Account;
use crate::limit::LimitKey;
use crate::limit::key::encode;
use crate::registry::{NamedLimit, Registry};

/// The named limits of all files.
pub(crate) struct NamedLimits {
    /// Every domain, as LimitKeys begin with it.
    domains: AHashSet<String>,
    declared: AHashMap<LimitKey, Declared>,
    /// Accounts of the snapshot before this one: what they know of the ledger stays true.
    kept: AHashMap<LimitKey, Arc<Account>>,
}

struct Declared {
    file: Arc<str>,
    line: u32,
    /// `None` if there was a mistake in it.
    limit: Option<Arc<NamedLimit>>,
}

/// What a `ref` leads to.
pub(crate) enum Lookup {
    Found(Arc<NamedLimit>),
    /// It is there, but wrong, which has been said.
    Broken,
    Unknown,
}

impl NamedLimits {
    pub(crate) fn new<'d>(previous: Option<&Registry>, domains: impl Iterator<Item = &'d str>) -> Self {
        let kept = previous
            .into_iter()
            .flat_map(Registry::named)
            .map(|limit| (limit.account.key.clone(), Arc::clone(&limit.account)))
            .collect();
        let encoded = |domain| {
            let mut text = String::new();
            encode(&mut text, domain);
            text
        };
        Self { domains: domains.map(encoded).collect(), declared: AHashMap::new(), kept }
    }

    pub(crate) fn get(&self, key: &str) -> Lookup {
        match self.declared.get(key) {
            None => Lookup::Unknown,
            Some(Declared { limit: None, .. }) => Lookup::Broken,
            Some(Declared { limit: Some(limit), .. }) => Lookup::Found(Arc::clone(limit)),
        }
    }

    /// Reads the top-level `limits` of one file.
    pub(crate) fn declare(&mut self, root: &Fields<'_>, registry: &mut Registry) {
        let list = root.list("limits");
        for (value, at) in list.iter() {
            let Some(fields) = Fields::of(value, at, root.sink, &shapes::NAMED) else { continue };
            let spec = spec::limit(&fields);
            let Some(key) = self.key(&fields).map(LimitKey::new) else { continue };
            let limit = spec.map(|spec| {
                let account = self.kept.get(&key).cloned();
                let account = account.unwrap_or_else(|| Arc::new(Account::new(key.clone())));
                Arc::new(NamedLimit { account, spec: Arc::new(spec) })
            });
            if let Some(limit) = &limit {
                registry.add_named(Arc::clone(limit)).expect("a declared key must be new");
            }
            self.declared
                .insert(key, Declared { file: Arc::clone(&root.sink.file), line: fields.line, limit });
        }
    }

    /// The key of a named limit, if nothing else has it or could get it.
    fn key<'a>(&self, fields: &Fields<'a>) -> Option<&'a str> {
        let key = free_key(fields, |domain| self.domains.contains(domain))?;
        if let Some(Declared { file, line, .. }) = self.declared.get(key) {
            fields.mistake("key", || format!("`{}` is already at {file}:{line}", shown(key)));
            return None;
        }
        Some(key)
    }
}

/// The key of a named limit, if no descriptor of a domain could get it.
pub(crate) fn free_key<'a>(fields: &Fields<'a>, is_domain: impl Fn(&str) -> bool) -> Option<&'a str> {
    if !fields.need("key", "the name of the limit, such as `global:llm:openai:gpt-4o:rpm`") {
        return None;
    }
    let key = fields.text("key")?;
    if key.is_empty() || key.chars().any(char::is_control) {
        fields.mistake("key", || "must not be empty or have control characters in it");
        return None;
    }
    if let Some(domain) = derived_domain(key).filter(|domain| is_domain(domain)) {
        fields.mistake("key", || {
            format!(
                "is written like the keys that Sluice makes for the domain `{}`, and would share an account with \
                 one; begin it differently",
                shown(domain)
            )
        });
        return None;
    }
    Some(key)
}

/// The domain whose descriptors, or an override sent with one, could get this key.
fn derived_domain(key: &str) -> Option<&str> {
    let (domain, rest) = key.split_once(':')?;
    let (entries, _) = rest.rsplit_once(':')?;
    entries.split(':').all(|entry| entry.contains('=')).then_some(domain)
}
