//! What the core does with all limits at once.

use std::num::NonZeroU32;

use super::*;
use crate::ledger::slabs::limit::tests::At;
use crate::ledger::slabs::returns::ReturnStep;
use crate::ledger::slabs::times::Times;

#[derive(Debug, Default)]
struct Silent;

impl Notifier for Silent {
    type Subscription = ();

    fn subscribe(&mut self) {}

    fn notify(&mut self) {}
}

const LIMIT: LimitId = LimitId::new(7);

fn rules(capacity: u64, window_seconds: u32) -> Rules {
    Rules { capacity, times: Times::of(NonZeroU32::new(window_seconds).unwrap()).unwrap() }
}

/// With a slab of 50 units of a limit of 1,000 in 10 s.
fn with_slab() -> Core<&'static str, Silent> {
    let core = Core::new(SlabUnits::default());
    let need = Need { limit: LIMIT, account: "a", units: 40, rules: rules(1_000, 10) };
    let mut asks = Asks::new();
    let decision = core.request(std::slice::from_ref(&need), false, 0, &mut At(1_000), &mut asks);
    let Decision::Ledger(aside) = decision else { panic!("{decision:?}") };
    core.settle(aside, Settled::Admitted, &mut At(1_001));
    let _ = core.request(&[Need { units: 1, ..need }], false, 0, &mut At(1_002), &mut asks);
    assert_eq!(asks.len(), 1);
    core.took(LIMIT, Took::Units(asks[0].2.amount), &mut At(1_003), &mut Asks::new());
    assert_eq!(core.slabs(), 1);
    core
}

#[test]
fn limits_that_may_have_less_give_back_at_once() {
    let rows = [
        (Some(rules(1_000, 10)), true),
        (Some(rules(5_000, 10)), true),
        (Some(rules(999, 10)), false),
        (Some(rules(1_000, 11)), false),
        (None, false),
    ];
    for (now, keeps) in rows {
        let core = with_slab();
        core.recheck(|account| now.filter(|_| *account == "a"), &mut At(1_004));
        assert_eq!(core.slabs(), usize::from(keeps), "{now:?}");
        let back = core.next_due(&mut At(1_004)).map(|(_, back)| (back.account, back.step));
        assert_eq!(back, (!keeps).then_some(("a", ReturnStep::Void)), "{now:?}");
    }
}

#[test]
fn what_is_still_asked_for_is_given_back_when_it_comes() {
    let core = with_slab();
    let need = Need { limit: LIMIT, account: "a", units: 50, rules: rules(1_000, 10) };
    let mut asks = Asks::new();
    let decision = core.request(&[need], false, 0, &mut At(1_005), &mut asks);
    assert!(matches!(decision, Decision::Admitted), "{decision:?}");
    assert_eq!(asks.len(), 1, "the next one, before this one is spent");
    core.recheck(|_| None, &mut At(1_006));
    core.took(LIMIT, Took::Units(asks[0].2.amount), &mut At(1_007), &mut Asks::new());
    assert_eq!(core.slabs(), 0);
    let unspent = std::iter::from_fn(|| core.next_due(&mut At(1_007)));
    let steps: Vec<ReturnStep> = unspent.map(|(_, back)| back.step).collect();
    assert_eq!(steps, [ReturnStep::Void], "the first one is spent and stays so for its window");
}

/// What the bounds of a core are counted with.
#[test]
fn a_limit_takes_as_much_as_was_counted() {
    let entry = size_of::<(LimitId, LimitEntry<std::sync::Arc<crate::ledger::Account>, Silent>)>();
    assert!(entry <= LIMIT_BYTES, "{entry}");
}
