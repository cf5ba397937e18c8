//! Rows computed by hand: what was held, what was used and when, and what the ledger is asked.

use super::*;
use crate::limit::{Kind, LimitKey};

const RESERVED_AT_MS: u64 = 1_760_000_000_000;

fn seconds(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).unwrap()
}

/// `r10/60` is a rolling limit with 10 reserved for 60 s, `c1/300` a concurrency limit.
fn held(text: &str) -> Held {
    let (amount, life) = text[1..].split_once('/').unwrap();
    let life = seconds(life.parse().unwrap());
    let kind = match &text[..1] {
        "c" => Kind::Concurrency { timeout_seconds: life },
        _ => Kind::Rolling { window_seconds: life },
    };
    Held {
        key: LimitKey::new(&format!("d:k=v:{text}")),
        amount: amount.parse().unwrap(),
        kind,
        overage: Overage::Debt,
        costs_hits: !kind.is_concurrency(),
        is_named: false,
    }
}

fn lease(held_texts: &[&str]) -> Lease {
    let id = LeaseId::parse("01ARZ3NDEKTSV4RRFFQ69G5FAV");
    Lease {
        id,
        reserved_at_unix_ms: RESERVED_AT_MS,
        held: held_texts.iter().map(|text| held(text)).collect(),
    }
}

fn say(adjustment: Option<Adjustment>) -> String {
    let account = Arc::new(Account::new(LimitKey::new("k")));
    let Some(adjustment) = adjustment else { return "-".to_owned() };
    let chain = adjustment.chain(&held("r10/60"), &LeaseId::parse("x"), &account, Some(100)).unwrap();
    say_chain(&chain)
}

fn say_chain(chain: &Chain) -> String {
    let word = |transfer: &Transfer| match transfer.action {
        Action::Reserve(_) => "reserve".to_owned(),
        Action::Void => "void".to_owned(),
        Action::Rereserve(hold) => format!("take {} for {} s", hold.amount, hold.lifetime_seconds),
        Action::TakeUpTo(hold) => format!("take up to {} for {} s", hold.amount, hold.lifetime_seconds),
        Action::Debt(hold) => {
            format!("owe {}, {} for {} s", hold.amount, hold.overage.name(), hold.lifetime_seconds)
        }
        Action::VoidTaken | Action::VoidRereserved => "void what was taken".to_owned(),
    };
    chain.transfers.iter().map(word).collect::<Vec<_>>().join(", ")
}

#[test]
fn rows() {
    for (held_text, used, after_ms, expected) in [
        // concurrency comes back whatever was said about it
        ("c1/300", None, 0, "void"),
        ("c1/300", Some(7), 299_999, "void"),
        ("c1/300", None, 300_000, "-"),
        // nothing to give back, nothing to take
        ("r10/60", None, 1_000, "-"),
        ("r10/60", Some(10), 1_000, "-"),
        // less
        ("r10/60", Some(4), 0, "void, take 4 for 60 s"),
        ("r10/60", Some(4), 999, "void, take 4 for 60 s"),
        ("r10/60", Some(4), 1_000, "void, take 4 for 59 s"),
        ("r10/60", Some(9), 59_999, "void, take 9 for 1 s"),
        ("r10/60", Some(0), 59_999, "void"),
        // more
        ("r10/60", Some(11), 30_500, "take 1 for 30 s"),
        ("r10/60", Some(u64::MAX), 0, "take 18446744073709551605 for 60 s"),
        ("r10/1", Some(12), 999, "take 2 for 1 s"),
        // after its end what it held has come back, and what was used beyond that is owed
        ("r10/60", Some(4), 60_000, "-"),
        ("r10/60", Some(0), 60_000, "-"),
        ("r10/60", Some(10), 60_000, "-"),
        ("r10/60", None, 60_000, "-"),
        ("r10/60", Some(40), 60_000, "owe 30, debt for 60 s, take 0 for 1 s"),
        ("r10/60", Some(u64::MAX), 90_000, "owe 18446744073709551605, debt for 60 s, take 0 for 1 s"),
        ("r10/60", Some(11), 3_659_999, "owe 1, debt for 60 s, take 0 for 1 s"),
        // an hour later nobody remembers it
        ("r10/60", Some(11), 3_660_000, "-"),
        ("r10/60", Some(40), 86_400_000, "-"),
        ("r10/4294967295", Some(4), 4_294_967_294_000, "void, take 4 for 1 s"),
    ] {
        let lease = lease(&[held_text]);
        let steps = settle(&lease, &[used], RESERVED_AT_MS + after_ms);
        let said = say(steps.first().map(|step| step.adjustment));
        assert_eq!(said, expected, "{held_text} used {used:?} after {after_ms} ms");
    }
}

#[test]
fn what_comes_after_the_end_is_owed_only_where_there_are_debts() {
    let late = |held: Held| {
        let lease = Lease { held: vec![held], ..lease(&[]) };
        settle(&lease, &[Some(40)], RESERVED_AT_MS + 60_000)
    };
    let owes = [Settlement { index: 0, adjustment: Adjustment::Owe { by: 30 } }];
    assert_eq!(late(Held { overage: Overage::Debt, ..held("r10/60") }), owes);
    assert_eq!(late(Held { overage: Overage::Repay, ..held("r10/60") }), owes);
    assert_eq!(late(Held { overage: Overage::Deny, ..held("r10/60") }), []);
    assert_eq!(late(held("c10/60")), []);
}

#[test]
fn a_clock_that_is_behind_has_seen_no_time_pass() {
    let steps = settle(&lease(&["r10/60"]), &[Some(4)], RESERVED_AT_MS - 5_000);
    assert_eq!(say(Some(steps[0].adjustment)), "void, take 4 for 60 s");
}

#[test]
fn each_limit_is_settled_on_its_own() {
    let lease = lease(&["r10/60", "c1/300", "r5/10", "r7/60"]);
    let steps = settle(&lease, &[Some(3), None, Some(1), Some(7)], RESERVED_AT_MS + 15_000);
    let said: Vec<String> =
        steps.iter().map(|step| format!("{}: {}", step.index, say(Some(step.adjustment)))).collect();
    assert_eq!(said, ["0: void, take 3 for 45 s", "1: void"]);
}

#[test]
fn a_limit_that_no_file_knows_any_more_can_only_come_back_whole() {
    let account = Arc::new(Account::new(LimitKey::new("k")));
    let (id, remaining_seconds) = (LeaseId::parse("x"), seconds(9));
    let is_possible =
        |adjustment: Adjustment| adjustment.chain(&held("r10/60"), &id, &account, None).is_some();
    assert!(is_possible(Adjustment::Release));
    assert!(!is_possible(Adjustment::Lower { to: 1, remaining_seconds }));
    assert!(!is_possible(Adjustment::Raise { by: 1, remaining_seconds }));
    assert!(!is_possible(Adjustment::Owe { by: 1 }));
}

#[test]
fn what_follows_a_refusal() {
    let account = Arc::new(Account::new(LimitKey::new("k")));
    let remaining_seconds = seconds(9);
    let (lower, raise) =
        (Adjustment::Lower { to: 4, remaining_seconds }, Adjustment::Raise { by: 4, remaining_seconds });
    let owe = Adjustment::Owe { by: 4 };
    for (adjustment, index, code, overage, expected) in [
        (lower, 0, RefusalCode::PendingTransferExpired, Overage::Deny, "take 4 for 9 s"),
        (lower, 0, RefusalCode::PendingTransferNotFound, Overage::Debt, "-"),
        (lower, 0, RefusalCode::IdAlreadyFailed, Overage::Debt, "-"),
        (lower, 1, RefusalCode::ExistsWithDifferentFields, Overage::Debt, "-"),
        (raise, 0, RefusalCode::ExceedsCredits, Overage::Debt, "owe 4, debt for 60 s"),
        (raise, 0, RefusalCode::IdAlreadyFailed, Overage::Debt, "owe 4, debt for 60 s"),
        (raise, 0, RefusalCode::ExceedsCredits, Overage::Repay, "owe 4, repay for 60 s"),
        (raise, 0, RefusalCode::ExceedsCredits, Overage::Deny, "take up to 4 for 9 s"),
        (raise, 0, RefusalCode::IdAlreadyFailed, Overage::Deny, "take up to 4 for 9 s"),
        (raise, 0, RefusalCode::ExistsWithDifferentFields, Overage::Debt, "-"),
        (owe, 1, RefusalCode::IdAlreadyFailed, Overage::Repay, "owe 4, repay for 60 s"),
        (owe, 1, RefusalCode::ExistsWithDifferentFields, Overage::Repay, "-"),
        (Adjustment::Release, 0, RefusalCode::PendingTransferExpired, Overage::Debt, "-"),
        (Adjustment::Release, 0, RefusalCode::PendingTransferAlreadyVoided, Overage::Debt, "-"),
    ] {
        let refusal = Refusal::one(index, code);
        let held = Held { overage, ..held("r10/60") };
        let next = adjustment.after_refusal(refusal, &held, &LeaseId::parse("x"), &account, Some(100));
        assert_eq!(
            next.map_or("-".to_owned(), |chain| say_chain(&chain)),
            expected,
            "{adjustment:?} {code:?}"
        );
    }
}

#[test]
fn reports_of_one_call_count_together() {
    let lease = lease(&["r10/60", "r20/60", "c1/300"]);
    let fixed = Lease {
        held: lease.held.iter().map(|held| Held { costs_hits: false, ..held.clone() }).collect(),
        ..lease.clone()
    };
    let report = |limit, used| Report { lease: "", limit, used };
    let (hits, refund) = (|n| Some(Used::Hits(n)), |n| Some(Used::Refund(n)));
    for (reports, expected) in [
        (vec![report(None, None)], [None, None, None]),
        (vec![report(None, hits(7))], [Some(7), Some(7), None]),
        (vec![report(Some("r10/60"), hits(7))], [Some(7), None, None]),
        (vec![report(Some("r10/60"), hits(7)), report(Some("r20/60"), hits(9))], [Some(7), Some(9), None]),
        (vec![report(Some("r10/60"), hits(7)), report(None, hits(2))], [Some(9), Some(2), None]),
        (vec![report(None, hits(7)), report(None, None), report(None, hits(1))], [Some(8), Some(8), None]),
        (vec![report(None, refund(4))], [Some(6), Some(16), None]),
        (vec![report(None, refund(15))], [Some(0), Some(5), None]),
        (vec![report(None, refund(2)), report(Some("r10/60"), hits(9))], [Some(7), Some(18), None]),
        (vec![report(Some("nothing"), hits(7))], [None, None, None]),
        (vec![report(None, hits(0))], [Some(0), Some(0), None]),
        (vec![report(None, hits(u64::MAX)), report(None, hits(9))], [Some(u64::MAX), Some(u64::MAX), None]),
    ] {
        assert_eq!(used_by_reports(&lease, &reports), expected, "{reports:?}");
        assert_eq!(used_by_reports(&fixed, &reports), [None; 3], "a fixed cost is known from the start");
    }
}
