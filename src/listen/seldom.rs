//! A future that is seldom ready, beside one that often is.
//!
//! Both are in one task, and whenever the task is woken, both would be polled. This one is polled only after it was woken itself. A
//! connection would otherwise ask with every call whether it has to end, which happens once.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use parking_lot::Mutex;

pub(crate) struct Seldom<F> {
    future: Pin<Box<F>>,
    news: Arc<News>,
    waker: Waker,
    /// A copy of the waker in `news`, because comparing with that one would take a lock.
    task: Option<Waker>,
}

/// Whether the future was woken since it was last polled, and the task that has to hear of it.
struct News {
    is_there: AtomicBool,
    /// A plain mutex: a section wakes a task at most.
    task: Mutex<Option<Waker>>,
}

impl Wake for News {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    /// The flag before the task: whoever is woken sees it.
    fn wake_by_ref(self: &Arc<Self>) {
        self.is_there.store(true, Ordering::Release);
        self.task.lock().iter().for_each(Waker::wake_by_ref);
    }
}

impl<F: Future> Seldom<F> {
    pub(crate) fn new(future: F) -> Self {
        let news = Arc::new(News { is_there: AtomicBool::new(true), task: Mutex::default() });
        Self { future: Box::pin(future), waker: Waker::from(Arc::clone(&news)), news, task: None }
    }

    /// The next poll polls the future, whether it was woken or not: one that was ready and can be ready again.
    pub(crate) fn again(&mut self) {
        self.news.is_there.store(true, Ordering::Release);
    }
}

impl<F: Future> Future for Seldom<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if !this.task.as_ref().is_some_and(|task| task.will_wake(context.waker())) {
            this.task = Some(context.waker().clone());
            // The task before the flag: of news that come between the two, the flag is seen below.
            this.news.task.lock().clone_from(&this.task);
        }
        // Before the future is polled: news that come from here on are for the next time.
        if !this.news.is_there.load(Ordering::Relaxed) || !this.news.is_there.swap(false, Ordering::AcqRel) {
            return Poll::Pending;
        }
        this.future.as_mut().poll(&mut Context::from_waker(&this.waker))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use tokio::sync::Notify;

    use super::*;

    /// A task that counts how often it is woken.
    #[derive(Default)]
    struct Task(AtomicUsize);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn it_is_polled_only_after_it_was_woken() {
        let (polls, notify) = (AtomicUsize::new(0), Notify::new());
        let mut twice = std::pin::pin!(async {
            notify.notified().await;
            notify.notified().await;
        });
        let mut seldom = std::pin::pin!(Seldom::new(std::future::poll_fn(|context| {
            polls.fetch_add(1, Ordering::Relaxed);
            twice.as_mut().poll(context)
        })));
        let tasks = [Arc::new(Task::default()), Arc::new(Task::default())];
        let mut poll = |task: &Arc<Task>| {
            let waker = Waker::from(Arc::clone(task));
            seldom.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        let woken = || tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        for _ in 0..3 {
            assert!(!poll(&tasks[0]));
        }
        assert_eq!((polls.load(Ordering::Relaxed), woken()), (1, [0, 0]));
        notify.notify_one();
        assert_eq!(woken(), [1, 0]);
        assert!(!poll(&tasks[0]) && !poll(&tasks[0]));
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        assert!(!poll(&tasks[1]), "another task has it now");
        assert_eq!(polls.load(Ordering::Relaxed), 2);
        notify.notify_one();
        assert_eq!(woken(), [1, 1]);
        assert!(poll(&tasks[1]));
        assert_eq!(polls.load(Ordering::Relaxed), 3);
    }
}
