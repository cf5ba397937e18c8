//! Tasks with an owner, who is told when a task ends that should not, and who can stop them all.
//!
//! If a task that should run for ever ended unnoticed, by a panic or by returning, the server would look alive and not work.
//! Refuses to know what the tasks do, and what is done when one has ended.

use std::fmt::Display;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// Starts tasks. Every clone starts them for the same owner.
#[derive(Debug, Clone)]
pub struct Tasks {
    tracker: TaskTracker,
    stop: CancellationToken,
    /// Why the first of them ended that should not have.
    failure: watch::Sender<Option<String>>,
    /// Cancelled when the owner is gone: whatever still runs ends where it waits.
    orphaned: CancellationToken,
}

/// Owns tasks: hears of the first that ends, stops them all, and takes them along when it is dropped.
#[derive(Debug)]
pub struct Supervisor {
    tasks: Tasks,
    _orphan_all: DropGuard,
}

impl Tasks {
    /// Runs `task` until the owner stops it. That it ends earlier is a failure.
    pub(crate) fn run_forever(&self, name: &'static str, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.run_until(name, stop.clone(), async move {
            stop.run_until_cancelled(task).await;
            Ok::<(), String>(())
        });
    }

    /// Runs `task`, which ends by itself after `stop` is cancelled. That it ends earlier, or with an error, is a failure.
    pub(crate) fn run_until<E: Display>(
        &self,
        name: &'static str,
        stop: CancellationToken,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        let ending = Ending { tasks: self.clone(), name, reason: Some("it panicked".to_owned()) };
        let orphaned = self.orphaned.clone();
        self.tracker.spawn(async move {
            ending.with(match orphaned.run_until_cancelled(task).await {
                None => None,
                Some(Ok(())) if stop.is_cancelled() => None,
                Some(Ok(())) => Some("it ended".to_owned()),
                Some(Err(error)) => Some(error.to_string()),
            });
        });
    }

    /// Runs `job` to its end, whether or not anybody waits for it; stopping does. A panic is the caller's to hear of.
    pub(crate) fn run_to_the_end<T: Send + 'static>(
        &self,
        job: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn(job)
    }
}

/// Reports how a task ended, also when a panic takes it down.
struct Ending {
    tasks: Tasks,
    name: &'static str,
    /// Why it should not have ended; `None` if it may.
    reason: Option<String>,
}

impl Ending {
    fn with(mut self, reason: Option<String>) {
        self.reason = reason;
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        if let Some(reason) = self.reason.take() {
            let (name, failure) = (self.name, &self.tasks.failure);
            failure.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert_with(|| format!("{name}: {reason}"));
                is_first
            });
        }
    }
}

impl Supervisor {
    pub(crate) fn new() -> Self {
        let orphaned = CancellationToken::new();
        let tasks = Tasks {
            tracker: TaskTracker::new(),
            stop: CancellationToken::new(),
            failure: watch::Sender::new(None),
            orphaned: orphaned.clone(),
        };
        Self { tasks, _orphan_all: orphaned.drop_guard() }
    }

    /// For those who start tasks.
    pub(crate) fn tasks(&self) -> Tasks {
        self.tasks.clone()
    }

    /// Returns when a task has ended that should not have: which, and why.
    pub(crate) async fn failure(&self) -> String {
        let mut failure = self.tasks.failure.subscribe();
        let failed = failure.wait_for(Option::is_some).await.map(|reason| reason.clone());
        failed.ok().flatten().unwrap_or_default()
    }

    /// Stops those that run for ever, and waits for all; false if some had not ended in time. They end with the owner.
    pub(crate) async fn stop(&self, within: Duration) -> bool {
        self.tasks.stop.cancel();
        self.tasks.tracker.close();
        tokio::time::timeout(within, self.tasks.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    async fn failure(supervisor: &Supervisor) -> String {
        tokio::time::timeout(SOON, supervisor.failure()).await.expect("somebody must hear of it")
    }

    #[tokio::test]
    async fn a_task_that_ends_is_heard_of() {
        let supervisor = Supervisor::new();
        supervisor.tasks().run_forever("watcher", async {});
        assert_eq!(failure(&supervisor).await, "watcher: it ended");
        assert_eq!(failure(&supervisor).await, "watcher: it ended", "whoever asks later hears the same");
    }

    #[tokio::test]
    async fn a_task_that_panics_is_heard_of() {
        let supervisor = Supervisor::new();
        supervisor.tasks().run_forever("good", std::future::pending());
        supervisor.tasks().run_forever("worker", async {
            tokio::task::yield_now().await;
            panic!("on purpose");
        });
        assert_eq!(failure(&supervisor).await, "worker: it panicked");
    }

    #[tokio::test]
    async fn an_error_is_told() {
        let supervisor = Supervisor::new();
        let task = async { Err("the port is gone") };
        supervisor.tasks().run_until("grpc", CancellationToken::new(), task);
        assert_eq!(failure(&supervisor).await, "grpc: the port is gone");
    }

    #[tokio::test]
    async fn what_is_stopped_has_not_failed() {
        let supervisor = Supervisor::new();
        let (tasks, stop) = (supervisor.tasks(), CancellationToken::new());
        tasks.run_forever("watcher", std::future::pending());
        tasks.run_until("grpc", stop.clone(), async move {
            stop.cancelled().await;
            Ok::<(), String>(())
        });
        assert!(!supervisor.stop(Duration::from_millis(20)).await, "one has not been stopped");
        assert_eq!(*supervisor.tasks.failure.borrow(), None);
    }

    #[tokio::test]
    async fn stopping_waits_for_jobs() {
        let supervisor = Supervisor::new();
        let (tell, told) = tokio::sync::oneshot::channel::<()>();
        let job = supervisor.tasks().run_to_the_end(async { told.await.is_ok() });
        assert!(!supervisor.stop(Duration::from_millis(20)).await);
        tell.send(()).unwrap();
        assert!(supervisor.stop(SOON).await);
        assert!(job.await.unwrap());
    }

    #[tokio::test]
    async fn no_task_outlives_its_owner() {
        let supervisor = Supervisor::new();
        let (held, gone) = tokio::sync::oneshot::channel::<()>();
        supervisor.tasks().run_until("stubborn", CancellationToken::new(), async move {
            std::future::pending::<()>().await;
            drop(held);
            Ok::<(), String>(())
        });
        drop(supervisor);
        assert!(tokio::time::timeout(SOON, gone).await.expect("it must end").is_err());
    }
}
