//! What becomes of a task that panics.

use super::guards::{Returning, Taking};
use super::*;
use crate::ledger::memory::Memory;
use crate::ledger::slabs::core::Need;
use crate::ledger::slabs::limit::{Rules, Took};
use crate::ledger::slabs::returns::Landed;
use crate::ledger::slabs::times::Times;
use crate::limit::LimitKey;

/// A layer that asks for a slab of 50 units, and its limit.
fn asking() -> (Arc<Shared<Memory>>, Need<Arc<Account>>) {
    let shared = Arc::new(Shared::new(
        Memory::default(),
        true,
        Duration::from_secs(1),
        Arc::default(),
        Default::default(),
    ));
    let account = Arc::new(Account::new(LimitKey::new("a")));
    let times = Times::of(NonZeroU32::new(60).unwrap()).unwrap();
    let need = Need { limit: account.id, account, units: 40, rules: Rules { capacity: 1_000, times } };
    let ask = |need: &Need<_>, asks: &mut _| {
        shared.core.request(std::slice::from_ref(need), false, 0, &mut Live, asks)
    };
    let Decision::Ledger(aside) = ask(&need, &mut Asks::new()) else { panic!("there is no slab yet") };
    shared.core.settle(aside, Settled::Admitted, &mut Live);
    let mut asks = Asks::new();
    drop(ask(&need, &mut asks));
    assert_eq!((asks.len(), asks[0].2.amount), (1, 50));
    assert!(!shared.core.is_settled());
    (shared, need)
}

/// A task that holds this panics.
async fn panic_with(held: impl Send + 'static) {
    let task = tokio::spawn(async move {
        let _held = held;
        panic!("on purpose");
    });
    assert!(task.await.unwrap_err().is_panic());
}

#[tokio::test]
async fn a_limit_asks_again_when_the_task_that_asked_has_panicked() {
    let (shared, need) = asking();
    panic_with(Taking { shared: Arc::clone(&shared), limit: need.limit, took: Took::Nothing }).await;
    assert!(shared.core.is_settled(), "it must not wait for an answer that never comes");
    assert_eq!(shared.metrics.slab_panics.get(), 1);
}

#[tokio::test]
async fn what_is_given_back_by_a_task_that_panics_is_given_back_again() {
    let (shared, need) = asking();
    shared.core.took(need.limit, Took::Units(50), &mut Live, &mut Asks::new());
    shared.core.close(&mut Live, |_| true);
    let (number, _) = shared.core.next_due(&mut Live).expect("nobody has spent the slab");
    panic_with(Returning { shared: Arc::clone(&shared), number, landed: Landed::Failed }).await;
    assert!(!shared.core.is_settled(), "it must not count as given back");
    assert!(shared.core.next_due_ms().is_some(), "and must be sent again");
    assert_eq!(shared.metrics.slab_panics.get(), 1);
}
