//! A future that wakes itself while it is polled is polled again at once.
//!
//! hyper's streams wake themselves whenever they send something. Tokio takes that for a task that yields, and wakes another thread for it,
//! which finds nothing to do. For a stream with few messages that costs more than the message.
//!
//! Refuses to know what the future is for.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::task::AtomicWaker;

/// After so many polls in a row others get their turn.
const POLLS_MAX: usize = 4;

pub(crate) struct Repoll<F> {
    future: Pin<Box<F>>,
    state: Arc<State>,
    waker: Waker,
}

/// No wake is lost. Who wakes sets `is_woken` and then reads `is_polled`; who polls clears `is_polled` and then reads `is_woken`. All of it is
/// sequentially consistent, so at least one of the two sees what the other did: the task is woken, or the future is polled again. A wake
/// between the begin of a poll and the poll itself is forgotten, because that poll sees what it was for.
#[derive(Default)]
struct State {
    is_polled: AtomicBool,
    is_woken: AtomicBool,
    task: AtomicWaker,
}

impl Wake for State {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if !self.is_polled.load(Ordering::SeqCst) {
            self.task.wake();
        }
    }
}

impl<F: Future> Repoll<F> {
    pub(crate) fn new(future: F) -> Self {
        let state = Arc::<State>::default();
        Self { future: Box::pin(future), waker: Waker::from(Arc::clone(&state)), state }
    }
}

impl<F: Future> Future for Repoll<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let Self { future, state, waker } = &mut *self;
        state.task.register(context.waker());
        for _ in 0..POLLS_MAX {
            state.is_polled.store(true, Ordering::SeqCst);
            state.is_woken.store(false, Ordering::SeqCst);
            let polled = future.as_mut().poll(&mut Context::from_waker(waker));
            state.is_polled.store(false, Ordering::SeqCst);
            if polled.is_ready() || !state.is_woken.load(Ordering::SeqCst) {
                return polled;
            }
        }
        context.waker().wake_by_ref();
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// Counts how often its task is woken.
    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes itself in its first `wakes` polls, and is never ready.
    fn polled_and_woken(wakes: usize) -> (usize, usize) {
        let (count, polls) = (Arc::new(Count::default()), Arc::new(AtomicUsize::new(0)));
        let polled = Arc::clone(&polls);
        let future = poll_fn(move |context| {
            if polled.fetch_add(1, Ordering::Relaxed) < wakes {
                context.waker().wake_by_ref();
            }
            Poll::<()>::Pending
        });
        let waker = Waker::from(Arc::clone(&count));
        let mut future = Repoll::new(future);
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        (polls.load(Ordering::Relaxed), count.0.load(Ordering::Relaxed))
    }

    #[test]
    fn who_wakes_itself_is_polled_again_without_waking_its_task() {
        assert_eq!(polled_and_woken(0), (1, 0));
        assert_eq!(polled_and_woken(1), (2, 0));
        assert_eq!(polled_and_woken(3), (4, 0));
        assert_eq!(polled_and_woken(100), (4, 1), "others get their turn");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_wake_of_another_thread_is_never_lost() {
        for _ in 0..200 {
            let (sender, mut receiver) = tokio::sync::mpsc::channel::<u64>(1);
            let reading = tokio::spawn(Repoll::new(async move {
                let mut sum = 0;
                while let Some(number) = receiver.recv().await {
                    sum += number;
                }
                sum
            }));
            for number in 0..50 {
                sender.send(number).await.unwrap();
            }
            drop(sender);
            assert_eq!(reading.await.unwrap(), (0..50).sum::<u64>());
        }
    }
}
