//! What the core needs from outside, in a server: the time, names, and a way to wake those who wait.

use tokio::sync::watch;

use crate::clock;
use crate::ledger::slabs::core::Notifier;
use crate::ledger::slabs::limit::Outside;
use crate::limit::LeaseId;

/// The real clock and real names; simulations have others.
pub(super) struct Live;

impl Outside for Live {
    fn now_ms(&mut self) -> u64 {
        clock::monotonic_ms()
    }

    fn fresh_name(&mut self) -> LeaseId {
        LeaseId::fresh(clock::unix_ms(), fastrand::u128(..))
    }
}

/// Those who wait for a limit; made when the first one does.
#[derive(Debug, Default)]
pub(super) struct WatchNotifier(Option<watch::Sender<()>>);

impl Notifier for WatchNotifier {
    type Subscription = watch::Receiver<()>;

    fn subscribe(&mut self) -> Self::Subscription {
        self.0.get_or_insert_with(|| watch::Sender::new(())).subscribe()
    }

    fn notify(&mut self) {
        if let Some(sender) = &self.0 {
            sender.send_replace(());
        }
    }
}
