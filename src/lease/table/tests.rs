//! The lease table, checked by cases and against a plain list.

use std::num::NonZeroU32;
use std::sync::Arc;

use proptest::prelude::*;
use smallvec::smallvec;

use super::*;
use crate::ledger::memory::Core;
use crate::ledger::{Account, Action, Chain, Hold, Keep, Transfer, Verdict};
use crate::limit::{LeaseId, LimitKey, Overage};

fn bytes(length: usize) -> Box<[u8]> {
    vec![7; length].into_boxed_slice()
}

/// A lease of that number.
fn bits(number: u128) -> LeaseBits {
    LeaseBits::new(number)
}

fn open(table: &LeaseTable, id: LeaseBits, ends_ms: u64) -> Option<LeaseState> {
    match table.open(id, bytes(9), ends_ms, |_| true) {
        Opened::New => None,
        Opened::Again(record) => Some(record.state),
        Opened::Taken => Some(LeaseState::Completed),
    }
}

#[test]
fn a_lease_is_found_until_it_ends() {
    let table = LeaseTable::new(10);
    assert_eq!(open(&table, bits(1), 5_000), None);
    assert_eq!(table.find(bits(1)), Some(LeaseRecord { state: LeaseState::Open, bytes: bytes(9) }));
    assert_eq!(table.find(bits(2)), None);
    assert_eq!(table.sweep(4_999), 0);
    assert_eq!(table.sweep(5_000), 1);
    assert_eq!((table.find(bits(1)), table.len()), (None, 0));
}

#[test]
fn the_first_of_a_name_stays() {
    let table = LeaseTable::new(10);
    assert_eq!(open(&table, bits(1), 5_000), None);
    assert_eq!(table.open(bits(1), bytes(3), 9_000, |there| there.len() == 3), Opened::Taken);
    assert!(table.complete(bits(1), bytes(9), 5_000, 0));
    assert_eq!(open(&table, bits(1), 5_000), Some(LeaseState::Completed));
    assert_eq!(table.len(), 1);
}

#[test]
fn a_completed_lease_is_completed_once_and_never_counts_as_unseen() {
    let table = LeaseTable::new(10);
    open(&table, bits(1), 5_000);
    assert!(table.complete(bits(1), bytes(9), 5_000, 0));
    assert!(!table.complete(bits(1), bytes(9), 5_000, 0));
    assert!(table.complete(bits(2), bytes(9), 5_000, 0), "one that was reserved elsewhere");
    assert_eq!(table.find(bits(2)).unwrap().state, LeaseState::Completed);
    assert_eq!((table.sweep(9_000), table.len()), (0, 0));
}

/// At any time after its completion a name is refused by this table, refused by the embedded ledger, or new to both. Then it
/// can be completed again, so nothing is charged that can't be released.
#[test]
fn a_completed_name_is_refused_or_new() {
    const LIFE_MS: u64 = 300_000;
    let account = Arc::new(Account::new(LimitKey::new("pool")));
    let lease = LeaseId::parse("job-1");
    let chain = |action| {
        let transfers = smallvec![Transfer { account: Arc::clone(&account), action }];
        Chain { lease: lease.clone(), keep: Keep::ForRetries, transfers }
    };
    let lifetime_seconds = NonZeroU32::new(300).unwrap();
    let reserve = chain(Action::Reserve(Hold {
        amount: 1,
        lifetime_seconds,
        capacity: 1,
        overage: Overage::Deny,
        is_exact: true,
    }));
    // Whether others fill the table, how long after the completion, who refuses it.
    let rows = [
        (false, 0, "table"),
        (false, 70_000, "table"),
        (false, LIFE_MS - 1_000, "table"),
        (false, LIFE_MS + 1_000, "nobody"),
        (true, 59_000, "table"),
        (true, 62_000, "ledger"),
        (true, 65_000, "ledger"),
        (true, 70_000, "nobody"),
    ];
    for (is_crowded, after_ms, expected) in rows {
        let (table, mut core) = (LeaseTable::new(4), Core::default());
        if is_crowded {
            (100..103).for_each(|other| assert_eq!(open(&table, bits(other), u64::MAX), None));
        }
        let used = |core: &mut Core, now_ms| core.balance(&account, 1, now_ms).used;
        assert_eq!(core.apply(&reserve, 0).unwrap().verdict, Verdict::Done);
        assert_eq!(open(&table, lease.bits(), LIFE_MS), None);
        assert_eq!(core.apply(&chain(Action::Void), 0).unwrap().verdict, Verdict::Done);
        assert!(table.complete(lease.bits(), bytes(9), LIFE_MS, 0));
        table.sweep(after_ms);
        let refused_by = match table.again(lease.bits(), |_| true) {
            Some(Opened::Taken) => "table",
            Some(other) => panic!("{other:?}"),
            None => match core.apply(&reserve, after_ms).unwrap() {
                outcome if outcome.verdict != Verdict::Done => "ledger",
                outcome => {
                    assert!(!outcome.is_repeat);
                    assert_eq!(open(&table, lease.bits(), after_ms + LIFE_MS), None);
                    assert_eq!(used(&mut core, after_ms), 1);
                    let done = core.apply(&chain(Action::Void), after_ms).unwrap();
                    assert_eq!(done.verdict, Verdict::Done);
                    "nobody"
                }
            },
        };
        assert_eq!(refused_by, expected, "{after_ms} ms later, crowded: {is_crowded}");
        assert_eq!(used(&mut core, after_ms), 0, "{after_ms} ms later, crowded: {is_crowded}");
    }
}

#[test]
fn a_lease_that_nobody_was_told_of_is_forgotten_with_its_last_answer() {
    let table = LeaseTable::new(10);
    let again = |id| assert!(matches!(table.open(bits(id), bytes(9), 5_000, |_| true), Opened::Again(_)));
    open(&table, bits(1), 5_000);
    again(1);
    assert_eq!((table.unsent(bits(1)), table.len()), (Some(false), 1), "another answer is under way");
    assert_eq!((table.unsent(bits(1)), table.len()), (Some(true), 0));
    open(&table, bits(2), 5_000);
    again(2);
    table.sent(bits(2));
    assert_eq!((table.unsent(bits(2)), table.len()), (Some(false), 1), "somebody was told");
    open(&table, bits(3), 5_000);
    table.complete(bits(3), bytes(9), 5_000, 0);
    assert_eq!(table.unsent(bits(3)), Some(false), "whoever completed it knows of it");
    assert_eq!(table.unsent(bits(4)), None);
}

#[test]
fn another_name_of_a_lease_never_counts_as_unseen() {
    let table = LeaseTable::new(10);
    open(&table, bits(1), 5_000);
    table.open_alias(bits(2), bytes(9), 5_000);
    table.open_alias(bits(1), bytes(3), 5_000);
    assert_eq!(table.find(bits(1)).unwrap().bytes.len(), 9, "what is there stays");
    assert!(table.complete(bits(1), bytes(9), 5_000, 0));
    assert_eq!((table.sweep(5_000), table.len()), (0, 0));
}

#[test]
fn what_ends_first_makes_room() {
    let table = LeaseTable::new(3);
    for (id, ends_ms) in [(1, 30_000), (2, 10_000), (3, 20_000), (4, 40_000)] {
        open(&table, bits(id), ends_ms);
    }
    let there = |id| table.find(bits(id)).is_some();
    assert_eq!([there(1), there(2), there(3), there(4)], [true, false, true, true]);
}

#[test]
fn once_half_full_completed_leases_go_after_a_minute() {
    let table = LeaseTable::new(4);
    for id in 1..=3 {
        open(&table, bits(id), 3_600_000);
    }
    table.complete(bits(1), bytes(9), 3_600_000, 1_000);
    assert_eq!(table.sweep(61_000), 0);
    assert_eq!((table.find(bits(1)), table.len()), (None, 2));
}

#[test]
fn long_leases_weigh_more() {
    let table = LeaseTable::new(4);
    open(&table, bits(1), 1_000);
    open(&table, bits(2), 2_000);
    assert_eq!(table.open(bits(3), bytes(2 * BYTES_PER_PLACE), 3_000, |_| true), Opened::New);
    assert_eq!((table.find(bits(1)), table.len()), (None, 2));
    assert_eq!(table.open(bits(4), bytes(4 * BYTES_PER_PLACE), 9_000, |_| true), Opened::New);
    assert_eq!((table.find(bits(4)), table.len()), (None, 2), "it would never fit");
}

proptest! {
    /// Whatever happens in whatever order, the table agrees with a plain list.
    #[test]
    fn agrees_with_a_list(
        steps in prop::collection::vec((0..4u8, 1..12u128, 1..20u64), 0..200),
    ) {
        let table = LeaseTable::new(1_000);
        let mut list: BTreeMap<u128, (LeaseState, u64)> = BTreeMap::new();
        let mut now_ms = 0;
        for (what, id, seconds) in steps {
            let ends_ms = now_ms + seconds * 1000;
            match what {
                0 => {
                    let there = list.get(&id).map(|(state, _)| *state);
                    prop_assert_eq!(open(&table, bits(id), ends_ms), there);
                    list.entry(id).or_insert((LeaseState::Open, ends_ms));
                }
                1 => {
                    let known = list.get(&id).is_some_and(|(state, _)| *state == LeaseState::Completed);
                    prop_assert_eq!(table.complete(bits(id), bytes(9), ends_ms, now_ms), !known);
                    if !known {
                        list.insert(id, (LeaseState::Completed, ends_ms));
                    }
                }
                2 => prop_assert_eq!(table.find(bits(id)).map(|record| record.state), list.get(&id).map(|(state, _)| *state)),
                _ => {
                    now_ms += seconds * 500;
                    let ended = |ends_ms: u64| ends_ms.next_multiple_of(TICK_MS) <= now_ms;
                    let unseen = list.values().filter(|(s, e)| *s == LeaseState::Open && ended(*e)).count();
                    prop_assert_eq!(table.sweep(now_ms), unseen);
                    list.retain(|_, (_, ends_ms)| !ended(*ends_ms));
                }
            }
            prop_assert_eq!(table.len(), list.len());
        }
    }
}
