//! What is done for an ask of a sidecar: read and checked, asked of the ledger, and put into words again.

use std::num::NonZeroU32;
use std::sync::Arc;

use super::line::Answered;
use super::{Hub, line, newcomers};
use crate::ledger::hub::pb::answer::What as Answer;
use crate::ledger::hub::pb::ask::What as Ask;
use crate::ledger::hub::{pb, wire};
use crate::ledger::{
    Account, Action, Backend, Balance, Chain, Ledger, LedgerError, Lent, Outcome, Refusal, RefusalCode,
    Rotation, Transfer, Verdict, Want,
};
use crate::limit::{Kind, LimitSpec, Overage};

/// A sidecar is told when a quarter of the capacity fits, two quarters, and so on.
const REPAID_QUARTERS: u64 = 4;

/// Does what was asked. A failure is an answer too.
pub(super) async fn answer(hub: &Hub, what: Option<Ask>) -> Answered {
    let answered = match what {
        None => {
            let version = env!("CARGO_PKG_VERSION");
            Err(format!("Sluice {version} doesn't know what was asked: the sidecar is newer"))
        }
        Some(Ask::Join(join)) => line::join(hub, join).await,
        Some(Ask::Find(find)) => line::find(hub, &find),
        Some(Ask::Leave(leave)) => line::leave(hub, &leave).await,
        Some(what) => done(hub, what).await.map(|answer| (answer, None)),
    };
    answered.unwrap_or_else(|text| (invalid(text), None))
}

/// The same; what is wrong with the ask if anything is.
async fn done(hub: &Hub, what: Ask) -> Result<Answer, String> {
    let ledger = &*hub.ledger;
    let account = |key: &str| hub.service.admission.accounts.of(key);
    Ok(match what {
        Ask::Apply(chain) => {
            let slab = NonZeroU32::new(chain.slab_window_seconds);
            let chain = wire::read_chain(&chain, &account)?;
            let applied = match newcomers::apply(hub, &chain, slab).await {
                Ok(Lent::Units { units, for_ms }) => {
                    return Ok(wire::lent(units, for_ms, samples(ledger, &chain)));
                }
                Ok(Lent::Full { for_ms }) => return Ok(wire::full(for_ms)),
                Ok(Lent::Applied(outcome)) => Ok(outcome),
                Err(error) => Err(error),
            };
            let is_done = applied.as_ref().is_ok_and(|outcome| outcome.verdict == Verdict::Done);
            let samples = if is_done { samples(ledger, &chain) } else { Vec::new() };
            outcome(ledger, &chain, applied, samples)
        }
        Ask::Complete(chain) => {
            let chain = wire::read_chain(&chain, &account)?;
            let result = ledger.complete(&chain).await;
            if result.is_ok() {
                line::freed(hub, &chain);
            }
            outcome(ledger, &chain, result, Vec::new())
        }
        Ask::GiveBack(chain) => {
            let chain = wire::read_chain(&chain, &account)?;
            if !chain.can_be_given_back() {
                return Err("give_back: only what reserves can be given back".to_owned());
            }
            let limits: Vec<_> = chain.transfers.iter().map(|transfer| transfer.account.id).collect();
            ledger.give_back(chain);
            hub.service.queue.freed(limits.into_iter());
            Answer::Done(pb::Done {})
        }
        Ask::Provision(wants) => {
            let wants = wire::read_wants(&wants, &account)?;
            let capacities = wants.iter().map(|want| (want.account.id, want.capacity));
            hub.service.queue.capacities_are(capacities);
            match ledger.provision(wants.clone()).await {
                Ok(()) => balances(ledger.balances(wants).await),
                Err(error) => wire::failure(&error),
            }
        }
        Ask::Balances(wants) => balances(ledger.balances(wire::read_wants(&wants, &account)?).await),
        Ask::Schedule(want) => {
            let want = wire::read_want(&want, &account)?;
            match ledger.schedule(&want.account, want.lifetime_seconds).await {
                Ok(schedule) => wire::schedule(schedule),
                Err(error) => wire::failure(&error),
            }
        }
        Ask::Forgive(want) => match ledger.forgive(wire::read_want(&want, &account)?).await {
            Ok(()) => Answer::Done(pb::Done {}),
            Err(error) => wire::failure(&error),
        },
        Ask::Samples(wants) => {
            let wants = wire::read_wants(&wants, &account)?;
            let samples = wants.iter().map(|want| sample(ledger, &want.account, want)).collect();
            Answer::Samples(pb::Samples { samples })
        }
        Ask::Join(_) | Ask::Find(_) | Ask::Leave(_) => return Err("it is asked of the line".to_owned()),
    })
}

pub(super) fn invalid(text: String) -> Answer {
    let code = pb::FailureCode::Invalid.into();
    Answer::Failure(pb::LedgerFailure { code, text, ..Default::default() })
}

fn outcome(
    ledger: &Rotation<Backend>,
    chain: &Chain,
    result: Result<Outcome, LedgerError>,
    samples: Vec<pb::Sample>,
) -> Answer {
    let result = match result {
        Ok(result) => result,
        Err(error) => return wire::failure(&error),
    };
    let owing = match result.verdict {
        Verdict::Refused(Refusal { code: RefusalCode::InDebt, index, .. }) => {
            chain.transfers.get(index).and_then(|transfer| owing(ledger, transfer))
        }
        _ => None,
    };
    wire::outcome(&result, owing, samples)
}

/// What is left of the limits that a chain takes from, as far as is known.
fn samples(ledger: &Rotation<Backend>, chain: &Chain) -> Vec<pb::Sample> {
    let left = |transfer: &Transfer| {
        let (Action::Reserve(hold) | Action::TakeUpTo(hold)) = transfer.action else { return None };
        let kind = Kind::Rolling { window_seconds: hold.lifetime_seconds };
        let spec = LimitSpec::of_another(kind, hold.capacity, hold.overage);
        let available = ledger.sample(&transfer.account, &spec);
        Some(pb::Sample { available, ..Default::default() })
    };
    chain.transfers.iter().filter_map(left).collect()
}

/// What is known of the limit that refused a chain because it owes.
fn owing(ledger: &Rotation<Backend>, transfer: &Transfer) -> Option<pb::Sample> {
    let (Action::Reserve(hold) | Action::TakeUpTo(hold)) = transfer.action else { return None };
    let want = Want {
        account: Arc::clone(&transfer.account),
        capacity: hold.capacity,
        overage: hold.overage,
        lifetime_seconds: hold.lifetime_seconds,
    };
    Some(sample(ledger, &transfer.account, &want))
}

fn balances(balances: Result<Vec<Balance>, LedgerError>) -> Answer {
    let message = |it: &Balance| pb::Balance { capacity: it.capacity, used: it.used, debt: it.debt };
    match balances {
        Ok(balances) => Answer::Balances(pb::Balances { balances: balances.iter().map(message).collect() }),
        Err(error) => wire::failure(&error),
    }
}

/// What is known of an account without a round trip.
fn sample(ledger: &Rotation<Backend>, account: &Arc<Account>, want: &Want) -> pb::Sample {
    let kind = Kind::Rolling { window_seconds: want.lifetime_seconds };
    let spec = LimitSpec::of_another(kind, want.capacity, want.overage);
    let owed = if want.overage == Overage::Repay { ledger.owed(account, &spec) } else { 0 };
    let mut repaid = Vec::new();
    if owed > 0 {
        let mut amounts: Vec<u64> =
            (1..=REPAID_QUARTERS).map(|n| want.capacity / REPAID_QUARTERS * n).collect();
        amounts.extend([1, want.capacity]);
        amounts.retain(|amount| *amount > 0);
        amounts.sort_unstable();
        amounts.dedup();
        let in_ms =
            |amount| Some(pb::Release { amount, in_ms: ledger.repaid_in_ms(account, &spec, amount)? });
        repaid.extend(amounts.into_iter().filter_map(in_ms));
    }
    pb::Sample {
        available: ledger.sample(account, &spec),
        is_decreasing: ledger.is_decreasing(account, &spec),
        owed,
        repaid,
    }
}
