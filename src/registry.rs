//! The limits of all files as one immutable snapshot, and the requirements that a request has under it.
//!
//! Pure: it reads no clock, asks no ledger and does no I/O. It only knows which account of the ledger a limit has. A
//! reload builds a new one; a request uses one from start to end.

mod pattern;
mod plan;

pub(crate) mod tree;

pub mod changes;
pub mod outline;

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::sync::Arc;

use ahash::{AHashMap, AHashSet};

use crate::ledger::{Account, Accounts, Want};
use crate::limit::key::Entry;
use crate::limit::{LimitKey, LimitSpec};

pub use plan::{Ask, Enforcement, OverrideLimit, Plan, PlanError, Requirement, Wanted};
pub use tree::{Level, Metadata, Node, PlaceError, Rule, Target};

/// A limit with a name of its own, shared by whatever refers to it.
#[derive(Debug)]
pub struct NamedLimit {
    pub account: Arc<Account>,
    pub spec: Arc<LimitSpec>,
}

impl NamedLimit {
    /// What the ledger must have for it.
    pub fn want(&self) -> Want {
        let LimitSpec { kind, capacity, overage, .. } = *self.spec;
        let lifetime_seconds = kind.lifetime_seconds();
        Want { account: Arc::clone(&self.account), capacity, overage, lifetime_seconds }
    }
}

/// Every limit of every file, and those that were made through the admin API. A clone shares what it can.
#[derive(Debug, Clone, Default)]
pub struct Registry {
    domains: AHashMap<Box<str>, Arc<Level>>,
    /// Domains in which a limit that comes with a request has `charge: always`.
    always: AHashSet<Box<str>>,
    named: AHashMap<LimitKey, Arc<NamedLimit>>,
}

impl Registry {
    /// Adds a domain; `Err` if it is already there.
    pub fn add_domain(&mut self, name: &str, level: Level) -> Result<(), Level> {
        match self.domains.entry(name.into()) {
            std::collections::hash_map::Entry::Occupied(_) => Err(level),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Arc::new(level));
                Ok(())
            }
        }
    }

    /// Limits that come with requests of this domain have `charge: always`.
    pub(crate) fn charge_overrides_always(&mut self, domain: &str) {
        self.always.insert(domain.into());
    }

    /// Adds a named limit; `Err` with the one that already has the key.
    pub fn add_named(&mut self, limit: Arc<NamedLimit>) -> Result<(), Arc<NamedLimit>> {
        match self.named.entry(limit.account.key.clone()) {
            std::collections::hash_map::Entry::Occupied(there) => Err(Arc::clone(there.get())),
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(limit);
                Ok(())
            }
        }
    }

    /// Puts a named limit in the place of the one with its key, if there is one.
    pub fn put_named(&mut self, limit: Arc<NamedLimit>) {
        self.named.insert(limit.account.key.clone(), limit);
    }

    pub fn remove_named(&mut self, key: &str) {
        self.named.remove(key);
    }

    pub fn get_named(&self, key: &str) -> Option<&Arc<NamedLimit>> {
        self.named.get(key)
    }

    pub fn named(&self) -> impl Iterator<Item = &Arc<NamedLimit>> {
        self.named.values()
    }

    pub fn domain_names(&self) -> impl Iterator<Item = &str> {
        self.domains.keys().map(|name| &**name)
    }

    pub fn domain(&self, name: &str) -> Option<&Level> {
        self.domains.get(name).map(|level| &**level)
    }

    /// The node that a descriptor leads to. `None` if it leads nowhere, or brings its own limit.
    pub(crate) fn node(&self, domain: &str, ask: &Ask<'_>) -> Option<&Node> {
        let level = self.domain(domain).filter(|_| ask.limit.is_none())?;
        tree::find(level, &ask.entries).map(|found| found.node)
    }

    /// The values of a descriptor without what no file mentions: they lead to the same limits with `hide(value)` in its place.
    pub(crate) fn masked<'v>(
        &self,
        domain: &str,
        ask: &Ask<'v>,
        hide: impl Fn(&str) -> String,
    ) -> Vec<Cow<'v, str>> {
        tree::masked(self.domain(domain).filter(|_| ask.limit.is_none()), &ask.entries, hide)
    }

    /// The longest lifetime that a reservation of any limit has; `None` if there are no limits.
    pub(crate) fn longest_lifetime_seconds(&self) -> Option<NonZeroU32> {
        let named = self.named.values().map(|limit| limit.spec.kind.lifetime_seconds());
        named.chain(self.domains.values().filter_map(|level| longest_in(level))).max()
    }

    /// The limit that `key` names: a named one, or a derived one whether or not a request ever used it.
    pub fn resolve(&self, key: &str, accounts: &Accounts) -> Option<Arc<NamedLimit>> {
        if let Some(named) = self.named.get(key) {
            return Some(Arc::clone(named));
        }
        let spec = Arc::clone(self.derived_spec(key)?);
        Some(Arc::new(NamedLimit { account: accounts.of(key), spec }))
    }

    /// What the limit is that `key` names.
    pub fn spec_of(&self, key: &str) -> Option<&Arc<LimitSpec>> {
        self.named.get(key).map(|named| &named.spec).or_else(|| self.derived_spec(key))
    }

    fn derived_spec(&self, key: &str) -> Option<&Arc<LimitSpec>> {
        let parts = LimitKey::new(key).parts()?;
        let entries: Vec<Entry<'_>> = parts.entries.iter().map(|(key, value)| Entry { key, value }).collect();
        let level = self.domains.get(parts.domain.as_str())?;
        let found = tree::find(level, &entries)?;
        let rule = found
            .node
            .rules
            .iter()
            .find(|rule| matches!(rule.target, Target::Derived) && *rule.suffix == *parts.name)?;
        let mut written = String::with_capacity(key.len());
        found.write_key(&mut written, &parts.domain, &entries, rule);
        // A shared pattern is written with the pattern, not with a value that matches it.
        (written == key).then_some(&rule.spec)
    }
}

fn longest_in(level: &Level) -> Option<NonZeroU32> {
    let longest = |node: &Node| {
        let rules = node.rules.iter().map(|rule| rule.spec.kind.lifetime_seconds());
        rules.chain(longest_in(&node.children)).max()
    };
    level.nodes().into_iter().filter_map(|(_, _, node)| longest(node)).max()
}
