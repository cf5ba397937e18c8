//! Two ledgers of which the new one replaces the old one, on virtual time: what every ledger must do, the model, and a fleet
//! that is rolled from the old one to both and on to the new one.

mod rollout;
mod virtual_ledger;

use std::sync::Arc;
use std::time::Duration;

use sluice::ledger::{Account, Balance, Chain, Ledger, Outcome, Rotation, Want};
use sluice::limit::Overage;

use self::virtual_ledger::{Clock, VirtualLedger};
use crate::ledger_model::OnVirtualTime;
use crate::ledger_rows::ROWS;
use crate::scenario::{Bench, run};

/// Both ledgers, on one clock.
pub struct OnBoth {
    clock: Clock,
    old: VirtualLedger,
    new: VirtualLedger,
    ledger: Rotation<VirtualLedger>,
}

/// Nothing here waits on the real clock.
const TIMEOUT: Duration = Duration::from_secs(3600);

fn both(old: &VirtualLedger, new: &VirtualLedger) -> Rotation<VirtualLedger> {
    Rotation::both((old.clone(), "old".to_owned()), (new.clone(), "new".to_owned()), TIMEOUT)
}

impl Default for OnBoth {
    fn default() -> Self {
        let clock = Clock::default();
        let (old, new) = (VirtualLedger::new(&clock), VirtualLedger::new(&clock));
        Self { ledger: both(&old, &new), clock, old, new }
    }
}

impl Bench for OnBoth {
    const NAMES_ALL: bool = true;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        self.ledger.apply(&chain).await.expect("both must answer")
    }

    /// Both must hold the same.
    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        let want = want(account, capacity);
        let shown = self.ledger.balances(vec![want.clone()]).await.expect("both must answer")[0];
        for one in [&self.old, &self.new] {
            assert_eq!(one.balances(vec![want.clone()]).await.expect("it must answer")[0], shown);
        }
        shown
    }

    async fn wait(&mut self, seconds: u64) {
        self.clock.pass(seconds * 1000);
    }

    async fn paid(&mut self) {}
}

impl OnVirtualTime for OnBoth {
    fn at(now_ms: u64) -> Self {
        let bench = Self::default();
        bench.clock.pass(now_ms);
        bench
    }

    fn pass(&mut self, ms: u64) {
        self.clock.pass(ms);
    }
}

fn want(account: &Arc<Account>, capacity: u64) -> Want {
    let (overage, lifetime_seconds) = (Overage::Deny, std::num::NonZeroU32::MIN);
    Want { account: Arc::clone(account), capacity, overage, lifetime_seconds }
}

#[tokio::test]
async fn both_do_what_every_ledger_must() {
    for (index, row) in ROWS.iter().enumerate() {
        let mut bench = OnBoth::at(5_000);
        run(&mut bench, &format!("row{index}"), row).await;
    }
}

/// Limits, `::` and steps. Steps go to both, `old …` and `new …` to one of them, as from an instance that uses it alone.
async fn run_split(row: &str) {
    let bench = OnBoth::at(5_000);
    // Limits are the same for all, so each step is a row of its own over the same definitions.
    let (limits, steps) = row.split_once("::").expect("limits come first");
    for step in steps.split('|').map(str::trim) {
        let one = |step: &str| format!("{limits}| {step}");
        match step.split_once(' ') {
            Some(("old", step)) => run(&mut Alone(bench.old.clone()), "split", &one(step)).await,
            Some(("new", step)) => run(&mut Alone(bench.new.clone()), "split", &one(step)).await,
            _ => run(&mut Unequal(&bench), "split", &one(step)).await,
        }
    }
}

struct Alone(VirtualLedger);

impl Bench for Alone {
    const NAMES_ALL: bool = true;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        self.0.apply(&chain).await.expect("it must answer")
    }

    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        self.0.balances(vec![want(account, capacity)]).await.expect("it must answer")[0]
    }

    async fn wait(&mut self, seconds: u64) {
        self.0.clock.pass(seconds * 1000);
    }

    async fn paid(&mut self) {}
}

/// Both, where they may hold different things.
struct Unequal<'b>(&'b OnBoth);

impl Bench for Unequal<'_> {
    const NAMES_ALL: bool = true;

    async fn apply(&mut self, chain: Chain) -> Outcome {
        self.0.ledger.apply(&chain).await.expect("both must answer")
    }

    async fn balance(&mut self, account: &Arc<Account>, capacity: u64) -> Balance {
        self.0.ledger.balances(vec![want(account, capacity)]).await.expect("both must answer")[0]
    }

    async fn wait(&mut self, seconds: u64) {
        self.0.clock.pass(seconds * 1000);
    }

    async fn paid(&mut self) {}
}

/// What instances at other steps of the rollout leave on one of the ledgers only.
const SPLIT_ROWS: &[&str] = &[
    // refused by one is charged on none, whichever it is
    "A 10/9s :: old hit A8 = ok | hit A3 = over A | new used A 0 | hit A2 = ok | used A 10 | new used A 2",
    "A 10/9s :: new hit A8 = ok | hit A3 = over A | old used A 0 | hit A2 = ok | used A 10 | old used A 2",
    "A 10/9s :: new hit A8 = ok | reserve x A3 = over A | old used A 0 | reserve x A3 = burnt | old used A 0",
    // the same name again is free where it is known, and charged where it is not
    "A 10/9s :: old reserve x A6 = ok | reserve x A6 = ok | reserve x A6 = ok | old used A 6 | new used A 6",
    "A 10/9s :: new reserve x A6 = ok | reserve x A6 = ok | old used A 6 | new used A 6",
    // one that somebody was admitted on is not given back
    "A 10/9s :: old reserve x A6 = ok | new hit A9 = ok | reserve x A6 = over A | old used A 6 | new used A 9",
    // completions go to where it was reserved
    "A 10/9s :: old reserve x A6 = ok | void x A = ok | old used A 0 | new used A 0",
    "A 10/9s :: new reserve x A6 = ok | void x A = ok | old used A 0 | new used A 0",
    "A 10/9s :: old reserve x A6 = ok | settle x A2/9s = ok | old used A 2 | new used A 0",
    "A 10/9s :: new reserve x A6 = ok | settle x A2/9s = ok | old used A 0 | new used A 2",
    "A 10/1s :: old reserve x A6 = ok | wait 2 | void x A = expired",
    "A 10/1s :: new reserve x A6 = ok | wait 2 | void x A = expired",
    "A 10/9s :: void x A = unknown",
    // what a completion takes is taken by both or by none
    "A 10/9s :: reserve x A4 = ok | more x A3/9s = ok | old used A 7 | new used A 7",
    "A 10/9s :: reserve x A4 = ok | new hit A5 = ok | more x A3/9s = over A | old used A 4 | new used A 9 | more x A3/9s = burnt | old used A 4",
    "A 10/9s :: reserve x A4 = ok | old hit A5 = ok | more x A3/9s = over A | old used A 9 | new used A 4",
    "A 10/9s :: debt x A7 = ok | old owes A 7 | new owes A 7 | owes A 7",
    "A 10/9s :: old debt x A7 = ok | owes A 7 | new owes A 0",
    // what is owed can't be given back, so the new one owes what it has no room for
    "A 10/9s :: new hit A8 = ok | charge x A5:2 = ok | old used A 5 | old owes A 2 | new used A 8 | new owes A 7 | charge x A5:2 = ok | new owes A 7 | old owes A 2",
    "A 10/9s :: old hit A8 = ok | charge x A5:2 = over A | new used A 0 | new owes A 0",
    // as much as both have, and both hold that
    "A 10/9s :: old hit A7 = ok | take x A9 = took 3 | old used A 10 | new used A 3",
    "A 10/9s :: new hit A7 = ok | take x A9 = took 3 | old used A 3 | new used A 10 | take x A9 = took 3 | old used A 3",
    "A 10/9s :: new hit A7 = ok | take x A9 = took 3 | untake x A = ok | untake x A = ok | old used A 0 | new used A 7",
    "A 10/9s :: new hit A7 = ok | take x A9 = took 3 | keep x A2/9s = ok | new used A 9 | unsettle x A = ok | old used A 0 | new used A 7",
    "A 10/9s :: new hit A10 = ok | take x A9 = took 0 | old used A 0 | untake x A = ok | new used A 10",
    "A 10/9s :: old hit A10 = ok | take x A9 = took 0 | new used A 0",
    "A 10/9s | B 10/9s :: new hit A7 = ok | old hit B6 = ok | take x A9 B9 = took 3+4 | old used A 3 | new used A 10 | old used B 10 | new used B 4",
    "A 10/9s | B 10/9s :: new hit B8 = ok | hit A1 B3 = over B | old used A 0 | old used B 0 | new used A 0",
];

#[tokio::test]
async fn what_only_one_of_them_has_is_respected() {
    for row in SPLIT_ROWS {
        run_split(row).await;
    }
}
