//! Chains in TigerBeetle's words, and its results in ours. Pure; the only file that knows labels and flags.
//!
//! Accounts and labels: one ledger, one code, an operator on the other side of every transfer.

use std::num::NonZeroU32;
use std::sync::OnceLock;

use tigerbeetle_unofficial as tb;

use tb::error::CreateTransferErrorKind as Kind;
use tb::transfer::Flags;

use super::capacity::Item;
use crate::ledger::{Account, Action, Chain, Hold, Refusal, RefusalCode, Transfer, TransferIds, Verdict};
use crate::limit::LeaseId;
use crate::limit::id::{digest_id, time_ordered_id};

const LEDGER_LIMITS: u32 = 1;
const CODE_LIMIT: u16 = 1;

/// Who made the claim on an abandoned name: the one who asked again, or the one who gave it back.
const CODE_CLAIM_AGAIN: u16 = 2;
const CODE_CLAIM_VOID: u16 = 3;

impl TransferIds {
    fn id(self, lease: &LeaseId, parts: &[&str]) -> u128 {
        match (self, lease.unix_ms()) {
            (Self::TimeOrdered, Some(ms)) => time_ordered_id(ms, parts),
            _ => digest_id(parts),
        }
    }
}

/// How the labels of reserves begin.
const RESERVE: &str = "xfer:reserve:";
const RERESERVE: &str = "xfer:rereserve:";
const TAKE: &str = "xfer:take:";

/// The ids of one lease's transfers.
struct Names<'a> {
    ids: TransferIds,
    lease: &'a LeaseId,
    lease_text: String,
}

impl<'a> Names<'a> {
    fn new(ids: TransferIds, lease: &'a LeaseId) -> Self {
        Self { ids, lease, lease_text: lease.to_string() }
    }

    fn id(&self, label: &str, account: &Account) -> u128 {
        self.ids.id(self.lease, &[label, &self.lease_text, ":", account.key.as_str()])
    }
}

/// The operator is on the other side of every transfer, so its label is hashed once.
pub(super) fn operator_id() -> u128 {
    static ID: OnceLock<u128> = OnceLock::new();
    *ID.get_or_init(|| digest_id(&["acct:operator"]))
}

pub(super) fn operator_account() -> tb::Account {
    tb::Account::new(operator_id(), LEDGER_LIMITS, CODE_LIMIT)
}

pub(super) fn limit_account(account: &Account) -> tb::Account {
    tb::Account::new(account.id.bits(), LEDGER_LIMITS, CODE_LIMIT)
        .with_flags(tb::account::Flags::DEBITS_MUST_NOT_EXCEED_CREDITS)
}

pub(super) fn debt_account(account: &Account) -> tb::Account {
    tb::Account::new(account.debt_id(), LEDGER_LIMITS, CODE_LIMIT)
}

fn transfer(id: u128, from: u128, to: u128, amount: u64) -> tb::Transfer {
    tb::Transfer::new(id)
        .with_debit_account_id(from)
        .with_credit_account_id(to)
        .with_ledger(LEDGER_LIMITS)
        .with_code(CODE_LIMIT)
        .with_amount(u128::from(amount))
}

/// Appends the chain, linked.
pub(super) fn push_chain(out: &mut Vec<tb::Transfer>, ids: TransferIds, chain: &Chain) {
    push_linked(out, ids, chain);
    end_chain(out);
}

/// Gives a part of a sum back: what it holds of each account is voided and the rest reserved anew, each account on its
/// own. One whose window is over would keep the others from it.
pub(super) fn push_take_out(
    out: &mut Vec<tb::Transfer>,
    ids: TransferIds,
    void: &Chain,
    rest: Option<&Chain>,
) {
    let alone = |chain: &Chain, index: usize| Chain {
        lease: chain.lease.clone(),
        keep: chain.keep,
        transfers: smallvec::smallvec![chain.transfers[index].clone()],
    };
    for index in 0..void.transfers.len() {
        push_linked(out, ids, &alone(void, index));
        if let Some(rest) = rest {
            push_linked(out, ids, &alone(rest, index));
        }
        end_chain(out);
    }
}

fn push_linked(out: &mut Vec<tb::Transfer>, ids: TransferIds, chain: &Chain) {
    let names = Names::new(ids, &chain.lease);
    let operator = operator_id();
    for step in &chain.transfers {
        let account = &step.account;
        out.push(match step.action {
            Action::Reserve(hold) => pending(names.id(RESERVE, account), account, hold, Flags::LINKED),
            Action::Rereserve(hold) => pending(names.id(RERESERVE, account), account, hold, Flags::LINKED),
            Action::TakeUpTo(hold) => {
                pending(names.id(TAKE, account), account, hold, Flags::LINKED | Flags::BALANCING_DEBIT)
            }
            Action::Void => void(&names, account, "xfer:void:", RESERVE),
            Action::VoidTaken => void(&names, account, "xfer:void-take:", TAKE),
            Action::VoidRereserved => void(&names, account, "xfer:void-rereserve:", RERESERVE),
            Action::Debt(hold) => {
                transfer(names.id("xfer:debt:", account), account.debt_id(), operator, hold.amount)
                    .with_flags(Flags::LINKED)
            }
        });
    }
}

/// A chain ends with the first transfer that isn't linked.
fn end_chain(out: &mut [tb::Transfer]) {
    if let Some(last) = out.last_mut() {
        last.set_flags(last.flags() - Flags::LINKED);
    }
}

/// Gives back an abandoned reserve, unless somebody who sent the same name again has claimed it. An amount of 0 stands for a
/// transfer that has ended by itself.
pub(super) fn push_give_back(out: &mut Vec<tb::Transfer>, ids: TransferIds, chain: &Chain) {
    let names = Names::new(ids, &chain.lease);
    let Some(first) = chain.transfers.first() else { return };
    out.push(claim(&names, &first.account, CODE_CLAIM_VOID).with_flags(Flags::LINKED));
    let is_there = |step: &&Transfer| !matches!(step.action, Action::Reserve(Hold { amount: 0, .. }));
    out.extend(chain.transfers.iter().filter(is_there).map(|step| void_of(&names, step)));
    end_chain(out);
}

/// Gives a reserve back whose name nobody else knows. Each account on its own: one whose window is over would keep the
/// others from it.
pub(super) fn push_void(out: &mut Vec<tb::Transfer>, ids: TransferIds, chain: &Chain) {
    let names = Names::new(ids, &chain.lease);
    let alone = |transfer: tb::Transfer| transfer.with_flags(Flags::VOID_PENDING_TRANSFER);
    out.extend(chain.transfers.iter().map(|step| alone(void_of(&names, step))));
}

/// Voids what a transfer has reserved.
fn void_of(names: &Names<'_>, step: &Transfer) -> tb::Transfer {
    match step.action {
        Action::TakeUpTo(_) => void(names, &step.account, "xfer:void-take:", TAKE),
        _ => void(names, &step.account, "xfer:void:", RESERVE),
    }
}

fn void(names: &Names<'_>, account: &Account, label: &str, of: &str) -> tb::Transfer {
    tb::Transfer::new(names.id(label, account))
        .with_pending_id(names.id(of, account))
        .with_flags(Flags::VOID_PENDING_TRANSFER | Flags::LINKED)
}

fn pending(id: u128, account: &Account, hold: Hold, flags: Flags) -> tb::Transfer {
    transfer(id, account.id.bits(), operator_id(), hold.amount)
        .with_timeout(hold.lifetime_seconds.get())
        .with_flags(Flags::PENDING | flags)
}

/// The ids of those transfers of a chain whose amount only the ledger knows.
pub(super) fn takes(ids: TransferIds, chain: &Chain) -> Vec<u128> {
    let names = Names::new(ids, &chain.lease);
    let takes = chain.transfers.iter().filter(|step| matches!(step.action, Action::TakeUpTo(_)));
    takes.map(|step| names.id(TAKE, &step.account)).collect()
}

/// Claims a reserve that was found to exist.
pub(super) fn claim_again(ids: TransferIds, chain: &Chain) -> Option<tb::Transfer> {
    let names = Names::new(ids, &chain.lease);
    chain.transfers.first().map(|first| claim(&names, &first.account, CODE_CLAIM_AGAIN))
}

/// Asks whether all of a reserve is still held, and changes nothing: a chain of its voids that always fails at its end.
/// If it fails before that, the first void that fails says why. The voids have ids that nobody else uses. What may have
/// come from a slab is not asked for: the ledger may have none of it, or another part, under this name.
pub(super) fn push_verify(out: &mut Vec<tb::Transfer>, ids: TransferIds, chain: &Chain) {
    let names = Names::new(ids, &chain.lease);
    let nobodys_id = || fastrand::u128(1..u128::MAX);
    for step in chain.transfers.iter().filter(is_verified) {
        let Action::Reserve(hold) = step.action else { continue };
        out.push(
            tb::Transfer::new(nobodys_id())
                .with_pending_id(names.id("xfer:reserve:", &step.account))
                .with_amount(u128::from(hold.amount))
                .with_flags(Flags::VOID_PENDING_TRANSFER | Flags::LINKED),
        );
    }
    // No transfer may be from an account to itself.
    out.push(transfer(nobodys_id(), operator_id(), operator_id(), 0));
}

fn is_verified(transfer: &&Transfer) -> bool {
    matches!(transfer.action, Action::Reserve(Hold { is_exact: true, .. }))
}

/// What [`push_verify`] found.
pub(super) fn verified(landed: ChainResult, chain: &Chain) -> Verdict {
    let transfers = chain.transfers.iter().filter(is_verified).count();
    let refused = |index, code| Verdict::Refused(Refusal::one(index, code));
    match landed {
        ChainResult::Unexpected { index, kind: Kind::AccountsMustBeDifferent } if index == transfers => {
            Verdict::Done
        }
        ChainResult::Refused(Refusal {
            index,
            code: code @ (RefusalCode::PendingTransferAlreadyVoided | RefusalCode::PendingTransferExpired),
            ..
        }) => refused(index, code),
        ChainResult::Refused(Refusal { index, .. })
        | ChainResult::Unexpected { index, .. }
        | ChainResult::AccountMissing { index } => {
            refused(index.min(transfers.saturating_sub(1)), RefusalCode::ExistsWithDifferentFields)
        }
        ChainResult::Done | ChainResult::DoneBefore => refused(0, RefusalCode::ExistsWithDifferentFields),
    }
}

/// Moves nothing: it only takes an id that can be taken once.
fn claim(names: &Names<'_>, account: &Account, code: u16) -> tb::Transfer {
    transfer(names.id("xfer:claim:", account), account.id.bits(), operator_id(), 0).with_code(code)
}

/// A change of capacity, named by the totals that it starts from, so that it happens once whoever does it.
pub(super) fn capacity_change(item: &Item, change: CapacityChange) -> tb::Transfer {
    let id = totals_id("xfer:capacity:", item);
    let account = item.account.id.bits();
    match change {
        CapacityChange::Raise(amount) => transfer(id, operator_id(), account, amount),
        CapacityChange::Lower(amount) => transfer(id, account, operator_id(), amount),
    }
}

/// Moves both totals by one and leaves the capacity as it is, for when the name of the totals is used up. It fits
/// whatever the account holds.
pub(super) fn totals_move(item: &Item) -> [tb::Transfer; 2] {
    let account = item.account.id.bits();
    let raise = transfer(totals_id("xfer:move:raise:", item), operator_id(), account, 1);
    let lower = transfer(totals_id("xfer:move:lower:", item), account, operator_id(), 1);
    [raise.with_flags(Flags::LINKED), lower]
}

fn totals_id(label: &str, item: &Item) -> u128 {
    let Item { account, credits_posted, debits_posted, .. } = item;
    digest_id(&[&format!("{label}{}:{credits_posted}:{debits_posted}", account.key)])
}

/// Pays `amount` of a debt: posts it to the debt account, and reserves as much of the limit for a window. The first is
/// named by what has been `paid` so far, so that of all who see the same only one pays.
pub(super) fn payment(
    names: (TransferIds, &LeaseId),
    account: &Account,
    paid: u128,
    amount: u64,
    window_seconds: NonZeroU32,
) -> [tb::Transfer; 2] {
    let post = transfer(paid_id(account, paid), operator_id(), account.debt_id(), amount);
    // Refused once it would stay refused under its name, so it has a new one each time. It is done only with the other.
    let names = Names::new(names.0, names.1);
    let reserve = transfer(names.id("xfer:repay:", account), account.id.bits(), operator_id(), amount)
        .with_timeout(window_seconds.get())
        .with_flags(Flags::PENDING);
    [post.with_flags(Flags::LINKED), reserve]
}

/// Posts all that is owed, in the place of the next payment.
pub(super) fn forgiveness(account: &Account, debt: &tb::Account) -> tb::Transfer {
    transfer(paid_id(account, debt.credits_posted()), operator_id(), account.debt_id(), owed(debt))
}

fn paid_id(account: &Account, paid: u128) -> u128 {
    digest_id(&["xfer:repaid:", account.key.as_str(), ":", &paid.to_string()])
}

/// What a debt account owes: what was recorded less what was paid.
pub(super) fn owed(debt: &tb::Account) -> u64 {
    let owed = debt.debits_posted().saturating_sub(debt.credits_posted());
    u64::try_from(owed).unwrap_or(u64::MAX)
}

/// What a limit may hold, and what it holds.
pub(super) fn capacity_and_used(limit: &tb::Account) -> (u64, u64) {
    let clamp = |n: u128| u64::try_from(n).unwrap_or(u64::MAX);
    (clamp(limit.credits_posted().saturating_sub(limit.debits_posted())), clamp(limit.debits_pending()))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CapacityChange {
    Raise(u64),
    Lower(u64),
}

/// What a chain came to, in TigerBeetle's results for it.
#[derive(Debug, Clone, Copy)]
pub(super) enum ChainResult {
    Done,
    /// It was there already: done by an earlier sending of the same name.
    DoneBefore,
    Refused(Refusal),
    /// An account is not there (any more): nothing was done, and it must be made again.
    AccountMissing {
        index: usize,
    },
    /// Something that this program never sends was refused.
    Unexpected {
        index: usize,
        kind: Kind,
    },
}

/// Reads the failures of one chain; indexes count from its first transfer.
pub(super) fn chain_result(failures: &[(usize, Kind)]) -> ChainResult {
    let Some(&(index, kind)) = failures.iter().find(|(_, kind)| !matches!(kind, Kind::LinkedEventFailed))
    else {
        return ChainResult::Done;
    };
    let refused = |code| ChainResult::Refused(Refusal::one(index, code));
    match kind {
        // The timeout of a re-reserve is what was left of the window at the time.
        Kind::Exists | Kind::ExistsWithDifferentTimeout if index == 0 => ChainResult::DoneBefore,
        Kind::ExceedsCredits => refused(RefusalCode::ExceedsCredits),
        Kind::IdAlreadyFailed => refused(RefusalCode::IdAlreadyFailed),
        Kind::PendingTransferNotFound => refused(RefusalCode::PendingTransferNotFound),
        Kind::PendingTransferExpired => refused(RefusalCode::PendingTransferExpired),
        Kind::PendingTransferAlreadyVoided => refused(RefusalCode::PendingTransferAlreadyVoided),
        Kind::Exists
        | Kind::ExistsWithDifferentFlags
        | Kind::ExistsWithDifferentAmount
        | Kind::ExistsWithDifferentPendingId
        | Kind::ExistsWithDifferentDebitAccountId
        | Kind::ExistsWithDifferentCreditAccountId
        | Kind::ExistsWithDifferentTimeout
        | Kind::ExistsWithDifferentCode => refused(RefusalCode::ExistsWithDifferentFields),
        Kind::DebitAccountNotFound | Kind::CreditAccountNotFound => ChainResult::AccountMissing { index },
        other => ChainResult::Unexpected { index, kind: other },
    }
}
