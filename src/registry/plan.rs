//! From the descriptors of a request to its requirements: what must be reserved, together, for it to pass.
//!
//! Requirements are deduplicated by LimitKey with their amounts added. Decides nothing and charges nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use super::tree::{Found, Rule, Target, find};
use super::{Level, Registry};
use crate::ledger::{Account, Accounts};
use crate::limit::key::{Entry, write_name, write_override};
use crate::limit::{
    Charge, Cost, Kind, LimitKey, LimitSpec, Origin, Overage, REQUIREMENTS_MAX, RequirementSet, Unit,
};

/// One descriptor of a request, as the domain sees it.
#[derive(Debug)]
pub struct Ask<'a> {
    pub entries: SmallVec<[Entry<'a>; 4]>,
    /// 0 looks without charging.
    pub hits: u64,
    /// A limit that came with the descriptor; the files are not consulted.
    pub limit: Option<OverrideLimit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OverrideLimit {
    pub requests_per_unit: u32,
    pub unit: Unit,
}

/// What a failed requirement means for the request. Ordered: the stricter wins when two descriptors share a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Enforcement {
    Shadow,
    Quota,
    Enforced,
}

/// One limit and the amount the whole request asks of it.
#[derive(Debug)]
pub struct Requirement {
    pub account: Arc<Account>,
    pub spec: Arc<LimitSpec>,
    pub name: Arc<str>,
    pub amount: u64,
    /// What is taken of the limit, as far as there is any, even if the request is refused: it was used already.
    pub late: u64,
    pub enforcement: Enforcement,
    pub reconcile: bool,
    pub cost: Cost,
    pub metric_per_value: bool,
}

/// What one descriptor of the request came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// No limit applies.
    Bare,
    Unlimited,
    Limited {
        requirements: RequirementSet,
        enforcement: Enforcement,
    },
}

/// The requirements of a request, and what each of its descriptors has to do with them.
#[derive(Debug, Default)]
pub struct Plan {
    pub requirements: SmallVec<[Requirement; 4]>,
    pub descriptors: SmallVec<[Wanted; 4]>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    #[error("the descriptors ask for more than {REQUIREMENTS_MAX} limits at once")]
    TooManyRequirements,
    #[error("the hits asked of limit {0} add up to more than 64 bits hold")]
    AmountOverflow(LimitKey),
}

impl Registry {
    /// The requirements of a request, in the order of its descriptors.
    pub fn plan(&self, domain: &str, asks: &[Ask<'_>], accounts: &Accounts) -> Result<Plan, PlanError> {
        let mut plan = Plan::default();
        let Some(level) = self.domain(domain) else {
            plan.descriptors.extend(asks.iter().map(|_| Wanted::Bare));
            return Ok(plan);
        };
        let found: SmallVec<[Option<Found<'_>>; 4]> = asks.iter().map(|ask| look_up(level, ask)).collect();
        let replaced = replaced_names(&found);
        let mut key = String::with_capacity(96);
        for (ask, found) in asks.iter().zip(&found) {
            let wanted = match (&ask.limit, found) {
                (Some(limit), _) => {
                    let always = self.always.contains(domain);
                    let charge = if always { Charge::Always } else { Charge::Admitted };
                    plan.require_override(domain, ask, *limit, charge, accounts, &mut key)?
                }
                (None, None) => Wanted::Bare,
                (None, Some(found)) => plan.require(domain, ask, found, &replaced, accounts, &mut key)?,
            };
            plan.descriptors.push(wanted);
        }
        Ok(plan)
    }
}

fn look_up<'r>(level: &'r Level, ask: &Ask<'_>) -> Option<Found<'r>> {
    if ask.limit.is_some() { None } else { find(level, &ask.entries) }
}

/// The names that a rule matched by this request replaces. Nearly always none.
fn replaced_names<'r>(found: &[Option<Found<'r>>]) -> SmallVec<[&'r str; 2]> {
    let mut names = SmallVec::new();
    for node in found.iter().flatten().map(|found| found.node) {
        for rule in &node.rules {
            rule.replaces.iter().for_each(|name| names.push(&**name));
        }
        node.replaces.iter().for_each(|name| names.push(&**name));
    }
    names
}

impl Plan {
    fn require(
        &mut self,
        domain: &str,
        ask: &Ask<'_>,
        found: &Found<'_>,
        replaced: &[&str],
        accounts: &Accounts,
        key: &mut String,
    ) -> Result<Wanted, PlanError> {
        let node = found.node;
        if node.unlimited {
            let replaced = replaced.contains(&&*node.name) && !node.name.is_empty();
            return Ok(if replaced { Wanted::Bare } else { Wanted::Unlimited });
        }
        let enforcement = match (node.shadow, node.quota) {
            (true, _) => Enforcement::Shadow,
            (false, true) => Enforcement::Quota,
            (false, false) => Enforcement::Enforced,
        };
        key.clear();
        found.write_prefix(key, domain, &ask.entries);
        let prefix_len = key.len();
        let mut requirements = RequirementSet::EMPTY;
        for rule in &node.rules {
            if replaced.contains(&&*rule.name) {
                continue;
            }
            let account = match &rule.target {
                Target::Named(limit) => Arc::clone(&limit.account),
                Target::Derived => {
                    key.truncate(prefix_len);
                    write_name(key, &rule.suffix);
                    accounts.of(key)
                }
            };
            let requirement = requirement(account, rule, ask.hits, enforcement, node.metric_per_value);
            requirements.insert(self.add(requirement)?);
        }
        Ok(if requirements.is_empty() { Wanted::Bare } else { Wanted::Limited { requirements, enforcement } })
    }

    fn require_override(
        &mut self,
        domain: &str,
        ask: &Ask<'_>,
        limit: OverrideLimit,
        charge: Charge,
        accounts: &Accounts,
        key: &mut String,
    ) -> Result<Wanted, PlanError> {
        key.clear();
        write_override(key, domain, &ask.entries, u64::from(limit.requests_per_unit), limit.unit.name());
        let spec = LimitSpec {
            kind: Kind::Rolling { window_seconds: limit.unit.seconds() },
            capacity: u64::from(limit.requests_per_unit),
            overage: Overage::Deny,
            is_exact: false,
            charge,
            unit: "requests".to_owned(),
            description: String::new(),
            origin: Origin::Override,
            metric: None,
        };
        let index = self.add(Requirement {
            account: accounts.of(key),
            spec: Arc::new(spec),
            name: Arc::from(""),
            amount: ask.hits,
            late: late(ask.hits, ask.hits, charge),
            enforcement: Enforcement::Enforced,
            reconcile: false,
            cost: Cost::Hits,
            metric_per_value: false,
        })?;
        Ok(Wanted::Limited { requirements: RequirementSet::one(index), enforcement: Enforcement::Enforced })
    }

    /// Adds a requirement, or its amount to the one with the same key; the index it has now.
    fn add(&mut self, new: Requirement) -> Result<usize, PlanError> {
        if let Some(index) = self.requirements.iter().position(|there| there.account.id == new.account.id) {
            let there = &mut self.requirements[index];
            there.reconcile |= new.reconcile;
            // A shadow never denies, so it adds nothing to what another descriptor asks of the same limit in earnest.
            match (there.enforcement, new.enforcement) {
                (Enforcement::Enforced | Enforcement::Quota, Enforcement::Shadow) => return Ok(index),
                (Enforcement::Shadow, Enforcement::Enforced | Enforcement::Quota) => {
                    (there.amount, there.late) = (0, 0);
                }
                _ => {}
            }
            there.amount = there
                .amount
                .checked_add(new.amount)
                .ok_or_else(|| PlanError::AmountOverflow(new.account.key.clone()))?;
            there.late += new.late;
            there.enforcement = there.enforcement.max(new.enforcement);
            return Ok(index);
        }
        if self.requirements.len() == REQUIREMENTS_MAX {
            return Err(PlanError::TooManyRequirements);
        }
        self.requirements.push(new);
        Ok(self.requirements.len() - 1)
    }
}

fn requirement(
    account: Arc<Account>,
    rule: &Rule,
    hits: u64,
    enforcement: Enforcement,
    metric_per_value: bool,
) -> Requirement {
    // A look charges nothing, whatever the rule costs.
    let amount = if hits == 0 { 0 } else { rule.cost.amount(hits) };
    let is_shadow = enforcement == Enforcement::Shadow;
    Requirement {
        account,
        spec: Arc::clone(&rule.spec),
        name: Arc::clone(&rule.name),
        amount,
        late: if is_shadow { 0 } else { late(amount, hits, rule.spec.charge) },
        enforcement,
        reconcile: rule.reconcile,
        cost: rule.cost,
        metric_per_value,
    }
}

/// What is taken of a limit even if the request is refused. A request of more than one hit may report what was used already.
fn late(amount: u64, hits: u64, charge: Charge) -> u64 {
    if hits > 1 && charge == Charge::Always { amount } else { 0 }
}
