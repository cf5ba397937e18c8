//! What is said comes back as it was meant, and what can't be meant is named.

use smallvec::smallvec;

use super::*;
use crate::ledger::{LedgerError, Outcome, Refusal, RefusalCode, TransferSet, Verdict};
use crate::limit::LimitKey;

fn account(key: &str) -> Arc<Account> {
    Arc::new(Account::new(LimitKey::new(key)))
}

fn hold(overage: Overage) -> Hold {
    let lifetime_seconds = NonZeroU32::MAX;
    Hold { amount: u64::MAX, lifetime_seconds, capacity: 7, is_exact: true, overage }
}

fn whole() -> Chain {
    let actions = [
        Action::Reserve(hold(Overage::Deny)),
        Action::TakeUpTo(hold(Overage::Debt)),
        Action::Rereserve(hold(Overage::Repay)),
        Action::Debt(hold(Overage::Repay)),
        Action::Void,
        Action::VoidTaken,
        Action::VoidRereserved,
    ];
    let transfers = actions.map(|action| Transfer { account: account("d:k=v:minute"), action });
    Chain { lease: LeaseId::parse("x"), keep: Keep::Nothing, transfers: transfers.into_iter().collect() }
}

#[test]
fn a_chain_arrives_as_it_was_sent() {
    let keeps = [Keep::Nothing, Keep::ForUndo, Keep::ForCompletion, Keep::Name, Keep::ForRetries];
    for (keep, lease) in keeps.into_iter().zip(["x", "01ARZ3NDEKTSV4RRFFQ69G5FAV", "job:7", "y", "z"]) {
        let sent = Chain { lease: LeaseId::parse(lease), keep, ..whole() };
        let read = read_chain(&chain(&sent), &account).unwrap();
        assert_eq!((&read.lease, read.keep), (&sent.lease, sent.keep));
        let actions = |chain: &Chain| chain.transfers.iter().map(|it| it.action).collect::<Vec<_>>();
        assert_eq!(actions(&read), actions(&sent));
        assert_eq!(read.transfers[0].account.id, sent.transfers[0].account.id);
    }
}

#[test]
fn what_is_not_a_chain_is_named() {
    let refused = |change: &dyn Fn(&mut pb::Chain)| {
        let mut message = chain(&whole());
        change(&mut message);
        read_chain(&message, &account).unwrap_err()
    };
    type Change<'c> = &'c dyn Fn(&mut pb::Chain);
    let rows: &[(Change<'_>, &str)] = &[
        (
            &|it| it.transfers[0].capacity = 1 << 63,
            "chain.transfers[0].capacity: may be 9223372036854775807, and is 9223372036854775808",
        ),
        (&|it| it.lease.clear(), "chain.lease: must have 1 to 128 bytes, and has 0"),
        (&|it| it.lease = "x".repeat(129), "chain.lease: must have 1 to 128 bytes, and has 129"),
        (&|it| it.keep = 99, "chain.keep: 99 is none of those that this hub knows"),
        (&|it| it.transfers.clear(), "chain.transfers: there must be 1 to 64, not 0"),
        (
            &|it| it.transfers = vec![it.transfers[0].clone(); 65],
            "chain.transfers: there must be 1 to 64, not 65",
        ),
        (&|it| it.transfers[1].key.clear(), "chain.transfers[1].key: must have 1 to 262144 bytes, and has 0"),
        (
            &|it| it.transfers[1].action = 99,
            "chain.transfers[1].action: 99 is none of those that this hub knows",
        ),
        (
            &|it| it.transfers[1].lifetime_seconds = 0,
            "chain.transfers[1].lifetime_seconds: must be at least 1",
        ),
        (
            &|it| it.transfers[1].overage = 9,
            "chain.transfers[1].overage: 9 is none of those that this hub knows",
        ),
    ];
    for (change, expected) in rows {
        assert_eq!(refused(change), *expected);
    }
}

#[test]
fn an_outcome_arrives_as_it_was_sent() {
    let failed = [1, 3].into_iter().collect::<TransferSet>();
    let refusal = Refusal { index: 1, code: RefusalCode::ExceedsCredits, failed };
    let sent = [
        Outcome::bare(Verdict::Done),
        Outcome::bare(Verdict::Refused(refusal)),
        Outcome {
            is_repeat: true,
            taken: smallvec![3],
            available: smallvec![1, 2],
            ..Outcome::bare(Verdict::Done)
        },
    ];
    for sent in sent {
        let pb::answer::What::Outcome(message) = outcome(&sent, None, Vec::new()) else {
            panic!("an outcome")
        };
        assert_eq!(read_outcome(&message, 4), Ok(sent));
    }
    let beyond = pb::Refusal { index: 4, code: pb::RefusalCode::InDebt.into(), ..Default::default() };
    let message = pb::Outcome { refusal: Some(beyond), ..Default::default() };
    assert_eq!(read_outcome(&message, 4).unwrap_err(), "refusal.index: there is no 4");
}

#[test]
fn failures_arrive_as_they_were_sent() {
    for error in [
        LedgerError::TimedOut(250),
        LedgerError::QueueFull { waiting: 7, per_second: Some(2.5) },
        LedgerError::QueueFull { waiting: 7, per_second: None },
        LedgerError::Full(9),
    ] {
        let pb::answer::What::Failure(message) = failure(&error) else { panic!("a failure") };
        assert_eq!(read_failure(&message, "h"), error);
    }
    let pb::answer::What::Failure(message) = failure(&LedgerError::Unavailable("gone".to_owned())) else {
        panic!("a failure")
    };
    assert_eq!(read_failure(&message, "h"), LedgerError::Unavailable("hub h: gone".to_owned()));
}

#[test]
fn another_major_version_is_told() {
    let mut other = hello("x");
    assert_eq!(check_hello(&other, "hub"), Ok(()));
    other.minor += 1;
    assert_eq!(check_hello(&other, "hub"), Ok(()));
    other.major += 1;
    assert!(check_hello(&other, "hub").unwrap_err().contains("speaks version 2.4 of LedgerService"));
}

#[test]
fn a_loan_is_what_was_asked_for_or_less() {
    let lent = |units, for_ms| match lent(units, for_ms, Vec::new()) {
        pb::answer::What::Outcome(outcome) => outcome,
        other => panic!("{other:?}"),
    };
    assert_eq!(read_loan(&lent(7, 500), 7), Ok(Some((7, 500))));
    assert_eq!(read_loan(&lent(1, 25), 7), Ok(Some((1, 25))));
    assert_eq!(read_loan(&pb::Outcome { taken: vec![7], ..Default::default() }, 7), Ok(None), "applied");
    let several = pb::Outcome { taken: vec![1, 1], loan_ms: 5, ..Default::default() };
    let refused = pb::Outcome { refusal: Some(pb::Refusal::default()), ..lent(1, 5) };
    for wrong in [lent(8, 500), lent(0, 500), several, refused] {
        let error = read_loan(&wrong, 7).unwrap_err();
        assert!(error.starts_with("loan: 7 were asked for"), "{error}");
    }
    let pb::answer::What::Outcome(full) = full(70) else { panic!("it must be an outcome") };
    assert_eq!((full.full_ms, read_loan(&full, 7)), (70, Ok(None)));
    let code = RefusalCode::ExceedsCredits;
    assert_eq!(read_outcome(&full, 1).unwrap().verdict, Verdict::Refused(Refusal::one(0, code)));
}

#[test]
fn the_end_of_a_loan_arrives_as_it_was_sent() {
    let (account, name) = (account("d:k=v:minute"), LeaseId::fresh(7, 9));
    let end = LoanEnd { account, name: name.clone(), spent: 3, last_ms: 1_000, tell_within_ms: 0 };
    let message = loan_end(&end, 1_250);
    assert_eq!((message.spent, message.last_ago_ms), (3, 250));
    assert_eq!(read_loan_end(&message), Ok((end.account.id, name.bits())));
    let without_key = pb::LoanEnd { key: String::new(), ..message.clone() };
    assert_eq!(read_loan_end(&without_key).unwrap_err(), "key: must have 1 to 262144 bytes, and has 0");
    let without_name = pb::LoanEnd { lease: String::new(), ..message };
    assert_eq!(read_loan_end(&without_name).unwrap_err(), "lease: must have 1 to 128 bytes, and has 0");
}
