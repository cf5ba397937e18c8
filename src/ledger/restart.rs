//! A task of a ledger that panics is started again.
//!
//! Refuses to know what a task does, and what has to be noted when it has failed.

use tokio::task::JoinError;

use crate::retry::backoff::Backoff;

/// Runs a task until it ends by itself. After a panic `failed` is called, and the task is started again a moment later.
pub(super) async fn restart_on_panic<F>(task: impl Fn() -> F, failed: impl Fn(&JoinError))
where
    F: Future<Output: Send> + Send + 'static,
{
    let mut backoff = Backoff::default();
    while let Err(error) = tokio::spawn(task()).await {
        if error.is_cancelled() {
            return;
        }
        failed(&error);
        tokio::time::sleep(backoff.wait(|n| fastrand::u64(0..=n))).await;
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test]
    async fn a_task_is_started_until_it_ends_by_itself() {
        let (starts, failures) = (Cell::new(0), Cell::new(0));
        let task = || {
            let start = starts.replace(starts.get() + 1);
            async move { assert!(start >= 2, "on purpose") }
        };
        restart_on_panic(task, |_| failures.set(failures.get() + 1)).await;
        assert_eq!((starts.get(), failures.get()), (3, 2));
    }
}
