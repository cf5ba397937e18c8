//! A small language for what a ledger must do, so that the next case costs one line.
//!
//! `A 10/2s | hit A6 = ok | reserve x A5 = over A | wait 2 | reserve y A10 = ok | used A 10`
//!
//! * `A 10/2s`: from here on limit A has capacity 10, and what is taken from it comes back after 2 s; `A 10/2s repay` pays
//!   what it owes first
//! * `hit A6 B1`: a chain that nobody names again; `reserve x A6 B1`: the same with a name
//! * `void x A`, `settle x A4/1s` (void and re-reserve in one chain), `more x A4/1s` (re-reserve alone), `debt x A4`, which is
//!   paid if the limit says so; `paid`: whatever can be paid has been; `charge x A3:4` (owes 4 and re-reserves 3 in one chain)
//! * `take x A4/1s`: as much as is free, and `= took 3` says how much that was; `untake x A`, `keep x A1/1s` (void and
//!   re-reserve in one chain), `unsettle x A` (voids a re-reserve)
//! * `= ok`, `= over A` (every limit that did not fit, the first one first), `= burnt`, `= conflict`, `= decreasing A`, `= debt A`,
//!   `= expired`, `= voided`, `= unknown`
//! * `used A 6`, `owes A 4`, `capacity A 10`; `wait 2` seconds

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

use sluice::ledger::memory::Core;
use sluice::ledger::{Account, Action, Balance, Chain, Hold, Keep, Outcome, RefusalCode, Transfer, Verdict};
use sluice::limit::{LeaseId, LimitKey, Overage};

use crate::stall::steadily;

/// A ledger under test.
pub trait Bench {
    async fn apply(&mut self, chain: Chain) -> Outcome;
    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance;
    async fn wait(&mut self, seconds: u64);
    /// Returns when what can be paid has been.
    async fn paid(&mut self);
    /// Whether a refusal names every transfer that did not fit, or only the first.
    const NAMES_ALL: bool;
}

/// The embedded ledger on virtual time.
#[derive(Default)]
pub struct OnMemory {
    pub core: Core,
    pub now_ms: u64,
}

impl Bench for OnMemory {
    const NAMES_ALL: bool = true;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        self.core.apply(&chain, self.now_ms).expect("it must have room")
    }

    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        self.core.balance(account, capacity, self.now_ms)
    }

    async fn wait(&mut self, seconds: u64) {
        self.now_ms += seconds * 1000;
    }

    async fn paid(&mut self) {}
}

struct Limit {
    account: Arc<Account>,
    capacity: u64,
    lifetime_seconds: NonZeroU32,
    overage: Overage,
}

/// Runs one row; panics with the step that did not hold. `prefix` keeps rows apart on a ledger that they share.
pub async fn run(bench: &mut impl Bench, prefix: &str, row: &str) {
    steadily(async |number| run_once(bench, &format!("{prefix}.{number}"), row).await).await;
}

async fn run_once(bench: &mut impl Bench, prefix: &str, row: &str) {
    let mut limits = HashMap::new();
    for step in row.split('|').map(str::trim) {
        let (command, expected) = match step.split_once('=') {
            Some((command, expected)) => (command.trim(), Some(expected.trim())),
            None => (step, None),
        };
        let words: Vec<&str> = command.split_whitespace().collect();
        let at = format!("`{step}` of `{row}`");
        match (words[0], expected) {
            ("paid", None) => bench.paid().await,
            ("wait", None) => bench.wait(words[1].parse().unwrap()).await,
            ("used" | "owes" | "capacity", None) => {
                let limit: &Limit = &limits[words[1]];
                let balance = bench.balance(&limit.account, limit.capacity).await;
                let real = match words[0] {
                    "used" => balance.used,
                    "owes" => balance.debt,
                    _ => balance.capacity,
                };
                assert_eq!(real, words[2].parse::<u64>().unwrap(), "{at}");
            }
            (name, None) => define(&mut limits, prefix, name, &words[1..]),
            (_, Some(expected)) => {
                let chain = chain(&limits, prefix, &words);
                let names: Vec<&str> = chain_names(&words);
                let outcome = bench.apply(chain).await;
                let said = say(&outcome, &names, bench_names_all(bench));
                let expected =
                    if bench_names_all(bench) { expected.to_owned() } else { first_only(expected) };
                assert_eq!(said, expected, "{at}");
            }
        }
    }
}

fn bench_names_all<B: Bench>(_: &B) -> bool {
    B::NAMES_ALL
}

fn first_only(expected: &str) -> String {
    expected.split(',').next().unwrap_or(expected).to_owned()
}

fn define(limits: &mut HashMap<String, Limit>, prefix: &str, name: &str, words: &[&str]) {
    let (capacity, lifetime) = amount(words[0]);
    let overage = if words.get(1) == Some(&"repay") { Overage::Repay } else { Overage::Debt };
    let key = LimitKey::new(&format!("{prefix}:{name}"));
    let account = limits.get(name).map_or_else(|| Arc::new(Account::new(key)), |limit| limit.account.clone());
    limits.insert(
        name.to_owned(),
        Limit { account, capacity, lifetime_seconds: lifetime.expect("`/2s` is missing"), overage },
    );
}

fn amount(text: &str) -> (u64, Option<NonZeroU32>) {
    match text.split_once('/') {
        None => (text.parse().unwrap(), None),
        Some((amount, life)) => (amount.parse().unwrap(), Some(life.trim_end_matches('s').parse().unwrap())),
    }
}

fn chain_names<'a>(words: &[&'a str]) -> Vec<&'a str> {
    let items = if words[0] == "hit" { &words[1..] } else { &words[2..] };
    items
        .iter()
        .flat_map(|item| {
            if matches!(words[0], "settle" | "keep" | "charge") {
                vec![&item[..1]; 2]
            } else {
                vec![&item[..1]]
            }
        })
        .collect()
}

fn chain(limits: &HashMap<String, Limit>, prefix: &str, words: &[&str]) -> Chain {
    let named = words[0] != "hit";
    let items = if named { &words[2..] } else { &words[1..] };
    let mut transfers = Vec::new();
    for item in items {
        let limit = limits.get(&item[..1]).unwrap_or_else(|| panic!("{item}: no such limit"));
        let (item, owed) = item.split_once(':').unwrap_or((item, "0"));
        let (units, lifetime) = if item.len() > 1 { amount(&item[1..]) } else { (0, None) };
        let hold = Hold {
            amount: units,
            lifetime_seconds: lifetime.unwrap_or(limit.lifetime_seconds),
            capacity: limit.capacity,
            is_exact: true,
            overage: limit.overage,
        };
        let actions = match words[0] {
            "hit" | "reserve" => vec![Action::Reserve(hold)],
            "take" => vec![Action::TakeUpTo(hold)],
            "untake" => vec![Action::VoidTaken],
            "keep" => vec![Action::VoidTaken, Action::Rereserve(hold)],
            "unsettle" => vec![Action::VoidRereserved],
            "void" => vec![Action::Void],
            "settle" => vec![Action::Void, Action::Rereserve(hold)],
            "more" => vec![Action::Rereserve(hold)],
            "debt" => vec![Action::Debt(hold)],
            "charge" => {
                let debt = Hold { amount: owed.parse().unwrap(), ..hold };
                vec![Action::Debt(debt), Action::Rereserve(hold)]
            }
            other => panic!("{other}: no such command"),
        };
        transfers
            .extend(actions.into_iter().map(|action| Transfer { account: limit.account.clone(), action }));
    }
    let lease = if named {
        LeaseId::parse(&format!("{prefix}:{}", words[1]))
    } else {
        LeaseId::fresh(sluice::clock::unix_ms(), fastrand::u128(..))
    };
    let keep = if named { Keep::ForRetries } else { Keep::Nothing };
    Chain { lease, keep, transfers: transfers.into() }
}

fn say(outcome: &Outcome, names: &[&str], all: bool) -> String {
    let refusal = match outcome.verdict {
        Verdict::Done if !outcome.taken.is_empty() => {
            let taken: Vec<String> = outcome.taken.iter().map(u64::to_string).collect();
            return format!("took {}", taken.join("+"));
        }
        Verdict::Done => return "ok".to_owned(),
        Verdict::NotAsked => return "not asked".to_owned(),
        Verdict::Refused(refusal) => refusal,
    };
    let first = names[refusal.index];
    let others = names.iter().enumerate().filter(|(n, _)| *n != refusal.index && refusal.failed.contains(*n));
    match refusal.code {
        RefusalCode::ExceedsCredits if all => {
            others.fold(format!("over {first}"), |text, (_, name)| text + "," + name)
        }
        RefusalCode::ExceedsCredits => format!("over {first}"),
        RefusalCode::InDebt => format!("debt {first}"),
        RefusalCode::LimitDecreasing => format!("decreasing {first}"),
        RefusalCode::IdAlreadyFailed => "burnt".to_owned(),
        RefusalCode::ExistsWithDifferentFields => "conflict".to_owned(),
        RefusalCode::PendingTransferNotFound => "unknown".to_owned(),
        RefusalCode::PendingTransferExpired => "expired".to_owned(),
        RefusalCode::PendingTransferAlreadyVoided => "voided".to_owned(),
        RefusalCode::Abandoned => "abandoned".to_owned(),
        RefusalCode::NotAsked => "not asked".to_owned(),
    }
}
