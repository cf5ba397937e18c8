//! What is noted when a task of this ledger has failed. Until it is back the ledger is not ready.
//!
//! What a task must not lose is owned outside of it, behind a lock that it holds while it runs. A panic loses what was
//! under way: its callers hear so at once, and what may have been reserved for them expires.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::task::JoinError;

use super::session::SessionError;
use super::shared::{Shared, Task};
use crate::ledger::restart;

/// Runs a task until it ends by itself.
pub(super) async fn restart_on_panic<F>(shared: Arc<Shared>, task: Task, run: impl Fn() -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let failed = |error: &JoinError| {
        tracing::error!(?task, %error, "a task of the ledger failed and is started again");
        shared.restarts.fetch_add(1, Ordering::Relaxed);
        shared.set(task.side(), Err(&SessionError::TaskFailed));
        shared.writer_lost.notify_one();
    };
    restart::restart_on_panic(run, failed).await;
}
